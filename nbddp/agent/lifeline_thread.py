"""Watches for the end of the notebook, for stopped helpers, and for the end of the job.

Runs in: the agent process, a thread of its own, ``nbddp-lifeline``. The agent's own thread waits
for the fork server when that makes a process: for seconds while torch loads, and forever if the
fork server is stopped. This thread waits for nothing else.

    notebook's pidfd  --> LifelineThread --SIGKILL--> a fork server for which `start` waits
    /proc/PID/stat    -->                --SIGCONT--> stopped helpers
    squeue            -->                --news-----> the agent's thread
"""

import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from nbddp.agent.fork_server import ProcessMaker
from nbddp.system import process_tree
from nbddp.system.kept_pools import ProcessId
from nbddp.wire.messages import HelperStopped, JobTimeLeft
from nbddp.wire.stopped_processes import StoppedProcesses

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbddp.agent.job_time import JobWatch

_INTERVAL_S = 0.25


class LifelineThread:
    """Watches the notebook's process, the fork server and the store.

    Args:
        node: number of the agent's node.
        controller_pid: the notebook's process; 0: it runs on another machine.
        maker: makes processes.
    """

    def __init__(self, node: int, controller_pid: int, maker: ProcessMaker) -> None:
        self._node = node
        self._maker = maker
        self._controller_pid = controller_pid
        #: True if the notebook has ended.
        self.has_lost_notebook = False
        #: Whether this process goes on after the end of the notebook.
        self.is_kept: Callable[[], bool] = lambda: False
        self._pidfd = self._open()
        self._retired: deque[int] = deque()  #: descriptors that the thread is to close
        self._store_pid = 0
        self._stopped_processes = StoppedProcesses()
        self._job_watch: JobWatch | None = None
        self._news: deque[HelperStopped] = deque()
        #: Becomes readable when `has_lost_notebook` or `news` has changed.
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)

    def _open(self) -> int:
        """Open the notebook's pidfd; -1: there is none, or the notebook has ended already."""
        if not self._controller_pid or not process_tree.IS_LINUX:
            return -1
        process_tree.wake_with_parent()
        try:
            fd = os.pidfd_open(self._controller_pid)
        except ProcessLookupError:
            self.has_lost_notebook = True
            return -1
        # The number may belong to another process by now; only a child of the notebook can tell.
        self.has_lost_notebook = os.getppid() != self._controller_pid
        return fd

    def start(self) -> None:
        """Watch from now on, until this process ends."""
        threading.Thread(target=self._serve, name="nbddp-lifeline", daemon=True).start()

    def release(self) -> None:
        """Watch no notebook any longer."""
        if self._pidfd >= 0:
            self._retired.append(self._pidfd)
        self._pidfd, self._controller_pid = -1, 0
        self.has_lost_notebook = False

    def follow(self, pid: int, started: int) -> bool:
        """Watch this notebook from now on; False: the process has ended.

        Args:
            pid: its process.
            started: the start of the process, which tells it from a later one of the same number.
        """
        fd = ProcessId(pid, started).open()
        if fd < 0:
            return False
        self.release()
        self._controller_pid, self._pidfd = pid, fd
        return True

    def follow_job(self, job_watch: "JobWatch") -> None:
        """Ask for the end of the job around this agent from now on, and tell what it knows."""
        self._job_watch = job_watch
        if job_watch.is_news:
            self._wake_agent()

    def watch_store(self, pid: int) -> None:
        """Watch the process of the store; 0: there is none."""
        self._store_pid = pid

    def news(self) -> list[HelperStopped | JobTimeLeft]:
        """Return the helpers that were stopped, or run again, and the job, since the last call."""
        with suppress(BlockingIOError):
            os.read(self.fd, 4096)
        news: list[HelperStopped | JobTimeLeft] = []
        while self._news:
            news.append(self._news.popleft())
        watch = self._job_watch
        if watch is not None and watch.is_news:
            watch.is_news = False
            # This thread may have waited for the fork server since the answer came.
            news.append(JobTimeLeft(node=self._node, left_s=watch.left_s(time.monotonic())))
        return news

    # --- the thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            fd = self._pidfd
            poller = select.poll()
            if fd >= 0 and not self.has_lost_notebook:
                poller.register(fd, select.POLLIN)
            ended = poller.poll(_INTERVAL_S * 1000)
            is_current = fd == self._pidfd  # else the agent follows another process by now
            if is_current and (ended or self._has_lost_parent()) and not self.has_lost_notebook:
                self.has_lost_notebook = True
                self._wake_agent()
            while self._retired:
                os.close(self._retired.popleft())
            if self.has_lost_notebook and not self.is_kept():
                self._maker.give_up_start()
            self._check("the fork server", self._maker.fork_server_pid)
            self._check("the store", self._store_pid)
            self._check_job()

    def _has_lost_parent(self) -> bool:
        """Return whether the notebook has ended, on a system without pidfds."""
        is_blind = self._controller_pid and not process_tree.IS_LINUX
        return bool(is_blind) and os.getppid() != self._controller_pid

    def _check(self, name: str, pid: int) -> None:
        stopped = self._stopped_processes.check(self._node, name, pid, time.monotonic())
        if stopped is not None:
            self._news.append(stopped)
            self._wake_agent()

    def _check_job(self) -> None:
        if self._job_watch is not None and self._job_watch.advance(time.monotonic()):
            self._wake_agent()

    def _wake_agent(self) -> None:
        with suppress(OSError):  # the pipe is full, so it is readable already
            os.write(self._write_fd, b"!")
