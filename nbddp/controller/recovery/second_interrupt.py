"""Has ranks leave a cell that was given up: the second interrupt says that the user insists.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.

What a rank did when it was freed first may have been Python; a moment later it is blocked in an
operation for which no other rank comes any more, and nobody watches a cell that has ended. So the
ranks that are still inside are freed again and again. What ranks see of each other's closing is an
error that nobody is shown any more.
"""

from nbddp.controller.recovery.abort import both_phases
from nbddp.controller.recovery.pending_answers import PendingAnswers
from nbddp.controller.state.actions import Action, TellAgent
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import RankState
from nbddp.wire.messages import Free, Interrupt
from nbddp.wire.rank_set import NO_RANKS, RankSet

_EVERY_S = 0.5
#: A rank that is still inside then is in code that nothing but the end of its process ends.
_LIMIT_S = 60.0


class SecondInterrupt:
    """The ranks that are still inside the cell that was given up last."""

    def __init__(self, pool: PoolMachine, questions: PendingAnswers) -> None:
        self._pool = pool
        self._questions = questions
        self._run_id = ""
        self._ranks = NO_RANKS
        self._next_at: float | None = None
        self._until = 0.0

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._next_at

    def start(self, run_id: str, ranks: RankSet, now: float) -> list[Action]:
        """A cell was given up on these: interrupt them once more, and free them."""
        self._run_id, self._ranks = run_id, ranks
        self._until = now + _LIMIT_S
        self._next_at = now + _EVERY_S
        interrupts = [
            TellAgent(node, Interrupt(run_id=run_id, ranks=on_node))
            for node, on_node in self._pool.ranks.by_node(ranks).items()
        ]
        return [*interrupts, *self._free(ranks)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
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
        self._next_at = now + _EVERY_S
        return self._free(inside)

    def _free(self, ranks: RankSet) -> list[Action]:
        request = Free(
            number=self._questions.new_number(),
            run_id=self._run_id,
            phase="arm",
            reason="interrupt",
            text="the cell was given up by a second interrupt",
        )
        return both_phases(ranks, request)
