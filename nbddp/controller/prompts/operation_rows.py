"""The operations that ranks have stopped before, and how far each rank has come in each.

Runs in: the thread that waits for the cell. Pure.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

from nbddp.wire.flight_recorder import Operation, Site
from nbddp.wire.rank_set import Rank
from nbddp.wire.step_replies import StepVerb

#: Older rows are forgotten.
_MAX_ROWS = 6


class Progress(Enum):
    """The progress of one rank in one operation."""

    BEFORE = "stopped before it"
    RUNS = "was let go, and runs"
    WAITS = "waits in it"
    PASSED = "has passed it"
    SKIPPED = "has skipped it"
    FAILED = "has raised or exited since"


@dataclass(frozen=True)
class OperationRow:
    """One operation, with the progress of the ranks that have come to it."""

    label: str  #: ``all_reduce #7``
    site: Site  #: the line of the rank that came first
    by_rank: dict[Rank, Progress] = field(default_factory=dict)


class OperationRows:
    """The rows of one cell."""

    def __init__(self) -> None:
        self._rows: list[tuple[tuple[str, str], OperationRow]] = []

    def stop(self, rank: Rank, operation: Operation) -> None:
        """Note that a rank has stopped before an operation, or asks again before it.

        It has passed the operations that it was let go for.
        """
        label = operation.label(has_call=False)
        key = operation.pg_id, label
        if any(at == key and row.by_rank.get(rank) is Progress.BEFORE for at, row in self._rows):
            return
        self._settle(rank, Progress.PASSED, (Progress.RUNS,))
        row = next((row for at, row in self._rows if at == key and rank not in row.by_rank), None)
        if row is None:
            row = OperationRow(label, operation.site)
            self._rows.append((key, row))
            del self._rows[:-_MAX_ROWS]
        row.by_rank[rank] = Progress.BEFORE

    def let_go(self, rank: Rank, verb: StepVerb) -> None:
        """Note that a stopped rank goes on by this verb."""
        progress = Progress.SKIPPED if verb is StepVerb.SKIP else Progress.RUNS
        for _, row in self._rows:
            if row.by_rank.get(rank) is Progress.BEFORE:
                row.by_rank[rank] = progress

    def take_back(self, rank: Rank) -> None:
        """Forget the operation that a rank has stopped before: another call may stand for it."""
        for _, row in self._rows:
            if row.by_rank.get(rank) is Progress.BEFORE:
                del row.by_rank[rank]
        self._rows = [(key, row) for key, row in self._rows if row.by_rank]

    def leave(self, rank: Rank, *, has_failed: bool) -> None:
        """Note that a rank has ended the cell."""
        progress = Progress.FAILED if has_failed else Progress.PASSED
        self._settle(rank, progress, (Progress.RUNS, Progress.BEFORE))

    def rows(self, waiting: Collection[Rank]) -> tuple[OperationRow, ...]:
        """Return copies of the rows, the oldest first.

        Args:
            waiting: ranks that wait in the operation that they were let go for.
        """
        return tuple(
            OperationRow(
                row.label,
                row.site,
                {
                    rank: Progress.WAITS
                    if progress is Progress.RUNS and rank in waiting
                    else progress
                    for rank, progress in row.by_rank.items()
                },
            )
            for _, row in self._rows
        )

    def _settle(self, rank: Rank, progress: Progress, unsettled: Collection[Progress]) -> None:
        for _, row in self._rows:
            if row.by_rank.get(rank) in unsettled:
                row.by_rank[rank] = progress


def progress_in(rows: Iterable[OperationRow]) -> list[Progress]:
    """The kinds of progress in these rows, each once, in the order of `Progress`."""
    seen = {progress for row in rows for progress in row.by_rank.values()}
    return [progress for progress in Progress if progress in seen]
