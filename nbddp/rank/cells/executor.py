"""Runs one cell on a rank, and handles its interrupts.

Runs in: the rank process, main thread. A cell without ``await`` runs to its end inside one step of
the event loop; a cell with ``await`` is a task of the loop.
"""

import asyncio
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

import msgspec

from nbddp.rank import streams, torch_private
from nbddp.rank.agent_link import Link
from nbddp.rank.cells import breakpoints, debug_adapter
from nbddp.rank.cells.error_stops import ErrorStops
from nbddp.rank.cells.import_guard import ImportWatch
from nbddp.rank.cells.mesh_reports import MeshReports
from nbddp.rank.cells.shell import RankShell
from nbddp.rank.cells.signal_wakeup import Wakeup
from nbddp.rank.cells.swallowed_interrupt import SwallowedInterrupts
from nbddp.rank.collectives import Collectives
from nbddp.rank.exception_text import error_info, exit_lines
from nbddp.rank.shell_hooks import callback_before_cell, is_ipython_callback
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import Execute, RunFinished, RunStarted

#: Parts of file names of the code that runs the user's code.
_MACHINERY = ("/asyncio/", "/selectors.py", "/nbddp/rank/", "/IPython/core/")


class _Mode(Enum):
    IDLE = auto()  # no cell runs: SIGINT has no effect
    BEGINNING = auto()  # a cell is about to run: SIGINT is remembered
    PYTHON = auto()  # a cell runs in this very stack: SIGINT raises in it
    TASK = auto()  # a cell is a task of the event loop
    CALLBACK = auto()  # a callback of a widget runs in this very stack: SIGINT raises in it


class Interrupts:
    """The handler of SIGINT, which is installed all the time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pid = os.getpid()
        self._mode = _Mode.IDLE
        self._task: asyncio.Task[Any] | None = None
        self._is_pending = False
        self._is_held = False
        self._is_for_callback = False  #: the next SIGINT is for a callback
        #: An interrupt has cancelled the task, not the user's code.
        self.cancelled = False
        self.was_raised = False  #: an interrupt was raised in the cell, which may have caught it
        #: Called before an interrupt is raised in the code of a cell.
        self.before_raise: Callable[[], None] = lambda: None
        self._cell = 0  #: number of the cell
        self._swallowed = SwallowedInterrupts(lambda: 0 if self._mode is _Mode.IDLE else self._cell)
        self._imports = ImportWatch()
        self._handled = 0  #: number of interrupts handled so far
        self._wakeup = Wakeup(lambda: self._handled)
        self.install()

    @property
    def received(self) -> int:
        """Number of interrupts that have reached the process; the main thread may be in C."""
        return self._wakeup.received

    def install(self) -> None:
        """Install the handler, also again because a cell may have replaced it."""
        signal.signal(signal.SIGINT, self._handle)
        self._wakeup.install()

    def expect(self) -> None:
        """Prepare for a cell that is about to run: SIGINT is for it from now on."""
        self.install()
        self.cancelled = False
        self.was_raised = False
        self._is_pending = False
        self._cell += 1
        self._mode = _Mode.BEGINNING

    def arm(self, task: "asyncio.Task[Any] | None" = None) -> None:
        """Begin a cell, as ``task`` or in the calling stack."""
        self._task = task
        self._mode = _Mode.PYTHON if task is None else _Mode.TASK
        if self._is_pending:
            self._is_pending = False
            if task is None:
                raise KeyboardInterrupt
            self._cancel(task)

    def disarm(self) -> None:
        """End the cell; a later SIGINT has no effect."""
        self._mode = _Mode.IDLE
        self._task = None

    @contextmanager
    def in_callback(self) -> Iterator[None]:
        """Let SIGINT end user code within this block, although it is not a cell."""
        if self._mode is not _Mode.IDLE:
            yield  # a cell waits meanwhile, and the interrupt is for the cell
            return
        self.install()
        self._mode = _Mode.CALLBACK
        try:
            yield
        finally:
            self._mode = _Mode.IDLE

    def expect_for_callback(self) -> None:
        """Mark the next SIGINT as one for a callback, so that it does not reach a cell after it."""
        self._is_for_callback = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Ignore interrupts within this block.

        It is for IPython while it writes a traceback: an interrupt would cut the traceback off, and
        the cell is about to end anyway.
        """
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def _handle(self, signum: int, frame: types.FrameType | None) -> None:
        self._handled += 1
        is_in_code = self._mode in (_Mode.PYTHON, _Mode.TASK)
        if is_in_code and self._is_deferred(frame):
            return
        if self._is_held:
            return
        if self._swallowed.is_in_hook:
            self._swallowed.resend(self._cell)
            return
        if self._is_for_callback:
            self._is_for_callback = False
            if self._mode is not _Mode.CALLBACK:
                return
        if is_in_code and self._imports.is_importing(frame, self._cell):
            self._swallowed.resend(self._cell)
            return
        self.was_raised = is_in_code
        if is_in_code:
            self.before_raise()
        if os.getpid() != self._pid or self._mode in (_Mode.PYTHON, _Mode.CALLBACK):
            raise KeyboardInterrupt
        task = self._task
        if self._mode is _Mode.BEGINNING:
            self._is_pending = True
        elif self._mode is _Mode.TASK and task is not None:
            if _runs_in(task, frame):
                raise KeyboardInterrupt
            self._cancel(task)
            if _is_user_code(frame):
                # Another task, or a callback, occupies the loop.
                raise KeyboardInterrupt

    def _is_deferred(self, frame: types.FrameType | None) -> bool:
        """Resend an interrupt that arrives in a callback which IPython runs before the cell.

        Returns whether it has no effect now. An exception in a callback of the user ends the
        callback, but not the cell.
        """
        callback = callback_before_cell(frame)
        if callback is None:
            return False
        self._swallowed.resend(self._cell)
        return self._is_held or is_ipython_callback(callback)

    def _cancel(self, task: "asyncio.Task[Any]") -> None:
        """Cancel a task that waits, from the loop."""
        self.cancelled = True
        self._loop.call_soon_threadsafe(task.cancel)


def _runs_in(task: "asyncio.Task[Any]", frame: types.FrameType | None) -> bool:
    """Return whether the task's own code has called ``frame``.

    `asyncio.current_task` is not enough: a task is still the current one while the loop schedules
    its next step, and an exception raised there would leave the task without one, forever.
    """
    own = getattr(task.get_coro(), "cr_frame", None)
    while frame is not None:
        if frame is own:
            return True
        frame = frame.f_back
    return False


def _is_user_code(frame: types.FrameType | None) -> bool:
    """Return whether the event loop runs other code than its own.

    Raising there is safe: asyncio passes the exception to the future and out of the loop, which is
    started again.
    """
    while frame is not None and frame.f_code.co_name != "run_forever":
        file = frame.f_code.co_filename
        if not any(part in file for part in _MACHINERY):
            return True
        frame = frame.f_back
    return False


class CellExecutor:
    """Executes cells, one after another."""

    def __init__(
        self,
        shell: RankShell,
        link: Link,
        loop: asyncio.AbstractEventLoop,
        rank: int,
        collectives: Collectives | None,
    ) -> None:
        self._shell = shell
        self._collectives = collectives
        self._exception: BaseException | None = None  #: of the cell
        self._link = link
        self._rank = rank
        self._pid = os.getpid()
        #: Used by all parts that run user code.
        self.interrupts = Interrupts(loop)
        self._meshes = MeshReports(collectives.pool_ranks if collectives is not None else tuple)
        if collectives is not None:
            collectives.watch_interrupts(lambda: self.interrupts.was_raised)
        shell.hold_interrupts = self.interrupts.held
        self.error_stops = ErrorStops(rank, self._was_freed)
        shell.before_report = self.error_stops.before_report

    async def execute(self, request: Execute) -> None:
        """Run a cell and report its end. Errors of the cell are reported, never raised."""
        shell = self._shell
        streams.repair()
        # IPython drops empty lines at the top of a cell, but tracebacks have to count them.
        blank_lines = request.code[: -len(request.code.lstrip()) or None].count("\n")
        shell.begin_cell(request, request.first_line + blank_lines)
        self._link.is_busy = True
        self._exception = None
        self.error_stops.begin_cell(request)
        if self._collectives is not None:
            self._collectives.begin_cell(request)
        self.interrupts.expect()  # the agent interrupts only after it got `RunStarted`
        self._link.send(RunStarted(run_id=request.run_id, rank=self._rank))
        started = time.monotonic()
        with shell.namespace_of(request):
            error = await self._run(request)
        breakpoints.end_steps()
        debug_adapter.end_step()
        self.interrupts.disarm()  # again, because an interrupt may have prevented the first one
        if os.getpid() != self._pid:
            # The cell forked, and this is the child: it must not continue as a rank.
            streams.flush_all()
            os._exit(0 if error is None else 1)
        try:
            shell.after_cell()
        except Exception as failure:  # noqa: BLE001 - the state of a widget that cannot be sent
            error = error or error_info(failure)
        failed_at_ns = time.time_ns() if error is not None else 0
        if self._collectives is not None:
            self._collectives.wait_for_callback()
        streams.flush_all()
        self._link.is_busy = False
        shell.run_id = None
        finished = RunFinished(
            run_id=request.run_id,
            rank=self._rank,
            elapsed_s=time.monotonic() - started,
            error=error,
            failed_at_ns=failed_at_ns,
            meshes=self._meshes.changed(shell.user_ns),
        )
        if self._collectives is not None:
            mismatches, marks, torn = self._collectives.end_cell(has_failed=error is not None)
            finished = msgspec.structs.replace(
                finished,
                was_freed=error is not None
                and self._collectives.was_freed(
                    self._exception, self._shell.raised_at or time.monotonic()
                ),
                mismatches=mismatches,
                marks=marks,
                torn=torn,
                group_count=torch_private.group_count(),
                made_groups=self._collectives.factory.has_made_groups,
                sanitizer=self._collectives.sanitizer.end_cell(has_failed=error is not None),
            )
        self._exception = None
        self._link.send(finished)

    def _was_freed(self, error: BaseException) -> bool:
        collectives = self._collectives
        return collectives is not None and collectives.was_freed(error, time.monotonic())

    async def _run(self, request: Execute) -> ErrorInfo | None:
        try:
            if self._is_async(request.code):
                result = await self._run_as_task(request)
            else:
                self.interrupts.arm()
                try:
                    result = self._shell.run_cell(request.code, store_history=request.store_history)
                finally:
                    self.interrupts.disarm()
        except asyncio.CancelledError:
            return _interrupted() if self.interrupts.cancelled else error_info(sys.exc_info()[1])
        except BaseException as error:  # noqa: BLE001 - a cell may raise anything; the rank stays
            self._exception = error
            return error_info(error)
        return self._outcome(result.error_before_exec or result.error_in_exec)

    async def _run_as_task(self, request: Execute) -> Any:
        shell = self._shell
        task = asyncio.ensure_future(
            shell.run_cell_async(
                request.code,
                store_history=request.store_history,
                transformed_cell=shell.transform_cell(request.code),
            )
        )
        self.interrupts.arm(task)
        try:
            result = await task
        finally:
            self.interrupts.disarm()
            shell.events.trigger("post_execute")
        shell.events.trigger("post_run_cell", result)
        return result

    def _is_async(self, code: str) -> bool:
        """Return whether the cell has a top-level ``await``, ``async for`` or ``async with``."""
        if "await" not in code and "async" not in code:
            return False
        try:
            transformed = self._shell.transform_cell(code)
        except SyntaxError:
            return False  # run_cell reports it
        return self._shell.should_run_async(code, transformed_cell=transformed)

    def _outcome(self, error: BaseException | None) -> ErrorInfo | None:
        self._exception = error
        if error is None:
            # %run or a formatter has shown an error, so the cell has failed.
            return self._shell.last_error
        if isinstance(error, asyncio.CancelledError) and self.interrupts.cancelled:
            return _interrupted()
        if isinstance(error, SystemExit):
            # A script reports success by sys.exit() and sys.exit(0).
            return None if error.code in (None, 0) else error_info(error, exit_lines(error))
        return self._shell.last_error or error_info(error)


def _interrupted() -> ErrorInfo:
    return ErrorInfo(ename="KeyboardInterrupt", evalue="", traceback=["KeyboardInterrupt"])
