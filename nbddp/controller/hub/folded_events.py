"""Puts together what many ranks say at the same time, so that the machines take it at once.

Runs in: the hub thread. Pure.

    RunsStarted, RunsFinished of each node --add--> FoldedEvents --take--> the same, of many nodes
    RankDescribed, OperationsAborted of each rank --'                '--> RanksAnswered

With a thousand nodes, the work for each message would be more than the work for its content.
"""

from msgspec.structs import replace

from nbddp.controller.state import RanksAnswered
from nbddp.wire.messages import (
    Event,
    OperationsAborted,
    RankDescribed,
    RunFinished,
    RunsFinished,
    RunsStarted,
)

#: What `FoldedEvents.take` gives.
FoldedEvent = RunsStarted | RunsFinished | RanksAnswered


class FoldedEvents:
    """The events of one iteration of the hub's loop that wait for others of their kind."""

    def __init__(self) -> None:
        self._begun: dict[str, list[RunsStarted]] = {}  # by run
        self._ended: list[_Ended] = []
        self._answers: list[RankDescribed | OperationsAborted] = []

    def add(self, event: Event) -> bool:
        """Take an event; False: it is of another kind, and those that wait come before it."""
        match event:
            case RankDescribed() | OperationsAborted():
                self._answers.append(event)
            case RunsFinished():
                if not (self._ended and self._ended[-1].add(event)):
                    self._ended.append(_Ended(event))
            case RunsStarted():
                self._begun.setdefault(event.run_id, []).append(event)
            case _:
                return False
        return True

    def take(self) -> list[FoldedEvent]:
        """Return the events that wait; of each rank its beginning comes first."""
        if not (self._begun or self._ended or self._answers):
            return []
        events: list[FoldedEvent] = [
            RunsStarted(run_id=run_id, ranks=tuple(r for each in begun for r in each.ranks))
            for run_id, begun in self._begun.items()
        ]
        if self._answers:
            events.append(RanksAnswered(tuple(self._answers)))
        events += [ended.folded() for ended in self._ended]
        self._begun.clear()
        self._ended.clear()
        self._answers.clear()
        return events


class _Ended:
    """Ends of a cell that differ in nothing but ranks and times."""

    def __init__(self, first: RunsFinished) -> None:
        self._common = _common(first.finished)
        self._parts = [first]
        self._ranks = set(first.ranks)

    def add(self, event: RunsFinished) -> bool:
        """Take another one; False: it says something else, or of the same ranks."""
        if not self._ranks.isdisjoint(event.ranks) or _common(event.finished) != self._common:
            return False
        self._parts.append(event)
        self._ranks.update(event.ranks)
        return True

    def folded(self) -> RunsFinished:
        """Return all of them as one."""
        if len(self._parts) == 1:
            return self._parts[0]
        return RunsFinished(
            finished=self._parts[0].finished,
            ranks=tuple(rank for part in self._parts for rank in part.ranks),
            elapsed_s=tuple(time for part in self._parts for time in part.elapsed_s),
            failed_at_ns=tuple(time for part in self._parts for time in part.failed_at_ns),
        )


def _common(finished: RunFinished) -> RunFinished:
    return replace(finished, rank=0, elapsed_s=0.0, failed_at_ns=0)
