"""Sees the end of the notebook, and helpers that stand still, also while the agent waits for them.

Runs in: the agent process, a thread of its own, ``nbddp-lifeline``. The agent's own thread waits
for the fork server when it has a process made: while torch loads that takes seconds, and for ever
if the fork server is stopped. This thread waits for nothing else.

    notebook's pidfd  --> Lifeline --SIGKILL--> a fork server that is waited for
    /proc/PID/stat    -->          --SIGCONT--> helpers that stand still
                                   --news-----> the agent's thread
"""

import os
import select
import threading
import time
from collections import deque
from contextlib import suppress

from nbddp.agent.fork_server import ProcessMaker
from nbddp.system import process_tree
from nbddp.wire.messages import HelperStopped
from nbddp.wire.stopped_processes import Standing

_LOOK_S = 0.25


class ParentWatch:
    """What the agent holds on to.

    Args:
        node: that of the agent.
        controller_pid: the notebook's process; 0: it runs on another machine.
        maker: makes processes.
    """

    def __init__(self, node: int, controller_pid: int, maker: ProcessMaker) -> None:
        self._node = node
        self._maker = maker
        self._controller_pid = controller_pid
        #: Whether the notebook has ended.
        self.is_cut = False
        self._pidfd = self._open()
        self._store_pid = 0
        self._standing = Standing()
        self._news: deque[HelperStopped] = deque()
        #: Can be read when there is something to hear: `is_cut`, `news`.
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)

    def _open(self) -> int:
        """Its pidfd; -1: there is none, or the notebook has ended already."""
        if not self._controller_pid or not process_tree.IS_LINUX:
            return -1
        process_tree.wake_with_parent()
        try:
            fd = os.pidfd_open(self._controller_pid)
        except ProcessLookupError:
            self.is_cut = True
            return -1
        # Its number may belong to somebody else by now; a child of the notebook knows.
        self.is_cut = os.getppid() != self._controller_pid
        return fd

    def start(self) -> None:
        """Watch from now on, to the end of the process."""
        threading.Thread(target=self._serve, name="nbddp-lifeline", daemon=True).start()

    def watch_store(self, pid: int) -> None:
        """The process of the store; 0: there is none."""
        self._store_pid = pid

    def news(self) -> list[HelperStopped]:
        """What has been seen since the last call."""
        with suppress(BlockingIOError):
            os.read(self.fd, 4096)
        found = []
        while self._news:
            found.append(self._news.popleft())
        return found

    # --- the thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        poller = select.poll()
        if self._pidfd >= 0:
            poller.register(self._pidfd, select.POLLIN)
        while True:
            ended = poller.poll(_LOOK_S * 1000)
            if (ended or self._has_lost_parent()) and not self.is_cut:
                self.is_cut = True
                self._tell()
            if ended:
                poller.unregister(self._pidfd)
            if self.is_cut:
                self._maker.give_up_start()
            self._look("the fork server", self._maker.fork_server_pid)
            self._look("the store", self._store_pid)

    def _has_lost_parent(self) -> bool:
        """Where there is no pidfd."""
        is_blind = self._controller_pid and not process_tree.IS_LINUX
        return bool(is_blind) and os.getppid() != self._controller_pid

    def _look(self, name: str, pid: int) -> None:
        stopped = self._standing.look(self._node, name, pid, time.monotonic())
        if stopped is not None:
            self._news.append(stopped)
            self._tell()

    def _tell(self) -> None:
        with suppress(OSError):  # full: there is something to hear already
            os.write(self._write_fd, b"!")
