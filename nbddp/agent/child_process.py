"""A process that the fork server made for the agent, and its exit code.

Runs in: the agent's thread. The fork server is the parent of these processes and reports their
ends, but it may be stopped or busy. So the agent sees the end through a pidfd, and reads the exit
code where the system keeps it until the parent collects it.
"""

import os
import time
from multiprocessing.process import BaseProcess
from typing import Any

from nbddp.system import process_tree

#: The exit code that `multiprocessing` returns if the fork server has not reported one.
NOT_REPORTED = 255
#: The fork server reports an exit code at most this long after it has collected the child.
_REPORT_S = 1.0
_POLL_S = 0.002


class Child:
    """One process.

    Args:
        process: a process that was started.
    """

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None  # noqa: S101 - it was started
        self.pid: int = process.pid
        self._process = process
        self._pidfd = _pidfd_of(self.pid)

    @property
    def exit_fd(self) -> int:
        """A descriptor that becomes readable when the process has ended."""
        return self._pidfd if self._pidfd >= 0 else self._process.sentinel

    def collect(self) -> int | None:
        """Return the exit code of the ended process, and release everything that it held.

        Returns:
            -n: signal n ended it; `NOT_REPORTED`: perhaps the end of the fork server ended it;
            None: the code is not known.
        """
        code = self._exit_code()
        # The standard library closes only a process that it knows to have ended.
        popen: Any = getattr(self._process, "_popen", None)
        if popen.returncode is None:
            popen.returncode = NOT_REPORTED if code is None else code
        self._process.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        return code

    def _exit_code(self) -> int | None:
        give_up_at = time.monotonic() + _REPORT_S
        while True:
            code = self._process.exitcode
            if code is not None:
                return code
            end = process_tree.uncollected_end(self.pid)
            if end is not None:
                return end
            if time.monotonic() >= give_up_at:
                return None
            time.sleep(_POLL_S)


def _pidfd_of(pid: int) -> int:
    """Open a pidfd; -1: the system has none, or the process has been collected."""
    if not process_tree.IS_LINUX:
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1
