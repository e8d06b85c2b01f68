"""Callbacks of widgets: code of the user's that runs on one rank, and often in no cell.

Runs in: the rank process. A callback runs on the main thread, or, while a cell keeps that, in
``nbddp-comms``; then it may outlive the cell.
"""

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Callbacks:
    """Whether a callback runs, and where; at most one does at a time."""

    def __init__(self) -> None:
        self._is_here: ContextVar[bool] = ContextVar("nbddp_is_in_callback", default=False)
        #: The thread in which one runs; 0: none does.
        self.thread = 0
        #: Called before SIGINT is sent for a callback, see `Interrupts.expect_for_callback`.
        self.before_interrupt: Callable[[], None] = lambda: None

    @property
    def is_here(self) -> bool:
        """Whether what runs in this thread or task was called by a widget."""
        # Threads of C++, autograd's for example, have no context; they work for somebody.
        is_foreign = self.thread != 0 and threading.get_ident() not in threading._active  # type: ignore[attr-defined]
        return self._is_here.get() or is_foreign

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this block a callback runs in this thread."""
        token = self._is_here.set(True)
        self.thread = threading.get_ident()
        try:
            yield
        finally:
            self.thread = 0
            self._is_here.reset(token)

    def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` in the callback, if one runs. For any thread."""
        thread = self.thread
        if thread == threading.main_thread().ident:
            self.before_interrupt()
            signal.pthread_kill(thread, signal.SIGINT)  # wakes it from a wait, too
        elif thread:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
            )
