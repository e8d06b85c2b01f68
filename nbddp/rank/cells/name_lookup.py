"""Completion and inspection by the living names of a rank.

Runs in: the rank process, thread ``nbddp-side``, while the main thread may be inside a cell: names
are copied before they are searched, and no user code is called.

jedi is not used. It took up to a second for the names of torch, where `dir` takes a millisecond,
and the living objects have the facts that jedi would infer from source.
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
from nbddp.rank.cells.glances import NoGlanceError, glance
from nbddp.rank.cells.shell import RankShell
from nbddp.rank.user_code_context import Question
from nbddp.wire.messages import MATCH_TYPES_KEY, Complete, Completed, Inspect, Inspected
from nbddp.wire.rank_set import RankSet

#: IPython never gets attributes of objects with a `__getattr__` of their own. The one of a module
#: returns its parameters and sub-modules, and runs no user code.
_MODULES = (nn.Module,)
_MODULE_CONTAINERS: tuple[Any, ...] = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.ParameterList,
)
#: A word after one of these becomes a name.
_BINDING_WORDS = frozenset({"as", "class", "def", "for", "global", "import"})


def prepare(shell: RankShell) -> None:
    """Configure IPython's completer for this process. Call this once."""
    shell.Completer.use_jedi = False
    policy = guarded_eval.EVALUATION_POLICIES["limited"]
    if isinstance(policy, guarded_eval.SelectivePolicy):
        policy.allowed_getattr = {*policy.allowed_getattr, *_MODULES}
        policy.allowed_getitem = {*policy.allowed_getitem, *_MODULE_CONTAINERS}


def answer(shell: RankShell, question: Complete | Inspect) -> Completed | Inspected:
    """Return the answer of IPython."""
    if isinstance(question, Complete):
        return _complete(shell, question)
    return _inspect(shell, question)


def empty_answer(rank: int, question: Complete | Inspect) -> Completed | Inspected:
    """Return the answer that there is nothing at the cursor."""
    if isinstance(question, Inspect):
        return Inspected(number=question.number, rank=rank, found=False, data={}, metadata={})
    cursor = question.cursor
    return Completed(
        number=question.number, rank=rank, matches=(), start=cursor, end=cursor, metadata={}
    )


def _complete(shell: RankShell, question: Complete) -> Completed | Inspected:
    # The text behind the cursor is not used, and would confuse IPython 8.
    code, cursor = question.code[: question.cursor], question.cursor
    completer = shell.Completer
    # This is a copy, because the main thread may add names to the dict meanwhile.
    completer.namespace = names = dict(shell.user_ns)
    completer.global_namespace = {}
    with provisionalcompleter():
        matches = list(rectify_completions(code, completer.completions(code, cursor)))
        matches += _names_of_cell(code, cursor, matches, names)
    if not matches:
        return empty_answer(shell.rank, question)
    return Completed(
        number=question.number,
        rank=shell.rank,
        matches=tuple(match.text for match in matches),
        start=matches[0].start,
        end=matches[0].end,
        metadata={
            MATCH_TYPES_KEY: [
                {
                    "start": match.start,
                    "end": match.end,
                    "text": match.text,
                    "type": match.type,
                    "signature": match.signature,
                }
                for match in matches
            ]
        },
    )


def _names_of_cell(
    code: str, cursor: int, matches: list[Completion], names: dict[str, object]
) -> Iterator[Completion]:
    """Yield names that the cell binds above the cursor, and that do not exist yet."""
    start = cursor
    while start > 0 and (code[start - 1].isalnum() or code[start - 1] == "_"):
        start -= 1
    word = code[start:cursor]
    if not word or not word.isidentifier() or code[:start].rstrip(" ").endswith((".", "%", "!")):
        return
    if matches and (matches[0].start, matches[0].end) != (start, cursor):
        return  # the matches are paths or keys of a dict, where no name can stand
    texts = {match.text for match in matches}
    for name in sorted(set(_bound_names(code[:start])) - texts - names.keys()):
        if name.startswith(word):
            yield Completion(start, cursor, name, type="variable")


def _bound_names(code: str) -> Iterator[str]:
    """Yield names that are assigned, defined or imported, as far as ``code`` can be parsed."""
    before = name = ""
    depth = 0
    with suppress(tokenize.TokenError, SyntaxError):  # the cell is not complete yet
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
        if question.is_glance:
            text = glance(shell, question.code)
            return Inspected(
                number=question.number,
                rank=shell.rank,
                found=True,
                data={"text/plain": text},
                metadata={},
            )
        name = token_at_cursor(question.code, question.cursor)
        data = shell.object_inspect_mime(name, detail_level=question.detail_level)
    except (KeyError, NoGlanceError, SyntaxError, tokenize.TokenError):
        return empty_answer(shell.rank, question)
    data.pop("text/html", None)  # as ipykernel does: its front ends read the text
    return Inspected(
        number=question.number, rank=shell.rank, found=bool(data), data=data, metadata={}
    )


# --- the thread ----------------------------------------------------------------------------------


#: A question that has waited this long is not answered, because no front end waits longer.
_STALE_S = 1.0


class NameLookupThread:
    """Answers questions that the I/O thread puts into a queue."""

    def __init__(self, shell: RankShell, link: Link) -> None:
        self._shell = shell
        self._link = link
        self._questions: queue.SimpleQueue[tuple[float, Complete | Inspect]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, question: Complete | Inspect) -> None:
        """Queue a question. Called by the I/O thread."""
        self._questions.put((time.monotonic(), question))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="nbddp-side", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        prepare(self._shell)
        query = Question(RankSet.of([self._shell.rank]), "lookup")
        while True:
            asked_at, question = self._questions.get()
            if time.monotonic() - asked_at > _STALE_S:
                continue
            try:
                with self._shell.callbacks.answering(query):
                    reply = answer(self._shell, question)
                self._link.send(reply)
            except Exception:  # noqa: BLE001 - the user's objects and IPython may raise anything
                # Not shown: a user who presses Tab asks for names, not for a traceback in a cell.
                self._link.send(empty_answer(self._shell.rank, question))
