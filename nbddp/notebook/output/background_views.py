"""Shows the cells that run in the background, one after another.

Runs in: the notebook's process; the views run on their own thread, ``nbddp-views``. Cells run one
at a time, so one thread is enough for all of them. A thread for each cell would cost three
descriptors: ipykernel opens a socket for every thread that sends, and closes the sockets of ended
threads every ten seconds.
"""

import queue
import threading
from collections.abc import Callable


class BackgroundViews:
    """The thread that shows cells; it starts with the first one."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, show: Callable[[], None]) -> None:
        """Call ``show``, which must not raise, after all functions that were put before."""
        with self._lock:
            self._waiting.put(show)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="nbddp-views", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """End the thread after the cells that wait; the next `put` starts a new one."""
        with self._lock:
            if self._thread is not None:
                self._waiting.put(None)
                self._thread = None
                self._waiting = queue.SimpleQueue()

    def _serve(self) -> None:
        waiting = self._waiting
        while (show := waiting.get()) is not None:
            show()
            del show  # it holds a view, and the next cell may come hours later
