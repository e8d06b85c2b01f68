"""Starts and ends agents on this machine.

Runs in: the notebook's process.
"""

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from nbddp.settings import AGENT_ENV, POOL_ID_ENV, USER_PYTHONPATH_ENV
from nbddp.system import process_tree
from nbddp.system.kept_pools import ProcessId
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.message_types import AgentEnd

_PACKAGE_PARENT = str(Path(__file__).parents[3])


#: Agents that this process has started and let go: it is still their parent.
_let_go: list["subprocess.Popen[bytes]"] = []


def collect_ended() -> None:
    """Collect the exit codes of agents that were let go and have ended since."""
    _let_go[:] = [process for process in _let_go if process.poll() is None]


def agent_mark(pool_id: str, node: int) -> str:
    """Return what all descendants of an agent have in their environment."""
    return f"{pool_id}/{node}"


class LocalAgent:
    """One agent process that this pool has started."""

    def __init__(self, launch: AgentLaunch, env: dict[str, str]) -> None:
        self.node = launch.node
        self._mark = agent_mark(launch.pool_id, launch.node)
        folder = Path(launch.folder)
        connection_file = folder / f"agent-{launch.node}.json"
        connection_file.unlink(missing_ok=True)  # of an agent that was ended before it read it
        launch.write(connection_file)
        self._log_path = folder / f"agent-{launch.node}.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                # -P: a file torch.py or zmq.py in the user's folder must not be imported instead.
                [sys.executable, "-P", "-m", "nbddp.agent", str(connection_file)],
                env=env
                | {
                    POOL_ID_ENV: launch.pool_id,  # all descendants of the agent inherit it
                    AGENT_ENV: self._mark,
                    "PYTHONPATH": _python_path(env),
                    USER_PYTHONPATH_ENV: env.get("PYTHONPATH", ""),
                }
                | _keep_gil(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        #: Told from a later one with the same number.
        self.process = ProcessId.of(self._process.pid)
        #: Becomes readable when the process ends; -1 where the system has no pidfds.
        self.exit_fd = os.pidfd_open(self._process.pid) if process_tree.IS_LINUX else -1

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def wake(self) -> None:
        """Resume the process if it is stopped; has no effect on a running one."""
        if not self.has_exited():
            process_tree.kill_quietly(self.pid, signal.SIGCONT)

    def has_exited(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def end(self) -> AgentEnd:
        """Return the exit code of the ended process."""
        return AgentEnd("exited", self._process.returncode)

    def last_output(self) -> str:
        """Return the end of the agent's log, which says why it could not start, if it could not."""
        try:
            return self._log_path.read_text(errors="replace")[-2000:]
        except OSError:
            return ""

    def kill(self) -> None:
        """End the agent now. Its fork server and ranks end with it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def kill_ranks(self, pids: Iterable[int]) -> None:
        """End the children of ranks whose agent was lost.

        The ranks themselves got SIGKILL from the system, but their children did not. Children that
        left the process group of their rank are recognized by the mark in their environment.
        """
        for pid in pids:
            if pid:
                process_tree.kill_quietly(pid, signal.SIGKILL, group=True)
        for pid in process_tree.processes_with(AGENT_ENV, self._mark):
            process_tree.kill_quietly(pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptor. An agent that still runs was let go, and goes on."""
        if not self.has_exited():
            _let_go.append(self._process)
        self._close_fd()

    def _close_fd(self) -> None:
        collect_ended()
        if self.exit_fd >= 0:
            os.close(self.exit_fd)
            self.exit_fd = -1


def _python_path(env: dict[str, str]) -> str:
    """Return a PYTHONPATH with which the agent imports this very nbddp, installed or not."""
    before = env.get("PYTHONPATH", "")
    return _PACKAGE_PARENT + (os.pathsep + before if before else "")


def _keep_gil() -> dict[str, str]:
    """Return the environment that keeps the GIL on in a free-threaded Python.

    The GIL of such a Python may be on because of ``-X gil=1`` or of a module.
    """
    return {"PYTHON_GIL": "1"} if sysconfig.get_config_var("Py_GIL_DISABLED") else {}
