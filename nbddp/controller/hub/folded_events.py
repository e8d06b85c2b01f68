"""Puts together what many ranks say at the same time, so that the machines take it at once.

Runs in: the hub thread. Pure.

    RunsStarted, RunsFinished of each node        --folded--> the same, of many nodes
    RankDescribed, OperationsAborted, StackDumped --folded--> RanksAnswered

With a thousand nodes, the work for each message would be more than the work for its content.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from nbddp.controller.state import RanksAnswered
from nbddp.wire.messages import (
    Event,
    OperationsAborted,
    RankDescribed,
    RunFinished,
    RunsFinished,
    RunsStarted,
    StackDumped,
)

#: Events that `folded` joins as `RanksAnswered`.
ANSWERS: Final = (RankDescribed, OperationsAborted, StackDumped)
#: Its result for events of several nodes.
FoldedEvent = RunsStarted | RunsFinished | RanksAnswered
#: An event as it arrives, or several.
AnyEvent = Event | FoldedEvent
_Arrived = tuple[int, Event, list[bytes]]


def folded(
    arrived: Iterable[_Arrived], accepts: Callable[[int, Event], bool]
) -> Iterator[_Arrived | tuple[None, FoldedEvent, list[bytes]]]:
    """Join events that have arrived; any other event comes after those that were before it.

    The events of one rank keep their order.

    Args:
        arrived: the node, the event and its buffers; a negative node is none yet.
        accepts: whether the sender may say so; asked about each event that is joined.
    """
    waiting = FoldedEvents()
    for node, event, frames in arrived:
        if node >= 0 and isinstance(event, (*ANSWERS, RunsStarted, RunsFinished)):
            if not accepts(node, event):
                continue
            if isinstance(event, ANSWERS) and waiting.has_end_of(event.rank):
                for earlier in waiting.take():  # the rank may be in no cell any more
                    yield None, earlier, []
            waiting.add(event)
            continue
        for earlier in waiting.take():
            yield None, earlier, []
        yield node, event, frames
    for earlier in waiting.take():
        yield None, earlier, []


class FoldedEvents:
    """The events that wait for others of their kind."""

    def __init__(self) -> None:
        self._begun: dict[str, list[RunsStarted]] = {}  # by run
        self._ended: list[_Ended] = []
        self._answers: list[RankDescribed | OperationsAborted | StackDumped] = []

    def add(
        self, event: RunsStarted | RunsFinished | RankDescribed | OperationsAborted | StackDumped
    ) -> None:
        """Take an event."""
        match event:
            case RunsFinished():
                if not (self._ended and self._ended[-1].add(event)):
                    self._ended.append(_Ended(event))
            case RunsStarted():
                self._begun.setdefault(event.run_id, []).append(event)
            case _:
                self._answers.append(event)

    def has_end_of(self, rank: int) -> bool:
        """Whether the end of a cell on this rank waits."""
        return any(rank in ended.ranks for ended in self._ended)

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
        self.ranks = set(first.ranks)

    def add(self, event: RunsFinished) -> bool:
        """Take another one; False: it says something else, or of the same ranks."""
        if not self.ranks.isdisjoint(event.ranks) or _common(event.finished) != self._common:
            return False
        self._parts.append(event)
        self.ranks.update(event.ranks)
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
