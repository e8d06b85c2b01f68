"""The ladder that ends ranks: ask, SIGTERM, SIGKILL, then end the processes that they left behind.

Runs in: the agent's thread, step by step from its loop, for all ranks at once. No rank waits for
another, and all steps together take three times ``grace_s`` at most.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto

from nbddp.agent.leftovers import end_orphans
from nbddp.agent.rank_process import RankProcess


class _Step(Enum):
    ASK = auto()
    TERMINATE = auto()
    KILL = auto()
    ORPHANS = auto()


class Termination:
    """The termination of all ranks of a node."""

    def __init__(self, ask: Callable[[int], None], grace_s: float, now: float) -> None:
        self._ask = ask
        self._grace_s = grace_s
        self._step = _Step.ASK
        #: The time at which `advance` has something to do even if no rank ends before.
        self.next_step_at = now

    def advance(self, ranks: Mapping[int, RankProcess], helpers: set[int], now: float) -> bool:
        """Take the next step if it is due; returns whether no process is left.

        Args:
            ranks: the ranks that still live.
            helpers: children of the agent that are no orphans.
            now: monotonic time in seconds.
        """
        if not ranks and self._step is not _Step.ORPHANS:
            self._step = _Step.ORPHANS
        elif now < self.next_step_at:
            return False
        match self._step:
            case _Step.ASK:
                for process in ranks.values():
                    process.record_descendants()
                    self._ask(process.rank)
                self._step = _Step.TERMINATE
                self.next_step_at = now + self._grace_s
            case _Step.TERMINATE:
                for process in ranks.values():
                    process.terminate()
                self._step = _Step.KILL
                self.next_step_at = now + self._grace_s / 2
            case _Step.KILL:
                for process in ranks.values():
                    process.kill()
                self.next_step_at = now + self._grace_s
            case _Step.ORPHANS:
                self.next_step_at = now + 0.02
                return end_orphans(helpers)
        return False
