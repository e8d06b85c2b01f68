"""Completion and inspection in ``%%ddp`` cells, by the names that live in a rank.

Runs in: the notebook's process, thread of whoever asks: the kernel's main thread or a subshell's.

    Tab --> kernel.do_complete --> complete --> Pool.talk --> nbddp-side of the rank
                                      |
                                      +--> None: the notebook's own completer, as ever

Whatever goes wrong here, nobody is told: who pressed Tab gets what the notebook itself knows.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from msgspec.structs import replace

from nbddp.controller.hub.queries import RankQueries
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.magics import auto_mode
from nbddp.notebook.magics.cell_line import CELL, parse_cell
from nbddp.notebook.magics.verbs import VERBS
from nbddp.wire.messages import Completed, Inspected
from nbddp.wire.rank_set import RankSet

#: A rank that has not answered by then is not waited for.
LIMIT_S = 0.25

#: The line of the magic, and what IPython lets stand in front of it.
_CELL_LINE = re.compile(r"\s*%%ddp(?=\s|\Z)(?P<words>[^\n]*)(?P<end>\n|\Z)")
_LINE = re.compile(r"\s*(?:[\w, ]+=\s*)?%ddp(?:[ \t]+(?P<words>.*))?\Z")
_MAGIC = re.compile(r"\s*(?:[\w, ]+=\s*)?(?P<name>%%?\w*)\Z")
_TYPES_KEY = "_jupyter_types_experimental"


@dataclass(frozen=True)
class Body:
    """The part of a cell that runs on ranks."""

    start: int  #: in code points from the beginning of the cell
    words: str = ""  #: behind ``%%ddp``


def is_distributed(code: str) -> Body | None:
    """What of a cell runs on ranks; None: nothing."""
    found = _CELL_LINE.match(code)
    if found is not None:
        # Without a line end behind it, the cursor is still on the line of the magic.
        return Body(found.end() + (not found["end"]), found["words"])
    options = auto_mode.options_for(code)
    return None if options is None else Body(0, options)


def complete(code: str, cursor: int) -> Completed | None:
    """What may stand at ``cursor`` (in code points), as ``complete_reply`` tells it.

    Returns:
        None: that is the notebook's own business, or the rank did not answer in time.
    """
    try:
        return _complete(code, cursor)
    except Exception:  # noqa: BLE001 - see the module's docstring
        return None


def inspect(code: str, cursor: int, detail_level: int = 0) -> Inspected | None:
    """What stands at ``cursor``, as ``inspect_reply`` tells it; None as in `complete`."""
    try:
        body = is_distributed(code)
        if body is None or cursor < body.start:
            return None
        asked = _asked(body)
        if asked is None:
            return None
        talk, rank = asked
        shifted = code[body.start :], cursor - body.start
        return talk.inspect(rank, *shifted, detail_level, LIMIT_S)
    except Exception:  # noqa: BLE001 - likewise
        return None


def _complete(code: str, cursor: int) -> Completed | None:
    line = code[code.rfind("\n", 0, cursor) + 1 : cursor]
    body = is_distributed(code)
    if body is not None and cursor < body.start:
        return _complete_line(line, "%%ddp", cursor)
    if (found := _LINE.match(line)) is not None and found["words"] is not None:
        return _complete_line(line, "%ddp", cursor)
    if body is None:
        return None
    answer = _ask(body, code[body.start :], cursor - body.start, body.start)
    magic = _MAGIC.match(line)
    if answer is None or magic is None:
        return answer
    return _with_magics(answer, magic["name"], cursor)


def _ask(body: Body, code: str, cursor: int, start: int) -> Completed | None:
    """What a rank says about ``code``, which begins at ``start``."""
    asked = _asked(body)
    if asked is None:
        return None
    talk, rank = asked
    answer = talk.complete(rank, code, cursor, LIMIT_S)
    return None if answer is None else _shifted(answer, start)


def _with_magics(answer: Completed, name: str, cursor: int) -> Completed:
    """What a rank says, and the magics of the notebook: they work in a cell of auto mode, too."""
    shell = get_ipython()
    start = cursor - len(name)
    if shell is None or (answer.matches and answer.start != start):
        return answer
    registered = shell.magics_manager.lsmagic()
    own = {f"%%{each}" for each in registered["cell"]}
    own |= {f"%{each}" for each in registered["line"] if not name.startswith("%%")}
    bare = name.lstrip("%")
    # Those into which auto mode and the console turn cells are not for users.
    own = {each for each in own if each.lstrip("%").startswith(bare)} - {
        "%%_ddp_auto",
        "%%_ddp_console",
    }
    types = [_type_of(each, start, cursor) for each in own.difference(answer.matches)]
    return replace(
        answer,
        matches=tuple(sorted({*answer.matches, *own}, key=_bare_first)),
        start=start,
        end=cursor,
        metadata={_TYPES_KEY: [*answer.metadata.get(_TYPES_KEY, []), *types]},
    )


def _bare_first(magic: str) -> tuple[str, int]:
    """IPython's order: ``%time``, ``%%time``, ``%timeit``."""
    bare = magic.lstrip("%")
    return bare, len(magic) - len(bare)


def _type_of(magic: str, start: int, end: int) -> dict[str, Any]:
    return {"start": start, "end": end, "text": magic, "type": "magic", "signature": ""}


def _asked(body: Body) -> tuple[RankQueries, int] | None:
    """The first rank on which the cell would run, if it can answer."""
    pool = session.current_pool()
    if pool is None:
        return None
    ranks = pool.all_ranks
    try:
        text = parse_cell(body.words).ranks
        ranks = ranks if text is None else RankSet.parse(text, pool.world_size)
    except BadOptionError:
        pass  # the line is still being written
    living = pool.snapshot.in_state(RankState.IDLE, RankState.BUSY)
    return (pool.talk, ranks.ranks[0]) if ranks and ranks.ranks[0] in living else None


def _shifted(answer: Completed, by: int) -> Completed:
    """From places in what the rank got to places in the cell."""
    types = answer.metadata.get(_TYPES_KEY, [])
    moved = [each | {"start": each["start"] + by, "end": each["end"] + by} for each in types]
    return replace(
        answer, start=answer.start + by, end=answer.end + by, metadata={_TYPES_KEY: moved}
    )


# --- the words of the magics -------------------------------------------------------------------


def _complete_line(line: str, magic: str, cursor: int) -> Completed | None:
    """Verbs, options, their values, and names: what the table of verbs knows."""
    *before, word = line.partition(magic)[2].split(" ")
    if not before:
        return None  # the cursor is at the magic's own name
    before = [each for each in before if each]
    start = cursor - len(word)
    legal: Iterable[str]
    if magic == "%ddp" and not before:
        legal = VERBS
    elif magic == "%%ddp":
        legal = CELL.parser.completions(before)
    elif (verb := VERBS.get(before[0])) is None:
        legal = ()
    elif not verb.takes or word.startswith("-") or verb.parser.awaits_value(before[1:]):
        legal = verb.parser.completions(before[1:])
    elif verb.takes == "names of ranks":
        return _ask(Body(0), word, len(word), start)
    else:
        legal = sorted(_own_names())
    matches = tuple(each for each in legal if each.startswith(word))
    types = [_type_of(each, start, cursor) for each in matches]
    return Completed(
        number=0, rank=0, matches=matches, start=start, end=cursor, metadata={_TYPES_KEY: types}
    )


def _own_names() -> list[str]:
    """Variables of the notebook."""
    shell = get_ipython()
    hidden = {} if shell is None else shell.user_ns_hidden
    names = {} if shell is None else shell.user_ns
    return [name for name in names if name not in hidden and not name.startswith("_")]


# --- into IPython and its kernel ---------------------------------------------------------------


def install(shell: InteractiveShell) -> None:
    """From now on Tab and Shift-Tab ask here first.

    A kernel is asked where its front end asks it: the notebook's own names stay out of a cell in
    which they do not exist. Elsewhere (``ipython`` in a terminal) IPython's completer has a hook.
    """
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        if _match not in shell.Completer.custom_matchers:
            shell.Completer.custom_matchers.append(_match)
        return
    uninstall(shell)
    kernel.do_complete = partial(_do_complete, kernel.do_complete)
    kernel.do_inspect = partial(_do_inspect, kernel.do_inspect)


def uninstall(shell: InteractiveShell) -> None:
    """Everything as it was before `install`."""
    if _match in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(_match)
    kernel = getattr(shell, "kernel", None)
    for name, ours in (("do_complete", _do_complete), ("do_inspect", _do_inspect)):
        placed = vars(kernel).get(name) if kernel is not None else None
        if isinstance(placed, partial) and placed.func is ours:
            delattr(kernel, name)


def _do_complete(own: Callable[..., Any], code: str, cursor_pos: int | None = None) -> Any:
    """`Kernel.do_complete`; ``own`` is what the kernel does by itself."""
    found = complete(code, len(code) if cursor_pos is None else cursor_pos)
    if found is None:
        return own(code, cursor_pos)
    return {
        "status": "ok",
        "matches": list(found.matches),
        "cursor_start": found.start,
        "cursor_end": found.end,
        "metadata": found.metadata,
    }


def _do_inspect(
    own: Callable[..., Any], code: str, cursor_pos: int, detail_level: int = 0, *rest: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """`Kernel.do_inspect`; likewise."""
    found = inspect(code, cursor_pos, detail_level)
    if found is None:
        return own(code, cursor_pos, detail_level, *rest, **options)
    return {"status": "ok", "found": found.found, "data": found.data, "metadata": found.metadata}


@context_matcher(identifier="nbddp", priority=1000)  # type: ignore[untyped-decorator]  # IPython's
def _match(context: CompletionContext) -> SimpleMatcherResult:
    """For IPython's completer: nothing of its own stands beside what a rank says."""
    lines = context.full_text.split("\n")[: context.cursor_line]
    cursor = sum(len(line) + 1 for line in lines) + context.cursor_position
    found = complete(context.full_text, cursor)
    if found is None or not found.matches:
        return SimpleMatcherResult(completions=[], suppress=False)
    return SimpleMatcherResult(
        completions=[SimpleCompletion(text=each) for each in found.matches],
        suppress=True,
        matched_fragment=context.full_text[found.start : cursor],
        ordered=True,
    )
