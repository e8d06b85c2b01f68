"""The input requests of ranks that have no reply yet, and their end when the cell ends.

Runs in: the hub thread. Pure; a part of `nbddp.controller.state.pool_machine`. The module
`nbddp.controller.pool.cell_wait` asks the user; this one replies to ranks that get no answer.
"""

from collections import Counter

from nbddp.controller.state.actions import LifeAction, SendToRanks
from nbddp.controller.state.stimuli import InputAnswered
from nbddp.wire.messages import InputReply, InputRequest
from nbddp.wire.rank_set import Rank, RankSet

#: A rank that asks again after this many ends of input stays at its prompt: a loop that takes an
#: end of input for a wrong answer would print forever.
_MOST_ENDS = 20


class InputRequests:
    """The open requests of the running cell, and the late requests of cells that have ended."""

    def __init__(self) -> None:
        #: By rank and number. An interrupt ends a request without a message, so some are outdated.
        self._open: dict[tuple[Rank, int], InputRequest] = {}
        self._ends: Counter[Rank] = Counter()  #: ends of input since the rank's last cell began

    def begin(self, ranks: RankSet) -> None:
        """Note that a cell begins on these ranks."""
        for rank in ranks:
            self._ends.pop(rank, None)

    def add(self, request: InputRequest, run_id: str | None) -> list[LifeAction]:
        """Add the request of a rank; one that is not of the running cell ``run_id`` is ended."""
        if request.run_id != run_id:
            return self._end_of(request)
        self._open[request.rank, request.question] = request
        return []

    def remove(self, answer: InputAnswered) -> list[LifeAction]:
        """Remove a request that the user has answered."""
        self._open.pop((answer.rank, answer.question), None)
        return []

    def ranks(self) -> RankSet:
        """The ranks that were last seen at a prompt."""
        return RankSet.of({rank for rank, _ in self._open})

    def debugged(self) -> RankSet:
        """The ranks of which a debugger asks, or whose prompt is that of all ranks."""
        return RankSet.of(
            request.rank
            for request in self._open.values()
            if request.debugger is not None or request.stop is not None or request.is_stuck
        )

    def end(self, *, is_over: bool) -> list[LifeAction]:
        """End all open requests; ``is_over``: their ranks end too, and need no reply."""
        requests = [] if is_over else list(self._open.values())
        actions = [action for request in requests for action in self._end_of(request)]
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
        return [SendToRanks(RankSet.of([request.rank]), reply)]
