"""Raises an interrupt once more that was raised where Python ignores exceptions.

Runs in: the rank process, main thread.

A signal is handled between any two steps of Python code, also in those of a finalizer, of a weak
reference's callback, or of a callback of C code. Python ignores an exception there: it only calls
`sys.unraisablehook`, and the cell would continue as if there had been no interrupt.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

#: Time for the code that ignores exceptions to end. If it has not ended, the interrupt is ignored
#: and sent again.
_PAUSE_S = 0.01


class SwallowedInterrupts:
    """Watches exceptions that Python ignores.

    Args:
        running: returns the number of the cell that runs in the main thread; 0: none runs.
    """

    def __init__(self, running: Callable[[], int]) -> None:
        self._running = running
        self._pid = os.getpid()
        self._before = sys.unraisablehook
        self.is_in_hook = False  #: the hook itself runs, which ignores exceptions as well
        sys.unraisablehook = self._on_unraisable

    def _on_unraisable(self, ignored: "sys.UnraisableHookArgs") -> None:
        cell = self._running()
        is_main = threading.get_ident() == threading.main_thread().ident
        is_interrupt = issubclass(ignored.exc_type, KeyboardInterrupt)
        if not (is_interrupt and is_main and cell and os.getpid() == self._pid):
            self._before(ignored)
            return
        self.is_in_hook = True
        try:
            self.resend(cell)
        finally:
            self.is_in_hook = False

    def resend(self, cell: int) -> None:
        """Send another interrupt for this cell to the main thread, after a short time."""
        threading.Thread(target=self._send, args=(cell,), name="nbddp-again", daemon=True).start()

    def _send(self, cell: int) -> None:
        time.sleep(_PAUSE_S)
        # The main thread handles it before it can run a step of another cell.
        if self._running() == cell:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
