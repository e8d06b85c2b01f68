"""Runs cells and records their output."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from nbddp.controller.hub.run import CellEvent, Run
from nbddp.controller.pool import CellOptions, Pool
from nbddp.controller.prompts import OperationRow
from nbddp.controller.state import Diagnosed
from nbddp.controller.state.outcome import RunOutcome
from nbddp.controller.trace import TraceRow
from nbddp.controller.values import Difference
from nbddp.errors import CellError
from nbddp.wire.fault_grammar import parse_faults
from nbddp.wire.messages import (
    ClearOutput,
    Display,
    FaultStruck,
    InputRequest,
    Output,
    RankAt,
    Result,
    RunFinished,
    RunStarted,
    Stream,
)

UserAnswer: TypeAlias = str | BaseException | Callable[[], str]


class RecordingView:
    """A `nbddp.controller.pool.view_protocol.CellView` that shows nothing and keeps everything.

    Args:
        answers: to the questions of ranks, in the order of asking. When they are used up, the
            asking rank gets the end of input. An answer that is an exception is raised, and one
            that is a function is called.
    """

    def __init__(self, answers: Iterable[UserAnswer] = ()) -> None:
        self._answers = iter(answers)
        self.events: list[CellEvent] = []
        self.asked: list[InputRequest] = []
        self.told: list[str] = []
        self.rows: Sequence[OperationRow] = ()  #: of stopped ranks, at the end
        self.sights: list[Diagnosed | Sequence[TraceRow]] = []
        self.no_user = ""  #: why no user can be asked
        self.differences: list[Difference] = []
        self.left_prompts: list[InputRequest] = []
        self.outcome: RunOutcome | None = None
        #: The error that the notebook would raise; set by `run_cell`.
        self.error: CellError | None = None

    # --- CellView --------------------------------------------------------------------------------

    def show(self, event: CellEvent) -> None:
        self.events.append(event)

    def tick(self) -> float | None:
        return None

    def ask(self, request: InputRequest) -> str:
        self.asked.append(request)
        answer = next(self._answers, None)
        if answer is None:
            raise EOFError("the test has no more answers")
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer

    def why_nobody_answers(self) -> str:
        return self.no_user

    def leave_prompt(self, request: InputRequest) -> None:
        self.left_prompts.append(request)

    def tell(self, text: str) -> None:
        self.told.append(text)

    def show_steps(self, table: str, rows: Sequence[OperationRow]) -> None:
        self.tell(table)

    def end_steps(self, rows: Sequence[OperationRow]) -> None:
        self.rows = rows

    def show_waits(self, diagnosed: Diagnosed) -> None:
        self.sights.append(diagnosed)

    def show_trace(self, rows: Sequence[TraceRow]) -> None:
        self.sights.append(rows)

    def show_difference(self, difference: Difference) -> None:
        self.differences.append(difference)

    def end(self, outcome: RunOutcome) -> None:
        self.outcome = outcome

    # --- what was seen ---------------------------------------------------------------------------

    def text(self, rank: int = 0, stream: Stream = "stdout") -> str:
        """The text that one rank has printed."""
        return "".join(
            event.text
            for event in self.events
            if isinstance(event, Output) and event.rank == rank and event.stream == stream
        )

    def texts(self, stream: Stream = "stdout") -> dict[int, str]:
        """The text of each rank that has printed something."""
        ranks = {event.rank for event in self.events if isinstance(event, Output)}
        found = {rank: self.text(rank, stream) for rank in sorted(ranks)}
        return {rank: text for rank, text in found.items() if text}

    def result(self, rank: int = 0) -> str | None:
        """The plain form of the value of the cell's last expression."""
        found = [e for e in self.events if isinstance(e, Result) and e.rank == rank]
        return str(found[-1].data["text/plain"]) if found else None

    def displays(self, rank: int = 0) -> list[dict[str, Any]]:
        """The MIME bundles that a rank has displayed."""
        return [e.data for e in self.events if isinstance(e, Display) and e.rank == rank]

    def dropped_bytes(self, rank: int = 0) -> int:
        """Text that was left out."""
        outputs = [e for e in self.events if isinstance(e, Output) and e.rank == rank]
        return sum(event.dropped_bytes for event in outputs)

    def kinds(self, rank: int = 0) -> list[str]:
        """The types of the events of a rank, in order, equal neighbours once; no places."""
        found: list[str] = []
        for event in self.events:
            name = type(event).__name__
            if isinstance(event, RankAt):
                continue
            if getattr(event, "rank", None) == rank and found[-1:] != [name]:
                found.append(name)
        return found

    def struck(self, rank: int | None = None) -> list[str]:
        """The faults on purpose, in words; of one rank, or of all."""
        found = [event for event in self.events if isinstance(event, FaultStruck)]
        return [event.text for event in found if rank in (None, event.rank)]

    def has(self, kind: type[RunStarted | RunFinished | ClearOutput], rank: int = 0) -> bool:
        """Whether an event of this type has come from a rank."""
        return any(isinstance(event, kind) and event.rank == rank for event in self.events)


def run_cell(
    pool: Pool,
    code: str,
    *,
    ranks: Sequence[int] | str | None = None,
    timeout: float | None = None,
    answers: Iterable[UserAnswer] = (),
    check: bool = True,
    execution_count: int = 1,
    first_line: int = 1,
    step: bool = False,
    faults: str = "",
    sanitize: bool = False,
    sanitize_data: bool = False,
) -> RecordingView:
    """Run a cell to its end.

    Args:
        pool: where.
        code: what; a missing line end is added.
        ranks: as `Pool.run` takes them.
        timeout: as `Pool.run` takes it.
        answers: see `RecordingView`.
        check: raise the cell's error; else it is `RecordingView.error`.
        execution_count: number of the cell in tracebacks.
        first_line: line of the notebook's cell on which ``code`` begins.
        step: stop before each operation, and ask what to do.
        faults: text of faults on purpose.
        sanitize: check what the code does with tensors of operations.
        sanitize_data: compare what data loaders of ranks read.
    """
    view = RecordingView(answers)
    options = _options(pool, ranks, timeout, execution_count, first_line, step=step, faults=faults)
    options = replace(options, sanitize=sanitize, sanitize_data=sanitize_data)
    run = pool.submit(_complete(code), options)
    outcome = pool.wait(run, view)
    view.error = pool.error_of(outcome)
    if check and view.error is not None:
        raise view.error
    return view


class BackgroundCell:
    """A cell that runs while the test does something else; see `begin_cell`."""

    def __init__(self, pool: Pool, run: Run, view: RecordingView) -> None:
        self.run = run
        self.view = view
        self._pool = pool
        self._thread = threading.Thread(target=self._wait, name="test-cell", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        outcome = self._pool.wait(self.run, self.view)
        self.view.error = self._pool.error_of(outcome)

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self, timeout_s: float = 20.0) -> RecordingView:
        """Wait for the end; gives the view."""
        self._thread.join(timeout_s)
        said = self.view.texts("stderr")
        assert self.has_ended, f"the cell has not ended after {timeout_s:g} s: {said}"
        return self.view


def begin_cell(
    pool: Pool,
    code: str,
    *,
    ranks: Sequence[int] | str | None = None,
    timeout: float | None = None,
    answers: Iterable[UserAnswer] = (),
    faults: str = "",
) -> BackgroundCell:
    """Begin a cell and return; its events are recorded by another thread."""
    run = pool.submit(_complete(code), _options(pool, ranks, timeout, 1, 1, faults=faults))
    return BackgroundCell(pool, run, RecordingView(answers))


def _options(
    pool: Pool,
    ranks: Sequence[int] | str | None,
    timeout: float | None,
    execution_count: int,
    first_line: int,
    *,
    step: bool = False,
    faults: str = "",
) -> CellOptions:
    return CellOptions(
        ranks=pool.rank_set(ranks),
        timeout_s=timeout,
        execution_count=execution_count,
        first_line=first_line,
        step=step,
        faults=parse_faults(faults, pool.world_size) if faults else (),
    )


def _complete(code: str) -> str:
    return code if code.endswith("\n") else code + "\n"
