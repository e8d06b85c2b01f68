"""The output of most cells: `Gatherer`, and `RankSlots` from the first ``clear_output`` on.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from nbddp.notebook.output.cell_output import CellOutput, OutputSpec
from nbddp.notebook.output.gatherer import Gatherer
from nbddp.notebook.output.rank_slots import RankSlots
from nbddp.notebook.output.rank_text import RankText
from nbddp.notebook.output.shows import Show
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from nbddp.wire.rank_set import RankSet


class MergedOutput:
    """The `CellOutput` of cells without ``--out``."""

    def __init__(self, spec: OutputSpec) -> None:
        self._spec = spec
        self._gatherer = Gatherer(spec)
        self._current: CellOutput = self._gatherer

    def add(self, event: Output | Display | Result | ClearOutput, now: float) -> list[Show]:
        """See `CellOutput.add`."""
        if isinstance(event, ClearOutput) and self._current is self._gatherer:
            shown = self._gatherer.take_over(now) if self._has_slots else None
            if shown is not None:
                self._current = RankSlots(self._spec, shown)
        return self._current.add(event, now)

    @property
    def _has_slots(self) -> bool:
        return self._spec.cell_id is not None and self._spec.world_size > 1

    def finish_rank(self, rank: int, now: float) -> list[Show]:
        """See `CellOutput.finish_rank`."""
        return self._current.finish_rank(rank, now)

    def tick(self, now: float) -> list[Show]:
        """See `CellOutput.tick`."""
        return self._current.tick(now)

    def end(self, now: float) -> list[Show]:
        """See `CellOutput.end`."""
        return self._current.end(now)

    def next_deadline(self) -> float | None:
        """See `CellOutput.next_deadline`."""
        return self._current.next_deadline()

    def open_lines(self) -> list[tuple[RankSet, str]]:
        """See `CellOutput.open_lines`."""
        return self._current.open_lines()

    def text_by_rank(self) -> dict[int, RankText]:
        """See `CellOutput.text_by_rank`."""
        return self._current.text_by_rank()

    def keep_order(self) -> None:
        """See `CellOutput.keep_order`."""
        self._current.keep_order()
