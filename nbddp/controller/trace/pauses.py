"""Leaves the time at the prompt of a step out of the times of operations.

Runs in: the notebook's process. Pure. Times are in nanoseconds of the ranks' monotonic clock.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nbddp.controller.trace.rows import RankPart, TraceRow

#: The oldest pauses are forgotten, as operations of that time are not kept, either.
_MAX_KEPT = 1000


class Pauses:
    """The times in which a rank was stopped and the user was asked.

    Args:
        offset_by_rank: gives the clocks of ranks minus that of the notebook, in nanoseconds.
    """

    def __init__(self, offset_by_rank: Callable[[], Mapping[int, int]] = dict) -> None:
        self._offset_by_rank = offset_by_rank
        self._spans: deque[tuple[int, int]] = deque(maxlen=_MAX_KEPT)

    def add_of(self, rank: int, begin_ns: int, end_ns: int) -> None:
        """Add a pause that began at a time of the clock of ``rank``; its end is the notebook's."""
        self.add(begin_ns - self._offset_by_rank().get(rank, 0), end_ns)

    def add(self, begin_ns: int, end_ns: int) -> None:
        """Add a pause; it ends after those that were added before."""
        while self._spans and begin_ns <= self._spans[-1][1]:
            begin_ns = min(begin_ns, self._spans.pop()[0])
        self._spans.append((begin_ns, end_ns))

    def left_out_of(self, rows: Sequence[TraceRow]) -> list[TraceRow]:
        """Return rows whose clock does not run during the pauses."""
        if not self._spans:
            return list(rows)
        return [
            replace(row, parts={rank: self._shorter(part) for rank, part in row.parts.items()})
            for row in rows
        ]

    def _shorter(self, part: RankPart) -> RankPart:
        end_ns = part.completed_ns or part.open_at_ns or part.created_ns + part.waited_ns
        began_ns = max(part.created_ns, end_ns - part.waited_ns)
        moved = self._moved
        return replace(
            part,
            created_ns=moved(part.created_ns),
            completed_ns=part.completed_ns and moved(part.completed_ns),
            open_at_ns=part.open_at_ns and moved(part.open_at_ns),
            waited_ns=min(part.waited_ns, moved(end_ns) - moved(began_ns)),
        )

    def _moved(self, time_ns: int) -> int:
        return time_ns - sum(
            min(end_ns, time_ns) - begin_ns
            for begin_ns, end_ns in self._spans
            if begin_ns < time_ns
        )
