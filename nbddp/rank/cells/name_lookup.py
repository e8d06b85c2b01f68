"""Completion and inspection by the living names of a rank.

Runs in: the rank process, thread ``nbddp-side``, while the main thread may be inside a cell: names
are copied before they are looked through, and nothing of the user's is called.

Without jedi. It took up to a second for the names of torch, where `dir` takes a millisecond, and
the objects are here: what it would infer from source can be looked at.
"""

import io
import keyword
import queue
import threading
import time
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from IPython.core import guarded_eval
from IPython.core.completer import Completion, provisionalcompleter, rectify_completions
from IPython.utils.tokenutil import token_at_cursor
from torch import nn

from nbddp.rank.agent_link import Link
from nbddp.rank.cells.shell import RankShell
from nbddp.rank.user_code_context import Question
from nbddp.wire.messages import Complete, Completed, Inspect, Inspected
from nbddp.wire.rank_set import RankSet

#: Where ipykernel tells what kind of thing each match is.
_TYPES_KEY = "_jupyter_types_experimental"
#: IPython never gets attributes of objects with a `__getattr__` of their own. That of a module
#: gives its parameters and sub-modules, and runs no code of the user's.
_MODULES = (nn.Module,)
_MODULE_CONTAINERS: tuple[Any, ...] = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.ParameterList,
)
#: What stands behind one of these is a name from now on.
_BINDING_WORDS = frozenset({"as", "class", "def", "for", "global", "import"})


def prepare(shell: RankShell) -> None:
    """Teach IPython's completer about this process. Once."""
    shell.Completer.use_jedi = False
    policy = guarded_eval.EVALUATION_POLICIES["limited"]
    if isinstance(policy, guarded_eval.SelectivePolicy):
        policy.allowed_getattr = {*policy.allowed_getattr, *_MODULES}
        policy.allowed_getitem = {*policy.allowed_getitem, *_MODULE_CONTAINERS}


def answer(shell: RankShell, question: Complete | Inspect) -> Completed | Inspected:
    """What IPython says."""
    if isinstance(question, Complete):
        return _complete(shell, question)
    return _inspect(shell, question)


def nothing(rank: int, question: Complete | Inspect) -> Completed | Inspected:
    """There is nothing at the cursor."""
    if isinstance(question, Inspect):
        return Inspected(number=question.number, rank=rank, found=False, data={}, metadata={})
    cursor = question.cursor
    return Completed(
        number=question.number, rank=rank, matches=(), start=cursor, end=cursor, metadata={}
    )


def _complete(shell: RankShell, question: Complete) -> Completed | Inspected:
    # What stands behind the cursor is not looked at, and would confuse IPython 8.
    code, cursor = question.code[: question.cursor], question.cursor
    completer = shell.Completer
    # Not the dict itself: the main thread may put names into it meanwhile.
    completer.namespace = names = dict(shell.user_ns)
    completer.global_namespace = {}
    with provisionalcompleter():
        found = list(rectify_completions(code, completer.completions(code, cursor)))
        found += _names_of_the_cell(code, cursor, found, names)
    if not found:
        return nothing(shell.rank, question)
    return Completed(
        number=question.number,
        rank=shell.rank,
        matches=tuple(match.text for match in found),
        start=found[0].start,
        end=found[0].end,
        metadata={
            _TYPES_KEY: [
                {
                    "start": match.start,
                    "end": match.end,
                    "text": match.text,
                    "type": match.type,
                    "signature": match.signature,
                }
                for match in found
            ]
        },
    )


def _names_of_the_cell(
    code: str, cursor: int, found: list[Completion], names: dict[str, object]
) -> Iterator[Completion]:
    """Names that the cell binds above the cursor, and that do not exist yet."""
    start = cursor
    while start > 0 and (code[start - 1].isalnum() or code[start - 1] == "_"):
        start -= 1
    word = code[start:cursor]
    if not word or not word.isidentifier() or code[:start].rstrip(" ").endswith((".", "%", "!")):
        return
    if found and (found[0].start, found[0].end) != (start, cursor):
        return  # a path, a key of a dict: no place for a name
    known = {match.text for match in found}
    for name in sorted(set(_bound_names(code[:start])) - known - names.keys()):
        if name.startswith(word):
            yield Completion(start, cursor, name, type="variable")


def _bound_names(code: str) -> Iterator[str]:
    """What is assigned, defined or imported, as far as ``code`` can be read."""
    before = name = ""
    depth = 0
    with suppress(tokenize.TokenError, SyntaxError):  # the cell is being written
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            text = token.string
            depth += (text in "([{") - (text in ")]}") if token.type == tokenize.OP else 0
            if token.type == tokenize.NAME and not keyword.iskeyword(text):
                name = "" if before == "." else text
                if before in _BINDING_WORDS:
                    yield text
            elif (
                token.type == tokenize.OP and name and depth == 0 and text in ("=", ",", ":", ":=")
            ):
                yield name
                name = ""
            else:
                name = ""
            before = text


def _inspect(shell: RankShell, question: Inspect) -> Completed | Inspected:
    try:
        name = token_at_cursor(question.code, question.cursor)
        data = shell.object_inspect_mime(name, detail_level=question.detail_level)
    except (KeyError, SyntaxError, tokenize.TokenError):
        return nothing(shell.rank, question)
    data.pop("text/html", None)  # as ipykernel does: its front ends read the other
    return Inspected(
        number=question.number, rank=shell.rank, found=bool(data), data=data, metadata={}
    )


# --- the thread ----------------------------------------------------------------------------------


#: Nobody waits longer than that for an answer.
_STALE_S = 1.0


class NameLookupThread:
    """Takes questions from the I/O thread."""

    def __init__(self, shell: RankShell, link: Link) -> None:
        self._shell = shell
        self._link = link
        self._questions: queue.SimpleQueue[tuple[float, Complete | Inspect]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, question: Complete | Inspect) -> None:
        """Answer it soon. Called by the I/O thread."""
        self._questions.put((time.monotonic(), question))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="nbddp-side", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        prepare(self._shell)
        looks = Question(RankSet.of([self._shell.rank]))
        while True:
            asked_at, question = self._questions.get()
            if time.monotonic() - asked_at > _STALE_S:
                continue
            try:
                with self._shell.callbacks.asked(looks):
                    reply = answer(self._shell, question)
                self._link.send(reply)
            except Exception:  # noqa: BLE001 - of the user's objects, or of IPython
                # Silently: who pressed Tab has asked for names, not for a traceback in a cell.
                self._link.send(nothing(self._shell.rank, question))
