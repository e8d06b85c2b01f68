"""The view of a cell, as `nbddp.controller.pool.cell_wait` calls it; and one that shows nothing.

Runs in: the thread that waits for the cell.
"""

from collections.abc import Sequence
from typing import Protocol

from nbddp.controller.hub import CellEvent
from nbddp.controller.prompts import OperationRow
from nbddp.controller.state import Diagnosed, RunOutcome
from nbddp.controller.trace import TraceRow
from nbddp.controller.values import Difference
from nbddp.wire.messages import InputRequest


class CellView(Protocol):
    """Shows one cell. The thread that waits for the cell calls all methods."""

    def show(self, event: CellEvent) -> None:
        """Show an event of a rank."""

    def tick(self) -> float | None:
        """Show what is due.

        Returns:
            Seconds until the next tick is needed; None: no tick is due at a certain time.
        """

    def ask(self, request: InputRequest) -> str:
        """Ask the user.

        Raises:
            EOFError: no user can be asked; its text says why.
            KeyboardInterrupt: the user interrupted the question.
        """

    def why_nobody_answers(self) -> str:
        """Return why no user can be asked, as far as it is known before; empty: one can."""

    def leave_prompt(self, request: InputRequest) -> None:
        """Note that a rank, of which `show` got this request, is at no prompt any more."""

    def tell(self, text: str) -> None:
        """Show nbddp's own lines, after all output so far."""

    def show_steps(self, table: str, rows: Sequence[OperationRow]) -> None:
        """Show what each rank does, as lines and as the last operations."""

    def end_steps(self, rows: Sequence[OperationRow]) -> None:
        """Show the last operations of ranks that have stopped; the cell is about to end."""

    def show_waits(self, diagnosed: Diagnosed) -> None:
        """Show which rank waits for which, after all output so far."""

    def show_trace(self, rows: Sequence[TraceRow]) -> None:
        """Show the last of these operations, after all output so far."""

    def show_difference(self, difference: Difference) -> None:
        """Show where a value differs between ranks, after all output so far."""

    def end(self, outcome: RunOutcome) -> None:
        """Show what is left: the cell has ended."""


class SilentView:
    """Shows nothing of a cell."""

    def show(self, event: CellEvent) -> None:
        """Do nothing."""

    def tick(self) -> float | None:
        """Return None: nothing is due."""
        return None

    def ask(self, request: InputRequest) -> str:
        """Continue a debugger or a step; else raise: a question would come without its context.

        Raises:
            EOFError: the user's code asks.
        """
        if request.debugger is not None or request.stop is not None:
            return "c"
        raise EOFError(self.why_nobody_answers())

    def why_nobody_answers(self) -> str:
        """Return the reason: the cell runs again by itself."""
        return "input was asked for in a cell that runs again, which asks no questions"

    def leave_prompt(self, request: InputRequest) -> None:
        """Do nothing."""

    def tell(self, text: str) -> None:
        """Do nothing."""

    def show_steps(self, table: str, rows: Sequence[OperationRow]) -> None:
        """Do nothing."""

    def end_steps(self, rows: Sequence[OperationRow]) -> None:
        """Do nothing."""

    def show_waits(self, diagnosed: Diagnosed) -> None:
        """Do nothing."""

    def show_trace(self, rows: Sequence[TraceRow]) -> None:
        """Do nothing."""

    def show_difference(self, difference: Difference) -> None:
        """Do nothing."""

    def end(self, outcome: RunOutcome) -> None:
        """Do nothing."""
