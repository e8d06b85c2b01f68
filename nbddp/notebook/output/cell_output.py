"""`CellOutput`: turns the events of a cell's ranks into shows.

Runs in: the notebook's main thread. Pure: no clock, no I/O; ``now`` comes in (monotonic seconds).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from nbddp.notebook.output.rank_grid import RankGrid
from nbddp.notebook.output.rank_text import RankText
from nbddp.notebook.output.shows import Show
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from nbddp.wire.rank_set import RankSet

#: How the output of a cell is shown: ``%%ddp --out``.
Out: TypeAlias = Literal["folded", "merged", "ranks", "quiet"]
#: The same for cells that nbddp runs for itself.
AnyOut: TypeAlias = Out | Literal["nothing"]

#: This many ranks print a line within ``output_fold_s``; more ranks take longer, up to a limit.
_FOLD_RANKS, _MAX_FOLD_S = 16, 0.5


def paced(settings: Settings, ranks: int) -> Settings:
    """Return the settings with the time in which so many ranks print a line."""
    fold_s = min(settings.output_fold_s * ranks / _FOLD_RANKS, _MAX_FOLD_S)
    return replace(settings, output_fold_s=max(settings.output_fold_s, fold_s))


@dataclass(frozen=True)
class OutputSpec:
    """The facts about a cell that each `CellOutput` needs.

    Attributes:
        ranks: ranks that run the cell.
        world_size: number of ranks of the pool; in a pool of one rank lines have no labels.
        display_scope: part of display ids. Cells with the same one can update each other's.
        settings: limits of text and of time.
        log_path_by_rank: the files with the whole output; a rank may be absent.
        can_redraw: whether the output can be replaced by its final order when the cell ends: a
            front end shows it, and the cell has no other output.
        cell_id: the start of the display ids of grids; None: there are no grids, since nothing
            shows HTML.
        grid_by_display_id: grids of earlier cells whose displays can be updated.
        folds_numbers: whether lines of many ranks that differ in numbers only are one line.
        notices: gets the lines about left out text, which must stay in sight.
    """

    ranks: RankSet
    world_size: int
    display_scope: str
    settings: Settings
    log_path_by_rank: Mapping[int, str]
    can_redraw: bool = False
    cell_id: str | None = None
    grid_by_display_id: dict[str, RankGrid] = field(default_factory=dict)
    folds_numbers: bool = False
    notices: set[str] = field(default_factory=set)

    def log_paths(self, ranks: Iterable[int]) -> list[str]:
        """Return the files with the whole output of these ranks."""
        return [path for rank in ranks if (path := self.log_path_by_rank.get(rank, ""))]


class CellOutput(Protocol):
    """Turns the events of the ranks of one cell into shows, at the right time.

    `View` calls `add` for each event, `tick` at `next_deadline` or more often, `finish_rank` once
    for each rank and `end` at the end, and shows what each of them returns, in that order.
    """

    def add(self, event: Output | Display | Result | ClearOutput, now: float) -> list[Show]:
        """Process an event of a rank, and return the shows that are due."""

    def finish_rank(self, rank: int, now: float) -> list[Show]:
        """Note that ``rank`` has no more output, so that no line waits for it."""

    def tick(self, now: float) -> list[Show]:
        """Return the shows that have waited long enough."""

    def end(self, now: float) -> list[Show]:
        """Return all remaining shows: the cell has ended."""

    def keep_order(self) -> None:
        """Note that something else was shown in between: the order of the output must stay."""

    def next_deadline(self) -> float | None:
        """Return when to call `tick` next, if no event comes before; None: not needed."""

    def open_lines(self) -> list[tuple[RankSet, str]]:
        """Return lines without an end, such as progress bars, each with all ranks that have it."""

    def text_by_rank(self) -> dict[int, RankText]:
        """Return the text of each rank, for `details` below the cell; empty: show no details."""
