"""The processes of a pool: start, restart, stop, questions to ranks, configuration.

Runs in: the notebook's process, or any script; all of it in any thread.
"""

import atexit
import itertools
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from nbddp.controller.cell_errors import restart_continues_text, restarted_text
from nbddp.controller.diagnosis import Report, Sources
from nbddp.controller.early_interrupts import EarlyInterrupts
from nbddp.controller.hub import HubThread, Listeners, RankRequests, Run
from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.kept_pool import KeptPool
from nbddp.controller.pool.left_cell import LeftCell
from nbddp.controller.pool.refusals import (
    not_alone_text,
    not_begun_text,
    not_replaced_text,
    silent_text,
    unanswered_text,
)
from nbddp.controller.pool.startup import PoolStartup
from nbddp.controller.state import (
    Config,
    Configured,
    Diagnosed,
    InterruptRequested,
    PoolSnapshot,
    RankState,
    with_changes,
)
from nbddp.controller.values import Exchange, PromptExchange
from nbddp.errors import (
    NbddpError,
    PoolBrokenError,
    PoolBusyError,
    PoolInterruptedError,
    PoolStartError,
)
from nbddp.settings import Settings
from nbddp.wire.messages import InterruptCallback
from nbddp.wire.rank_set import NO_RANKS, RankSet
from nbddp.wire.values import shared_memory

#: A node that gives no sign of life counts as silent this long after its time at the latest.
_HEARD_S = 3.0


class PoolProcesses:
    """Agents, ranks and the hub of one `nbddp.controller.pool.pool.Pool`, which owns it.

    The processes start with it. Its methods raise the errors that the methods of `Pool` name.

    Args:
        options: what the user has chosen, checked.
        settings: limits and durations.
        sources: the code of the user; called by the hub thread.
        on_progress: gets the state of the pool some times a second while it starts.
        kept: a pool that lives already, to be taken back.
    """

    def __init__(
        self,
        options: PoolOptions,
        settings: Settings,
        sources: Sources,
        on_progress: Callable[[PoolSnapshot], None],
        kept: KeptPool | None = None,
    ) -> None:
        _refuse_without_gil()
        self._settings = settings
        self._keep_s = options.keep
        self._is_plain = options.plain
        self._has_machines = options.has_machines
        self._run_numbers = itertools.count(1)
        self._all_ranks = RankSet.all(options.world_size)
        self._pid = os.getpid()
        self.is_stopped = False  #: `stop` was called, or the start failed, or it was let go
        self.is_let_go = False  #: it goes on without this process
        self._end_lock = threading.RLock()  # one thread ends all, others wait for that
        self._restart_lock = threading.Lock()
        self.config = Config()
        self._config_lock = threading.Lock()
        self._seen_report: Report | None = None  # the latest verdict that was seen here
        self._last_report: Report | None = None
        self.pool_id = secrets.token_hex(4) if kept is None else kept.record.pool_id
        self._run_prefix = self.pool_id + (f".{kept.record.attachments + 1}" if kept else "")
        self.listeners = Listeners(rank_exited=lambda exited: self._release_all(exited.rank))
        self.talk = RankRequests(lambda: self.hub)
        # The memory of this machine is out of reach for ranks on others.
        has_arena = settings.arena and shared_memory.is_supported() and not options.has_machines
        use_arena = has_arena if kept is None else kept.record.use_arena
        self.arena = shared_memory.Arena() if use_arena else None
        with EarlyInterrupts() as interrupts:
            self._startup = PoolStartup(
                options,
                settings,
                self.pool_id,
                use_arena=self.arena is not None,
                on_segment_released=self._release_segment,
                sources=sources,
                on_progress=on_progress,
                kept=kept,
            )
            if kept is None:
                with self._stopped_on_failure(interrupts, "start", self._startup.interrupted_text):
                    self._use(self._startup.start(interrupts.have_come))
            else:
                self._take_back(interrupts)
            atexit.register(self._leave)

    @property
    def snapshot(self) -> PoolSnapshot:
        """The state of the pool that the hub has published last."""
        return self.hub.snapshot

    def new_run(self, ranks: RankSet) -> Run:
        """Make the run of another cell, whose id no notebook before this one has used."""
        run_id = f"{self._run_prefix}-{next(self._run_numbers)}"
        run = Run(run_id, ranks, self._settings.output_backlog_bytes)
        if self._keep_s:
            run.on_shown = lambda: self.hub.settle(run_id)
        return run

    @property
    def left_cell(self) -> LeftCell | None:
        """The cell that ran while the pool had no notebook; None: there was none."""
        return self._startup.left_cell

    # --- start and end -------------------------------------------------------------------------

    def _use(self, hub: HubThread) -> None:
        self.hub = hub
        self.exchange = Exchange(hub, self.arena, self._settings)
        hub.listeners = self.listeners
        hub.post(Configured(self.config))

    def _take_back(self, interrupts: EarlyInterrupts) -> None:
        try:
            self.listeners.hold_background()
            self._startup.listeners = self.listeners
            self._use(self._startup.start(interrupts.have_come))
        except KeyboardInterrupt:
            self._abandon()
            raise PoolInterruptedError(
                f"%ddp attach was interrupted: pool {self.pool_id} goes on without a notebook. "
                f"Next: %ddp attach {self.pool_id}"
            ) from None
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Close what this process holds of a pool that goes on without it."""
        self.is_stopped = True
        if self.arena is not None:
            self.arena.close()

    def let_go(self, keep_s: float, last_run: Run | None = None) -> None:
        """Let the pool go on without this process; see `Pool.detach`.

        Args:
            keep_s: for so many seconds.
            last_run: of the last cell; if it has ended, it is not kept.
        """
        self.check_alive()
        with self._restarting(), EarlyInterrupts(), self._end_lock:
            if last_run is not None and last_run.outcome is not None:
                self.hub.settle(last_run.run_id)
            self._startup.let_go(keep_s)
            self.is_let_go = True
            self._abandon()
            atexit.unregister(self._leave)

    def _leave(self) -> None:
        """Let a pool go that is to outlive this process, which ends; end any other one."""
        if self._keep_s and not self.is_stopped and os.getpid() == self._pid:
            with suppress(NbddpError):
                self.let_go(self._keep_s)
                return
        self._end()

    def at_prompt(self, run: Run) -> PromptExchange:
        """Return what asks ranks for values while they stand at prompts of a cell."""
        return PromptExchange(self.hub, self._settings, run)

    def restart(
        self, ranks: RankSet, *, knows_cells: bool = True, leaves_loops: bool = False
    ) -> str:
        """End these ranks and start fresh ones; see `Pool.restart`.

        Args:
            ranks: to restart.
            knows_cells: this notebook knows the cells that have made their variables.
            leaves_loops: `%ddp catchup` may not make the names of some loops.
        """
        with self._restarting(), EarlyInterrupts() as interrupts:
            if len(ranks) < len(self._all_ranks):
                ranks = self._with_agents(ranks, interrupts)
                fresh, kept, inside = self._restart_ranks(ranks, interrupts)
                return restarted_text(
                    fresh, kept, inside, knows_cells=knows_cells, leaves_loops=leaves_loops
                )
            self._wait_for_silence(interrupts)
            if nodes := self._startup.nodes_to_replace():
                self.hub.awaited = nodes  # what becomes of them is told by this restart
                self.hub.give_up(nodes)
                self._replace(nodes, interrupts, "%ddp restart")
            self.exchange.forget_all(self._all_ranks)
            after = "All variables are gone; the next cell starts a pool with the same options"
            with self._stopped_on_failure(interrupts, "restart", lambda: after):
                self._startup.on_progress = self.listeners.progress
                self._use(self._startup.restart(interrupts.have_come))
        return "all ranks are fresh processes: their variables are gone"

    def _wait_for_silence(self, interrupts: EarlyInterrupts) -> None:
        """Wait until each node on another machine has given a sign of life, or counts as silent.

        Else all agents would be started again where one was killed seconds ago.
        """
        give_up_at = time.monotonic() + self._settings.silent_after_s + _HEARD_S
        while self._has_machines and self.hub.is_alive and time.monotonic() < give_up_at:
            try:
                unheard = self.talk.survey().silent
            except PoolBrokenError:
                return  # the hub has ended: the restart starts another one
            snapshot = self.snapshot
            nodes = {info.node for info in snapshot.ranks if info.rank in unheard}
            if nodes <= snapshot.silent_nodes | snapshot.lost_agents:
                return
            if interrupts.count:
                raise PoolInterruptedError(not_begun_text(self._all_ranks))

    def _with_agents(self, ranks: RankSet, interrupts: EarlyInterrupts) -> RankSet:
        """Put other agents in the places of lost ones of these ranks.

        Returns:
            These ranks, and all others of the nodes that were lost.
        """
        snapshot = self.snapshot
        lost = {info.node for info in snapshot.ranks if info.rank in ranks} & snapshot.lost_agents
        if not lost:
            return ranks
        if snapshot.store_is_lost:
            raise PoolBrokenError(not_alone_text(ranks, "store-lost", snapshot))
        self._replace(lost, interrupts, f"%ddp restart -r {ranks}")
        return RankSet.of([*ranks, *(i.rank for i in snapshot.ranks if i.node in lost)])

    def _replace(self, nodes: Collection[int], interrupts: EarlyInterrupts, command: str) -> None:
        try:
            self._startup.replace(
                nodes, interrupts.have_come, self.listeners.progress, command=command
            )
        except KeyboardInterrupt:
            names = " and ".join(f"node {node}" for node in sorted(nodes))
            raise PoolInterruptedError(
                f"the wait for another agent in the place of {names} was interrupted: the other "
                "ranks keep their variables. Next: the same command asks again"
            ) from None

    def _restart_ranks(
        self, ranks: RankSet, interrupts: EarlyInterrupts
    ) -> tuple[RankSet, RankSet, RankSet]:
        """Replace some ranks; return these, those that keep theirs, and those still in a cell."""
        shown_from = time.monotonic() + self._settings.progress_after_s

        def is_wanted() -> bool:
            if time.monotonic() >= shown_from:
                self.listeners.progress(replace(self.snapshot, replacing=ranks))
            return not interrupts.count

        done = self.talk.restart_ranks(ranks, is_wanted)
        if done is None:
            raise PoolInterruptedError(restart_continues_text(ranks, self._all_ranks - ranks))
        if done.is_withdrawn:
            raise PoolInterruptedError(not_begun_text(ranks))
        if done.unanswered:
            raise PoolBrokenError(unanswered_text(ranks, done.unanswered, self.snapshot))
        if done.obstacle:
            raise PoolBrokenError(not_alone_text(ranks, done.obstacle, self.snapshot))
        if done.silent:
            raise PoolBrokenError(silent_text(ranks, done))
        if done.failure or not done.fresh:
            raise PoolBrokenError(
                not_replaced_text(ranks, done.failure, self.snapshot, is_plain=self._is_plain)
            )
        snapshot = self.snapshot
        inside = snapshot.in_state(RankState.BUSY) if snapshot.joining else NO_RANKS
        gone = snapshot.in_state(RankState.EXITED)
        kept = self._all_ranks - done.fresh - gone
        return done.fresh, kept, inside

    @contextmanager
    def _restarting(self) -> Iterator[None]:
        if not self._restart_lock.acquire(blocking=False):
            raise PoolBusyError(
                "the pool is being restarted by another thread. Next: wait for it, or %ddp stop"
            )
        try:
            yield
        finally:
            self._restart_lock.release()

    def stop(self) -> None:
        """End everything that was started.

        Raises:
            KeyboardInterrupt: the user interrupted the call; everything has ended by then.
        """
        if self._end():
            raise KeyboardInterrupt

    def _end(self) -> int:
        """End everything; return the number of interrupts that came meanwhile."""
        if os.getpid() != self._pid:
            return 0
        self.is_stopped = True
        with EarlyInterrupts() as interrupts, self._end_lock:
            self._startup.end()
            if self.arena is not None:
                self.arena.close()
            atexit.unregister(self._leave)
        return interrupts.count

    @contextmanager
    def _stopped_on_failure(
        self, interrupts: EarlyInterrupts, what: str, after: Callable[[], str]
    ) -> Iterator[None]:
        """End everything if the block fails or is interrupted.

        Args:
            interrupts: those that came so far.
            what: names what is interrupted: ``start``.
            after: returns the end of the message: what to do next. Asked before the end.
        """
        try:
            yield
            interrupts.check()
        except KeyboardInterrupt:
            then = after()
            self._end()
            raise PoolInterruptedError(
                f"the {what} of {self._all_ranks.describe()} was interrupted, and all processes "
                f"were ended: no pool is running. {then}"
            ) from None
        except BaseException:
            self._end()
            raise

    def check_alive(self) -> None:
        """Raise `PoolBrokenError` if the pool was stopped, or belongs to another process."""
        if os.getpid() != self._pid:
            raise PoolBrokenError("this is a forked child; the pool belongs to its parent")
        if self.is_let_go:
            raise PoolBrokenError(
                f"the pool was let go. Next: %ddp attach {self.pool_id} takes it back"
            )
        if self.is_stopped:
            raise PoolBrokenError("the pool was stopped. Next: %ddp start")

    # --- what ranks do -------------------------------------------------------------------------

    def observe(self) -> Diagnosed:
        """Find out which rank waits for which; the evidence comes with the report."""
        self.check_alive()
        diagnosed = self.talk.diagnose(NO_RANKS)
        self._seen_report, self._last_report = self.hub.last_report, diagnosed.report
        return diagnosed

    def survey(self) -> Diagnosed:
        """Ask each rank what it does and which memory it takes; the report is empty."""
        self.check_alive()
        return self.talk.survey()

    def stacks(self, ranks: RankSet) -> Diagnosed:
        """Get the threads of these ranks as they tell them, and as their agents see them."""
        return self.talk.diagnose(ranks).only(ranks)

    @property
    def last_report(self) -> Report | None:
        """The latest verdict on a cell, or answer of `observe`, whichever came last."""
        judged = self.hub.last_report
        if judged is not self._seen_report:
            self._seen_report = self._last_report = judged
        return self._last_report

    def in_callback(self) -> RankSet:
        """Find the ranks on which a widget's callback runs, and no cell."""
        looks = self.survey().looks
        return RankSet.of(rank for rank, look in looks.items() if look.activity == "callback")

    # --- interrupts ----------------------------------------------------------------------------

    def interrupt(self) -> RankSet:
        """Interrupt the running cell; if no cell runs, callbacks, and return their ranks."""
        self.check_alive()
        run_id = self.snapshot.active_run_id
        if run_id is None:
            return self.interrupt_callbacks()
        self.interrupt_run(run_id)
        return NO_RANKS

    def interrupt_run(self, run_id: str) -> None:
        """Interrupt this run, if its cell is still running."""
        self.hub.post(InterruptRequested(run_id))

    def interrupt_callbacks(self) -> RankSet:
        """Interrupt callbacks of widgets; return the ranks, which a plain pool does not know."""
        interrupted = self.in_callback()
        alive = self.snapshot.in_state(RankState.IDLE, RankState.BUSY)
        self.hub.send_to_ranks(alive, InterruptCallback())
        return interrupted

    # --- configuration -------------------------------------------------------------------------

    def configure(self, changes: dict[str, str]) -> Config:
        """Change what happens when ranks disagree, from the next event on."""
        self.check_alive()
        with self._config_lock:
            self.config = with_changes(self.config, changes)
            self.hub.apply(Configured(self.config))
            return self.config

    # --- shared memory -------------------------------------------------------------------------

    def _release_segment(self, segment: int, rank: int) -> None:
        if self.arena is not None:
            self.arena.release(segment, rank)

    def _release_all(self, rank: int) -> None:
        if self.arena is not None:
            self.arena.release_all(rank)


def _refuse_without_gil() -> None:
    """Refuse a Python without the GIL: one thread at a time may write a record."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise PoolStartError(
            "the pool did not start: this Python runs without the GIL, which nbddp needs. "
            "Next: set PYTHON_GIL=1 in the environment before Jupyter starts, "
            "or use a Python that is not free-threaded"
        )
