"""Counts interrupts that come before the code that handles them waits.

Runs in: the notebook's process, main thread.
"""

import signal
import threading
import types
from typing import Any, Self


class EarlyInterrupts:
    """Counts SIGINT from before a cell is sent until a thread waits for it.

    Without this, an interrupt in between would leave a running cell that no thread waits for. The
    same holds for the processes of a pool that starts.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_main and self._before is not None:  # None: set by C code
            signal.signal(signal.SIGINT, self._before)

    def have_come(self) -> bool:
        """Whether at least one SIGINT has come."""
        return self.count > 0

    def check(self) -> None:
        """Raise if an interrupt has come.

        Raises:
            KeyboardInterrupt: at least one SIGINT has come.
        """
        if self.count:
            raise KeyboardInterrupt

    def _note(self, signum: int, frame: types.FrameType | None) -> None:
        self.count += 1
