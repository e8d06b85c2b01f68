"""Wakes the main thread when an interrupt arrived in the moment before it blocked.

Runs in: the rank process, thread ``nbddp-signals``.

The C handler of CPython only sets a flag for a signal, and the interpreter checks these flags
between its steps. A signal that arrives after the last check and before the main thread blocks in a
system call interrupts nothing: the main thread sleeps on, in ``threading.Event().wait()`` forever.
Another signal ends the system call, and Python then checks all flags. See "Execution of Python
signal handlers" in the documentation of `signal`.

    SIGINT --> C handler --byte--> nbddp-signals --SIGURG--> main thread --> `Interrupts`
"""

import os
import signal
import threading
import time
import types
from collections.abc import Callable

#: Time before the main thread is woken first, and longest time between two wake-ups.
_FIRST_S, _LONGEST_S = 0.01, 0.5
#: A main thread that has not checked for this long runs C code, and checks when it returns.
_LIMIT_S = 3.0
#: This signal is ignored by default, so that a late one does no harm; programs hardly use it.
_SIGNAL = signal.SIGURG


class Wakeup:
    """Wakes the main thread until it has handled an interrupt.

    Args:
        handled: returns how many interrupts the main thread has handled so far.
    """

    def __init__(self, handled: Callable[[], int]) -> None:
        self._handled = handled
        #: Number of interrupts that have reached the process, also while the main thread is in C.
        self.received = 0
        self._settled = 0  #: number of handled interrupts whose wake-up has ended
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        os.register_at_fork(after_in_child=self._disable_in_child)
        signal.signal(_SIGNAL, _ignore)
        self.install()
        threading.Thread(target=self._serve, name="nbddp-signals", daemon=True).start()

    def install(self) -> None:
        """Have CPython report signals to the pipe, unless the user's code has them reported to it.

        Called again before each cell, because a cell may have ended the reports.
        """
        self._settled = self._handled()
        before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        if before not in (-1, self._write_fd):
            signal.set_wakeup_fd(before)  # an event loop of the user with signal handlers

    def _disable_in_child(self) -> None:
        """Stop the reports in a forked child, which shares the pipe with the rank."""
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
                self.received += 1
                self._wake_until_handled()
                self._settled = self._handled()

    def _wake_until_handled(self) -> None:
        pause_s = _FIRST_S
        until = time.monotonic() + _LIMIT_S
        while time.monotonic() < until:
            time.sleep(pause_s)
            if self._handled() != self._settled or signal.getsignal(_SIGNAL) is not _ignore:
                return
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
            pause_s = min(2 * pause_s, _LONGEST_S)


def _ignore(signum: int, frame: types.FrameType | None) -> None:
    """Do nothing: the signal only has to end the system call."""
