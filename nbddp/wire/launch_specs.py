"""Launch data: from the notebook to an agent, and from an agent to a rank, without a socket.

Runs in: notebook, agent, rank. The connection file of an agent is JSON, readable by its owner
only; `multiprocessing` passes a `RankLaunch` to the process of the rank.
"""

import os
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import msgspec

from nbddp.settings import Settings
from nbddp.wire.message_types import PoolSpec


class AgentLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of an agent's connection file."""

    hub: str  #: address of the hub's socket
    token: str  #: secret that the agent shows in its first message
    pool_id: str
    node: int
    folder: str  #: the pool's folder, 0700: sockets and logs
    controller_pid: int  #: the agent ends when this process ends; 0: it runs on another machine
    settings: Settings
    #: Seconds for which it goes on without a hub after the end of that process; 0: it ends then.
    keep_s: float = 0.0

    @property
    def rank_socket(self) -> Path:
        """Path of the socket at which the ranks of this node connect to their agent."""
        return Path(self.folder, f"agent-{self.node}.sock")

    def write(self, path: Path) -> None:
        """Write the connection file, readable by its owner only."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> "AgentLaunch":
        """Read a connection file. Raises ``msgspec.ValidationError`` if it is not one."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


class InheritedFd:
    """A file descriptor for a process that `multiprocessing` starts.

    `take` returns its number in that process, once.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._handle: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_fd": -1, "_handle": reduction.DupFd(self._fd)}

    def take(self) -> int:
        """Return the descriptor, which the caller owns; child programs do not inherit it."""
        if self._handle is None:
            return self._fd
        fd = int(self._handle.detach())
        os.set_inheritable(fd, False)  # multiprocessing hands over inheritable descriptors
        return fd


@dataclass(frozen=True)
class RankLaunch:
    """Launch data of a rank process."""

    pool: PoolSpec
    rank: int
    local_rank: int
    node: int
    master_addr: str
    master_port: int
    agent_address: str
    identity: bytes  #: secret that proves to the agent that it started this process
    agent_pid: int
    mark: str  #: in the environment of the rank's child processes, so that they end with it
    forked: bool  #: started by the fork server, with torch already loaded
    stdout: InheritedFd
    stderr: InheritedFd
    stacks: InheritedFd  #: for Python stacks: at a crash, and when the agent requests one
    #: The shared memory of the node, see `nbddp.wire.flight_recorder.writer`, with a region for
    #: each of its ``pool.nproc_per_node`` ranks; None in a pool of plain groups.
    records: InheritedFd | None = None
    #: The pool already runs: the rank gets its groups by `RebuildGroups`, and initialises none.
    joins: bool = False


@dataclass(frozen=True)
class StoreLaunch:
    """Launch data of the store process."""

    host: str
    port: int
    listener: InheritedFd
    answer: InheritedFd
    agent_pid: int
    forked: bool
