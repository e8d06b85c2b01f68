"""An agent on this machine that another notebook has started.

Runs in: the notebook's process.
"""

import select
import signal
from contextlib import suppress
from pathlib import Path

from nbddp.controller.launch.local import LocalAgent, agent_mark
from nbddp.system.kept_pools import ProcessId
from nbddp.wire.message_types import AgentEnd


class AdoptedAgent(LocalAgent):
    """An agent that is no child of this process, so that its exit code is not known.

    Args:
        node: number of its node.
        process: its process.
        pool_id: names the pool.
        folder: of the pool.
    """

    def __init__(self, node: int, process: ProcessId, pool_id: str, folder: Path) -> None:
        self.node = node
        self._mark = agent_mark(pool_id, node)
        self.process = process
        self._log_path = folder / f"agent-{node}.log"
        self.exit_fd = process.open()

    def wake(self) -> None:
        """Resume the process if it is stopped; has no effect on a running one."""
        self._signal(signal.SIGCONT)

    def has_exited(self) -> bool:
        """Return whether the process has ended."""
        return self._poll(0)

    def close(self) -> None:
        """Close the descriptor."""
        self._close_fd()

    def end(self) -> AgentEnd:
        """Return what is known of its end: only its parent learns the exit code."""
        return AgentEnd("not-known")

    def kill(self) -> None:
        """End the agent now. Its fork server and ranks end with it."""
        self._signal(signal.SIGKILL)
        self._poll(None)

    def _signal(self, signum: int) -> None:
        if self.exit_fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.exit_fd, signum)

    def _poll(self, timeout_ms: int | None) -> bool:
        """Return whether the process ends in this time; None: wait for its end."""
        if self.exit_fd < 0:
            return True
        poller = select.poll()  # `select.select` takes no descriptor above 1023
        poller.register(self.exit_fd, select.POLLIN)
        return bool(poller.poll(timeout_ms))
