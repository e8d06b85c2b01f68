"""A process that the agent has had made, and how it ended.

Runs in: the agent's thread. The fork server is the parent of what it makes, and would tell the end;
it may have been stopped, or be busy. So the end is seen by a pidfd, and the exit code is read where
the system keeps it until the parent collects it.
"""

import os
import time
from multiprocessing.process import BaseProcess
from typing import Any

from nbddp.system import process_tree

#: What `multiprocessing` gives where the fork server has not told the exit code.
NOT_TOLD = 255
#: Between the moment at which the fork server collects a child and the one at which it tells so.
_TOLD_S = 1.0
_LOOK_S = 0.002


class Child:
    """One process.

    Args:
        process: it was started.
    """

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None  # noqa: S101 - it was started
        self.pid: int = process.pid
        self._process = process
        self._pidfd = _pidfd_of(self.pid)

    @property
    def exit_fd(self) -> int:
        """A descriptor that can be read when the process has ended."""
        return self._pidfd if self._pidfd >= 0 else self._process.sentinel

    def collect(self) -> int | None:
        """After its end: the exit code, and everything that it held is given back.

        Returns:
            -n: by signal n; `NOT_TOLD`: perhaps by the end of the fork server; None: not known.
        """
        code = self._exit_code()
        # The standard library closes only what it knows to have ended.
        popen: Any = getattr(self._process, "_popen", None)
        if popen.returncode is None:
            popen.returncode = NOT_TOLD if code is None else code
        self._process.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        return code

    def _exit_code(self) -> int | None:
        give_up_at = time.monotonic() + _TOLD_S
        while True:
            code = self._process.exitcode
            if code is not None:
                return code
            end = process_tree.uncollected_end(self.pid)
            if end is not None:
                return end
            if time.monotonic() >= give_up_at:
                return None
            time.sleep(_LOOK_S)


def _pidfd_of(pid: int) -> int:
    """-1: the system has no such thing, or the process has been collected."""
    if not process_tree.IS_LINUX:
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1
