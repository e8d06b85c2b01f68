"""The pool of rank processes, as Python code uses it.

Runs in: the notebook's process, or any script. Blocking; one cell at a time.
"""

import itertools
import keyword
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from nbddp.controller.cell_errors import build
from nbddp.controller.diagnosis.report import Report
from nbddp.controller.early_interrupts import EarlyInterrupts
from nbddp.controller.hub.run import Run
from nbddp.controller.hub.transfer import RequestRefusedError, interrupt_as_error
from nbddp.controller.options import PoolOptions, check_seconds
from nbddp.controller.pool.cell_wait import CellView, CellWait
from nbddp.controller.pool.process_control import PoolProcesses
from nbddp.controller.state.actions import Diagnosed
from nbddp.controller.state.config import Config
from nbddp.controller.state.outcome import RunOutcome
from nbddp.controller.state.rank_state import Phase, RankInfo, RankState
from nbddp.controller.state.snapshot import PoolSnapshot
from nbddp.controller.state.stimuli import (
    AbandonRequested,
    InputAnswered,
    RunRequested,
)
from nbddp.controller.trace import export
from nbddp.controller.trace.rows import TraceRow, rows_of_views
from nbddp.controller.values import compare, variables
from nbddp.controller.values.descriptions import Descriptions
from nbddp.controller.values.push_pull import Exchange
from nbddp.controller.values.result import Difference
from nbddp.errors import BadOptionError, CellError, PoolBrokenError, PoolBusyError
from nbddp.settings import Settings
from nbddp.wire.flight_recorder.layout import RING_LENGTH
from nbddp.wire.messages import Execute, InputReply
from nbddp.wire.rank_set import NO_RANKS, RankSet
from nbddp.wire.values.fingerprints import Variables

#: A cell of a script.
_NO_NAME = "the cell"
#: Cells of which the trace knows the number; ranks remember the last 1024 operations.
_REMEMBERED_CELLS = 4096
#: Each cell tells its ranks of the last ones that failed.
_REMEMBERED_FAILURES = 16


@dataclass(frozen=True)
class CellOptions:
    """How a cell is to be run."""

    ranks: RankSet
    timeout_s: float | None = None
    execution_count: int = 1
    first_line: int = 1
    cell_name: str = _NO_NAME
    check: bool = False  #: ranks of several machines compare operations before each
    parent_id: str = ""  #: id of the front end's request


class Pool:
    """Persistent rank processes with a shared process group.

    Make one with `nbddp.start`. Usable as a context manager::

        with nbddp.start(2) as pool:
            pool.run("print(rank)")
    """

    def __init__(
        self,
        options: PoolOptions,
        settings: Settings,
        make_view: "Callable[[Pool, Run], CellView]",
        check_source: Callable[[str], None] = lambda code: None,
    ) -> None:
        self.options = options
        self.settings = settings
        self._make_view = make_view
        self._check_source = check_source  # this layer does not know what IPython adds to Python
        self._run_numbers = itertools.count(1)
        self._execution_counts = itertools.count(1)
        self._cell_by_run: dict[str, int] = {}  # execution counts, for the trace
        self._begun = (_NO_NAME, 0)  # the last cell: its name and number
        self._last_run: Run | None = None
        self._failed = NO_RANKS  # in the last cell that failed
        self._failed_runs: deque[str] = deque(maxlen=_REMEMBERED_FAILURES)
        self._processes = PoolProcesses(options, settings)
        self.pool_id = self._processes.pool_id
        #: For the notebook layer.
        self.listeners = self._processes.listeners
        self.talk = self._processes.talk

    # --- cells ---------------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        ranks: Sequence[int] | str | None = None,
        timeout: float | None = None,
    ) -> RunOutcome:
        """Run ``code`` on ranks, show their output, and wait.

        Args:
            code: what a ``%%ddp`` cell may hold.
            ranks: which ranks, as numbers or as text such as ``"0,2-3"``; default: all.
            timeout: seconds until the cell is interrupted.

        Raises:
            SyntaxError: ``code`` is not Python; nothing was sent.
            BadOptionError: ``code`` is not text, or a rank or the time-out is not legal.
            PoolBusyError: a cell is running.
            PoolBrokenError: a rank is gone or does not come back.
            CellError: the cell failed on a rank; see `nbddp.errors` for its kinds.
        """
        if not isinstance(code, str):
            raise BadOptionError(f"the code is of type {type(code).__name__}; legal: str")
        code = code if code.endswith("\n") else code + "\n"
        self._check_source(code)
        options = CellOptions(
            ranks=self.rank_set(ranks),
            timeout_s=timeout,
            execution_count=next(self._execution_counts),
        )
        return self.run_cell(code, options)

    def run_cell(
        self,
        code: str,
        options: CellOptions,
        make_view: "Callable[[Pool, Run], CellView] | None" = None,
    ) -> RunOutcome:
        """Run a cell of a notebook, perhaps in another view; raises as `run`."""
        outcome = self._run_to_end(code, options, make_view or self._make_view)
        error = self.error_of(outcome, options.cell_name)
        if error is not None:
            # Kept errors keep this frame. The report with all that it was judged by is 100 kB.
            del outcome
            raise error
        return outcome

    def _run_to_end(
        self, code: str, options: CellOptions, make_view: "Callable[[Pool, Run], CellView]"
    ) -> RunOutcome:
        with EarlyInterrupts() as early:
            run = self.submit(code, options)
            with self.given_up_on_failure(run):
                view = make_view(self, run)
            return self.wait(run, view, early)

    def submit(self, code: str, options: CellOptions) -> Run:
        """Begin a cell without waiting for it.

        Raises:
            BadOptionError, PoolBusyError, PoolBrokenError: see `run`.
        """
        self._processes.check_alive()
        check_seconds("timeout", options.timeout_s)
        run_id = f"{self.pool_id}-{next(self._run_numbers)}"
        self._cell_by_run[run_id] = options.execution_count
        if len(self._cell_by_run) > _REMEMBERED_CELLS:
            del self._cell_by_run[next(iter(self._cell_by_run))]
        run = Run(run_id, options.ranks, self.settings.output_backlog_bytes)
        self._note_failure()
        execute = Execute(
            run_id=run_id,
            code=code,
            execution_count=options.execution_count,
            first_line=options.first_line,
            on_mismatch=self.config.on_mismatch,
            check=options.check,
            parent_id=options.parent_id,
            debugs=self._ranks_to_debug(options.ranks),
            failed=tuple(self._failed_runs),
            ranks=() if options.ranks == self.all_ranks else options.ranks.ranks,
        )
        refusal = self._processes.hub.begin(
            run, RunRequested(execute, options.ranks, options.timeout_s)
        )
        if refusal is not None:
            self._refuse(refusal, options.ranks)
        self._begun = (options.cell_name, options.execution_count)
        self._last_run = run
        return run

    def _note_failure(self) -> None:
        """Remember the last cell if it did not go well."""
        last = None if self._last_run is None else self._last_run.outcome
        if last is None or last.run_id in self._failed_runs:
            return
        if len(last.ranks("ok")) < len(last.results):
            self._failed_runs.append(last.run_id)

    def _ranks_to_debug(self, ranks: RankSet) -> tuple[int, ...]:
        """Those that failed last, if they are among ``ranks``; one that is named alone is meant."""
        last = None if self._last_run is None else self._last_run.outcome
        if last is not None:
            self._failed = build.ranks_to_debug(last) or self._failed
        found = set(self._failed).intersection(ranks)
        return tuple(sorted(found)) if len(ranks) > 1 else ()

    def wait(self, run: Run, view: CellView, early: EarlyInterrupts | None = None) -> RunOutcome:
        """Show a run until it has ended."""
        with self.given_up_on_failure(run):
            return CellWait(
                run,
                view,
                interrupt=lambda: self.interrupt_run(run),
                abandon=lambda: self._processes.hub.post(AbandonRequested(run.run_id)),
                reply=self._reply,
            ).wait(early)

    @contextmanager
    def given_up_on_failure(self, run: Run) -> Iterator[None]:
        """Whatever goes wrong in showing a run: none goes on that nobody waits for."""
        try:
            yield
        except BaseException:
            self.interrupt_run(run)
            self._processes.hub.post(AbandonRequested(run.run_id))
            raise

    def error_of(self, outcome: RunOutcome, cell_name: str = _NO_NAME) -> CellError | None:
        """The error that a cell's outcome amounts to."""
        return build.cell_error(outcome, cell_name, self.log_path_by_rank)

    def interrupt(self) -> RankSet:
        """Interrupt the running cell, as Ctrl-C does; if there is none, callbacks of widgets.

        Returns:
            where such a callback was interrupted.
        """
        return self._processes.interrupt()

    def interrupt_run(self, run: Run) -> None:
        """Interrupt this run, if its cell is still running. For the notebook layer."""
        self._processes.interrupt_run(run.run_id)

    def _reply(self, rank: int, reply: InputReply) -> None:
        self._processes.hub.post(InputAnswered(rank, reply.question))
        self._processes.hub.send_to_ranks(RankSet.of([rank]), reply)

    # --- variables -----------------------------------------------------------------------------

    def pull(self, expression: str, *, ranks: Sequence[int] | str | int | None = None) -> Any:
        """Get a value from ranks.

        Args:
            expression: a name, or any Python expression over the ranks' names.
            ranks: one rank (an int) gives its value; several, or None for all, give a list.

        Raises:
            TransferError: the name is missing, or the value cannot be pickled.
            TransferInterruptedError: the user does not wait any longer.
            PoolBusyError: a cell is running.
        """
        chosen = self.rank_set(ranks)
        with interrupt_as_error(f"pulling {expression!r}"):
            values = self._pull(expression, chosen)
        return values[0] if isinstance(ranks, int) else values

    def _pull(self, expression: str, ranks: RankSet) -> list[Any]:
        with self._exchanging(ranks) as exchange:
            return exchange.pull(expression, ranks)

    def diff(self, expression: str, *, ranks: Sequence[int] | str | None = None) -> Difference:
        """Whether a value is equal on ranks; it stays where it is: ``pool.diff("model").is_equal``.

        That is True, False, or None if nothing differs as far as it could be compared.

        Args:
            expression: a name, or any expression over the ranks' names; ``rng`` is the state of
                the generators of random numbers.
            ranks: which; default: all.

        Raises:
            BadOptionError: the expression has a value on none of them.
            TransferInterruptedError, PoolBusyError: as `pull`.
        """
        chosen = self.rank_set(ranks)
        failure = f"could not compare {expression!r}"
        with interrupt_as_error(f"comparing {expression!r}"), self._exchanging(chosen) as exchange:
            return compare.diff(Descriptions(exchange, chosen, failure), expression, chosen)

    def vars(
        self, *names: str, ranks: Sequence[int] | str | None = None
    ) -> dict[str, dict[int, dict[str, Any] | None]]:
        """What ranks have of these names, or of all, in a few words: by name and rank.

        Raises:
            BadOptionError: what is no name, or a name that none of them has.
            TransferInterruptedError, PoolBusyError: as `pull`.
        """
        return variables.to_dict(self.told_variables(names, ranks=ranks))

    def told_variables(
        self, names: Sequence[str] = (), *, ranks: Sequence[int] | str | None = None
    ) -> dict[int, Variables]:
        """The same by rank, for the notebook layer. Raises as `vars`."""
        chosen = self.rank_set(ranks)
        what = ", ".join(map(repr, names)) or "the variables"
        failure = f"could not look at {what}"
        with interrupt_as_error(f"looking at {what}"), self._exchanging(chosen) as exchange:
            return variables.ask_variables(Descriptions(exchange, chosen, failure), names, chosen)

    def push(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        ranks: Sequence[int] | str | int | None = None,
        **more: Any,
    ) -> None:
        """Copy values to ranks: ``pool.push(x=1)`` or ``pool.push({"x": 1})``.

        Raises:
            BadOptionError: a name is not an identifier, or is ``rank`` or ``local_rank``.
            TransferError: a value cannot be pickled; no name was bound anywhere.
            TransferInterruptedError, PoolBusyError: as `pull`.
        """
        by_name = {**(values or {}), **more}
        for name in by_name:
            if not name.isidentifier() or keyword.iskeyword(name):
                raise BadOptionError(f"{name!r} is not a name that a variable can have")
            if name in ("rank", "local_rank"):
                raise BadOptionError(
                    f"{name!r} is another number on each rank, which cells rely on; a copy of one "
                    "value would be wrong. Next: push it under another name"
                )
        chosen = self.rank_set(ranks)
        stopped = interrupt_as_error(f"pushing {', '.join(map(repr, by_name))}")
        with stopped, self._exchanging(chosen) as exchange:
            exchange.push(by_name, chosen)

    # --- start and end -------------------------------------------------------------------------

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
        self._processes.check_alive()
        return self._processes.restart(self.rank_set(ranks))

    def stop(self) -> None:
        """End everything that the pool has started. Does nothing if that has happened.

        A restart in another thread fails. An interrupt is raised when everything has ended.
        """
        self._processes.stop()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, or the start failed."""
        return self._processes.is_stopped

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
        return list(self.snapshot.ranks)

    @property
    def is_running(self) -> bool:
        """Whether a cell is running."""
        return self.snapshot.is_running

    @property
    def log_path_by_rank(self) -> dict[int, str]:
        """Where each rank's whole output is, until the pool stops."""
        return {info.rank: info.log_path for info in self.ranks()}

    @property
    def bad_frames(self) -> int:
        """Messages that the hub dropped because they were not valid."""
        return self._processes.hub.bad_frames

    @property
    def snapshot(self) -> PoolSnapshot:
        """The pool at one moment, for the notebook layer; at least as new as all it was told."""
        return self._processes.snapshot

    def __repr__(self) -> str:
        if self.is_stopped:
            return "<Pool: stopped>"
        return f"<Pool {self.options.describe()}: {self.snapshot.summary()}>"

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
        return self._processes.observe()

    def survey(self) -> Diagnosed:
        """What each rank does and takes; the report is empty. Raises as `diagnose`."""
        return self._processes.survey()

    def in_callback(self) -> RankSet:
        """Where a callback of a widget runs, and no cell. Raises as `diagnose`."""
        return self._processes.in_callback()

    def interrupt_callbacks(self) -> RankSet:
        """Interrupt these; gives the ranks, which are not known of a plain pool. As `diagnose`."""
        return self._processes.interrupt_callbacks()

    def stacks(self, ranks: Sequence[int] | str | int | None = None) -> Diagnosed:
        """What ranks tell of their threads, and what their agents see. Raises as `diagnose`."""
        self._processes.check_alive()
        return self._processes.stacks(self.rank_set(ranks))

    def trace(self) -> list[dict[str, Any]]:
        """The last operations, a dict for each rank's part: ``pandas.DataFrame(pool.trace())``.

        Raises:
            PoolBrokenError: as `diagnose`.
        """
        return export.records(self.trace_rows())

    def trace_rows(self) -> list[TraceRow]:
        """The last operations, the ranks side by side. Raises as `diagnose`."""
        self._processes.check_alive()
        views = self.talk.diagnose(NO_RANKS, last=RING_LENGTH).views
        return rows_of_views(views, self._cell_by_run)

    @property
    def last_report(self) -> Report | None:
        """The latest verdict, or answer of `diagnose`, whichever came last."""
        return self._processes.last_report

    @property
    def config(self) -> Config:
        """What happens when ranks disagree."""
        return self._processes.config

    def configure(self, **changes: str) -> Config:
        """Change ``on_deadlock``, ``on_mismatch``, ``on_death``; from the next event on.

        Raises:
            BadOptionError: a name or value is not legal; nothing was changed.
        """
        return self._processes.configure(changes)

    # --- refusals ------------------------------------------------------------------------------

    @contextmanager
    def _exchanging(self, ranks: RankSet) -> Iterator[Exchange]:
        self._processes.check_alive()
        refusal = ""
        try:
            yield self._processes.exchange
        except RequestRefusedError as error:
            refusal = error.reason
        if refusal:
            self._refuse(refusal, ranks)

    @property
    def running_cell(self) -> tuple[str, Run] | None:
        """The cell that runs, with its name. For the notebook layer."""
        run = self._last_run
        return None if run is None or run.outcome is not None else (self._begun[0], run)

    @property
    def unfinished(self) -> RankSet:
        """Ranks that are inside the running cell."""
        return self.snapshot.unfinished

    def expect_idle_beside(self, ranks: RankSet) -> None:
        """For who cannot wait. Raises `PoolBusyError` if a cell runs, and on none of these."""
        running = self.running_cell
        if running is not None and set(ranks).isdisjoint(running[1].ranks):
            raise PoolBusyError(self._busy_text())

    def _busy_text(self) -> str:
        """Which cell is running where, and what to do about it."""
        inside = self.unfinished.describe() if self.unfinished else "this pool"
        cell, count = self._begun
        wait = f"Out[{count}].wait() if it has --async" if cell != _NO_NAME else "wait for it"
        return (
            f"{cell} is still running on {inside}, and this has to wait until it has ended. "
            f"Next: {wait}, or %ddp interrupt"
        )

    def _refuse(self, reason: str, ranks: RankSet) -> None:
        if reason == "a cell is running":
            raise PoolBusyError(self._busy_text())
        snapshot = self.snapshot
        is_up = self._processes.hub.is_alive and snapshot.phase is Phase.UP
        idle = snapshot.in_state(RankState.IDLE) if is_up else NO_RANKS
        others = f" ({idle.describe()} can still be used with -r)" if idle and ranks - idle else ""
        missing = ranks - idle
        if is_up and idle and missing and not self.options.plain and not snapshot.lost_agents:
            next_step = f"%ddp restart -r {missing} keeps the variables of the other ranks"
        else:
            next_step = "%ddp restart gives a fresh pool"
        raise PoolBrokenError(f"{reason}{others}. Next: {next_step}")
