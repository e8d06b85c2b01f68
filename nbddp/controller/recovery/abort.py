"""Aborts blocked operations of ranks in two phases, and decides how long their cell may go on.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.

    AbortOperations(arm) to all --> OperationsAborted from all, or time
        --> AbortOperations(fire) to all --> ranks raise

The second phase begins when all ranks are armed. Otherwise a rank would take the closed connection
of a peer for an error of its own.
"""

from collections.abc import Mapping

import msgspec

from nbddp.controller.recovery.pending_answers import Answers, PendingAnswers
from nbddp.controller.state import Action, PoolMachine, RankState, SendToRanks
from nbddp.settings import Settings
from nbddp.wire.flight_recorder import RankLook
from nbddp.wire.messages import AbortOperations, FreeReason, OperationsAborted
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

#: The second phase waits this long for ranks that have not answered the first ...
_ARM_S = 1.0
#: ... but only this long after a death, which some ranks see by torch's own sockets anyway.
_ARM_AFTER_DEATH_S = 0.05
#: A rank that is still inside its cell this long after the abort is probed again.
JUDGE_AGAIN_S = 1.0


class OperationAbort:
    """The abort of operations that ranks of one cell are blocked in."""

    def __init__(
        self, run_id: str, pool: PoolMachine, questions: PendingAnswers, settings: Settings
    ) -> None:
        self._run_id = run_id
        self._pool = pool
        self._questions = questions
        self._settings = settings
        self.reason: FreeReason | None = None  #: of the last abort
        self.text = ""  #: the message to ranks in the last abort
        self.armed: set[str] = set()  #: ids of groups that cannot be used before they are rebuilt
        self.was_outside = False  #: a wait for the store, or for a new group, was aborted
        self.stuck: dict[Rank, str] = {}  #: operations that cannot be aborted, and why
        self.fired_at = float("-inf")
        self.look_at: float | None = None
        self.interrupt_at: float | None = None
        self.give_up_at: float | None = None
        #: Some rank did not report which groups it has armed.
        self.is_unsure = False
        self._arms: dict[
            int, AbortOperations
        ] = {}  #: first phases that some rank has not answered yet
        self._fires: list[int] = []  #: numbers of second phases
        self._is_judging = False

    @property
    def is_arming(self) -> bool:
        """True while a first phase is under way."""
        return bool(self._arms)

    def next_deadline(self) -> float | None:
        """The time at which the cell has to be probed, interrupted or given up."""
        times = (self.look_at, self.interrupt_at, self.give_up_at)
        return min((at for at in times if at is not None), default=None)

    def start(
        self,
        reason: FreeReason,
        text: str,
        ranks: RankSet,
        now: float,
        *,
        pg_ids: tuple[str, ...] = (),
        dead: tuple[Rank, ...] = (),
        silent: RankSet = NO_RANKS,
    ) -> list[Action]:
        """Abort operations of ``ranks``.

        Args:
            reason: of the abort.
            text: message to the ranks.
            ranks: whose operations are aborted.
            now: monotonic time in seconds.
            pg_ids: abort operations in these groups; without ``pg_ids`` and ``dead``, all of them.
            dead: abort operations in groups of these dead ranks.
            silent: ranks that did not answer a moment ago; the second phase does not wait for them.
        """
        if not ranks:
            return []
        if self.give_up_at is None:
            self.give_up_at = now + JUDGE_AGAIN_S + self._settings.interrupt_grace_s
        self.reason, self.text = reason, text
        request = AbortOperations(
            number=self._questions.new_number(),
            run_id=self._run_id,
            phase="arm",
            reason=reason,
            text=text,
            pg_ids=pg_ids,
            ranks=dead,
        )

        def armed(answers: Answers, now: float) -> list[Action]:
            return self._fire(request, ranks, answers, now)

        self._arms[request.number] = request
        limit_s = _ARM_AFTER_DEATH_S if reason == "death" else _ARM_S
        awaited = ranks - silent
        self._questions.ask("arm", request.number, awaited, until=now + limit_s, then=armed)
        return [SendToRanks(ranks, request)]

    def _fire(
        self, arm: AbortOperations, ranks: RankSet, answers: Answers, now: float
    ) -> list[Action]:
        del self._arms[arm.number]
        self._note_armed(arm, answers, is_complete=len(answers) == len(ranks))
        self.fired_at = now
        self.look_at = now + JUDGE_AGAIN_S
        alive = self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY)
        targets = RankSet.of(set(ranks) & set(alive))
        if not targets:
            return []
        fire = msgspec.structs.replace(arm, phase="fire")
        self._fires.append(fire.number)
        self._questions.ask("fire", fire.number, targets, until=now + _ARM_S, then=self._fired)
        return [SendToRanks(targets, fire)]

    def _fired(self, answers: Answers, now: float) -> list[Action]:
        for rank, answer in answers.items():
            if isinstance(answer, OperationsAborted) and answer.stuck:
                self.stuck[rank] = answer.stuck
        return []

    def _note_armed(self, arm: AbortOperations, answers: Answers, *, is_complete: bool) -> None:
        for answer in answers.values():
            if isinstance(answer, OperationsAborted):
                self.armed.update(pg_id for pg_id in answer.pg_ids if pg_id)
                self.was_outside = self.was_outside or "" in answer.pg_ids
        if not is_complete:
            self.armed.update(pg_id for pg_id in arm.pg_ids if pg_id)
            self.is_unsure = self.is_unsure or not arm.pg_ids

    def expect_damage(self) -> None:
        """Note that the cell is given up, so that operations in any group may be aborted."""
        self.is_unsure = self.is_unsure or self.fired_at == float("-inf")

    def stop(self) -> None:
        """Stop, because the cell has ended: ranks that are armed need no second phase."""
        for number, arm in self._arms.items():
            self._note_armed(arm, self._questions.drop("arm", number), is_complete=False)
        self._arms.clear()
        for number in self._fires:
            self._questions.drop("fire", number)
        self.look_at = self.interrupt_at = self.give_up_at = None

    def judge_again(self) -> None:
        """Begin another probe of the ranks, which `extend_limits` judges."""
        self.look_at = None
        self._is_judging = True

    def extend_limits(
        self, looks: Mapping[Rank, RankLook], unfinished: RankSet, now: float
    ) -> None:
        """Decide how long ranks may stay in the cell, after they were probed again.

        A rank that runs the user's code, perhaps a ``finally`` that saves a model, gets more time
        and then an interrupt, unless the user interrupts it anyway.
        """
        if not self._is_judging:
            return
        self._is_judging = False
        self.look_at = now + JUDGE_AGAIN_S
        if self.reason == "death" or self.interrupt_at is not None:
            return
        if any(_runs(looks.get(rank)) for rank in unfinished):
            if self.reason == "interrupt":
                self.give_up_at = None
            else:
                self.interrupt_at = now + self._settings.cleanup_grace_s
                self.give_up_at = self.interrupt_at + self._settings.interrupt_grace_s
        elif self.give_up_at is None:
            self.give_up_at = now + self._settings.interrupt_grace_s


def both_phases(ranks: RankSet, arm: AbortOperations) -> list[Action]:
    """Return both phases of an abort, one right after the other.

    For ranks to which errors of closed connections do no harm any more.
    """
    fire = msgspec.structs.replace(arm, phase="fire")
    return [SendToRanks(ranks, arm), SendToRanks(ranks, fire)]


def _runs(look: RankLook | None) -> bool:
    """Return whether its main thread runs, and is not blocked in an operation."""
    if look is None or look.activity != "running":
        return False
    return any(thread.is_main and thread.wait is None for thread in look.threads)
