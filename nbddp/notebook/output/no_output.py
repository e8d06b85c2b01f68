"""Shows nothing of what a cell prints and displays; errors and cards are still shown.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from nbddp.notebook.output.cell_output import OutputSpec
from nbddp.notebook.output.rank_text import RankText
from nbddp.notebook.output.shows import Show
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from nbddp.wire.rank_set import RankSet


class NoOutput:
    """The `CellOutput` of cells that nbddp runs for itself."""

    def __init__(self, spec: OutputSpec) -> None:
        pass

    def add(self, event: Output | Display | Result | ClearOutput, now: float) -> list[Show]:
        """Return nothing."""
        return []

    def finish_rank(self, rank: int, now: float) -> list[Show]:
        """Return nothing."""
        return []

    def tick(self, now: float) -> list[Show]:
        """Return nothing."""
        return []

    def end(self, now: float) -> list[Show]:
        """Return nothing."""
        return []

    def keep_order(self) -> None:
        """Do nothing."""

    def next_deadline(self) -> float | None:
        """Return None: `tick` is not needed."""
        return None

    def open_lines(self) -> list[tuple[RankSet, str]]:
        """Return nothing."""
        return []

    def text_by_rank(self) -> dict[int, RankText]:
        """Return nothing."""
        return {}
