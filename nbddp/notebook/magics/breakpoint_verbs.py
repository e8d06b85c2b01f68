"""``%ddp break``, ``%ddp breaks``, ``%ddp clear``: break points before operations of later cells.

Runs in: the notebook's process, thread of the running cell. The cells get them from `breakpoints`.
"""

from collections.abc import Sequence

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.options import PoolOptions
from nbddp.errors import BadOptionError
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook import session
from nbddp.wire.operation_breakpoints import OperationBreakpoint, read_breakpoint
from nbddp.wire.rank_set import RankSet

_breakpoints: dict[int, OperationBreakpoint] = {}


def breakpoints() -> tuple[OperationBreakpoint, ...]:
    """The break points of the cells to come, in the order of their numbers."""
    return tuple(_breakpoints.values())


def add(
    shell: InteractiveShell,
    *,
    words: Sequence[str],
    ranks: str | None,
    group: str,
    condition: str,
    nan: bool,
) -> None:
    """Add a break point, and show it.

    Args:
        shell: not used.
        words: the operation, its number, a line of a cell.
        ranks: stops these ranks only; None: all.
        group: stops before operations of this group only.
        condition: stops where this expression is true in the user's frame.
        nan: stops where a tensor that the rank sends has a NaN or an infinity.

    Raises:
        BadOptionError: a word is not legal, or there is nothing to stop at, or the groups of the
            pool are not traced.
    """
    pool = session.current_pool()
    options = (session.last_options() or PoolOptions()) if pool is None else pool.options
    if options.plain:
        raise BadOptionError(
            "%ddp break stops ranks before their operations, and a pool with --plain traces none. "
            "Next: %ddp stop, then %ddp start without --plain"
        )
    world_size = options.world_size if pool is None else pool.world_size
    chosen = () if ranks is None else RankSet.parse(ranks, world_size).ranks
    number = max(_breakpoints, default=0) + 1
    point = read_breakpoint(words, number, ranks=chosen, group=group, condition=condition, nan=nan)
    _breakpoints[number] = point
    print(
        with_line_breaks(f"break point {number}: {point}; later %%ddp cells stop there and ask you")
    )


def show(shell: InteractiveShell) -> None:
    """List the break points.

    Args:
        shell: not used.
    """
    for number, point in _breakpoints.items():
        print(f"{number}  {point}")
    if not _breakpoints:
        print("no break points. Next: for example %ddp break all_reduce")


def clear(shell: InteractiveShell, *, number: int | None) -> None:
    """Remove a break point, or all of them.

    Args:
        shell: not used.
        number: as `show` lists it; None: all.

    Raises:
        BadOptionError: there is no such break point.
    """
    if number is None:
        count = len(_breakpoints)
        _breakpoints.clear()
        print(f"{count} break point{'s' * (count != 1)} removed")
        return
    if number not in _breakpoints:
        legal = ", ".join(map(str, _breakpoints)) or "there are none"
        raise BadOptionError(f"%ddp clear: no break point {number}; legal: {legal}")
    print(f"break point {number} removed: {_breakpoints.pop(number)}")
