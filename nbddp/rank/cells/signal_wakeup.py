"""Wakes the main thread when an interrupt came in the moment before it blocked.

Runs in: the rank process, thread ``nbddp-signals``.

The C handler of CPython only notes that a signal has come; Python code looks for such notes between
its steps. A signal that comes after the last look and before the main thread blocks in a system
call interrupts nothing: the main thread sleeps on, ``threading.Event().wait()`` for ever. Another
signal ends the system call, and Python then looks at all notes. See "Execution of Python signal
handlers" in the documentation of `signal`.

    SIGINT --> C handler --byte--> nbddp-signals --SIGURG--> main thread --> `Interrupts`
"""

import os
import signal
import threading
import time
import types
from collections.abc import Callable

#: The first time after which the main thread is woken, and the longest one between two times.
_FIRST_S, _LONGEST_S = 0.01, 0.5
#: A main thread that has not looked for so long runs C code, and looks when it is back.
_LIMIT_S = 3.0
#: Ignored by default, so that a late one does no harm; programs hardly use it.
_SIGNAL = signal.SIGURG


class Wakeup:
    """Watches that interrupts are handled; for the main thread.

    Args:
        handled: how many interrupts the main thread has handled so far.
    """

    def __init__(self, handled: Callable[[], int]) -> None:
        self._handled = handled
        self._known = 0  #: of those that were handled: what was told of them is settled
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        os.register_at_fork(after_in_child=self._hear_nothing)
        signal.signal(_SIGNAL, _ignore)
        self.install()
        threading.Thread(target=self._serve, name="nbddp-signals", daemon=True).start()

    def install(self) -> None:
        """Be told of signals (again: a cell may have ended that), if nobody else is."""
        self._known = self._handled()
        before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        if before not in (-1, self._write_fd):
            signal.set_wakeup_fd(before)  # an event loop of the user's with handlers of signals

    def _hear_nothing(self) -> None:
        """In a forked child, which shares the pipe: its signals are none of the rank's."""
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, self._write_fd):
            signal.set_wakeup_fd(before)

    def _serve(self) -> None:
        while True:
            try:
                numbers = os.read(self._read_fd, 512)
            except OSError:
                return  # a cell has closed the descriptor, see `nbddp.controller.state.exit_text`
            if signal.SIGINT in numbers:
                self._wake_until_handled()
                self._known = self._handled()

    def _wake_until_handled(self) -> None:
        pause_s = _FIRST_S
        until = time.monotonic() + _LIMIT_S
        while time.monotonic() < until:
            time.sleep(pause_s)
            if self._handled() != self._known or signal.getsignal(_SIGNAL) is not _ignore:
                return
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
            pause_s = min(2 * pause_s, _LONGEST_S)


def _ignore(signum: int, frame: types.FrameType | None) -> None:
    """Nothing: that the system call ends is all that is wanted."""
