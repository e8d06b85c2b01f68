"""`CellOutput`: from the events of a cell's ranks to the shows for one reader.

Runs in: the notebook's main thread. Pure: no clock, no I/O; ``now`` comes in (monotonic seconds).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from nbddp.notebook.output.rank_text import RankText
from nbddp.notebook.output.screen import Show
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from nbddp.wire.rank_set import RankSet

#: How the output of a cell is shown: ``%%ddp --out``.
Out: TypeAlias = Literal["merged", "ranks", "quiet"]


@dataclass(frozen=True)
class OutputSpec:
    """The facts about a cell that each `CellOutput` needs.

    Attributes:
        ranks: those that run the cell.
        world_size: ranks of the pool; in a pool of one rank lines have no labels.
        display_scope: part of the ids of displays. Cells that share it can update each other's.
        settings: limits of text and of time.
        log_path_by_rank: the files with the whole output; a rank may be absent.
    """

    ranks: RankSet
    world_size: int
    display_scope: str
    settings: Settings
    log_path_by_rank: Mapping[int, str]

    def log_paths(self, ranks: Iterable[int]) -> list[str]:
        """The files with the whole output of these ranks."""
        return [self.log_path_by_rank[rank] for rank in ranks if rank in self.log_path_by_rank]


class CellOutput(Protocol):
    """Takes the events of the ranks of one cell, and gives what is to be shown, and when.

    `View` calls `add` for each event, `tick` at `next_deadline` or more often, `finish_rank` once
    for each rank and `end` at the end, and shows what each of them returns, in that order.
    """

    def add(self, event: Output | Display | Result | ClearOutput, now: float) -> list[Show]:
        """Take an event of a rank. Gives what can be shown at once."""

    def finish_rank(self, rank: int, now: float) -> list[Show]:
        """``rank`` will show nothing more, and no line waits for it any longer."""

    def tick(self, now: float) -> list[Show]:
        """Give what has waited long enough."""

    def end(self, now: float) -> list[Show]:
        """The cell is over: give all that is left."""

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, if nothing comes in before."""

    def open_lines(self) -> list[tuple[RankSet, str]]:
        """Lines that have no end yet, such as progress bars; equal ones of ranks together."""

    def text_by_rank(self) -> dict[int, RankText]:
        """The text of each rank, for `details` below the cell; empty if none are wanted there."""
