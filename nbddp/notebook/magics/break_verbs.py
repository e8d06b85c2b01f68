"""The verbs of ``%ddp`` about break points: break, breaks, clear.

Runs in: the notebook's process, thread of the running cell.
"""

import argparse
from collections.abc import Mapping, Sequence

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool import Pool
from nbddp.controller.prompts import can_come, passed
from nbddp.controller.state import why_not_at_line
from nbddp.errors import BadOptionError
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook import session
from nbddp.notebook.magics import auto_mode
from nbddp.notebook.magics.arg_parser import Parser
from nbddp.notebook.magics.chosen_ranks import chosen_ranks
from nbddp.wire.break_points import BreakEvent, BreakPoint, group_names
from nbddp.wire.fault_grammar import OPERATIONS
from nbddp.wire.flight_recorder import GroupInfo
from nbddp.wire.mesh_ranks import spans_all
from nbddp.wire.rank_set import NO_RANKS, Rank


class BreakParser(Parser):
    """The parser of ``%ddp break``."""

    def completions(self, before: Sequence[str]) -> list[str]:
        """The words that may follow the words ``before``."""
        options = super().completions(before)
        return options if self.awaits_value(before) else [*sorted(OPERATIONS), "line", *options]


def break_numbers(text: str) -> tuple[int, ...]:
    """Read numbers of break points, ``2`` or ``2,3``; empty: ``all``.

    Raises:
        ArgumentTypeError: they are none.
    """
    words = [] if text == "all" else text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of `%ddp breaks`; legal: 2, or 2,3, or all"
        )
    return tuple(map(int, words))


def set_break_point(
    shell: InteractiveShell,
    *,
    place: list[str],
    ranks: str | None,
    group: str,
    condition: str,
    has_nan: bool,
    cell: int,
    on: BreakEvent,
) -> None:
    """Set a break point.

    Args:
        shell: has the number of the newest cell.
        place: the words for the operation, its number, or a line.
        ranks: ranks that stop; None: all.
        group: name of the operation's group; empty: any.
        condition: evaluated on each rank; empty: none.
        has_nan: only where a rank sends NaN or Inf.
        cell: the cell of the line; 0: the one that runs.
        on: an event instead of a place; empty: none.

    Raises:
        BadOptionError: the place or an option is not legal, or the pool was started with
            ``--plain``.
    """
    pool = session.current_pool()
    options = (session.last_options() or PoolOptions()) if pool is None else pool.options
    if options.plain:
        raise BadOptionError(
            "%ddp break: the pool was started with --plain, so ranks stop before no operation. "
            "Next: %ddp stop, then %ddp start without --plain"
        )
    groups = _groups(pool) if pool is not None and (group or _has_number(place)) else {}
    known = _known(groups) if group else {}
    meshes = {} if pool is None else pool.snapshot.meshes
    if group and group not in known and spans_all(group, options.world_size, meshes):
        print(f"dimension {group!r} has all ranks: its group is the default group")
        group = "default"
    point = session.break_points.add(
        place,
        ranks=NO_RANKS if ranks is None else chosen_ranks(ranks, options.world_size),
        group=group,
        condition=condition,
        has_nan=has_nan,
        cell=cell,
        on=on,
    )
    print(with_line_breaks(f"break point {point.number}: ranks of later cells stop before {point}"))
    if known and group not in known:
        names = ", ".join(dict.fromkeys(known.values()))
        print(with_line_breaks(f"no group is called {group!r} so far; groups now: {names}"))
    if cell > shell.execution_count:
        newest = shell.execution_count
        print(f"no cell [{cell}] has run so far in this notebook; the newest one is [{newest}]")
    elif why := _no_line(shell, point):
        print(with_line_breaks(why))
    if gone := passed(point, groups):
        print(with_line_breaks(gone))


def _no_line(shell: InteractiveShell, point: BreakPoint) -> str:
    """A line that says why no rank stops at the line of a break point; empty: one may."""
    cells = shell.history_manager.input_hist_raw if shell.history_manager is not None else []
    lengths = [len(text.splitlines()) for text in cells]
    if point.cell and point.cell < len(lengths):
        length = lengths[point.cell]
        if length < point.line:
            has = f"cell [{point.cell}] has {length} line{'s' * (length != 1)}"
            return f"{has}: no rank stops at line {point.line}"
        head, _, code = cells[point.cell].partition("\n")
        is_ddp = head.startswith("%%ddp")
        why = why_not_at_line(point.line, code if is_ddp else cells[point.cell], 1 + is_ddp)
        return f"no rank stops there: in cell [{point.cell}] {why}" if why else ""
    if point.line == 1 and not point.cell and auto_mode.current(shell).options is None:
        return (
            "line 1 of a cell with %%ddp is the line of %%ddp: no rank stops there; the code "
            "begins at line 2"
        )
    if point.cell or max(lengths, default=0) >= point.line:
        return ""
    return f"no cell so far has a line {point.line}; the longest one has {max(lengths)} lines"


def list_break_points(shell: InteractiveShell) -> None:
    """List the break points.

    Args:
        shell: not used.
    """
    points = [point for point in session.break_points.points if point.collective]
    pool = session.current_pool()
    groups = _groups(pool) if pool is not None and points else {}
    gone = [point.number for point in points if not can_come(point, groups)]
    print(session.break_points.listing(gone))


def clear(shell: InteractiveShell, *, numbers: list[tuple[int, ...]]) -> None:
    """Remove break points.

    Args:
        shell: not used.
        numbers: of those to remove; empty: all.

    Raises:
        BadOptionError: there is no break point of a number.
    """
    chosen = () if () in numbers else [number for each in numbers for number in each]
    removed = session.break_points.clear(chosen)
    texts = [
        f"break point {point.number} is removed: it no longer stops ranks before {point}"
        for point in removed
    ]
    print("\n".join(texts) or "no break points were set")


def _has_number(place: Sequence[str]) -> bool:
    return any(word.startswith("#") for word in place)


def _groups(pool: Pool) -> dict[Rank, Sequence[GroupInfo]]:
    """Return the groups that each rank has now."""
    looks = {rank: view.look for rank, view in pool.survey().views.items()}
    return {rank: look.groups for rank, look in looks.items() if look is not None}


def _known(groups: Mapping[Rank, Sequence[GroupInfo]]) -> dict[str, str]:
    """Return the best name of each group, by each of its names."""
    names = [group_names(info) for infos in groups.values() for info in infos]
    return {name: by_group[0] for by_group in names for name in by_group}
