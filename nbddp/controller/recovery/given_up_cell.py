"""Makes ranks leave a cell that a second interrupt has given up.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.

A rank may have run Python at the first abort, and be blocked a moment later in an operation that no
other rank joins any more; no stall watch runs for a cell that has ended. So operations of ranks
that are still inside are aborted repeatedly. Errors of connections that a peer has closed are not
shown to the user any more.
"""

from nbddp.controller.recovery.abort import both_phases
from nbddp.controller.recovery.pending_answers import PendingAnswers
from nbddp.controller.recovery.silence import SilentRanks
from nbddp.controller.state import Action, PoolMachine, RankState, SendToAgent
from nbddp.wire.messages import AbortOperations, Interrupt
from nbddp.wire.rank_set import NO_RANKS, RankSet

_INTERVAL_S = 0.5
#: A rank that is still inside after this time runs code that only the end of its process ends.
_LIMIT_S = 60.0


class GivenUpCell:
    """The ranks that are still inside the cell that was given up last."""

    def __init__(self, pool: PoolMachine, questions: PendingAnswers, silent: SilentRanks) -> None:
        self._pool = pool
        self._silent = silent
        self._questions = questions
        self._run_id = ""
        self._ranks = NO_RANKS
        self._next_at: float | None = None
        self._until = 0.0

    def next_deadline(self) -> float | None:
        """The time at which `tick` has something to do."""
        return self._next_at

    def start(self, run_id: str, ranks: RankSet, now: float) -> list[Action]:
        """Interrupt the ranks of a cell that was given up once more, and abort their operations."""
        self._run_id, self._ranks = run_id, ranks
        self._until = now + _LIMIT_S
        self._next_at = now + _INTERVAL_S
        interrupts = [
            SendToAgent(node, Interrupt(run_id=run_id, ranks=on_node))
            for node, on_node in self._pool.ranks.by_node(ranks).items()
        ]
        return [*interrupts, *self._abort(ranks)]

    def tick(self, now: float) -> list[Action]:
        """Abort operations of ranks that are still inside, if that is due."""
        if self._next_at is None or now < self._next_at:
            return []
        infos = (self._pool.ranks[rank] for rank in self._ranks)
        inside = RankSet.of(
            info.rank
            for info in infos
            if info.state is RankState.BUSY and info.run_id == self._run_id
        )
        if not inside or now >= self._until:
            self._next_at = None
            return []
        self._next_at = now + _INTERVAL_S
        reached = inside - self._silent.ranks  # all that is sent to the others comes at once, later
        return self._abort(reached) if reached else []

    def _abort(self, ranks: RankSet) -> list[Action]:
        request = AbortOperations(
            number=self._questions.new_number(),
            run_id=self._run_id,
            phase="arm",
            reason="interrupt",
            text="the cell was given up by a second interrupt",
        )
        return both_phases(ranks, request)
