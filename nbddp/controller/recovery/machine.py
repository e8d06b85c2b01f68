"""Finds ranks that are stuck, aborts their operations, and rebuilds the pool.

Runs in: the hub thread. Pure: stimuli come in with the time, actions are returned, not done. It is
the layer around `PoolMachine`: each stimulus goes there first, and the end of a cell is held back
until the pool is repaired.

    RanksStalled --StallWatch--> verdict --OperationAbort--> ranks raise --> end of the cell
                             '-- or an interrupt, or a death             |
                                            outcome <--PoolRebuild-------'

A pool with ``plain`` groups has no recovery: the actions of `PoolMachine` are done as they are.
"""

from dataclasses import replace
from functools import partial

import msgspec

from nbddp.controller.diagnosis import CompareScope, compare_records
from nbddp.controller.recovery.cell_recovery import CellRecovery
from nbddp.controller.recovery.damage import damage_of, has_just_lost_agent, with_recovery
from nbddp.controller.recovery.given_up_cell import GivenUpCell
from nbddp.controller.recovery.held_outcome import AGENTS_END_S, HeldOutcome
from nbddp.controller.recovery.late_ranks import with_late_ranks
from nbddp.controller.recovery.pending_answers import PendingAnswers
from nbddp.controller.recovery.probes import Compare, Diagnose, RankProbes, Views
from nbddp.controller.recovery.published import snapshot_of
from nbddp.controller.recovery.ranks_to_replace import TOO_OFTEN, ExitedRanks, RankRestarts
from nbddp.controller.recovery.rebuild import PoolRebuild
from nbddp.controller.recovery.silence import SilentRanks
from nbddp.controller.state import (
    AbandonRequested,
    Action,
    AnnounceExit,
    AnnounceFailure,
    AnnounceUp,
    Config,
    Configured,
    DiagnoseRequested,
    EndRun,
    FreeRequested,
    InterruptRequested,
    LifeAction,
    LifeStimulus,
    NodesSilent,
    Phase,
    PoolMachine,
    PoolSnapshot,
    RanksAnswered,
    RankState,
    RebuildRequested,
    RestartRanksRequested,
    RestartRequested,
    RestartWithdrawn,
    RunOutcome,
    RunRequested,
    Stimulus,
    StopRequested,
    VerdictReached,
    describe_exit,
)
from nbddp.settings import Settings
from nbddp.wire.messages import (
    GroupsRebuilt,
    RankExited,
    RankReady,
    RanksStalled,
    RunFinished,
    RunsFinished,
    StartFailed,
)
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet


class RecoveryMachine:
    """State of a pool and of its recovery. One owner: the hub thread.

    Args:
        pool: the state of the pool; all stimuli for it go through `handle`.
        settings: limits.
        diagnose: explains views of ranks, see `nbddp.controller.diagnosis.diagnose`.
        compare: compares the records of a cell, see `nbddp.controller.diagnosis.compare_records`.
        first_number: of the questions to ranks; another hub has asked those before it.
    """

    def __init__(
        self,
        pool: PoolMachine,
        settings: Settings,
        diagnose: Diagnose,
        compare: Compare = compare_records,
        first_number: int = 1,
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.config = Config()
        self.first_number = first_number
        self._questions = PendingAnswers(first_number)
        self.silent = SilentRanks(pool)
        shared = pool, self._questions, settings
        self._probes = RankProbes(*shared, diagnose, compare, silent=self.silent)
        self._rebuild = PoolRebuild(*shared, self.silent, self._rebuilt)
        self._restarts = RankRestarts(*shared, self.silent, self.snapshot)
        self._restarts.begun = self._restart_begun
        self._exited_ranks = ExitedRanks(pool, self._restarts, lambda: self.config)
        self._second_interrupt = GivenUpCell(pool, self._questions, self.silent)
        self._cell: CellRecovery | None = None
        self._held = HeldOutcome()  #: back until the pool is rebuilt
        self._is_rebuild_due = False  #: a rebuild begins as soon as nothing prevents it
        self._forms_all = False  #: that rebuild forms all groups
        self._is_ending = False
        self._fresh: set[Rank] = set()  #: ranks that were replaced since the cell ended

    def resume(self, joining: RankSet) -> None:
        """Go on with a pool that ran without a hub: its cell, and ranks without groups."""
        self._begin()
        self._rebuild.expect(joining)
        self._is_rebuild_due = bool(joining)

    # --- questions -----------------------------------------------------------------------------

    @property
    def active_run_id(self) -> str | None:
        """The cell that is running, or after which the pool is being rebuilt."""
        held = self._held.outcome
        return self.pool.active_run_id if held is None else held.run_id

    @property
    def is_rebuilding(self) -> bool:
        """True while cells have to wait for a rebuild although no cell runs."""
        is_active = self._rebuild.is_active or self._restarts.is_killing
        return is_active and self.active_run_id is None

    def snapshot(self) -> PoolSnapshot:
        """Return the state that other threads read; equal to the last one if nothing changed."""
        return snapshot_of(self.pool, self.active_run_id, self._rebuild, self._restarts)

    def refusal(self, ranks: RankSet) -> str | None:
        """Return why these ranks cannot take a cell now; None: they can."""
        reason = self.transfer_refusal(ranks)
        return self._rebuild.refusal if reason is None and len(ranks) > 1 else reason

    def transfer_refusal(self, ranks: RankSet) -> str | None:
        """Return why no value can be pushed or pulled now; None: it can.

        Broken groups do not prevent it, so that the user can save variables.
        """
        return "a cell is running" if self._held.outcome is not None else self._reason(ranks)

    def _reason(self, ranks: RankSet) -> str | None:
        reason = self.pool.refusal(ranks, self.silent.unheard)
        return self._rebuild.explained(reason) if reason and self.pool.run is None else reason

    @property
    def may_rebuild_again(self) -> bool:
        """True if the last rebuild failed although all ranks live, so that it may be retried."""
        idle = self.pool.ranks.in_state(RankState.IDLE)
        return bool(self._rebuild.failure) and len(idle) == len(self.pool.ranks)

    def next_deadline(self) -> float | None:
        """The time at which a `Tick` has something to do."""
        times = [
            self.pool.next_deadline(),
            self._questions.next_deadline(),
            self._rebuild.next_deadline(),
            self._restarts.next_deadline(),
            self._second_interrupt.next_deadline(),
            self._held.next_deadline(),
        ]
        if self._cell is not None:
            times.append(self._cell.next_deadline())
        return min((at for at in times if at is not None), default=None)

    def put_off(self, busy_s: float) -> None:
        """Give ranks more time to answer: the hub was busy, and read nothing."""
        self._questions.put_off(busy_s)

    # --- the only entry ------------------------------------------------------------------------

    def handle(  # noqa: PLR0912 - one branch for each kind of stimulus
        self, stimulus: Stimulus, now: float
    ) -> list[Action]:
        """Take one stimulus; returns the actions to do, in order.

        Raises:
            InvalidTransitionError: an illegal move of a rank, with the rank's history.
        """
        actions: list[Action] = []
        match stimulus:
            case RanksStalled():
                if self._cell is not None:
                    self._cell.watch.quiet(stimulus.ranks, now)
            case RanksAnswered():
                actions += self._questions.answer_all(stimulus.answers, now)
            case GroupsRebuilt():
                self._held.note_torn(stimulus)
                actions += self._rebuild.reformed(stimulus, now)
                actions += self._questions.answer(stimulus, now)
            case DiagnoseRequested():
                actions += self._probes.answer(stimulus, now)
            case FreeRequested():
                if self._cell is not None and self._cell.run.run_id == stimulus.run_id:
                    self._cell.free(now, is_last=stimulus.is_last)
            case RestartRanksRequested():
                actions += self._restarts.start(stimulus, now)
            case RestartWithdrawn():
                actions += self._restarts.withdraw(stimulus)
            case Configured():
                self.config = stimulus.config
            case NodesSilent():
                actions += self._nodes_silent(stimulus, now)
            case RebuildRequested():
                self._is_rebuild_due = self._is_rebuild_due or self.may_rebuild_again
            case _:
                actions += self._handle_pool_stimulus(stimulus, now)
        return actions + self._act_if_due(now)

    def _handle_pool_stimulus(self, stimulus: LifeStimulus, now: float) -> list[Action]:
        actions: list[Action] = []
        if isinstance(stimulus, RestartRequested):
            actions += self._forget("%ddp restart")
        elif isinstance(stimulus, StopRequested):
            self._is_ending = True
            actions += self._forget(stimulus.by)
        elif isinstance(stimulus, RunRequested):
            dead = self.pool.ranks.in_state(RankState.EXITED).ranks
            execute = msgspec.structs.replace(stimulus.execute, dead=dead)
            stimulus = replace(stimulus, execute=execute)
        elif isinstance(stimulus, AbandonRequested) and self._is_held(stimulus.run_id):
            return self._release()
        # Ranks that end alike end for the same reason.
        first = stimulus.finished if isinstance(stimulus, RunsFinished) else stimulus
        # The end of a cell that was given up before.
        is_late = isinstance(first, RunFinished) and first.run_id != self.pool.active_run_id
        actions += self._take_pool_actions(self.pool.handle(stimulus, now), now)
        match first:
            case RunRequested():
                self._begin()
            case AbandonRequested() if self._is_held(first.run_id):
                actions += self._release()  # the user does not wait for the rebuild either
            case RunFinished() if self._cell and self._cell.run.run_id == first.run_id:
                self._cell.finished(first, now)
            case RunFinished() if is_late:
                self._held.note_late_ends(stimulus)
                self._rebuild.broken |= {mark.pg_id for mark in first.marks if mark.is_broken}
                # The others may be forming groups without this rank just now.
                self._is_rebuild_due |= self._rebuild.is_active or bool(self._rebuild.broken)
            case InterruptRequested() if self._cell and self._cell.run.run_id == first.run_id:
                self._cell.interrupted(now)
            case RankReady():
                actions += self._rebuild.rank_ready(now)
            case StartFailed():
                actions += self._start_failed(first, now)
            case _:
                pass
        return actions

    def _nodes_silent(self, silent: NodesSilent, now: float) -> list[Action]:
        self.silent.note(silent.nodes)
        if not silent.nodes:
            self._is_rebuild_due = self._is_rebuild_due or self._rebuild.waits_for_silent
            return []
        return [*self._rebuild.nodes_silent(now), *self._restarts.nodes_silent(now)]

    def _is_held(self, run_id: str) -> bool:
        return self._held.outcome is not None and self._held.outcome.run_id == run_id

    def _begin(self) -> None:
        run = self.pool.run
        if run is None:
            return
        self._exited_ranks.begin_cell()
        self._probes.begin_cell(run.run_id, run.results)
        if not self.pool.spec.plain:
            shared = self.pool, self._probes, self._questions, self.settings
            self._cell = CellRecovery(run, *shared, silent=self.silent, config=lambda: self.config)

    def _start_failed(self, failed: StartFailed, now: float) -> list[Action]:
        rank = failed.rank
        if rank is None:
            return []
        reason = f"could not start ({failed.error.ename}: {failed.error.evalue})"
        self._rebuild.start_failed(rank, reason)
        if self.pool.ranks[rank].state is not RankState.EXITED:
            return []  # its exit will be reported
        return self._rebuild.rank_exited(rank, reason, now, respawn=True)

    def _take_pool_actions(self, pool_actions: list[LifeAction], now: float) -> list[Action]:
        """Return the actions of `PoolMachine`, with the recovery at ends of ranks and cells."""
        actions: list[Action] = []
        for action in pool_actions:
            match action:
                case EndRun():
                    actions += self._run_ended(action.outcome, now)
                case AnnounceUp() if self._rebuild.is_restarting:
                    actions += self._rebuild.pool_up("", now)
                case AnnounceFailure() if self._rebuild.is_restarting:
                    actions += self._rebuild.pool_up(action.reason, now)
                case AnnounceExit():
                    actions.append(action)
                    actions += self._rank_exited(action.exited, action.run_id, now)
                case _:
                    actions.append(action)
        return actions

    def _act_if_due(self, now: float) -> list[Action]:
        actions: list[Action] = []
        run = self.pool.run
        is_over = self._cell is not None and self._cell.wants_end(now)
        if run is not None and (is_over or self.silent.holds_up(run)):
            abandon = AbandonRequested(run.run_id)
            actions += self._take_pool_actions(self.pool.handle(abandon, now), now)
        actions += self._questions.tick(now)
        if self._cell is not None:
            actions += self._cell.tick(now)
        actions += self._rebuild.tick(now)
        actions += self._restarts.tick(now)
        actions += self._second_interrupt.tick(now)
        if self._held.settled(now):
            actions += self._release_if_whole()
        if self._is_rebuild_due and self._is_idle:
            actions += self._start_rebuild(now)
        return actions

    # --- ends of cells and ranks ---------------------------------------------------------------

    @property
    def _is_idle(self) -> bool:
        """True if a rebuild can begin now."""
        return (
            self.pool.phase is Phase.UP
            and self.pool.run is None
            and not self.pool.spec.plain
            and not self._is_ending
            and not self._rebuild.is_active
            and not self._restarts.is_killing
            and not self._held.settles
        )

    def _run_ended(self, outcome: RunOutcome, now: float) -> list[Action]:
        cell, self._cell = self._cell, None
        silent = self.silent.among(outcome.ranks("unfinished"), now)
        alive = self.pool.ranks.in_state(RankState.IDLE, RankState.BUSY)
        outcome = replace(outcome, silent=silent, beside=alive - RankSet.of(outcome.results))
        if cell is None:
            return [EndRun(outcome)]
        has_failed = bool(outcome.ranks("error", "exited", "unfinished"))
        actions = cell.close(has_failed=has_failed)
        outcome = with_recovery(outcome, cell.report, cell.abort.stuck)
        if outcome.ended_by:
            return [EndRun(outcome)]
        if outcome.interrupted and (inside := outcome.ranks("unfinished")):
            cell.abort.expect_damage()
            actions += self._second_interrupt.start(outcome.run_id, inside, now)
        damage = damage_of(outcome, cell.abort)
        if has_failed:
            actions += self._probes.sanitized(now)
        self._rebuild.broken |= damage.broken
        is_restarting = self._restarts.is_killing or self._restarts.is_asked
        is_broken = damage.is_any or bool(self._exited_ranks.dead()) or is_restarting
        # All ranks raised a mismatch at once, and left the cell before any rank was probed.
        is_unreported = outcome.report is None and bool(outcome.raised_mismatches)
        partial_verdict = cell.partial_verdict if has_failed else None
        is_odd = is_broken or is_unreported or damage.scope is not None
        is_quiet = not (is_odd or partial_verdict)
        settle = (is_broken or is_quiet) and has_just_lost_agent(outcome, AGENTS_END_S)
        if is_quiet and not settle:
            return [*actions, self._end(outcome)]
        self._held.hold(outcome, now, settle=settle)
        if is_broken:
            self._is_rebuild_due = True
            self._forms_all = damage.is_unsure
        if partial_verdict is not None:
            actions += self._probes.look(now, partial(self._completed, partial_verdict))[1]
        elif is_unreported or (damage.scope is not None and not is_broken):
            compared = partial(self._compared, scope=damage.scope or "all")
            # Idle ranks answer, on a busy machine late. Others may be in C code as long as it is.
            is_any_deaf = self.pool.ranks.in_state(RankState.BUSY) or self.silent.ranks
            limit_s = None if is_broken or is_any_deaf else self.settings.compare_timeout_s
            last = damage.record_count
            actions += self._probes.look(now, compared, last=last, limit_s=limit_s)[1]
        return actions

    def _compared(self, views: Views, now: float, *, scope: CompareScope) -> list[Action]:
        """Take the views after a cell has ended whose ranks issued operations that differ."""
        outcome = self._held.outcome
        if outcome is None:
            return []
        was_raised = bool(outcome.raised_mismatches)
        if self._rebuild.is_active and not was_raised:
            return []
        if was_raised:
            report = self._probes.diagnose(views, now)
        else:
            report = self._probes.compare(views, now, scope=scope)
        actions: list[Action] = []
        if report.findings:
            has_errors = any(finding.is_error for finding in report.findings)
            is_wrong = has_errors and self.config.on_mismatch == "raise"
            self._held.outcome = replace(outcome, report=report, is_wrong=is_wrong)
            actions.append(VerdictReached(outcome.run_id, report, acted=False, views=views))
        return [*actions, *self._release_if_whole()]

    def _completed(self, verdict: VerdictReached, views: Views, now: float) -> list[Action]:
        """Take the views after a cell whose verdict lacks ranks that were still on their way."""
        held = self._held.outcome
        if held is None or held.run_id != verdict.run_id:
            return []
        whole = with_late_ranks(verdict, views, partial(self._probes.diagnose, now=now)) or verdict
        self._held.outcome = replace(held, report=whole.report)
        return [*[whole] * (whole is not verdict), *self._release_if_whole()]

    def _release_if_whole(self) -> list[Action]:
        return [] if self._is_rebuild_due or self._rebuild.is_active else self._release()

    def _rank_exited(self, exited: RankExited, run_id: str | None, now: float) -> list[Action]:
        rank, exit_text = exited.rank, describe_exit(exited)[0]
        actions = self._questions.rank_exited(rank, now)
        was_killed = self._restarts.rank_exited(rank)
        if self.pool.spec.plain:
            return actions
        if not was_killed:
            self._held.rank_exited(exited, now)
        if self._rebuild.is_active:
            respawn = was_killed or self._exited_ranks.is_replaced(rank)
            if self._held.outcome is None and respawn and not was_killed:
                self._exited_ranks.note_exit(rank, exit_text)
            return actions + self._rebuild.rank_exited(rank, exit_text, now, respawn=respawn)
        if self.pool.phase is not Phase.UP or self._is_ending:
            return actions
        run = self.pool.run
        if run is not None:
            if self._cell is not None and run_id == run.run_id:
                actions += self._cell.rank_exited(exited, now)
        elif self._cell is None and (was_killed or rank in self._exited_ranks.dead()):
            self._is_rebuild_due = True
            if self._held.outcome is None and not was_killed:
                self._exited_ranks.note_exit(rank, exit_text)
                actions += self._count_idle_exits()
        return actions

    def _count_idle_exits(self) -> list[Action]:
        if not self._exited_ranks.is_too_often():
            return []
        self._is_rebuild_due = False
        self._rebuild.failure = TOO_OFTEN
        return self._exited_ranks.report_exits(NO_RANKS, TOO_OFTEN)

    # --- rebuild -------------------------------------------------------------------------------

    def _start_rebuild(self, now: float) -> list[Action]:
        self._is_rebuild_due = False
        forms_all, self._forms_all = self._forms_all, False
        settle = self._held.outcome is None  # several ranks may exit together between cells
        return self._rebuild.start(
            self._exited_ranks.dead(), now, settle=settle, forms_all=forms_all
        )

    def _rebuilt(self, failure: str, fresh: RankSet, now: float) -> list[Action]:
        self._fresh |= set(fresh)
        self._probes.replaced |= set(fresh)
        if self._is_rebuild_due and not failure:
            return []  # another rebuild follows
        self._is_rebuild_due = False
        all_fresh, self._fresh = RankSet.of(self._fresh), set()
        self._exited_ranks.rebuilt(failure)
        actions = self._restarts.rebuilt(all_fresh, failure, now, self._rebuild.waiting)
        if self._held.outcome is not None:
            self._held.outcome = replace(
                self._held.outcome, fresh=all_fresh, rebuild_failure=failure
            )
            actions += self._release()
        return actions + self._exited_ranks.report_exits(all_fresh, failure)

    def _release(self) -> list[Action]:
        """End the cell for the user."""
        outcome = self._held.release()
        return [] if outcome is None else [self._end(outcome)]

    def _end(self, outcome: RunOutcome) -> EndRun:
        return EndRun(replace(outcome, dead=self.pool.ranks.in_state(RankState.EXITED)))

    def _forget(self, ended_by: str) -> list[Action]:
        """Forget all damage, because all ranks end."""
        self._rebuild.cancel()
        self._exited_ranks.forget()
        self._is_rebuild_due = False
        self._fresh.clear()
        return [*self._release(), *self._restarts.cancel(f"the pool was ended by {ended_by}")]

    # --- requests of the user ------------------------------------------------------------------

    def _restart_begun(self) -> None:
        # Ranks that could not be replaced before have no process that ends.
        self._is_rebuild_due |= bool(self._exited_ranks.dead()) and self.pool.run is None
