"""``%ddp restart -r R``: fresh processes for some ranks, while the others keep theirs.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery`, which mends the pool when the
processes have ended.
"""

from nbddp.controller.lifecycle import PoolMachine
from nbddp.controller.states import (
    NO_RANKS,
    Action,
    Phase,
    RanksRestarted,
    RankState,
    RestartRanksRequested,
    TellAgent,
)
from nbddp.settings import Settings
from nbddp.wire.messages import KillRanks
from nbddp.wire.ranks import Rank, RankSet


class Restarts:
    """Ranks whose processes are to end, and who waits for fresh ones."""

    def __init__(self, pool: PoolMachine, settings: Settings) -> None:
        self._pool = pool
        self._settings = settings
        self.wanted: set[Rank] = set()  #: to be replaced, whatever is configured
        self._requests: list[RestartRanksRequested] = []
        self._killing: set[Rank] = set()
        self._until: float | None = None

    @property
    def is_killing(self) -> bool:
        """Whether processes are about to end."""
        return bool(self._killing)

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for fresh ranks."""
        return bool(self._requests)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._until

    def start(self, requested: RestartRanksRequested, now: float) -> list[Action]:
        """End the processes of these ranks; or answer at once why that cannot help."""
        reason = self._refusal(requested.ranks)
        if reason:
            return [RanksRestarted(requested.number, NO_RANKS, reason)]
        self._requests.append(requested)
        self.wanted |= set(requested.ranks)
        living = RankSet.of(
            rank for rank in requested.ranks if self._pool.ranks[rank].state is not RankState.EXITED
        )
        if not living:
            return []
        self._killing |= set(living)
        self._pool.will_restart(living)
        self._until = now + self._settings.mend_timeout_s
        return [
            TellAgent(node, KillRanks(ranks=ranks))
            for node, ranks in self._pool.by_node(living).items()
        ]

    def _refusal(self, ranks: RankSet) -> str:
        if self._pool.spec.plain:
            return "a fresh rank cannot join process groups that are plain (%ddp start --plain)"
        if self._pool.phase is not Phase.UP:
            return f"the pool is not up (it is {self._pool.phase.name.lower()})"
        lost = sorted({self._pool.ranks[rank].node for rank in ranks} & self._pool.lost_agents)
        if lost:
            return f"the agent of node {lost[0]} has ended"
        return self._pool.held_reason(ranks)

    def rank_exited(self, rank: Rank) -> bool:
        """A process has ended; whether that was wanted."""
        was_wanted = rank in self._killing
        self._killing.discard(rank)
        if not self._killing:
            self._until = None
        return was_wanted

    def mended(self, fresh: RankSet, failure: str) -> list[Action]:
        """The pool is whole again, or cannot be."""
        requests, self._requests = self._requests, []
        self.wanted.clear()
        return [RanksRestarted(request.number, fresh, failure) for request in requests]

    def cancel(self, reason: str) -> list[Action]:
        """All ranks end."""
        self._killing.clear()
        self._until = None
        return self.mended(NO_RANKS, reason)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self._until is None or now < self._until:
            return []
        late = RankSet.of(self._killing)
        limit = f"{self._settings.mend_timeout_s:g} s"
        return self.cancel(f"{late.describe()} did not end within {limit}")
