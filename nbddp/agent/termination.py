"""The ladder by which ranks end: ask, SIGTERM, SIGKILL, then whatever they left behind.

Runs in: the agent's thread, step by step from its loop, for all ranks at once. No rank waits for
another, and the whole takes three times ``grace_s`` at most.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto

from nbddp.agent.rank_process import RankProcess, end_orphans


class _Step(Enum):
    ASK = auto()
    TERMINATE = auto()
    KILL = auto()
    ORPHANS = auto()


class Termination:
    """One ending of all ranks of a node."""

    def __init__(self, ask: Callable[[int], None], grace_s: float, now: float) -> None:
        self._ask = ask
        self._grace_s = grace_s
        self._step = _Step.ASK
        #: When `advance` has something to do even if no rank ends before.
        self.next_step_at = now

    def advance(self, ranks: Mapping[int, RankProcess], known: set[int], now: float) -> bool:
        """Take the next step if it is due; tells whether nothing is left.

        Args:
            ranks: the ranks that still live.
            known: children of the agent that are no orphans.
            now: monotonic time in seconds.
        """
        if not ranks and self._step is not _Step.ORPHANS:
            self._step = _Step.ORPHANS
        elif now < self.next_step_at:
            return False
        match self._step:
            case _Step.ASK:
                for process in ranks.values():
                    process.see_descendants()
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
                return end_orphans(known)
        return False
