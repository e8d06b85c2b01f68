"""Completion and inspection in ``%%ddp`` cells, by the names that live in a rank.

Runs in: the notebook's process, in the thread that asks: the kernel's main thread or a subshell's.

    Tab --> kernel.do_complete --> complete --> Pool.talk --> I/O thread of the rank
                                      |
                                      +--> None: the notebook's own completer

An error here is not shown: the user who pressed Tab then gets the completions of the notebook.
"""

import re
from collections.abc import Callable, Iterable, Sequence
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

from nbddp.controller.hub import RankRequests
from nbddp.controller.state import RankState
from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.magics import auto_mode
from nbddp.notebook.magics.cell_line import CELL, parse_cell
from nbddp.notebook.magics.verbs import VERBS
from nbddp.wire.mesh_ranks import mesh_names, offers
from nbddp.wire.messages import MATCH_TYPES_KEY, Completed, Inspected

#: Seconds after which a rank is not waited for any longer.
LIMIT_S = 0.25

#: The line of a magic, and the text that IPython allows in front of it.
_CELL_LINE = re.compile(r"(?:\s*#[^\n]*\n)*\s*%%ddp(?=\s|\Z)(?P<words>[^\n]*)(?P<end>\n|\Z)")
_LINE = re.compile(r"\s*(?:[\w, ]+=\s*)?%ddp(?:[ \t]+(?P<words>.*))?\Z")
_MAGIC = re.compile(r"\s*(?:[\w, ]+=\s*)?(?P<name>%%?\w*)\Z")


@dataclass(frozen=True)
class Body:
    """The part of a cell that runs on ranks."""

    start: int  #: in code points from the beginning of the cell
    words: str = ""  #: the options behind ``%%ddp``


def distributed_body(code: str) -> Body | None:
    """The part of a cell that runs on ranks; None: there is none."""
    cell_line = _CELL_LINE.match(code)
    if cell_line is not None:
        # A missing line end means that the cursor is still on the line of the magic.
        return Body(cell_line.end() + (not cell_line["end"]), cell_line["words"])
    options = auto_mode.options_for(code)
    return None if options is None else Body(0, options)


def complete(code: str, cursor: int) -> Completed | None:
    """The completions at a place of a cell, as in a ``complete_reply``.

    Args:
        code: the cell.
        cursor: the place, in code points.

    Returns:
        None: the place is not on ranks, or the rank did not answer in time.
    """
    try:
        return _complete(code, cursor)
    except Exception:  # noqa: BLE001 - see the module's docstring
        return None


def inspect(code: str, cursor: int, detail_level: int = 0) -> Inspected | None:
    """The documentation of the name at a place of a cell, as in an ``inspect_reply``.

    Args:
        code: the cell.
        cursor: the place, in code points.
        detail_level: 1 asks for the source, too.

    Returns:
        None: the place is not on ranks, or the rank did not answer in time.
    """
    try:
        body = distributed_body(code)
        if body is None or cursor < body.start:
            return None
        target = _target_rank(body)
        if target is None:
            return None
        talk, rank = target
        shifted = code[body.start :], cursor - body.start
        return talk.inspect(rank, *shifted, detail_level, LIMIT_S)
    except Exception:  # noqa: BLE001 - as above
        return None


def _complete(code: str, cursor: int) -> Completed | None:
    line = code[code.rfind("\n", 0, cursor) + 1 : cursor]
    body = distributed_body(code)
    if body is not None and cursor < body.start:
        return _complete_line(line, "%%ddp", cursor)
    if (magic_line := _LINE.match(line)) is not None and magic_line["words"] is not None:
        return _complete_line(line, "%ddp", cursor)
    if body is None:
        return None
    completed = _complete_on_rank(body, code[body.start :], cursor - body.start, body.start)
    magic = _MAGIC.match(line)
    if completed is None or magic is None:
        return completed
    return _add_magics(completed, magic["name"], cursor)


def _complete_on_rank(body: Body, code: str, cursor: int, start: int) -> Completed | None:
    """The completions of a rank, moved to places of the cell.

    Args:
        body: selects the rank.
        code: a part of the cell.
        cursor: a place in ``code``.
        start: the place of ``code`` in the cell.
    """
    target = _target_rank(body)
    if target is None:
        return None
    talk, rank = target
    completed = talk.complete(rank, code, cursor, LIMIT_S)
    return None if completed is None else _shift(completed, start)


def _add_magics(completed: Completed, name: str, cursor: int) -> Completed:
    """Add the magics of the notebook to a rank's completions: they work in auto mode, too."""
    shell = get_ipython()
    start = cursor - len(name)
    if shell is None or (completed.matches and completed.start != start):
        return completed
    registered = shell.magics_manager.lsmagic()
    magics = {f"%%{magic}" for magic in registered["cell"]}
    magics |= {f"%{magic}" for magic in registered["line"] if not name.startswith("%%")}
    prefix = name.lstrip("%")
    # Users never type the magics into which auto mode and the console turn cells.
    magics = {magic for magic in magics if magic.lstrip("%").startswith(prefix)} - {
        "%%_ddp_auto",
        "%%_ddp_console",
    }
    types = [_type_info(magic, start, cursor) for magic in magics.difference(completed.matches)]
    return replace(
        completed,
        matches=tuple(sorted({*completed.matches, *magics}, key=_magic_order)),
        start=start,
        end=cursor,
        metadata={MATCH_TYPES_KEY: [*completed.metadata.get(MATCH_TYPES_KEY, []), *types]},
    )


def _magic_order(magic: str) -> tuple[str, int]:
    """A key for IPython's order of magics: ``%time``, ``%%time``, ``%timeit``."""
    name = magic.lstrip("%")
    return name, len(magic) - len(name)


def _type_info(magic: str, start: int, end: int) -> dict[str, Any]:
    return {"start": start, "end": end, "text": magic, "type": "magic", "signature": ""}


def _target_rank(body: Body) -> tuple[RankRequests, int] | None:
    """The first rank on which the cell would run; None if it cannot answer."""
    pool = session.current_pool()
    if pool is None:
        return None
    ranks = pool.all_ranks
    try:
        text = parse_cell(body.words).ranks
        ranks = ranks if text is None else pool.rank_set(text)
    except BadOptionError:
        pass  # the user still writes the line
    living_ranks = pool.snapshot.in_state(RankState.IDLE, RankState.BUSY)
    return (pool.talk, ranks.ranks[0]) if ranks and ranks.ranks[0] in living_ranks else None


def _shift(completed: Completed, by: int) -> Completed:
    """Move all places of a rank's answer by ``by`` code points."""
    types = completed.metadata.get(MATCH_TYPES_KEY, [])
    shifted_types = [
        info | {"start": info["start"] + by, "end": info["end"] + by} for info in types
    ]
    return replace(
        completed,
        start=completed.start + by,
        end=completed.end + by,
        metadata={MATCH_TYPES_KEY: shifted_types},
    )


# --- the words of the magics -------------------------------------------------------------------


def _complete_line(line: str, magic: str, cursor: int) -> Completed | None:
    """Completions of the line of a magic: verbs, options, their values, and names."""
    *before, word = line.partition(magic)[2].split(" ")
    if not before:
        return None  # the cursor is at the magic's own name
    before = [part for part in before if part]
    start = cursor - len(word)
    legal: Iterable[str]
    if magic == "%ddp" and not before:
        legal = VERBS
    elif magic == "%%ddp":
        legal = [*CELL.parser.completions(before), *_mesh_words(before, word)]
    elif (verb := VERBS.get(before[0])) is None:
        legal = ()
    elif not verb.takes or word.startswith("-") or verb.parser.awaits_value(before[1:]):
        legal = [*verb.parser.completions(before[1:]), *_mesh_words(before, word)]
    elif verb.takes == "names of ranks":
        return _complete_on_rank(Body(0), word, len(word), start)
    else:
        legal = sorted(_notebook_names())
    matches = tuple(match for match in legal if match.startswith(word))
    types = [_type_info(match, start, cursor) for match in matches]
    return Completed(
        number=0,
        rank=0,
        matches=matches,
        start=start,
        end=cursor,
        metadata={MATCH_TYPES_KEY: types},
    )


def _mesh_words(before: Sequence[str], word: str) -> list[str]:
    """The dimensions of meshes behind ``-r``, and names of meshes behind ``--mesh``."""
    pool = session.current_pool()
    if pool is None or not before:
        return []
    meshes = pool.snapshot.meshes
    if before[-1] == "--mesh":
        return mesh_names(meshes)
    mesh = before[before.index("--mesh") + 1] if "--mesh" in before[:-2] else ""
    return list(offers(word, meshes, mesh)) if before[-1] in ("-r", "--ranks") else []


def _notebook_names() -> list[str]:
    """The names of the notebook's variables."""
    shell = get_ipython()
    hidden = {} if shell is None else shell.user_ns_hidden
    variables = {} if shell is None else shell.user_ns
    return [name for name in variables if name not in hidden and not name.startswith("_")]


# --- IPython and its kernel --------------------------------------------------------------------


def install(shell: InteractiveShell) -> None:
    """Let Tab and Shift-Tab ask a rank first.

    In a kernel the handlers of its requests are replaced, so that the notebook's own names stay out
    of a cell in which they do not exist. Elsewhere (``ipython`` in a terminal) IPython's completer
    gets a matcher.
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
    """Restore the state before `install`."""
    if _match in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(_match)
    kernel = getattr(shell, "kernel", None)
    for name, handler in (("do_complete", _do_complete), ("do_inspect", _do_inspect)):
        placed = vars(kernel).get(name) if kernel is not None else None
        if isinstance(placed, partial) and placed.func is handler:
            delattr(kernel, name)


def _do_complete(own: Callable[..., Any], code: str, cursor_pos: int | None = None) -> Any:
    """Serve `Kernel.do_complete`; ``own`` is the kernel's own method."""
    completed = complete(code, len(code) if cursor_pos is None else cursor_pos)
    if completed is None:
        return own(code, cursor_pos)
    return {
        "status": "ok",
        "matches": list(completed.matches),
        "cursor_start": completed.start,
        "cursor_end": completed.end,
        "metadata": completed.metadata,
    }


def _do_inspect(
    own: Callable[..., Any], code: str, cursor_pos: int, detail_level: int = 0, *rest: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """Serve `Kernel.do_inspect`; ``own`` is the kernel's own method."""
    inspected = inspect(code, cursor_pos, detail_level)
    if inspected is None:
        return own(code, cursor_pos, detail_level, *rest, **options)
    return {
        "status": "ok",
        "found": inspected.found,
        "data": inspected.data,
        "metadata": inspected.metadata,
    }


@context_matcher(identifier="nbddp", priority=1000)  # type: ignore[untyped-decorator]  # IPython's
def _match(context: CompletionContext) -> SimpleMatcherResult:
    """Serve IPython's completer; completions of a rank suppress IPython's own."""
    lines = context.full_text.split("\n")[: context.cursor_line]
    cursor = sum(len(line) + 1 for line in lines) + context.cursor_position
    completed = complete(context.full_text, cursor)
    if completed is None or not completed.matches:
        return SimpleMatcherResult(completions=[], suppress=False)
    return SimpleMatcherResult(
        completions=[SimpleCompletion(text=match) for match in completed.matches],
        suppress=True,
        matched_fragment=context.full_text[completed.start : cursor],
        ordered=True,
    )
