"""The pool of rank processes, as Python code uses it.

Runs in: the notebook's process, or any script. Blocking; one cell at a time.
"""

import keyword
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

from nbddp.controller.catch_up import CatchUp, CellHistory
from nbddp.controller.cell_errors import cell_error
from nbddp.controller.diagnosis import Report
from nbddp.controller.early_interrupts import EarlyInterrupts
from nbddp.controller.hub import RequestRefusedError, Run, check_not_withdrawn, interrupt_as_error
from nbddp.controller.options import PoolOptions, check_seconds, check_text
from nbddp.controller.pool import prompt_sights, refusals
from nbddp.controller.pool.cell_options import NO_NAME, CellOptions
from nbddp.controller.pool.cell_records import CellRecords
from nbddp.controller.pool.cell_wait import CellWait
from nbddp.controller.pool.explained_exits import explained
from nbddp.controller.pool.kept_pool import KeptPool
from nbddp.controller.pool.left_cell import LeftCell
from nbddp.controller.pool.pool_processes import PoolProcesses
from nbddp.controller.pool.rank_catch_up import catch_up
from nbddp.controller.pool.source_texts import SourceTexts
from nbddp.controller.pool.view_protocol import CellView, SilentView
from nbddp.controller.prompts import BreakPoints
from nbddp.controller.state import (
    AbandonRequested,
    Config,
    Diagnosed,
    InputAnswered,
    Phase,
    PoolSnapshot,
    RankInfo,
    RunOutcome,
    RunRequested,
    Silence,
    checks_of,
)
from nbddp.controller.trace import Pauses, TraceRow, rows_of_views, trace_records
from nbddp.controller.values import (
    Described,
    Descriptions,
    Difference,
    Exchange,
    ask_variables,
    diff_values,
    variables_to_dict,
)
from nbddp.errors import BadOptionError, CellError, PoolBrokenError, PoolBusyError
from nbddp.settings import Settings
from nbddp.wire.flight_recorder import RING_LENGTH
from nbddp.wire.mesh_ranks import read_ranks
from nbddp.wire.messages import Execute, InputReply
from nbddp.wire.rank_set import NO_RANKS, RankSet
from nbddp.wire.values.value_questions import ValueQuestion, Variables


class Pool:
    """Persistent rank processes with a shared process group.

    A rank is one process of a ``torch.distributed`` job, and its number. `nbddp.start` makes a
    pool; at the end of a ``with`` block the pool is stopped. In the examples of the methods
    ``pool`` is ``nbddp.start(2)`` on a machine without a GPU.

    Args:
        options: what the user has chosen, checked.
        settings: limits and durations.
        make_view: makes what shows the output of a cell.
        check_source: raises SyntaxError if the code of a cell is not legal.
        on_progress: gets the state of the pool some times a second while it starts.
        kept: a pool that lives already, to be taken back; ``options`` are its own.

    Raises:
        PoolStartError: a process could not start, or the ranks were not ready in time.
        PoolInterruptedError: the user interrupted the start; all processes have ended.
        BadOptionError: an option turned out to be wrong on a rank, such as an unknown backend.

    Example:
        >>> outcome = pool.run("rank + 10")
        [0]   Out: 10
        [1]   Out: 11
        >>> pool.pull("rank + 10")
        [10, 11]
        >>> pool
        <Pool -n 2: 2 idle>
    """

    def __init__(
        self,
        options: PoolOptions,
        settings: Settings,
        make_view: "Callable[[Pool, Run], CellView]",
        check_source: Callable[[str], None] = lambda code: None,
        on_progress: Callable[[PoolSnapshot], None] = lambda snapshot: None,
        *,
        kept: KeptPool | None = None,
    ) -> None:
        self.options = options  #: what the user has chosen
        self.settings = settings  #: limits and durations; for the notebook layer
        self._make_view = make_view
        self._check_source = check_source  # this layer does not know what IPython adds to Python
        self._cells = CellRecords(is_attached=kept is not None)
        self._sources = SourceTexts()
        self._pauses = Pauses(lambda: self.snapshot.offset_by_rank)
        self.break_points = BreakPoints()  #: of all later cells; for the notebook layer
        self._processes = PoolProcesses(options, settings, self._sources, on_progress, kept)
        self.pool_id = self._processes.pool_id  #: names the pool, for example in its messages
        if self.left_cell is not None:
            self.left_cell.note(self._cells, self._sources)
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
        """Run ``code`` on ranks, show their output, and wait until all of them have finished.

        ``rank``, ``world_size``, ``local_rank``, ``local_world_size``, ``device``, ``torch``,
        ``dist`` (which is ``torch.distributed``) and ``nbddp`` are defined in the code. Variables
        stay in the ranks.

        Args:
            code: lines of Python, as a ``%%ddp`` cell may hold them.
            ranks: the ranks that run it, such as ``[0, 2]`` or ``"0,2-3"``; default: all.
            timeout: seconds until the cell is interrupted; default: never.

        Returns:
            How the cell ended on each rank, and how many seconds it took.

        Raises:
            SyntaxError: ``code`` is not Python; nothing was sent.
            BadOptionError: ``code`` is not text, or a rank or the timeout is not legal.
            PoolBusyError: another cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.
            CellError: the cell failed on at least one rank. Subclasses in `nbddp.errors` tell the
                reasons apart: `DeadlockError`, `MismatchError`, `RankExitedError`,
                `CellTimeoutError`, `CellInterruptedError`.

        Example:
            >>> outcome = pool.run("x = torch.ones(2) * rank; dist.all_reduce(x); x")
            [0-1] Out: tensor([1., 1.])
            >>> outcome.ranks("ok")
            RankSet(0-1)
        """
        check_text("the code", code)
        code = code if code.endswith("\n") else code + "\n"
        self._check_source(code)
        options = CellOptions(
            ranks=self.rank_set(ranks),
            timeout_s=timeout,
            execution_count=next(self._cells.numbers),
        )
        return self.run_cell(code, options)

    def run_cell(
        self,
        code: str,
        options: CellOptions,
        make_view: "Callable[[Pool, Run], CellView] | None" = None,
    ) -> RunOutcome:
        """Run a cell of a notebook and wait for its end. For the notebook layer.

        Args:
            code: the source, which the caller has checked.
            options: how it is to be run.
            make_view: makes what shows the output; default: what the pool was made with.

        Returns:
            How the cell ended on each rank.

        Raises:
            BadOptionError: the timeout is not legal, or the pool is plain and can neither step nor
                sanitize.
            PoolBusyError: another cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.
            CellError: the cell failed on at least one rank.
        """
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
            run = self.submit(code, options, early.have_come)
            with self.given_up_on_failure(run):
                view = make_view(self, run)
            return self.wait(run, view, early)

    def submit(
        self, code: str, options: CellOptions, is_interrupted: Callable[[], bool] = lambda: False
    ) -> Run:
        """Begin a cell and do not wait for it. For the notebook layer.

        Args:
            code: the source, which the caller has checked.
            options: how it is to be run.
            is_interrupted: whether the user has ended a wait for a repair of the pool.

        Returns:
            The run, from which `wait` takes the events.

        Raises:
            BadOptionError: the timeout is not legal, or the pool is plain and can neither step nor
                sanitize.
            PoolBusyError: another cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.
        """
        self._processes.check_alive()
        check_seconds("timeout", options.timeout_s)
        if self.options.plain and options.needs_traces:
            raise BadOptionError(
                f"{options.needs_traces}, and a pool with --plain traces none. Nothing was run. "
                "Next: %ddp stop, then %ddp start without --plain"
            )
        run = self._processes.new_run(options.ranks)
        run_id = run.run_id
        self._cells.submit(run_id, options.execution_count)
        self._sources.add_cell(options.execution_count, code, options.first_line)
        sanitized = () if options.replay is not None else checks_of(self.config.sanitize)
        execute = Execute(
            run_id=run_id,
            code=code,
            execution_count=options.execution_count,
            first_line=options.first_line,
            on_mismatch=self.config.on_mismatch,
            check=options.check,
            step=options.step,
            faults=options.faults,
            sanitize=options.sanitize or "on" in sanitized,
            sanitize_data=options.sanitize_data or "data" in sanitized,
            break_points=self.break_points.of_cell() if options.asks else (),
            parent_id=options.parent_id,
            debugs=self._cells.ranks_to_debug(options.ranks),
            failed=tuple(self._cells.failed_runs),
            ranks=() if options.ranks == self.all_ranks else options.ranks.ranks,
            aside=() if options.replay is None else options.replay.aside.ranks,
            aside_id="" if options.replay is None else options.replay.name,
        )
        requested = RunRequested(execute, options.ranks, options.timeout_s)
        refusal = self._processes.hub.begin(run, requested, is_interrupted)
        if refusal is not None:
            check_not_withdrawn(refusal, options.cell_name)
            self._refuse(refusal.reason, options.ranks)
        self._cells.begin(run, code, options, self.snapshot.ranks)
        return run

    @property
    def left_cell(self) -> LeftCell | None:
        """The cell that ran while the pool had no notebook. For the notebook layer."""
        return self._processes.left_cell

    def wait(self, run: Run, view: CellView, early: EarlyInterrupts | None = None) -> RunOutcome:
        """Show a run until it has ended. For the notebook layer.

        Args:
            run: as `submit` gives it.
            view: shows its events.
            early: counts the interrupts that came since the run was submitted.

        Returns:
            How the cell ended on each rank.

        Raises:
            CellInterruptedError: interrupted twice, and the hub does not answer.
        """
        with self.given_up_on_failure(run):
            return CellWait(
                run,
                view,
                interrupt=lambda: self.interrupt_run(run),
                abandon=lambda: self._processes.hub.post(AbandonRequested(run.run_id)),
                reply=self._reply,
                explain=partial(explained, self._cells.history, len(self.all_ranks)),
                describe=partial(prompt_sights.places, self),
                look=partial(prompt_sights.show, self),
                paused=self._pauses.add_of,
                stopped=self.break_points.note,
                free=partial(prompt_sights.free, self._processes.hub, run),
                replied=partial(prompt_sights.note_replies, self, self._processes.hub, run),
                compare=partial(prompt_sights.compare, self._processes.at_prompt(run)),
                numbers=partial(prompt_sights.last_numbers, self),
                meshes=self.snapshot.meshes,
            ).wait(early)

    @contextmanager
    def given_up_on_failure(self, run: Run) -> Iterator[None]:
        """Interrupt and abandon a run if showing it fails. For the notebook layer.

        Without it the run would continue, and no thread would wait for its end.
        """
        try:
            yield
        except BaseException:
            self.interrupt_run(run)
            self._processes.hub.post(AbandonRequested(run.run_id))
            raise

    def error_of(self, outcome: RunOutcome, cell_name: str = NO_NAME) -> CellError | None:
        """Make the error of a cell; None: it ended well. For the notebook layer."""
        history = self._cells.history
        history.end(outcome)
        return cell_error(outcome, cell_name, self.log_path_by_rank, history)

    def interrupt(self) -> RankSet:
        """Interrupt the running cell, as Ctrl-C does; if no cell runs, callbacks of widgets.

        It returns at once. The ranks raise ``KeyboardInterrupt`` and keep their variables. Another
        thread may call it.

        Returns:
            The ranks on which a callback of a widget was interrupted; none if a cell was running.

        Raises:
            PoolBrokenError: the pool was stopped.

        Example:
            >>> pool.interrupt()  # no cell is running
            RankSet()
        """
        return self._processes.interrupt()

    def interrupt_run(self, run: Run) -> None:
        """Interrupt this run if its cell is still running. For the notebook layer."""
        self._processes.interrupt_run(run.run_id)

    def _reply(self, rank: int, reply: InputReply) -> None:
        self._processes.hub.post(InputAnswered(rank, reply.question))
        self._processes.hub.send_to_ranks(RankSet.of([rank]), reply)

    # --- variables -----------------------------------------------------------------------------

    def pull(self, expression: str, *, ranks: Sequence[int] | str | int | None = None) -> Any:
        """Get a copy of a value from ranks.

        Args:
            expression: a name, or any Python expression; each rank evaluates it with its own
                variables.
            ranks: one rank as an int, several as a list or text such as ``"0,2-3"``; default: all.

        Returns:
            The value itself if ``ranks`` is an int; otherwise a list of the values, in the order of
            the ranks. Tensors keep shape and dtype; those of a GPU arrive on the CPU, unless this
            process uses CUDA already.

        Raises:
            BadOptionError: a rank does not exist, or the expression is not text.
            TransferError: the expression fails on a rank, or its value cannot be pickled.
            TransferInterruptedError: the user interrupted the call.
            PoolBusyError: a cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.

        Example:
            >>> pool.pull("rank ** 2")
            [0, 1]
            >>> pool.pull("(torch.arange(3) * rank).tolist()", ranks=1)
            [0, 1, 2]
        """
        check_text("the expression", expression)
        chosen = self.rank_set(ranks)
        stopped = interrupt_as_error(f"pulling {expression!r}")
        with stopped, self._exchanging(chosen) as exchange:
            values = exchange.pull(expression, chosen)
        return values[0] if isinstance(ranks, int) else values

    def diff(self, expression: str, *, ranks: Sequence[int] | str | None = None) -> Difference:
        """Compare a value between ranks: equal, or where it first differs.

        The value stays on its ranks; they send fingerprints, and a few blocks of what differs.

        Args:
            expression: a name, or any Python expression: a tensor, a module, an optimizer, a
                container. ``rng`` is the state of the generators of random numbers.
            ranks: the ranks to compare, such as ``[0, 2]`` or ``"0,2-3"``; default: all.

        Returns:
            The groups of ranks that agree, and the places that differ.

        Raises:
            BadOptionError: a rank does not exist, or the expression has a value on no rank.
            TransferError: a rank cannot describe the value.
            TransferInterruptedError: the user interrupted the call.
            PoolBusyError: a cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.

        Example:
            >>> outcome = pool.run("weight = torch.zeros(2, 3); weight[1, 2] += rank")
            >>> difference = pool.diff("weight")
            >>> difference.is_equal
            False
            >>> difference.differences[0].details[0].index
            (1, 2)
        """
        check_text("the expression", expression)
        chosen = self.rank_set(ranks)
        failure = f"could not compare {expression!r}"
        with interrupt_as_error(f"comparing {expression!r}"), self._exchanging(chosen) as exchange:
            return diff_values(Descriptions(exchange, chosen, failure), expression, chosen)

    def vars(
        self, *names: str, ranks: Sequence[int] | str | None = None
    ) -> dict[str, dict[int, dict[str, Any] | None]]:
        """Describe variables of ranks in a few words; the values stay on their ranks.

        Args:
            names: of variables; none: all variables that hold data, without imports and functions.
            ranks: the ranks to ask, such as ``[0, 2]`` or ``"0,2-3"``; default: all.

        Returns:
            By name, then by rank: a dict with ``name``, ``type``, ``shape``, ``dtype``,
            ``device``, ``value``, ``sharding`` (all as text, empty where they mean nothing) and
            ``digest`` (equal where the values are equal). None: the rank has no such variable.

        Raises:
            BadOptionError: a rank does not exist, a name is not an identifier, or no rank has it.
            TransferError: a rank cannot describe its variables.
            TransferInterruptedError: the user interrupted the call.
            PoolBusyError: a cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.

        Example:
            >>> pool.push(batch_size=32)
            >>> of_rank_1 = pool.vars("batch_size")["batch_size"][1]
            >>> of_rank_1["type"], of_rank_1["value"]
            ('int', '32')
        """
        return variables_to_dict(self.told_variables(names, ranks=ranks))

    def told_variables(
        self, names: Sequence[str] = (), *, ranks: Sequence[int] | str | None = None
    ) -> dict[int, Variables]:
        """Describe variables, by rank. For the notebook layer.

        Args:
            names: of variables; none: all variables that hold data.
            ranks: the ranks to ask; default: all.

        Raises:
            BadOptionError: a rank does not exist, a name is not an identifier, or no rank has it.
            TransferError: a rank cannot describe its variables, or the user interrupted the call.
            PoolBusyError: a cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.
        """
        for name in names:
            check_text("a name", name)
        chosen = self.rank_set(ranks)
        what = ", ".join(map(repr, names)) or "the variables"
        failure = f"could not look at {what}"
        with interrupt_as_error(f"looking at {what}"), self._exchanging(chosen) as exchange:
            return ask_variables(Descriptions(exchange, chosen, failure), names, chosen)

    def copy_variable(self, name: str, source: int, ranks: RankSet) -> None:
        """Give ranks the value that a variable has on another rank. For the layer of the pool.

        Args:
            name: of the variable.
            source: the rank that has the value.
            ranks: the ranks that get it.

        Raises:
            TransferError: the value cannot be pickled or built, or the user interrupted the call.
            PoolBusyError: a cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.
        """
        asked = RankSet.of([source, *ranks])
        with interrupt_as_error(f"copying {name!r}"), self._exchanging(asked) as exchange:
            exchange.copy(name, source, ranks)

    def catch_up(
        self,
        ranks: Sequence[int] | str | int | None = None,
        *,
        cells: Sequence[int] = (),
    ) -> CatchUp:
        """Give fresh ranks the variables that they lack, after others have taken their places.

        The ranks run the cells again that define these names. Where the cells have collectives,
        the other ranks run them, too, but aside: in a namespace that is thrown away, so that their
        variables stay as they are. Values that no cell makes, such as those of `push`, are copied
        before. Then modules, optimizers and the like get the state of a rank that has lived longer,
        as by `nbddp.sync`. Numbers, texts, containers of such, and tensors on a CPU that are equal
        on several other ranks are copied. A value that a rank has stays. A cell that failed in the
        last catch-up of a rank runs again, and replaces what it defines when it ends well. A random
        generator that is in one state on several other ranks gets that state; else a fresh rank
        begins at its seed.

        Args:
            ranks: the ranks that lack variables; default: those that took the place of others, lack
                a variable, and have no values of cells that ran since.
            cells: numbers of cells that run again, too, and replace values. A loop with
                collectives, such as a training loop, is left out without it.

        Returns:
            The cells that ran, the names with a state that was given, the names that the ranks
            still lack, and the cells that failed now.

        Raises:
            BadOptionError: there are no fresh ranks, no other ranks, or no such cell.
            CellInterruptedError: the user interrupted a cell; the cells after it did not run.
            RankExitedError: a rank exited in a cell; the cells after it did not run.
            CellError: a state could not be given.
            TransferInterruptedError: the user interrupted the copy of a value.
            PoolBusyError: a cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.

        Example:
            >>> outcome = pool.run("layer = torch.nn.Linear(2, 2)")
            >>> text = pool.restart(1)
            >>> result = pool.catch_up()
            >>> result.ranks, result.synced
            (RankSet(1), ('layer',))
            >>> pool.diff("layer").is_equal
            True
        """
        count = next(self._cells.numbers)
        return catch_up(self, ranks, cells, count, lambda pool, run: SilentView())

    @property
    def history(self) -> CellHistory:
        """The cells that have run, for `catch_up`. For the notebook layer."""
        return self._cells.history

    def answers(
        self, ranks: RankSet, what: str, asked: ValueQuestion, kind: type[Described]
    ) -> list[Described]:
        """Ask ranks about their namespaces, for a catch-up. For the layer of the pool.

        Args:
            ranks: the ranks that are asked.
            what: names what the question is about, for errors: ``names``.
            asked: the question.
            kind: the type of its answer.

        Returns:
            The answers, in the order of ranks.

        Raises:
            TransferError: a rank cannot answer, or the user interrupted the call.
            PoolBusyError: a cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.
        """
        error = interrupt_as_error(f"looking at {what}", needs_all=True)
        with error, self._exchanging(ranks) as exchange:
            failure = f"could not look at the {what}"
            return Descriptions(exchange, ranks, failure, needs_all=True).ask(asked, kind)

    def push(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        ranks: Sequence[int] | str | int | None = None,
        **more: Any,
    ) -> None:
        """Copy values to ranks; each rank gets a copy of its own.

        Args:
            values: values by the name of the variable, as ``pool.push({"x": 1})``.
            ranks: one rank as an int, several as a list or text such as ``"0,2-3"``; default: all.
            more: the same as keywords, as ``pool.push(x=1)``.

        Raises:
            BadOptionError: a rank does not exist, or a name is not an identifier, or is ``rank`` or
                ``local_rank``.
            TransferError: a value cannot be pickled; no variable was changed on any rank.
            TransferInterruptedError: the user interrupted the call; no variable was changed.
            PoolBusyError: a cell is running.
            PoolBrokenError: the pool was stopped, or a rank has exited or does not come back.

        Example:
            >>> pool.push(learning_rate=0.1)
            >>> pool.pull("learning_rate * (rank + 1)")
            [0.1, 0.2]
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
        self._cells.history.note_new_values(by_name, chosen)

    # --- start and end -------------------------------------------------------------------------

    def restart(self, ranks: Sequence[int] | str | int | None = None) -> str:
        """End ranks and start fresh processes in their places.

        Variables of fresh ranks are gone. If some ranks are restarted, they join the process
        groups of the others, which keep their variables. If all are, the pool is as after its
        start: it forgets which cells have run, and those of `run` count from 1.

        If the agent of a rank was lost, another one is asked of the engine first. While it does not
        come, the pool stays as it is.

        Args:
            ranks: one rank as an int, several as a list or text such as ``"0,2-3"``; default: the
                whole pool, with the same options.

        Returns:
            A sentence that says what has happened to which ranks.

        Raises:
            BadOptionError: a rank does not exist.
            PoolStartError: the new ranks did not come up; the pool is stopped.
            PoolBrokenError: the pool was stopped before, or fresh ranks could not take their
                places; then the other ranks stay as they are.
            PoolInterruptedError: the user interrupted the call; the message says what runs now.
            PoolBusyError: another thread restarts the pool.

        Example:
            >>> pool.push(step=7)
            >>> print(pool.restart(1))
            rank 1 is a fresh process: its variables are gone, those of rank 0 are kept. Next: ...
            >>> pool.pull("'step' in globals()")
            [True, False]
        """
        self._processes.check_alive()
        restarted, last_run = self.rank_set(ranks), self._cells.last_run
        history, is_whole = self._cells.history, restarted == self.all_ranks
        knows, leaves = not history.is_partial, not is_whole and history.leaves_loops(restarted)
        text = self._processes.restart(restarted, knows_cells=knows, leaves_loops=leaves)
        # Another thread may have begun a cell since the new ranks are ready.
        if is_whole and self._cells.last_run is last_run:
            self._cells = CellRecords(before=self._cells.history)
        else:
            self._cells.history.note_restart(restarted)
        return text

    def detach(self, keep: str | float | None = None) -> float:
        """Let the pool go on without this process: ranks, variables, and the running cell.

        `nbddp.attach` takes it back, in any process of this user on this machine. If none does so
        in time, the pool ends by itself.

        Args:
            keep: how long, such as ``"4h"`` or a number of seconds; default: as `nbddp.start`
                was told, or 2 hours.

        Returns:
            The time for which the pool is kept, in seconds.

        Raises:
            BadOptionError: ``keep`` is not legal, or the agents end with this process.
            PoolAttachError: the pool cannot be let go now.
            PoolBrokenError: the pool was stopped or let go before.
            PoolBusyError: another thread restarts the pool.

        Example:
            >>> pool.push(step=7)
            >>> pool.detach("10min")
            600.0
            >>> pool = nbddp.attach(pool.pool_id)
            >>> pool.pull("step")
            [7, 7]
        """
        keep_s = self.options.keep_after_detach(keep)
        self._processes.let_go(keep_s, self._cells.last_run)
        return keep_s

    def rejoin(self) -> RunOutcome | None:
        """Show the cell that ran while the pool had no notebook, and wait for its end.

        Returns:
            How the cell ended on each rank; None: no cell ran.

        Raises:
            CellError: the cell failed on at least one rank.

        Example:
            >>> pool.rejoin()  # this process has run all cells
        """
        left = self.left_cell
        if left is None:
            return None
        outcome = self.wait(left.run, self._make_view(self, left.run))
        error = self.error_of(outcome, self._cells.last_name)
        if error is not None:
            raise error
        return outcome

    def stop(self) -> None:
        """End all processes of the pool; the variables of the ranks are gone.

        A stopped pool stays stopped: a second call does nothing. A restart in another thread fails.

        Raises:
            KeyboardInterrupt: the user interrupted the call; all processes have ended by then.

        Example:
            >>> pool.stop()
            >>> pool
            <Pool: stopped>
        """
        self._processes.stop()

    @property
    def is_stopped(self) -> bool:
        """Whether the pool was stopped, or failed to restart.

        Example:
            >>> pool.is_stopped
            False
        """
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
        """Number of ranks.

        Example:
            >>> pool.world_size
            2
        """
        return self.options.world_size

    @property
    def all_ranks(self) -> RankSet:
        """The set of all ranks, which can be looped over.

        Example:
            >>> list(pool.all_ranks)
            [0, 1]
        """
        return RankSet.all(self.world_size)

    def ranks(self) -> list[RankInfo]:
        """Tell the state of each rank, with its process id, device and log.

        Returns:
            One entry for each rank, in order.

        Example:
            >>> [(info.rank, info.state.name, info.device) for info in pool.ranks()]
            [(0, 'IDLE', 'cpu'), (1, 'IDLE', 'cpu')]
        """
        return list(self.snapshot.ranks)

    @property
    def is_running(self) -> bool:
        """Whether a cell is running, or the process groups are being rebuilt after one.

        Example:
            >>> pool.is_running
            False
        """
        return self.snapshot.is_running

    @property
    def log_path_by_rank(self) -> dict[int, str]:
        """Path of the file with the whole output of each rank, until the pool stops.

        Paths on other machines begin with the name of the host: ``n2:/tmp/nbddp-x/rank3.log``.

        Example:
            >>> from pathlib import Path
            >>> Path(pool.log_path_by_rank[1]).name
            'rank1.log'
        """
        return self.snapshot.log_path_by_rank

    @property
    def bad_frames(self) -> int:
        """Number of messages that were dropped because they were not valid; normally 0.

        Example:
            >>> pool.bad_frames
            0
        """
        return self._processes.hub.bad_frames

    @property
    def snapshot(self) -> PoolSnapshot:
        """The latest published state of the pool, which never changes. For the notebook layer."""
        return self._processes.snapshot

    def silences(self, ranks: RankSet) -> list[Silence]:
        """Return the silent nodes that have these ranks. For the notebook layer."""
        return self.snapshot.silences(ranks, time.monotonic())

    def job_ends(self) -> list[str]:
        """Return when the jobs of the nodes end, in words. For the notebook layer."""
        return [end.text(time.monotonic()) for end in self.snapshot.living_job_ends]

    def __repr__(self) -> str:
        if self.is_stopped:
            return "<Pool: let go>" if self._processes.is_let_go else "<Pool: stopped>"
        return f"<Pool {self.options.describe()}: {self.snapshot.summary()}>"

    def rank_set(self, ranks: Sequence[int] | str | int | None) -> RankSet:
        """Read ``ranks`` as the methods of the pool do.

        Args:
            ranks: one rank as an int, several as a list or text such as ``"0,2-3"``; None: all.
                ``"dp=0,tp=1:3"`` chooses by the dimensions of the DeviceMesh that was created last
                and has them, of those that variables of the ranks hold; ``"grid[tp=0]"`` names it.

        Returns:
            The set of these ranks.

        Raises:
            BadOptionError: a rank does not exist, or the text is not a list of ranks, or there is
                no such mesh, dimension or index.

        Example:
            >>> pool.rank_set("1-"), pool.rank_set(None)
            (RankSet(1), RankSet(0-1))
        """
        if ranks is None:
            return self.all_ranks
        if isinstance(ranks, int):
            ranks = [ranks]
        text = ranks if isinstance(ranks, str) else ",".join(str(rank) for rank in ranks)
        return read_ranks(text, self.world_size, self.snapshot.meshes)

    # --- what ranks do -------------------------------------------------------------------------

    def diagnose(self) -> Report:
        """Find out which rank waits for which, and where each rank is.

        It works at any time, in any thread, also while a cell runs.

        Returns:
            The findings, and the line of each rank.

        Raises:
            PoolBrokenError: the pool was stopped, or its hub has ended.

        Example:
            >>> report = pool.diagnose()
            >>> report.findings  # no rank waits for another
            ()
            >>> print(report.ranks[0])
            rank 0 ...
        """
        return self.observe().report

    def observe(self) -> Diagnosed:
        """Diagnose, and give the evidence with the report. For the notebook layer.

        Raises:
            PoolBrokenError: the pool was stopped, or its hub has ended.
        """
        return self._processes.observe()

    def survey(self) -> Diagnosed:
        """Ask each rank what it does and which memory it takes. For the notebook layer.

        Returns:
            The answers; the report in them is empty.

        Raises:
            PoolBrokenError: the pool was stopped, or its hub has ended.
        """
        return self._processes.survey()

    def stacks(self, ranks: Sequence[int] | str | int | None = None) -> Diagnosed:
        """Get the Python stacks of ranks, also of ranks that are stuck in C.

        Args:
            ranks: one rank as an int, several as a list or text such as ``"0,2-3"``; default: all.

        Returns:
            The answers by rank: ``looks`` has the threads of each rank as it tells them itself,
            ``peeks`` the stacks as its agent has read them; ``silent`` are the ranks of which
            nothing is known.

        Raises:
            BadOptionError: a rank does not exist.
            PoolBrokenError: the pool was stopped, or its hub has ended.

        Example:
            >>> answer = pool.stacks(0)
            >>> [thread.name for thread in answer.looks[0].threads]
            ['MainThread']
        """
        self._processes.check_alive()
        return self._processes.stacks(self.rank_set(ranks))

    def trace(self) -> list[dict[str, Any]]:
        """Get the last operations of all ranks: collectives, messages, groups, waits for the store.

        Each rank remembers its last 1,024 operations. A pool with ``plain=True`` records none.

        Returns:
            A flat dict for each rank's part of an operation, as ``pandas.DataFrame(pool.trace())``
            takes them; equal ``row`` numbers belong to one operation. ``op`` names the operation,
            ``state`` is ``scheduled``, ``completed`` or ``failed``, ``nbytes`` is the size of its
            inputs on this rank. Times are in nanoseconds: ``created_ns`` and ``completed_ns``
            since the first operation, ``waited_ns`` is how long the rank was blocked,
            ``arrived_after_ns`` how much later than the first rank it came.
            `nbddp.controller.trace.export.trace_records` describes every field.

        Raises:
            PoolBrokenError: the pool was stopped, or its hub has ended.

        Example:
            >>> outcome = pool.run("x = torch.ones(4); dist.all_reduce(x)")
            >>> for part in pool.trace()[-2:]:
            ...     print(part["rank"], part["op"], part["state"], part["nbytes"])
            0 all_reduce completed 16
            1 all_reduce completed 16
        """
        return trace_records(self._rows())

    def trace_rows(self) -> list[TraceRow]:
        """Get the last operations, the ranks side by side. For the notebook layer.

        The time in which the user was asked at a step or a break point is left out.

        Raises:
            PoolBrokenError: the pool was stopped, or its hub has ended.
        """
        return self._pauses.left_out_of(self._rows())

    def _rows(self) -> list[TraceRow]:
        self._processes.check_alive()
        views = self.talk.diagnose(NO_RANKS, last=RING_LENGTH).views
        return rows_of_views(views, self._cells.number_by_run, self.snapshot.clock_by_rank)

    @property
    def last_report(self) -> Report | None:
        """The latest verdict on a cell, or answer of `diagnose`, whichever came last.

        None: there was neither.

        Example:
            >>> report = pool.diagnose()
            >>> pool.last_report is report
            True
        """
        return self._processes.last_report

    @property
    def config(self) -> Config:
        """The settings for what happens when ranks disagree or die; `configure` changes them.

        Example:
            >>> pool.config
            Config(on_deadlock='abort', on_mismatch='raise', on_death='respawn', sanitize='off')
        """
        return self._processes.config

    def configure(self, **changes: str) -> Config:
        """Change what happens when ranks disagree or die, from the next event on.

        Args:
            changes: ``on_deadlock``: ``"abort"`` (free the ranks), ``"report"`` (only show it) or
                ``"debug"`` (open a prompt first, with all ranks where they are);
                ``on_mismatch``: ``"raise"`` (on a rank before it sends anything, where it compares:
                with ranks of its machine, or in a cell with ``--check``; else later, when data may
                have moved), ``"warn"`` or ``"off"``;
                ``on_death``: ``"respawn"`` (a fresh rank takes the place) or ``"keep"`` (the place
                stays empty); ``sanitize``: ``"off"``, ``"on"``, ``"data"`` or ``"all"`` (each cell
                runs as with ``%%ddp --sanitize`` and this value).

        Returns:
            All settings after the change.

        Raises:
            BadOptionError: a name or value is not legal; nothing was changed.
            PoolBrokenError: the pool was stopped.

        Example:
            >>> pool.configure(on_deadlock="report").on_deadlock
            'report'
            >>> pool.configure(on_deadlock="abort").on_deadlock
            'abort'
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
        """The name and the run of the cell that runs; None: none does. For the notebook layer."""
        run = self._cells.last_run
        return None if run is None or run.outcome is not None else (self._cells.last_name, run)

    @property
    def unfinished(self) -> RankSet:
        """Ranks that are inside the running cell. For the notebook layer."""
        return self.snapshot.unfinished

    def expect_idle_beside(self, ranks: RankSet) -> None:
        """Refuse what cannot wait for a running cell. For the notebook layer.

        Raises:
            PoolBusyError: a cell runs, and on none of ``ranks``.
        """
        running = self.running_cell
        if running is not None and set(ranks).isdisjoint(running[1].ranks):
            raise PoolBusyError(self._busy_text())

    def _busy_text(self) -> str:
        return refusals.busy_text(self._cells.last_name, self.unfinished, self._cells.how_to_wait)

    def _refuse(self, reason: str, ranks: RankSet) -> None:
        if reason == "a cell is running":
            raise PoolBusyError(self._busy_text())
        snapshot = self.snapshot
        is_up = self._processes.hub.is_alive and snapshot.phase is Phase.UP
        now, is_plain = time.monotonic(), self.options.plain
        raise PoolBrokenError(
            refusals.broken_text(reason, ranks, snapshot, now, is_up=is_up, is_plain=is_plain)
        )
