"""Recovery of one running cell: its stuck ranks, aborts, and the time that it may take.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.
"""

from collections.abc import Callable

from nbddp.controller.cell_errors import is_end_of_wait
from nbddp.controller.diagnosis import Report, late_ranks
from nbddp.controller.recovery.abort import JUDGE_AGAIN_S, OperationAbort
from nbddp.controller.recovery.pending_answers import PendingAnswers
from nbddp.controller.recovery.probes import RankProbes, Views
from nbddp.controller.recovery.silence import SilentRanks
from nbddp.controller.recovery.stall_watch import StallWatch
from nbddp.controller.state import (
    Action,
    CellRun,
    Config,
    NoticeChanged,
    PoolMachine,
    RanksHeld,
    RankState,
    SendToRanks,
    VerdictReached,
    describe_exit,
    exit_phrase,
)
from nbddp.settings import Settings
from nbddp.wire.flight_recorder import ranks_in
from nbddp.wire.messages import AskWhileStuck, FreeReason, RankExited, RunFinished
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

#: A rank that is still in its cell this long after an interrupt is blocked in C++.
_ABORT_AFTER_INTERRUPT_S = 0.1
#: A rank that is still in its cell this long after the abort for a death runs Python.
_INTERRUPT_AFTER_DEATH_S = 0.2
#: An operation with a timeout of its own may take this long to report it.
_OWN_TIMEOUT_GRACE_S = 1.0
#: A verdict is not shown while a timeout of this length, or a shorter one, runs: it may be a part
#: of the program, which goes on after it.
_BRIEF_TIMEOUT_MS = 3000
#: After one rank has raised, timeouts of others are waited for this long only.
_OWN_TIMEOUT_AFTER_ERROR_S = 2.0
#: Members of a group that are yet to come to a call that does not match are waited for this long:
#: the card is to name all of them, and not those that were early.
_GATHER_S = 1.0
#: Other findings are held back as long as ranks that share few processors may come apart.
_GATHER_PER_RANK_S = 0.01
_GATHER_PAUSE_S = 0.1


class CellRecovery:
    """Watches and interrupts the ranks of one cell, and aborts their operations.

    `wants_end` says when the cell has to be given up.
    """

    def __init__(
        self,
        run: CellRun,
        pool: PoolMachine,
        probes: RankProbes,
        questions: PendingAnswers,
        settings: Settings,
        *,
        silent: SilentRanks,
        config: Callable[[], Config],
    ) -> None:
        self.run = run
        self._silent = silent
        self._pool = pool
        self._settings = settings
        self._config = config
        self.abort = OperationAbort(run.run_id, pool, questions, settings)
        self.watch = StallWatch(
            run.run_id, probes, questions, judge=self._judge, observe=self._take_views
        )
        self.report: Report | None = None  #: the last verdict
        #: Verdicts that were shown, by fingerprint, and whether they were acted on.
        self._shown: dict[str, bool] = {}
        #: Ends of timeouts that the user has set, by verdict and versions of the ranks.
        self._wait_until: dict[tuple[object, ...], float] = {}
        self._views: Views = {}  #: those that prove `report`
        #: A verdict that waits for the end of a brief timeout.
        self._withheld: VerdictReached | None = None
        #: The last verdict that was acted on, or left to a timeout.
        self._basis: Report | None = None
        #: The end of the wait for late ranks, by the finding.
        self._gather_until: dict[tuple[object, ...], float] = {}
        self._abort_at: float | None = None
        self._knows_timeout = False
        #: With ``on_deadlock=debug``: the user is asked about a verdict, and nobody is freed.
        self._is_held = False
        self._frees = False  #: the user has seen the verdict: the next one is acted on
        self._asks = True  #: later verdicts are for the user, too
        #: nbddp has interrupted the ranks, after a death or long after an abort.
        self._has_interrupted = False

    def next_deadline(self) -> float | None:
        """The time at which `tick` has something to do."""
        times = (self.watch.next_deadline(), self.abort.next_deadline(), self._abort_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def partial_verdict(self) -> VerdictReached | None:
        """The verdict, if ranks were still on their way that it would have to name."""
        report = self.report
        if report is None or not late_ranks(report):
            return None
        acted = self._shown.get(report.fingerprint, False)
        timed_out = self._timed_out(report) if acted else NO_RANKS
        return VerdictReached(self.run.run_id, report, acted, self._views, timed_out=timed_out)

    def wants_end(self, now: float) -> bool:
        """Return whether the time of its ranks is over."""
        give_up_at = self.abort.give_up_at
        return give_up_at is not None and now >= give_up_at

    def close(self, *, has_failed: bool) -> list[Action]:
        """End the recovery with the cell; returns a withheld verdict if the cell has failed."""
        self.watch.stop()
        self.abort.stop()
        self._abort_at = None
        withheld = self._withheld
        if withheld is None or withheld.report.fingerprint in self._shown:
            return []
        if not has_failed:
            self.report = None  # the program expected the timeout and handled it
            return []
        return [withheld]

    # --- events of the cell --------------------------------------------------------------------

    def finished(self, finished: RunFinished, now: float) -> None:
        """Take the end of the cell on one rank; others are still inside."""
        is_leaving = self._is_interrupted or self.abort.reason is not None
        if not is_leaving and (finished.error is not None or self.watch.is_quiet):
            self.watch.rank_left(now)

    @property
    def _is_interrupted(self) -> bool:
        return self.run.interrupted or self.run.timed_out

    def interrupted(self, now: float) -> None:
        """Note that its ranks were interrupted; ranks that are blocked in C++ did not notice."""
        self._abort_at = now + _ABORT_AFTER_INTERRUPT_S
        self._is_held = False
        self.abort.interrupt_at = self.abort.give_up_at = None

    def free(self, now: float, *, is_last: bool) -> None:
        """Free ranks that were held, as soon as their verdict is proven again.

        Args:
            now: monotonic time in seconds.
            is_last: later verdicts of this cell are acted on at once.
        """
        self._is_held = False
        self._frees = True
        self._asks = self._asks and not is_last
        self.watch.look_soon(now)

    def rank_exited(self, exited: RankExited, now: float) -> list[Action]:
        """Abort operations after an exit, because the others may wait for that rank forever."""
        survivors = self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY)
        how = f"exited ({describe_exit(exited)[0]})"
        text = f"rank {exited.rank} {exit_phrase(exited) if exited.was_lost else how}"
        if self.abort.reason != "death":
            self.abort.interrupt_at = now + _INTERRUPT_AFTER_DEATH_S
            self.abort.give_up_at = self.abort.interrupt_at + self._settings.interrupt_grace_s
        return self.abort.start("death", text, survivors, now, dead=(exited.rank,))

    def tick(self, now: float) -> list[Action]:
        """Do everything that is due at ``now``."""
        actions: list[Action] = []
        if self.run.timed_out and not self._knows_timeout:
            self._knows_timeout = True
            self.interrupted(now)
        if self._abort_at is not None and now >= self._abort_at:
            if self.abort.is_arming:
                self._abort_at = now + _ABORT_AFTER_INTERRUPT_S
            else:
                self._abort_at = None
                silent = self._silent.ranks  # their answers are not waited for
                inside = self.run.unfinished
                actions += self.abort.start("interrupt", "", inside, now, silent=silent)
        if self.abort.look_at is not None and now >= self.abort.look_at:
            self.abort.judge_again()
            self.watch.look_soon(now)
        if self.abort.interrupt_at is not None and now >= self.abort.interrupt_at:
            self.abort.interrupt_at = None
            self._has_interrupted = True
            actions += self._pool.interrupts()
        if not self.abort.is_arming:
            actions += self.watch.tick(now)
        return actions

    def _take_views(self, views: Views, now: float) -> None:
        looks = {rank: view.look for rank, view in views.items() if view.look is not None}
        self.abort.extend_limits(looks, self.run.unfinished, now)

    # --- verdicts ------------------------------------------------------------------------------

    def _judge(self, report: Report, views: Views, now: float) -> list[Action]:
        if self.abort.is_arming or not self.run.unfinished:
            return []
        is_leaving = self._abort_at is not None or now < self.abort.fired_at + JUDGE_AGAIN_S
        cause = self._cause(report)
        if is_leaving or self._is_gathering(cause, now):
            return []
        reason, text = reason_of(cause), cause.proven[0].headline if cause.proven else ""
        # Ranks that were interrupted raise because of it: their errors are no new finding.
        is_ending = self._is_interrupted or self._has_interrupted
        if self._is_interrupted:
            reason = "interrupt"
        elif self._has_interrupted and self.abort.reason is not None:
            reason, text = self.abort.reason, self.abort.text
        if not is_ending:
            if cause is report:
                self._views = views
            self.report = cause
            if self._config().on_deadlock == "report":
                return self._show(cause, views, acted=False)
            wait_until = self._own_timeout(report, views, now)
            self._basis = cause
            if wait_until > now:
                self.watch.look_soon(wait_until)
                return self._leave_to_timeout(cause, report, views)
            debugs = self.run.asks_at_deadlock or self._config().on_deadlock == "debug"
            asks = debugs and self._asks and not self._frees
            if asks and reason in ("deadlock", "mismatch"):  # an error has its traceback
                return self._hold(cause)
            self._frees = False
        alive = set(self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY))
        return [
            *(self._show(cause, views, acted=True) if not is_ending else ()),
            *self.abort.start(
                reason,
                text,
                RankSet.of(alive & (_members(views, report.pg_ids) | set(report.stuck))),
                now,
                pg_ids=(*report.pg_ids, *([""] if report.waits_for_store else [])),
                dead=tuple(rank for rank in report.involved if rank not in alive),
                silent=RankSet.of(r for r, view in views.items() if view.state == "silent"),
            ),
        ]

    def _leave_to_timeout(self, cause: Report, report: Report, views: Views) -> list[Action]:
        if (report.earliest_timeout_ms or 0) > _BRIEF_TIMEOUT_MS:
            return self._show(cause, views, acted=False)
        self._withheld = VerdictReached(self.run.run_id, cause, acted=False, views=views)
        return [NoticeChanged(self.run.run_id, cause)]

    def _hold(self, report: Report) -> list[Action]:
        """Ask the user about a verdict before it is acted on."""
        if self._is_held:
            return []
        self._is_held = True
        run_id = self.run.run_id
        alive = self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY)
        return [
            NoticeChanged(run_id, report),
            RanksHeld(run_id, report),
            SendToRanks(RankSet.of(set(self.run.ranks) & set(alive)), AskWhileStuck(run_id=run_id)),
        ]

    def _is_gathering(self, report: Report, now: float) -> bool:
        """Return whether ranks are yet to come that the finding has to name; then look again."""
        late = late_ranks(report)
        if not late:
            return False
        finding = report.proven[0]
        members = len(finding.group.ranks) if finding.group is not None else 0
        is_mismatch = finding.kind == "mismatched-collective"
        limit_s = _GATHER_S if is_mismatch else min(_GATHER_S, members * _GATHER_PER_RANK_S)
        key = finding.kind, finding.group and finding.group.pg_id, finding.collective_seq_id
        until = self._gather_until.setdefault(key, now + limit_s)
        if now >= until:
            return False
        self.watch.look_soon(min(until, now + _GATHER_PAUSE_S))
        return True

    def _cause(self, report: Report) -> Report:
        """Return the verdict to show: ``report``, or an earlier one that has caused its errors.

        A rank that was proven to be stuck was freed, or left its operation by a timeout. Ranks
        that come later wait for it, but its error is still not the cause.
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
            actions.append(NoticeChanged(self.run.run_id, report))
        if report.fingerprint not in self._shown or (acted and not self._shown[report.fingerprint]):
            self._shown[report.fingerprint] = acted
            timed_out = self._timed_out(report) if acted else NO_RANKS
            actions.append(
                VerdictReached(self.run.run_id, report, acted, views, timed_out=timed_out)
            )
        return actions

    def _timed_out(self, report: Report) -> RankSet:
        """The stuck ranks of a report that have raised since: they are not freed."""
        raised = (self.run.results[rank] for rank in report.stuck if rank in self.run.results)
        return RankSet.of(
            result.rank
            for result in raised
            if not result.was_freed and is_end_of_wait(report, result.rank, result.error)
        )

    def _own_timeout(self, report: Report, views: Views, now: float) -> float:
        """Return the time by which a timeout of the user has raised its own error.

        A program may handle the timeout and wait for the same operation once more; that is another
        wait.
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
    """Return the reason of the abort that a verdict causes."""
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
    """Return all ranks that are members of one of these groups."""
    spans = {
        group.spans  # every member describes them, so each is looked at once
        for view in views.values()
        if view.look is not None
        for group in view.look.groups
        if group.pg_id in pg_ids
    }
    return {rank for each in spans for rank in ranks_in(each)}
