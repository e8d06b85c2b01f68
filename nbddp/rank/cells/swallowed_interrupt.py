"""An interrupt that was raised where Python ignores exceptions is raised once more.

Runs in: the rank process, main thread.

A signal is handled between any two steps of Python code, also in those of a finalizer, of a weak
reference's callback, of a callback of C code. What is raised there goes no further: Python tells
`sys.unraisablehook`, and the cell would go on as if nobody had pressed the button.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

#: Until the code that ignores exceptions has ended; else it is raised there again, and comes again.
_PAUSE_S = 0.01


class Swallowed:
    """Watches what Python ignores.

    Args:
        running: number of the cell that runs in the main thread; 0: none does.
    """

    def __init__(self, running: Callable[[], int]) -> None:
        self._running = running
        self._pid = os.getpid()
        self._before = sys.unraisablehook
        self.is_here = False  #: the hook itself runs, in which nothing can be raised either
        sys.unraisablehook = self._see

    def _see(self, ignored: "sys.UnraisableHookArgs") -> None:
        cell = self._running()
        is_main = threading.get_ident() == threading.main_thread().ident
        is_interrupt = issubclass(ignored.exc_type, KeyboardInterrupt)
        if not (is_interrupt and is_main and cell and os.getpid() == self._pid):
            self._before(ignored)
            return
        self.is_here = True
        try:
            self.again(cell)
        finally:
            self.is_here = False

    def again(self, cell: int) -> None:
        """Send the main thread another interrupt for this cell, in a moment."""
        threading.Thread(target=self._send, args=(cell,), name="nbddp-again", daemon=True).start()

    def _send(self, cell: int) -> None:
        time.sleep(_PAUSE_S)
        # The main thread handles it before it can run a step of another cell.
        if self._running() == cell:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
