"""One running cell, for the recovery: who is stuck in it, who is freed, how long it may go on.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.
"""

from collections.abc import Callable

from nbddp.controller.cell_errors.evidence import is_end_of_wait
from nbddp.controller.diagnosis.report import Report
from nbddp.controller.recovery.abort import JUDGE_AGAIN_S, OperationAbort
from nbddp.controller.recovery.pending_answers import PendingAnswers
from nbddp.controller.recovery.probes import RankProbes, Views
from nbddp.controller.recovery.stall_watch import StallWatch
from nbddp.controller.state.actions import Action, Judged, Noticed
from nbddp.controller.state.cell_run import CellRun
from nbddp.controller.state.config import Config
from nbddp.controller.state.exit_text import describe_exit
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import RankState
from nbddp.settings import Settings
from nbddp.wire.messages import FreeReason, RankExited, RunFinished
from nbddp.wire.rank_set import Rank, RankSet

#: A rank that an interrupt has not got out of its cell so soon is blocked in C++.
_FREE_AFTER_INTERRUPT_S = 0.1
#: A rank that the death of another has not got out of its cell so soon runs Python.
_INTERRUPT_AFTER_DEATH_S = 0.2
#: Operations with a time-out of their own have so long to report it.
_OWN_TIMEOUT_GRACE_S = 1.0
#: A verdict is not shown while a time-out of this length, or a shorter one, may be a part of the
#: program, which goes on when it has passed.
_BRIEF_TIMEOUT_MS = 3000
#: When one rank has raised already, the time-outs of others are waited for only this long.
_OWN_TIMEOUT_AFTER_ERROR_S = 2.0


class CellRecovery:
    """Watches, frees, interrupts the ranks of one cell; `wants_end` says when to give it up."""

    def __init__(
        self,
        run: CellRun,
        pool: PoolMachine,
        eyes: RankProbes,
        questions: PendingAnswers,
        *,
        settings: Settings,
        config: Callable[[], Config],
    ) -> None:
        self.run = run
        self._pool = pool
        self._settings = settings
        self._config = config
        self.freeing = OperationAbort(run.run_id, pool, questions, settings)
        self.watch = StallWatch(run.run_id, eyes, questions, judge=self._judge, seen=self._seen)
        self.report: Report | None = None  #: the last verdict
        self._told: dict[
            str, bool
        ] = {}  #: verdicts that were shown, and whether they were acted on
        #: For time-outs of the ranks' own, by verdict and moment.
        self._wait_until: dict[tuple[object, ...], float] = {}
        self._withheld: Judged | None = None  #: until it is known how a brief time-out ends
        #: The last verdict that was acted on, or left to a time-out.
        self._basis: Report | None = None
        self._free_at: float | None = None
        self._knows_timeout = False
        self._has_interrupted = False  #: nbddp itself, since a rank died or was freed long ago

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        times = (self.watch.next_deadline(), self.freeing.next_deadline(), self._free_at)
        return min((at for at in times if at is not None), default=None)

    def wants_end(self, now: float) -> bool:
        """Whether its ranks have had their time."""
        give_up_at = self.freeing.give_up_at
        return give_up_at is not None and now >= give_up_at

    def close(self, *, has_failed: bool) -> list[Action]:
        """It has ended; what was not told of it is told if it went wrong."""
        self.watch.stop()
        self.freeing.stop()
        self._free_at = None
        withheld = self._withheld
        if withheld is None or withheld.report.fingerprint in self._told:
            return []
        if not has_failed:
            self.report = None  # the time-out was wanted, and was dealt with
            return []
        return [withheld]

    # --- what happens in it --------------------------------------------------------------------

    def finished(self, finished: RunFinished, now: float) -> None:
        """A rank has left it; others are still inside."""
        is_leaving = self._is_interrupted or self.freeing.reason is not None
        if not is_leaving and (finished.error is not None or self.watch.is_quiet):
            self.watch.rank_left(now)

    @property
    def _is_interrupted(self) -> bool:
        return self.run.interrupted or self.run.timed_out

    def interrupted(self, now: float) -> None:
        """Its ranks were interrupted; those that are blocked in C++ did not notice."""
        self._free_at = now + _FREE_AFTER_INTERRUPT_S
        self.freeing.interrupt_at = self.freeing.give_up_at = None

    def rank_exited(self, exited: RankExited, now: float) -> list[Action]:
        """One of its ranks has exited: the others may wait for it for ever."""
        survivors = self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY)
        text = f"rank {exited.rank} exited ({describe_exit(exited)[0]})"
        if self.freeing.reason != "death":
            self.freeing.interrupt_at = now + _INTERRUPT_AFTER_DEATH_S
            self.freeing.give_up_at = self.freeing.interrupt_at + self._settings.interrupt_grace_s
        return self.freeing.start("death", text, survivors, now, dead=(exited.rank,))

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        if self.run.timed_out and not self._knows_timeout:
            self._knows_timeout = True
            self.interrupted(now)
        if self._free_at is not None and now >= self._free_at:
            if self.freeing.is_arming:
                self._free_at = now + _FREE_AFTER_INTERRUPT_S
            else:
                self._free_at = None
                actions += self.freeing.start("interrupt", "", self.run.unfinished, now)
        if self.freeing.look_at is not None and now >= self.freeing.look_at:
            self.freeing.judge_again()
            self.watch.look_soon(now)
        if self.freeing.interrupt_at is not None and now >= self.freeing.interrupt_at:
            self.freeing.interrupt_at = None
            self._has_interrupted = True
            actions += self._pool.interrupts()
        if not self.freeing.is_arming:
            actions += self.watch.tick(now)
        return actions

    def _seen(self, views: Views, now: float) -> None:
        looks = {rank: view.look for rank, view in views.items() if view.look is not None}
        self.freeing.be_patient(looks, self.run.unfinished, now)

    # --- verdicts ------------------------------------------------------------------------------

    def _judge(self, report: Report, views: Views, now: float) -> list[Action]:
        if self.freeing.is_arming or not self.run.unfinished:
            return []
        if self._free_at is not None or now < self.freeing.fired_at + JUDGE_AGAIN_S:
            return []  # they are on their way out
        cause = self._cause(report)
        reason, text = reason_of(cause), cause.proven[0].headline if cause.proven else ""
        # Who has interrupted the ranks knows why the cell ends: what they raise is no news.
        is_ending = self._is_interrupted or self._has_interrupted
        if self._is_interrupted:
            reason = "interrupt"
        elif self._has_interrupted and self.freeing.reason is not None:
            reason, text = self.freeing.reason, self.freeing.text
        if not is_ending:
            self.report = cause
            if self._config().on_deadlock == "report":
                return self._show(cause, views, acted=False)
            wait_until = self._own_timeout(report, views, now)
            if wait_until > now:
                self._basis = cause
                self.watch.look_soon(wait_until)
                if (report.earliest_timeout_ms or 0) <= _BRIEF_TIMEOUT_MS:
                    self._withheld = Judged(self.run.run_id, cause, acted=False, views=views)
                    return [Noticed(self.run.run_id, cause)]
                return self._show(cause, views, acted=False)
            self._basis = cause
        alive = set(self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY))
        return [
            *(self._show(cause, views, acted=True) if not is_ending else ()),
            *self.freeing.start(
                reason,
                text,
                RankSet.of(alive & (_members(views, report.pg_ids) | set(report.stuck))),
                now,
                pg_ids=(*report.pg_ids, *([""] if report.waits_for_store else [])),
                dead=tuple(rank for rank in report.involved if rank not in alive),
                silent=RankSet.of(r for r, view in views.items() if view.state == "silent"),
            ),
        ]

    def _cause(self, report: Report) -> Report:
        """The verdict to be told: ``report``, or the one that its errors came of.

        A rank that was proven to be stuck has been freed, or has left its operation by the time-out
        of that. Others that come later wait for it, and still its error is not what went wrong.
        """
        basis = self._basis
        if basis is None or not report.proven or report.proven[0].kind != "first-error":
            return report
        raised = set(report.proven[0].culprits)
        if basis.proven and basis.proven[0].kind == "first-error":
            raised -= set(basis.proven[0].culprits)
        results = [self.run.results[rank] for rank in raised if rank in self.run.results]
        is_consequence = len(results) == len(raised) and all(
            result.was_freed or is_end_of_wait(basis, result.rank, result.error)
            for result in results
        )
        return basis if is_consequence else report

    def _show(self, report: Report, views: Views, *, acted: bool) -> list[Action]:
        actions: list[Action] = []
        if not acted:
            actions.append(Noticed(self.run.run_id, report))
        if report.fingerprint not in self._told or (acted and not self._told[report.fingerprint]):
            self._told[report.fingerprint] = acted
            actions.append(Judged(self.run.run_id, report, acted, views))
        return actions

    def _own_timeout(self, report: Report, views: Views, now: float) -> float:
        """When the time-out that the user asked for has shown: its error is the lesson.

        A program may deal with it, and wait for the same once more: that is another wait.
        """
        timeout_ms, left_ms = report.earliest_timeout_ms, report.earliest_timeout_left_ms
        if timeout_ms is None or left_ms is None:
            return 0.0
        if timeout_ms > self._settings.own_timeout_s * 1e3:
            return 0.0
        if reason_of(report) == "error" and left_ms > _OWN_TIMEOUT_AFTER_ERROR_S * 1e3:
            return 0.0
        until = now + left_ms / 1e3 + _OWN_TIMEOUT_GRACE_S
        versions = (look.version if (look := views[rank].look) else 0 for rank in report.stuck)
        return self._wait_until.setdefault((report.fingerprint, *versions), until)


def reason_of(report: Report) -> FreeReason:
    """What the ranks are told when they are freed."""
    match report.proven[0].kind if report.proven else "":
        case "dead-rank":
            return "death"
        case "first-error" | "left-debugger":
            return "error"
        case "mismatched-collective":
            return "mismatch"
        case _:
            return "deadlock"


def _members(views: Views, pg_ids: tuple[str, ...]) -> set[Rank]:
    """All ranks that are members of one of these groups."""
    return {
        rank
        for view in views.values()
        if view.look is not None
        for group in view.look.groups
        if group.pg_id in pg_ids
        for rank in group.ranks
    }
