"""``%ddp break --on error``: a debugger opens at the line that has raised, before the cell ends.

Runs in: the rank process, main thread. The rank is still in its cell, so ranks that wait for it are
told that it is at a prompt, and nothing is freed.
"""

import asyncio
import bdb
import threading
import types
from collections.abc import Callable
from typing import Any

from IPython.core import debugger

from nbddp.rank.cells.breakpoints import UserStack
from nbddp.rank.cells.library_frames import library_of
from nbddp.wire.messages import Execute

_NOT_ERRORS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, bdb.BdbQuit)


class ErrorStops:
    """Opens a debugger on errors of cells, if break points say so.

    Args:
        rank: this rank.
        was_freed: whether nbddp has raised an error, to free the rank.
    """

    def __init__(self, rank: int, was_freed: Callable[[BaseException], bool]) -> None:
        self._rank = rank
        self._was_freed = was_freed
        self._numbers: tuple[int, ...] = ()
        self._is_open = False
        #: Gets the numbers of the break points while the debugger is open. Set by the server.
        self.note: Callable[[tuple[int, ...]], None] = lambda numbers: None

    def begin_cell(self, request: Execute) -> None:
        """Take the break points of a cell."""
        self._numbers = tuple(
            point.number
            for point in request.break_points
            if point.on == "error" and (not point.ranks or self._rank in point.ranks)
        )

    def before_report(self, error: BaseException | None) -> None:
        """Open a debugger on an error that ends the cell; return when the user has left it."""
        if not self._numbers or self._is_open or error is None or isinstance(error, _NOT_ERRORS):
            return
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or error.__traceback__ is None or self._was_freed(error):
            return
        opened = _PostMortem(nosigint=True)
        points = "break point" if len(self._numbers) == 1 else "break points"
        numbers = ", ".join(map(str, self._numbers))
        self._is_open = True
        self.note(self._numbers)
        try:
            opened.message(f"{type(error).__name__}: {error} ({points} {numbers}; c raises it)")
            opened.reset()
            opened.interaction(None, error.__traceback__)
        except (KeyboardInterrupt, bdb.BdbQuit, EOFError):
            pass  # the error of the user's code is reported
        finally:
            opened.forget()
            self._is_open = False
            self.note(())


class _PostMortem(UserStack, debugger.InterruptiblePdb):
    """A debugger that opens in the innermost frame of the user's code."""

    def get_stack(self, *args: Any, **kwargs: Any) -> tuple[list[Any], int]:
        """Return the frames of the user's code and below, and the index of the one to begin at."""
        stack, index = super().get_stack(*args, **kwargs)
        mine = [at for at, (frame, _) in enumerate(stack[: index + 1]) if _is_users(frame)]
        return stack, mine[-1] if mine else index


def _is_users(frame: types.FrameType) -> bool:
    file = frame.f_code.co_filename
    return not file.startswith("<frozen") and not library_of(file)
