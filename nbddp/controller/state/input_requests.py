"""Questions of ranks that have no answer yet, and what becomes of them when their cell is over.

Runs in: the hub thread. Pure; a part of `nbddp.controller.state.pool_machine`. The user is asked by
`nbddp.controller.pool.cell_wait`; here it is seen to that no rank waits for an answer in vain.
"""

from collections import Counter

from nbddp.controller.state.actions import LifeAction, TellRanks
from nbddp.controller.state.stimuli import InputAnswered
from nbddp.wire.messages import InputReply, InputRequest
from nbddp.wire.rank_set import Rank, RankSet

#: A rank that asks again and again, whatever it is told, is left at its prompt in the end: a loop
#: that takes an end of input for a wrong answer would print for ever.
_MOST_ENDS = 20


class Prompts:
    """The open questions of the cell that runs, and the late ones of cells that do not."""

    def __init__(self) -> None:
        #: By rank and number. An interrupt ends a question untold: some are asked no longer.
        self._open: dict[tuple[Rank, int], InputRequest] = {}
        self._ends: Counter[Rank] = Counter()  #: ends of input since the rank's last cell began

    def begin(self, ranks: RankSet) -> None:
        """A cell begins on these ranks."""
        for rank in ranks:
            self._ends.pop(rank, None)

    def asked(self, request: InputRequest, run_id: str | None) -> list[LifeAction]:
        """A rank asks while the cell ``run_id`` runs."""
        if request.run_id != run_id:
            return self._end_of(request)
        self._open[request.rank, request.question] = request
        return []

    def answered(self, answer: InputAnswered) -> list[LifeAction]:
        """The user has answered."""
        self._open.pop((answer.rank, answer.question), None)
        return []

    def ranks(self) -> RankSet:
        """The ranks that were last seen at a prompt."""
        return RankSet.of({rank for rank, _ in self._open})

    def end(self, *, is_over: bool) -> list[LifeAction]:
        """Nobody will answer what is open; ``is_over``: its ranks end as well, and are not told."""
        asked = [] if is_over else list(self._open.values())
        actions = [action for request in asked for action in self._end_of(request)]
        self._open.clear()
        return actions

    def _end_of(self, request: InputRequest) -> list[LifeAction]:
        self._ends[request.rank] += 1
        if self._ends[request.rank] > _MOST_ENDS:
            return []
        reply = InputReply(
            run_id=request.run_id,
            question=request.question,
            value=None,
            reason="the cell that asked has ended",
        )
        return [TellRanks(RankSet.of([request.rank]), reply)]
