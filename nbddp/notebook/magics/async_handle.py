"""A cell that runs in the background: ``%%ddp --async``.

Runs in: the notebook's process; `nbddp.notebook.output.background` shows the output, in the
cell that started it.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

from nbddp.controller.hub import Run
from nbddp.controller.pool import Pool
from nbddp.controller.state import RunOutcome
from nbddp.errors import CellError, CellInterruptedError
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook import front_end_request, session
from nbddp.notebook.output import Sink, View, printed_html
from nbddp.notebook.render.html import (
    PRE_STYLE,
    clean,
    details,
    escape,
    preformatted,
    without_codes,
)

_AWAIT_S = 0.05


class CellHandle:
    """A cell that runs in the background: what a cell with ``%%ddp --async`` gives.

    ``await handle`` in a cell, or ``handle.wait()``, waits for its end.

    Args:
        pool: runs the cell.
        run: as `Pool.submit` has given it.
        view: shows its output.
        cell_name: how messages name the cell.
        when: says in the line of the cell when it has ended.

    Example:
        >>> nbddp.load_ipython_extension(get_ipython())
        >>> handle = get_ipython().run_cell_magic("ddp", "--async", "dist.barrier()")
        >>> handle.wait().ranks("ok")
        RankSet(0-1)
        >>> handle
        <cell [...] on ranks 0-1: done after ... s>
    """

    def __init__(
        self,
        pool: Pool,
        run: Run,
        view: View,
        cell_name: str,
        when: Callable[[RunOutcome], str] = lambda outcome: "",
    ) -> None:
        self._pool = pool
        self._when = when
        self._run = run
        self._cell_name = cell_name
        self._sink = session.background_sink()
        self._parent_id = front_end_request.parent_id()
        self._display_id = f"nbddp-handle-{run.run_id}"
        self._displayed = False
        self._error_shown_in = ""  #: the request of the cell below which the error stands
        self._updated_in = ""  #: the request that ran, or was the last, when the line changed
        self._display_lock = threading.Lock()  #: between `_show` and `_ipython_display_`
        self._has_ended = False
        self._shown = threading.Event()
        self._failure: BaseException | None = None  #: the output could not be shown
        session.background_views.put(lambda: self._show(view))

    @property
    def state(self) -> str:
        """``running``, ``done`` or ``failed``.

        Example:
            >>> handle.state
            'done'
        """
        if not self._has_ended:
            return "running"
        return "done" if self._error() is None else "failed"

    @property
    def is_done(self) -> bool:
        """Whether the cell has ended, well or not, and all of its output was shown.

        Example:
            >>> handle.is_done
            True
        """
        return self._shown.is_set()

    def wait(self, timeout: float | None = None) -> RunOutcome:
        """Wait for the end of the cell.

        Args:
            timeout: seconds; default: no limit. The cell continues after it.

        Returns:
            How the cell ended on each rank.

        Raises:
            TimeoutError: the cell is still running after ``timeout`` seconds.
            CellError: the cell failed on at least one rank, or was interrupted.

        Example:
            >>> handle = get_ipython().run_cell_magic("ddp", "--async", "total = rank")
            >>> outcome = handle.wait(timeout=60)
            >>> pool.pull("total")
            [0, 1]
        """
        if not self._shown.wait(timeout):
            raise TimeoutError(f"{self._cell_name} is still running after {timeout:g} s")
        return self._result()

    def interrupt(self) -> None:
        """Interrupt the cell, as the stop button does for a cell in the foreground.

        It returns at once; `wait` then raises `CellInterruptedError`.

        Example:
            >>> code = "import time; time.sleep(60)"
            >>> handle = get_ipython().run_cell_magic("ddp", "--async", code)
            >>> handle.interrupt(); handle.wait()
            Traceback (most recent call last):
                ...
            nbddp.errors.CellInterruptedError: ...
        """
        self._pool.interrupt_run(self._run)

    def __await__(self) -> Generator[Any, None, RunOutcome]:
        while not self._shown.is_set():
            # The waits are short: ipykernel notices an interrupt when its loop wakes. An executor
            # would make the interpreter wait for its threads at exit, before it stops the pool.
            yield from asyncio.sleep(_AWAIT_S).__await__()
        return self._result()

    def __repr__(self) -> str:
        outcome = self._run.outcome
        after = "" if outcome is None else f"{self._when(outcome)} after {outcome.elapsed_s:.1f} s"
        ended_by = "" if outcome is None else outcome.ended_by
        state = f"ended by {ended_by}" if ended_by else self.state
        if outcome is not None and outcome.goes_on:
            state = f"let go by {ended_by}"
        if state == "failed" and isinstance(self._error(), CellInterruptedError):
            state = "interrupted"
        return f"<{self._cell_name} on {self._run.ranks.describe()}: {state}{after}>"

    def _ipython_display_(self) -> None:
        """Show a line that changes when the cell ends, so that no saved notebook says "running".

        The error of a failed cell stands below the line: the user may never wait for the cell.
        """
        with self._display_lock:
            if self._error_shown_in and self._error_shown_in == front_end_request.parent_id():
                return  # the cell has failed before its handle was displayed
            self._displayed = True
            self._show_state(session.background_sink(), update=False)

    def _show_state(self, sink: Sink, *, update: bool) -> None:
        error = self._error_to_show() if self._has_ended else None
        ended_by = "" if self._run.outcome is None else self._run.outcome.ended_by
        bundle = failure_bundle(repr(self), error, is_expected=ended_by != "")
        if update:
            self._updated_in = front_end_request.parent_id()
        sink.display(bundle, {}, self._display_id, update)

    def _show(self, view: View) -> None:
        try:
            self._pool.wait(self._run, view)
        except BaseException as error:  # noqa: BLE001 - `wait` raises it for the user
            self._failure = error
        try:
            with self._display_lock:
                self._has_ended = True
                if self._displayed or self._error_to_show() is not None:
                    self._show_state(self._sink, update=self._displayed)
                    self._error_shown_in = "" if self._displayed else self._parent_id
        finally:
            self._shown.set()

    def _error(self) -> BaseException | None:
        if self._failure is not None:
            return self._failure
        outcome = self._run.outcome
        return None if outcome is None else self._pool.error_of(outcome, self._cell_name)

    def _error_to_show(self) -> BaseException | None:
        """The error for which nobody has waited; a cell that goes on as asked has none."""
        outcome = self._run.outcome
        return None if outcome is not None and outcome.goes_on else self._error()

    def _result(self) -> RunOutcome:
        if self._updated_in and self._updated_in != front_end_request.parent_id():
            # nbclient misses the updates of displays between two cells.
            with self._display_lock:
                self._show_state(self._sink, update=True)
        error = self._error()
        if error is not None:
            raise error
        assert self._run.outcome is not None  # noqa: S101 - it has ended
        return self._run.outcome


# --- errors for which the user has not waited ----------------------------------------------------


#: Lines of an error that is shown open; a longer one is folded below its headline.
_MAX_OPEN = 4


def failure_bundle(
    state: str, error: BaseException | None, *, is_expected: bool = False
) -> dict[str, str]:
    """The state of a cell, and its error below, as a MIME bundle.

    Args:
        state: a line.
        error: the error that `CellHandle.wait` raises; None: there is none.
        is_expected: the user has ended the cell, and `state` says so.
    """
    state = clean(state)
    if error is None:
        return {"text/plain": state}
    lines = _lines(error)
    if isinstance(error, CellInterruptedError) or (is_expected and len(lines) == 1):
        where = details("where the ranks were", printed_html(lines)) if len(lines) > 1 else ""
        return {"text/plain": state, "text/html": printed_html([state]) + where}
    headline = error.headline if isinstance(error, CellError) else lines[-1]
    open_lines = lines if len(lines) <= _MAX_OPEN else with_line_breaks(headline, 4).split("\n")
    html = printed_html([state]) + _errors_html(open_lines, type(error).__name__)
    if open_lines is not lines:
        html += details("the whole error", printed_html(lines))
    return {"text/plain": "\n".join([state, *lines]), "text/html": html}


def _errors_html(lines: list[str], name: str) -> str:
    """The lines of an error as HTML, with its name in bold."""
    bold = f"<b>{name}</b>"
    html_lines = [
        f"{bold}{escape(line[len(name) :])}" if line.startswith(name) else escape(line)
        for line in lines
    ]
    return preformatted("\n".join(html_lines), PRE_STYLE)


def _lines(error: BaseException) -> list[str]:
    """The lines of an error, as a cell in the foreground shows it."""
    if isinstance(error, CellError):
        text = "\n".join(error._render_traceback_())
    else:
        text = f"{type(error).__name__}: {error}"
    return clean(without_codes(text)).strip("\n").split("\n")
