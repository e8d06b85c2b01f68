"""Folds what the ranks of a node say alike at the beginning and the end of a cell.

Runs in: the agent's thread. Pure.

    RunStarted, RunFinished of each rank --add--> FoldedRuns --take--> RunsStarted, RunsFinished

A hub with thousands of ranks would spend most of a cell's time on such messages.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from nbddp.wire import codec
from nbddp.wire.messages import Event, RunFinished, RunsFinished, RunsStarted, RunStarted

#: Names of the messages that are folded.
FOLDED = (RunStarted.__name__, RunFinished.__name__)
#: Ranks that are this far apart have messages of their own. The end of a cell on the last rank of a
#: node never waits.
HOLD_S = 0.01


class FoldedRuns:
    """The beginnings and ends of cells that are yet to be sent."""

    def __init__(self) -> None:
        self._to_begin: set[int] = set()
        self._to_end: set[int] = set()
        self._begun: dict[str, list[int]] = {}  # ranks by run
        self._ended: dict[bytes, list[RunFinished]] = {}  # by what they have in common
        self._ended_ranks: set[int] = set()
        self._since = 0.0

    def expect(self, ranks: Iterable[int], *, is_cell: bool) -> None:
        """Note that these ranks begin a cell, or a question that runs the user's code."""
        self._to_begin = set(ranks)
        if is_cell:
            self._to_end = set(ranks)

    def may_follow(self, event: RunStarted | RunFinished) -> bool:
        """Whether the order of a rank's messages is kept if this one is added to the others."""
        return isinstance(event, RunFinished) or event.rank not in self._ended_ranks

    def add(self, event: RunStarted | RunFinished, now: float) -> None:
        """Take a message of a rank."""
        if self.is_empty:
            self._since = now
        if isinstance(event, RunStarted):
            self._to_begin.discard(event.rank)
            self._begun.setdefault(event.run_id, []).append(event.rank)
        else:
            self._to_end.discard(event.rank)
            self._ended_ranks.add(event.rank)
            common = replace(event, rank=0, elapsed_s=0.0, failed_at_ns=0)
            self._ended.setdefault(codec.encode(common), []).append(event)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not (self._begun or self._ended)

    @property
    def due_at(self) -> float:
        """The time at which they have to be sent; infinite: nothing waits."""
        if self.is_empty:
            return float("inf")
        is_whole = (self._begun and not self._to_begin) or (self._ended and not self._to_end)
        return self._since if is_whole else self._since + HOLD_S

    def take(self) -> list[Event]:
        """Return the messages to send; of each rank its beginning comes first."""
        events: list[Event] = []
        for run_id, ranks in self._begun.items():
            if len(ranks) == 1:
                events.append(RunStarted(run_id=run_id, rank=ranks[0]))
            else:
                events.append(RunsStarted(run_id=run_id, ranks=tuple(ranks)))
        events += [
            RunsFinished.of(ended) if len(ended) > 1 else ended[0] for ended in self._ended.values()
        ]
        self._begun.clear()
        self._ended.clear()
        self._ended_ranks.clear()
        return events
