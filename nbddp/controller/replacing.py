"""Which ranks that have exited get a fresh process, and what is told of exits between cells.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery`.
"""

from collections.abc import Callable

from nbddp.controller.ends import idle_exits
from nbddp.controller.lifecycle import PoolMachine
from nbddp.controller.restarting import Restarts
from nbddp.controller.states import Action, Config, RankState
from nbddp.wire.ranks import Rank, RankSet

#: Ranks that exit between cells are replaced so often; then something is wrong with the machine.
MAX_IDLE_MENDS = 3
TOO_OFTEN = "ranks exit again and again between cells"


class Replacing:
    """Ranks that have exited."""

    def __init__(self, pool: PoolMachine, restarts: Restarts, config: Callable[[], Config]) -> None:
        self._pool = pool
        self._restarts = restarts
        self._config = config
        self._given_up: set[Rank] = set()  #: could not be replaced
        self._exits: dict[Rank, str] = {}  #: between cells, for the user
        self._idle_mends = 0

    def is_replaced(self, rank: Rank) -> bool:
        """Whether a fresh process takes the place of this rank when it has exited."""
        if rank in self._restarts.wanted:
            return True
        return self._config().on_death == "respawn" and rank not in self._given_up

    def dead(self) -> RankSet:
        """Ranks whose place is to be taken."""
        return RankSet.of(
            rank
            for rank in self._pool.in_state(RankState.EXITED)
            if self.is_replaced(rank) and self._pool.ranks[rank].node not in self._pool.lost_agents
        )

    def begin_cell(self) -> None:
        """A cell begins: what happened between cells is over."""
        self._idle_mends = 0

    def note_exit(self, rank: Rank, how: str) -> None:
        """A rank has exited between cells, and the user is to hear of it."""
        self._exits.setdefault(rank, how)

    def is_too_often(self) -> bool:
        """A rank has exited between cells; whether to give up on those that are dead now."""
        self._idle_mends += 1
        is_too_often = self._idle_mends > MAX_IDLE_MENDS
        if is_too_often:
            self._given_up |= set(self.dead())
        return is_too_often

    def mended(self, failure: str) -> None:
        """The pool is whole again, or cannot be."""
        if failure:
            late = self._pool.in_state(RankState.STARTING)
            self._given_up |= {*self.dead(), *late}
        else:
            self._given_up &= set(self._pool.in_state(RankState.EXITED))

    def told(self, fresh: RankSet, failure: str) -> list[Action]:
        """What the user is told of the exits between cells, once."""
        exits, self._exits = self._exits, {}
        return [*idle_exits(exits, RankSet.of(self._pool.ranks) - fresh, failure)]

    def forget(self) -> None:
        """All ranks end."""
        self._given_up.clear()
        self._exits.clear()
