"""Finds ranks that are stuck, frees them, and makes the pool whole again.

Runs in: the hub thread. Pure: stimuli come in with the time, actions are returned, not done. It is
the layer around `PoolMachine`: each stimulus goes there first, and the end of a cell is held back
until the pool is as good as before.

    Quiet --watching--> verdict --freeing--> ranks raise --> end of the cell --mending--> outcome
                            '-- or an interrupt, or a death

A pool with ``plain`` groups has none of this: what `PoolMachine` says is what happens.
"""

from dataclasses import replace

import msgspec

from nbddp.controller.recovery.cell_recovery import CellRecovery
from nbddp.controller.recovery.damage import damage_of, with_recovery, with_torn
from nbddp.controller.recovery.pending_answers import PendingAnswers
from nbddp.controller.recovery.probes import Diagnose, RankProbes, Views
from nbddp.controller.recovery.rebuild import PoolRebuild
from nbddp.controller.recovery.replacement import TOO_OFTEN, ExitedRanks, RankRestarts
from nbddp.controller.recovery.second_interrupt import SecondInterrupt
from nbddp.controller.state.actions import (
    Action,
    AnnounceExit,
    AnnounceFailure,
    AnnounceUp,
    EndRun,
    Judged,
    LifeAction,
)
from nbddp.controller.state.config import Config
from nbddp.controller.state.exit_text import describe_exit
from nbddp.controller.state.outcome import RunOutcome
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import Phase, RankState
from nbddp.controller.state.stimuli import (
    AbandonRequested,
    Configured,
    DiagnoseRequested,
    InterruptRequested,
    LifeStimulus,
    MendRequested,
    RestartRanksRequested,
    RestartRequested,
    RunRequested,
    Stimulus,
    StopRequested,
)
from nbddp.settings import Settings
from nbddp.wire.messages import (
    Freed,
    Looked,
    Peeked,
    Quiet,
    RankExited,
    RankReady,
    Reformed,
    RunFinished,
    StartFailed,
)
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet


class RecoveryMachine:
    """State of a pool and of its recovery. One owner: the hub thread.

    Args:
        pool: the life of the pool; everything that concerns it goes through `handle`.
        settings: limits.
        diagnose: explains what is seen, see `nbddp.controller.diagnosis.diagnose`.
    """

    def __init__(self, pool: PoolMachine, settings: Settings, diagnose: Diagnose) -> None:
        self.pool = pool
        self.settings = settings
        self.config = Config()
        self._questions = PendingAnswers()
        self._eyes = RankProbes(pool, self._questions, settings, diagnose)
        self._mending = PoolRebuild(pool, self._questions, settings, self._mended)
        self._restarts = RankRestarts(pool, settings)
        self._replacing = ExitedRanks(pool, self._restarts, lambda: self.config)
        self._insisting = SecondInterrupt(pool, self._questions)
        self._case: CellRecovery | None = None
        self._held: RunOutcome | None = None  #: of a cell that has ended, until the pool is whole
        self._is_due = False  #: a mend is to begin as soon as nothing is in its way
        self._forms_all = False  #: in that mend
        self._is_ending = False
        self._fresh: set[Rank] = set()  #: since the cell ended

    # --- questions -----------------------------------------------------------------------------

    @property
    def active_run_id(self) -> str | None:
        """The cell that is running, or after which the pool is mended."""
        return self._held.run_id if self._held is not None else self.pool.active_run_id

    @property
    def is_mending(self) -> bool:
        """Whether cells have to wait for the pool to be whole, though none runs."""
        is_mending = self._mending.is_active or self._restarts.is_killing
        return is_mending and self.active_run_id is None

    @property
    def joining(self) -> RankSet:
        """Fresh ranks without process groups, since other members are still in a cell."""
        return self._mending.joining

    def refusal(self, ranks: RankSet) -> str | None:
        """Why these ranks cannot take a cell now; None if they can."""
        reason = self.transfer_refusal(ranks)
        if reason is None and self._mending.failure and len(ranks) > 1:
            return f"the process groups could not be formed again ({self._mending.failure})"
        return reason

    def transfer_refusal(self, ranks: RankSet) -> str | None:
        """Why no value can be pushed or pulled; variables can be saved when groups are broken."""
        return "a cell is running" if self._held is not None else self._reason(ranks)

    def _reason(self, ranks: RankSet) -> str | None:
        reason, failure = self.pool.refusal(ranks), self._mending.failure
        return f"{reason} ({failure})" if reason and failure and self.pool.run is None else reason

    @property
    def may_mend_again(self) -> bool:
        """Whether groups could not be formed though all ranks are there: they may be now."""
        idle = self.pool.in_state(RankState.IDLE)
        return bool(self._mending.failure) and len(idle) == len(self.pool.ranks)

    def next_deadline(self) -> float | None:
        """When a `Tick` has something to do."""
        times = [
            self.pool.next_deadline(),
            self._questions.next_deadline(),
            self._mending.next_deadline(),
            self._restarts.next_deadline(),
            self._insisting.next_deadline(),
        ]
        if self._case is not None:
            times.append(self._case.next_deadline())
        return min((at for at in times if at is not None), default=None)

    # --- the only entry ------------------------------------------------------------------------

    def handle(self, stimulus: Stimulus, now: float) -> list[Action]:
        """Take one stimulus; returns what is to be done, in order.

        Raises:
            InvalidTransitionError: an illegal move of a rank, with the rank's story.
        """
        actions: list[Action] = []
        match stimulus:
            case Quiet():
                if self._case is not None:
                    self._case.watch.quiet(stimulus.ranks, now)
            case Looked() | Peeked() | Freed():
                actions += self._questions.answer(stimulus, now)
            case Reformed():
                if self._held is not None:
                    self._held = with_torn(self._held, stimulus)
                actions += self._mending.reformed(stimulus, now)
                actions += self._questions.answer(stimulus, now)
            case DiagnoseRequested():
                actions += self._eyes.answer(stimulus, now)
            case RestartRanksRequested():
                actions += self._restart_ranks(stimulus, now)
            case Configured():
                self.config = stimulus.config
            case MendRequested():
                self._is_due = self._is_due or self.may_mend_again
            case _:
                actions += self._live(stimulus, now)
        return actions + self._due(now)

    def _live(self, stimulus: LifeStimulus, now: float) -> list[Action]:
        actions: list[Action] = []
        if isinstance(stimulus, RestartRequested):
            actions += self._forget("%ddp restart")
        elif isinstance(stimulus, StopRequested):
            self._is_ending = True
            actions += self._forget("%ddp stop")
        elif isinstance(stimulus, RunRequested):
            dead = self.pool.in_state(RankState.EXITED).ranks
            execute = msgspec.structs.replace(stimulus.execute, dead=dead)
            stimulus = replace(stimulus, execute=execute)
        elif isinstance(stimulus, AbandonRequested) and self._is_held(stimulus.run_id):
            return self._release()
        # From a cell that was given up.
        is_back = isinstance(stimulus, RunFinished) and stimulus.run_id != self.pool.active_run_id
        actions += self._pass(self.pool.handle(stimulus, now), now)
        match stimulus:
            case RunRequested():
                self._begin()
            case AbandonRequested() if self._is_held(stimulus.run_id):
                actions += self._release()  # the user does not wait for the mend either
            case RunFinished() if self._case and self._case.run.run_id == stimulus.run_id:
                self._case.finished(stimulus, now)
            case RunFinished() if is_back:
                self._mending.broken |= {mark.pg_id for mark in stimulus.marks if mark.is_broken}
                # Perhaps while others form the groups without it.
                self._is_due |= self._mending.is_active or bool(self._mending.broken)
            case InterruptRequested() if self._case and self._case.run.run_id == stimulus.run_id:
                self._case.interrupted(now)
            case RankReady():
                actions += self._mending.rank_ready(now)
            case StartFailed():
                actions += self._start_failed(stimulus, now)
            case _:
                pass
        return actions

    def _is_held(self, run_id: str) -> bool:
        return self._held is not None and self._held.run_id == run_id

    def _begin(self) -> None:
        run = self.pool.run
        if run is None:
            return
        self._replacing.begin_cell()
        self._eyes.run_id, self._eyes.results = run.run_id, run.results
        if not self.pool.spec.plain:
            self._case = CellRecovery(
                run,
                self.pool,
                self._eyes,
                self._questions,
                settings=self.settings,
                config=lambda: self.config,
            )

    def _start_failed(self, failed: StartFailed, now: float) -> list[Action]:
        rank = failed.rank
        if rank is None:
            return []
        why = f"could not start ({failed.error.ename}: {failed.error.evalue})"
        self._mending.start_failed(rank, why)
        if self.pool.ranks[rank].state is not RankState.EXITED:
            return []  # its exit will be told
        return self._mending.rank_exited(rank, why, now, respawn=True)

    def _pass(self, life: list[LifeAction], now: float) -> list[Action]:
        """What `PoolMachine` wants done, with the ends of ranks and cells looked after."""
        actions: list[Action] = []
        for action in life:
            match action:
                case EndRun():
                    actions += self._run_ended(action.outcome, now)
                case AnnounceUp() if self._mending.is_restarting:
                    actions += self._mending.pool_up("", now)
                case AnnounceFailure() if self._mending.is_restarting:
                    actions += self._mending.pool_up(action.reason, now)
                case AnnounceExit():
                    actions.append(action)
                    actions += self._rank_exited(action.exited, action.run_id, now)
                case _:
                    actions.append(action)
        return actions

    def _due(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if self._case is not None and self._case.wants_end(now):
            abandon = AbandonRequested(self._case.run.run_id)
            actions += self._pass(self.pool.handle(abandon, now), now)
        actions += self._questions.tick(now)
        if self._case is not None:
            actions += self._case.tick(now)
        actions += self._mending.tick(now)
        actions += self._restarts.tick(now)
        actions += self._insisting.tick(now)
        if self._is_due and self._is_idle:
            actions += self._mend(now)
        return actions

    # --- ends of cells and ranks ---------------------------------------------------------------

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is in the way of a mend."""
        return (
            self.pool.phase is Phase.UP
            and self.pool.run is None
            and not self.pool.spec.plain
            and not self._is_ending
            and not self._mending.is_active
            and not self._restarts.is_killing
        )

    def _run_ended(self, outcome: RunOutcome, now: float) -> list[Action]:
        case, self._case = self._case, None
        if case is None:
            return [EndRun(outcome)]
        told = case.close(has_failed=bool(outcome.ranks("error", "exited", "unfinished")))
        outcome = with_recovery(outcome, case.report, case.freeing.stuck)
        if outcome.ended_by:
            return [EndRun(outcome)]
        inside = outcome.ranks("unfinished")
        if outcome.interrupted and inside:
            case.freeing.expect_damage()
            told += self._insisting.start(outcome.run_id, inside, now)
        damage = damage_of(outcome, case.freeing)
        self._mending.broken |= damage.broken
        is_wanted = self._restarts.is_killing or self._restarts.is_asked
        is_broken = damage.is_any or bool(self._replacing.dead()) or is_wanted
        # All ranks have seen a mismatch at once, and left before anybody was looked at.
        is_untold = outcome.report is None and bool(outcome.raised_mismatches)
        if not (is_broken or is_untold or damage.is_silent):
            return [*told, self._end(outcome)]
        self._held = outcome
        if is_broken:
            self._is_due = True
            self._forms_all = damage.is_unsure
        if is_untold or not is_broken:
            told += self._eyes.look(now, self._compared)[1]
        return told

    def _compared(self, views: Views, now: float) -> list[Action]:
        """The cell has ended, and ranks issued operations that differ."""
        outcome = self._held
        if outcome is None:
            return []
        was_raised = bool(outcome.raised_mismatches)
        if self._mending.is_active and not was_raised:
            return []
        look = self._eyes.diagnose if was_raised else self._eyes.compare
        report = look(views, now)
        told: list[Action] = []
        if report.findings:
            has_errors = any(finding.is_error for finding in report.findings)
            is_wrong = has_errors and self.config.on_mismatch == "raise"
            self._held = replace(outcome, report=report, is_wrong=is_wrong)
            told.append(Judged(outcome.run_id, report, acted=False, views=views))
        is_whole = not self._is_due and not self._mending.is_active
        return [*told, *self._release()] if is_whole else told

    def _rank_exited(self, exited: RankExited, run_id: str | None, now: float) -> list[Action]:
        rank = exited.rank
        how = describe_exit(exited)[0]
        actions = self._questions.rank_exited(rank, now)
        was_killed = self._restarts.rank_exited(rank)
        if self.pool.spec.plain:
            return actions
        if self._mending.is_active:
            respawn = was_killed or self._replacing.is_replaced(rank)
            if self._held is None and respawn and not was_killed:
                self._replacing.note_exit(rank, how)
            return actions + self._mending.rank_exited(rank, how, now, respawn=respawn)
        if self.pool.phase is not Phase.UP or self._is_ending:
            return actions
        run = self.pool.run
        if run is not None:
            if self._case is not None and run_id == run.run_id:
                actions += self._case.rank_exited(exited, now)
        elif self._case is None and (was_killed or rank in self._replacing.dead()):
            self._is_due = True
            if self._held is None and not was_killed:
                self._replacing.note_exit(rank, how)
                actions += self._count_idle_exits()
        return actions

    def _count_idle_exits(self) -> list[Action]:
        if not self._replacing.is_too_often():
            return []
        self._is_due = False
        self._mending.failure = TOO_OFTEN
        return self._replacing.told(NO_RANKS, TOO_OFTEN)

    # --- mending -------------------------------------------------------------------------------

    def _mend(self, now: float) -> list[Action]:
        self._is_due = False
        forms_all, self._forms_all = self._forms_all, False
        settle = self._held is None  # ranks that exit between cells may exit together
        return self._mending.start(self._replacing.dead(), now, settle=settle, forms_all=forms_all)

    def _mended(self, failure: str, fresh: RankSet, now: float) -> list[Action]:
        self._fresh |= set(fresh)
        if self._is_due and not failure:
            return []  # and again
        self._is_due = False
        all_fresh = RankSet.of(self._fresh)
        self._fresh.clear()
        self._replacing.mended(failure)
        actions = self._restarts.mended(all_fresh, failure)
        if self._held is not None:
            self._held = replace(self._held, fresh=all_fresh, mend_failure=failure)
            actions += self._release()
        return actions + self._replacing.told(all_fresh, failure)

    def _release(self) -> list[Action]:
        """The cell has ended for its user."""
        outcome, self._held = self._held, None
        return [] if outcome is None else [self._end(outcome)]

    def _end(self, outcome: RunOutcome) -> EndRun:
        return EndRun(replace(outcome, dead=self.pool.in_state(RankState.EXITED)))

    def _forget(self, ended_by: str) -> list[Action]:
        """All ranks end: nothing is left to be mended."""
        self._mending.cancel()
        self._replacing.forget()
        self._is_due = False
        self._fresh.clear()
        return [*self._release(), *self._restarts.cancel(f"the pool was ended by {ended_by}")]

    # --- what users ask for --------------------------------------------------------------------

    def _restart_ranks(self, requested: RestartRanksRequested, now: float) -> list[Action]:
        actions = self._restarts.start(requested, now)
        # Without a process to end: those that could not be replaced before.
        self._is_due = self._is_due or (bool(self._replacing.dead()) and self.pool.run is None)
        return actions
