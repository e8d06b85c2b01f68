"""Names that a fresh rank lacks: because its process is new, and after it has caught up.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from nbddp.wire.rank_set import NO_RANKS, RankSet

#: Names that a sentence about a cell gives.
_MAX_USED = 8


class Reason(Enum):
    """A reason why names were not made again."""

    NO_CELL = auto()  #: no cell binds them: `%ddp push` did, or code that is not a cell
    NO_CELL_SINCE_ATTACH = auto()  #: the same; cells before the pool was taken back are not known
    FAILED = auto()  #: the cell that binds them had failed, and did not run again
    FAILS_NOW = auto()  #: the cell that binds them failed when it ran again
    LOOP = auto()  #: the cell is a loop with collectives, such as a training loop
    NEEDS = auto()  #: the cell uses names that were not made again
    ALONE = auto()  #: the cell has bound them on no rank but those that lack them
    GONE = auto()  #: a cell or `%ddp push` has bound them, and no rank has them any more


@dataclass(frozen=True)
class LeftOut:
    """Names that a fresh rank still lacks after the plan."""

    names: tuple[str, ...]
    reason: Reason
    cell: int = 0  #: the cell that binds them; 0: none does
    ranks: RankSet = NO_RANKS  #: the ranks that lack them, if not all of the fresh ones do
    #: Those of them of which a copy is as good. That of an optimizer trains nothing.
    copyable: frozenset[str] = field(default=frozenset(), compare=False)
    #: Those of them that `nbddp.sync` takes, and those that are modules of Python, functions or
    #: classes.
    with_state: frozenset[str] = field(default=frozenset(), compare=False)
    definitions: frozenset[str] = field(default=frozenset(), compare=False)
    #: Those of them that all ranks must make together: a DDP model, and with it its optimizer.
    joint: frozenset[str] = field(default=frozenset(), compare=False)
    #: The names that their cell uses and that were not made, if it was left out for these; and the
    #: numbers of the loops that make them, if the user names these cells.
    uses: tuple[str, ...] = field(default=(), compare=False)
    loops: tuple[int, ...] = field(default=(), compare=False)


def used_text(left: LeftOut) -> str:
    """``uses y, for which cell [2] would have to run again, a loop with collectives``.

    Args:
        left: the names of a cell that was left out for what it uses.
    """
    if not left.loops:
        return "uses names that were not made again"
    *most, last = left.uses[:_MAX_USED]
    rest = len(left.uses) - _MAX_USED
    if rest > 0:
        most, last = [*most, last], f"{rest} more"
    names = f"{', '.join(most)} and {last}" if most else last
    cells, loops = ("cells", "loops") if len(left.loops) > 1 else ("cell", "a loop")
    numbers = ", ".join(f"[{number}]" for number in left.loops)
    return (
        f"uses {names}, for which {cells} {numbers} would have to run again, {loops} with "
        "collectives"
    )


def run_loops_text(left: LeftOut, ranks: RankSet) -> str:
    """``%ddp catchup -r 1 --cells 2,3, to run them again``: the loops for which names were left."""
    them = "them" if len(left.loops) > 1 else "it"
    return f"{catch_up_command(ranks, left.loops)}, to run {them} again"


def catch_up_command(ranks: RankSet = NO_RANKS, cells: Iterable[int] = ()) -> str:
    """``%ddp catchup -r 1 --cells 2,5``.

    Args:
        ranks: the ranks that the user names; none: all fresh ones.
        cells: the numbers of the cells that run again in any case.
    """
    numbers = ",".join(map(str, cells))
    return (
        f"%ddp catchup{f' -r {ranks}' if ranks else ''}{f' --cells {numbers}' if numbers else ''}"
    )


@dataclass(frozen=True)
class LostNames:
    """The names of a cell that a process had which is gone."""

    cell: int
    names: tuple[str, ...]
    perhaps: tuple[str, ...] = ()  #: names inside an ``if`` about data


@dataclass(frozen=True)
class MissedCell:
    """A cell that has bound a name, and that the processes of some ranks have not run."""

    number: int  #: its execution count
    ranks: RankSet  #: it ran on these
    holders: RankSet  #: those of them whose processes have run it, or have caught up
    is_ok: bool = True  #: it ended well on all of them; False: %ddp catchup leaves it out
    made_by: int = 0  #: the last such cell that ended well, which %ddp catchup runs; 0: none did
    is_joint: bool = False  #: its code says that only all ranks together can make the name
    #: The numbers of the loops without which %ddp catchup does not make the name, and which it runs
    #: if the user names them. Perhaps it runs them in any case: if they make a module.
    loops: tuple[int, ...] = ()
