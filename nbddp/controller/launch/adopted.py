"""An agent on this machine that another notebook has started.

Runs in: the notebook's process.
"""

import os
import select
import signal
from pathlib import Path

from nbddp.controller.launch.local import LocalAgent, agent_mark
from nbddp.system import process_tree
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
        self._id = process
        self._log_path = folder / f"agent-{node}.log"
        try:
            self.exit_fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self.exit_fd = -1
        if self.exit_fd >= 0 and not process.is_alive:
            self.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._id.pid

    def has_exited(self) -> bool:
        """Return whether the process has ended."""
        if self.exit_fd < 0:
            return True
        poller = select.poll()
        poller.register(self.exit_fd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close the descriptor."""
        self._close_fd()

    def end(self) -> AgentEnd:
        """Return what is known of its end: only its parent learns the exit code."""
        return AgentEnd("not-known")

    def kill(self) -> None:
        """End the agent now. Its fork server and ranks end with it."""
        if not self.has_exited():
            process_tree.kill_quietly(self.pid, signal.SIGKILL)
            select.select([self.exit_fd], [], [])
