"""The processes of a pool: start, restart, stop, what ranks do, what may be configured.

Runs in: the notebook's process, or any script; all of it in any thread.
"""

import atexit
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from nbddp.controller.cell_errors import build
from nbddp.controller.diagnosis.report import Report
from nbddp.controller.early_interrupts import EarlyInterrupts
from nbddp.controller.hub.listeners import Listeners
from nbddp.controller.hub.queries import RankQueries
from nbddp.controller.hub.thread import HubThread
from nbddp.controller.pool.options import PoolOptions
from nbddp.controller.pool.startup import PoolStartup
from nbddp.controller.state.actions import Diagnosed
from nbddp.controller.state.config import Config, changed
from nbddp.controller.state.rank_state import RankInfo, RankState
from nbddp.controller.state.stimuli import Configured
from nbddp.controller.trace import export
from nbddp.controller.trace.rows import TraceRow, rows_seen
from nbddp.controller.values.push_pull import Exchange
from nbddp.errors import PoolBrokenError, PoolBusyError, PoolInterruptedError
from nbddp.settings import Settings
from nbddp.wire.flight_recorder.layout import RING_LENGTH
from nbddp.wire.messages import InterruptCallback
from nbddp.wire.rank_set import NO_RANKS, RankSet
from nbddp.wire.values import shared_memory


class LivingPool:
    """What `nbddp.controller.pool.pool.Pool` is without cells and variables."""

    def __init__(self, options: PoolOptions, settings: Settings) -> None:
        self.options = options
        self.settings = settings
        self._pid = os.getpid()
        self._is_stopped = False
        self._end_lock = threading.RLock()  # one thread ends, others wait until it has
        self._restart_lock = threading.Lock()
        self._config = Config()
        self._config_lock = threading.Lock()
        self._cell_by_run: dict[str, int] = {}  # execution counts, for the trace
        self._seen_report: Report | None = None  # the latest verdict that was told
        self._last_report: Report | None = None
        self.pool_id = secrets.token_hex(4)
        #: For the notebook layer.
        self.listeners = Listeners(rank_exited=lambda exited: self._release_all(exited.rank))
        self.talk = RankQueries(lambda: self._hub)
        self._arena = (
            shared_memory.Arena() if settings.arena and shared_memory.is_supported() else None
        )
        with EarlyInterrupts() as interrupts:
            self._assembly = PoolStartup(
                options,
                settings,
                self.pool_id,
                use_arena=self._arena is not None,
                on_segment_released=self._release_segment,
            )
            with self._stopped_on_failure(interrupts, "start", "Next: run the cell again"):
                self._use(self._assembly.start(lambda: interrupts.count > 0))
            atexit.register(self._end)

    # --- start and end -------------------------------------------------------------------------

    def _use(self, hub: HubThread) -> None:
        self._hub = hub
        self._exchange = Exchange(hub, self._arena)
        hub.listeners = self.listeners
        hub.post(Configured(self._config))

    def restart(self, ranks: Sequence[int] | str | int | None = None) -> str:
        """End ranks and start fresh ones; the fork server stays warm.

        Args:
            ranks: only these; they join the groups of the others, which keep their variables.
                Default: the whole pool.

        Returns:
            What has happened, in a sentence.

        Raises:
            BadOptionError: a rank does not exist.
            PoolStartError: the new ranks did not come up; the pool is stopped.
            PoolBrokenError: fresh ranks could not take their places; the pool is as it is.
            PoolInterruptedError: the user did not wait; says what has become of the ranks.
            PoolBusyError: another thread restarts it.
        """
        self._check_alive()
        chosen = self.rank_set(ranks)
        with self._restarting(), EarlyInterrupts() as interrupts:
            if len(chosen) < self.world_size:
                return self._restart_ranks(chosen, interrupts)
            self._exchange.forget_all()
            after = "All variables are gone; the next cell starts a pool with the same options"
            with self._stopped_on_failure(interrupts, "restart", after):
                self._use(self._assembly.restart(lambda: interrupts.count > 0))
        return "all ranks are fresh processes: their variables are gone"

    def _restart_ranks(self, ranks: RankSet, interrupts: EarlyInterrupts) -> str:
        done = self.talk.restart_ranks(ranks, lambda: not interrupts.count)
        if done is None:
            raise PoolInterruptedError(build.still_replaced(ranks, self.all_ranks - ranks))
        if done.failure:
            raise PoolBrokenError(
                f"{ranks.describe()} could not be replaced: {done.failure}. "
                "Next: %ddp restart gives a fresh pool"
            )
        machine, joining = self._hub.machine, self._hub.recovery.joining
        inside = machine.in_state(RankState.BUSY) if joining else NO_RANKS
        gone = machine.in_state(RankState.EXITED)
        return build.replaced(done.fresh, self.all_ranks - done.fresh - gone, inside)

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
        """End everything that the pool has started. Does nothing if that has happened.

        A restart in another thread fails. An interrupt is raised when everything has ended.
        """
        if self._end():
            raise KeyboardInterrupt

    def _end(self) -> int:
        """End everything; gives the number of interrupts that came meanwhile."""
        if os.getpid() != self._pid:
            return 0
        self._is_stopped = True
        with EarlyInterrupts() as interrupts, self._end_lock:
            self._assembly.end()
            if self._arena is not None:
                self._arena.close()
            atexit.unregister(self._end)
        return interrupts.count

    @contextmanager
    def _stopped_on_failure(
        self, interrupts: EarlyInterrupts, what: str, after: str
    ) -> Iterator[None]:
        """An interrupt while ranks start counts as a failure too, told by ``what`` was stopped."""
        try:
            yield
            interrupts.check()
        except KeyboardInterrupt:
            self._end()
            raise PoolInterruptedError(
                f"the {what} of {self.all_ranks.describe()} was interrupted, and all processes "
                f"were ended: no pool is running. {after}"
            ) from None
        except BaseException:
            self._end()
            raise

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, or the start failed."""
        return self._is_stopped

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # --- questions -----------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.options.world_size

    @property
    def all_ranks(self) -> RankSet:
        """Every rank."""
        return RankSet.all(self.world_size)

    def ranks(self) -> list[RankInfo]:
        """What is known of each rank: state, process id, device, log."""
        return list(self._hub.machine.ranks.values())

    @property
    def is_running(self) -> bool:
        """Whether a cell is running."""
        return self._hub.recovery.active_run_id is not None

    @property
    def log_path_by_rank(self) -> dict[int, str]:
        """Where each rank's whole output is, until the pool stops."""
        return {info.rank: info.log_path for info in self.ranks()}

    @property
    def bad_frames(self) -> int:
        """Messages that the hub dropped because they were not valid."""
        return self._hub.bad_frames

    @property
    def hub(self) -> HubThread:
        """For the notebook layer."""
        return self._hub

    def __repr__(self) -> str:
        if self._is_stopped:
            return "<Pool: stopped>"
        return f"<Pool {self.options.describe()}: {self._hub.machine.summary()}>"

    def rank_set(self, ranks: Sequence[int] | str | int | None) -> RankSet:
        """``ranks`` as a set. Raises `BadOptionError` if one does not exist."""
        if ranks is None:
            return self.all_ranks
        if isinstance(ranks, int):
            ranks = [ranks]
        text = ranks if isinstance(ranks, str) else ",".join(str(rank) for rank in ranks)
        return RankSet.parse(text, self.world_size)

    # --- what ranks do -------------------------------------------------------------------------

    def diagnose(self) -> Report:
        """Look at all ranks: who waits for whom, and where each is. In any thread, at any time.

        Raises:
            PoolBrokenError: the pool was stopped, or its hub has ended.
        """
        return self.observe().report

    def observe(self) -> Diagnosed:
        """The same, with what it was found by. Raises as `diagnose`."""
        self._check_alive()
        found = self.talk.diagnose(NO_RANKS)
        self._seen_report, self._last_report = self._hub.last_report, found.report
        return found

    def survey(self) -> Diagnosed:
        """What each rank does and takes; the report is empty. Raises as `diagnose`."""
        self._check_alive()
        return self.talk.survey()

    def in_callback(self) -> RankSet:
        """Where a callback of a widget runs, and no cell. Raises as `diagnose`."""
        looks = self.survey().looks
        return RankSet.of(rank for rank, look in looks.items() if look.activity == "callback")

    def interrupt_callbacks(self) -> RankSet:
        """Interrupt these; gives the ranks, which are not known of a plain pool. As `diagnose`."""
        found = self.in_callback()
        alive = self._hub.machine.in_state(RankState.IDLE, RankState.BUSY)
        self._hub.send_to_ranks(alive, InterruptCallback())
        return found

    def stacks(self, ranks: Sequence[int] | str | int | None = None) -> Diagnosed:
        """What ranks tell of their threads, and what their agents see. Raises as `diagnose`."""
        self._check_alive()
        chosen = self.rank_set(ranks)
        return self.talk.diagnose(chosen).only(chosen)

    def trace(self) -> list[dict[str, Any]]:
        """The last operations, a dict for each rank's part: ``pandas.DataFrame(pool.trace())``.

        Raises:
            PoolBrokenError: as `diagnose`.
        """
        return export.records(self.trace_rows())

    def trace_rows(self) -> list[TraceRow]:
        """The last operations, the ranks side by side. Raises as `diagnose`."""
        self._check_alive()
        views = self.talk.diagnose(NO_RANKS, last=RING_LENGTH).views
        return rows_seen(views, self._cell_by_run)

    @property
    def last_report(self) -> Report | None:
        """The latest verdict, or answer of `diagnose`, whichever came last."""
        judged = self._hub.last_report
        if judged is not self._seen_report:
            self._seen_report = self._last_report = judged
        return self._last_report

    @property
    def config(self) -> Config:
        """What happens when ranks disagree."""
        return self._config

    def configure(self, **changes: str) -> Config:
        """Change ``on_deadlock``, ``on_mismatch``, ``on_death``; from the next event on.

        Raises:
            BadOptionError: a name or value is not legal; nothing was changed.
        """
        self._check_alive()
        with self._config_lock:
            self._config = changed(self._config, changes)
            self._hub.post(Configured(self._config))
            return self._config

    # --- for cells and variables ---------------------------------------------------------------

    def _check_alive(self) -> None:
        if os.getpid() != self._pid:
            raise PoolBrokenError("this is a forked child; the pool belongs to its parent")
        if self._is_stopped:
            raise PoolBrokenError("the pool was stopped. Next: %ddp start")

    def _release_segment(self, segment: int, rank: int) -> None:
        if self._arena is not None:
            self._arena.release(segment, rank)

    def _release_all(self, rank: int) -> None:
        if self._arena is not None:
            self._arena.release_all(rank)
