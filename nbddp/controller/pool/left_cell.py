"""The cell that ran while its pool had no notebook.

Runs in: the notebook's process.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nbddp.controller.hub import Run
from nbddp.controller.pool.cell_options import CellOptions
from nbddp.controller.pool.cell_records import CellRecords
from nbddp.controller.pool.source_texts import SourceTexts
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.messages import Execute


@dataclass
class LeftCell:
    """A cell of another notebook, which still runs or has ended meanwhile."""

    run: Run  #: gives its output from its beginning on, as far as it was kept
    execute: Execute  #: the request with its code
    began: float  #: by `time.monotonic` of this process
    #: Returns what waits for its end. Its Out[N] is of the notebook that has begun it.
    how_to_wait: Callable[[], str] = lambda: "nbddp.pool().rejoin()"

    @property
    def name(self) -> str:
        """How messages name the cell."""
        return cell_name(self.execute.execution_count)

    def note(self, cells: CellRecords, sources: SourceTexts) -> None:
        """Note the cell as one of this process."""
        execute, number = self.execute, self.execute.execution_count
        cells.submit(execute.run_id, number)
        sources.add_cell(number, execute.code, execute.first_line)
        options = CellOptions(
            ranks=self.run.ranks,
            execution_count=number,
            first_line=execute.first_line,
            cell_name=self.name,
        )
        cells.begin(self.run, execute.code, options)
        cells.wait_by(lambda: self.how_to_wait())  # noqa: PLW0108 - it may change
