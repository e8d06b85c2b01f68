"""What other threads know of a pool: a picture of it that never changes.

Runs in: the hub thread makes it, any thread reads it. Pure.

    PoolMachine, RecoveryMachine --hub thread--> PoolSnapshot --> Pool, status, start and restart
"""

from collections import Counter

import msgspec

from nbddp.controller.state.rank_state import Phase, RankInfo, RankState
from nbddp.wire.rank_set import NO_RANKS, RankSet


class PoolSnapshot(msgspec.Struct, frozen=True):
    """A pool at one moment."""

    phase: Phase
    generation: int  #: counts restarts of the whole pool
    ranks: tuple[RankInfo, ...]  #: in order
    run_id: str | None  #: of the cell that ranks are in
    active_run_id: str | None  #: the same, also while the pool is made whole after the cell
    joining: RankSet  #: fresh ranks without groups, since other members are still in a cell
    lost_agents: frozenset[int]  #: nodes whose agents have ended
    store_is_lost: bool  #: groups that exist work on; new ones cannot be made

    @property
    def is_running(self) -> bool:
        """Whether a cell is running, or the pool is made whole after one."""
        return self.active_run_id is not None

    def in_state(self, *states: RankState) -> RankSet:
        """The ranks in one of these states."""
        return RankSet.of(info.rank for info in self.ranks if info.state in states)

    @property
    def unfinished(self) -> RankSet:
        """Ranks that are inside the running cell."""
        if self.run_id is None:
            return NO_RANKS
        return RankSet.of(info.rank for info in self.ranks if info.run_id == self.run_id)

    def summary(self) -> str:
        """For example ``3 idle, 1 exited``."""
        counts = Counter(info.state.name.lower() for info in self.ranks)
        return ", ".join(f"{count} {state}" for state, count in counts.items())
