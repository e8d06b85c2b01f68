"""The interface of engines, which start agents on other machines; a package can add one.

Runs in: the notebook's process.

A package adds an engine with an entry point in the group ``nbddp.launchers``, whose name is that of
``--launcher NAME``. It is called with `EngineOptions`, and returns an `Engine`.
"""

from dataclasses import dataclass
from typing import Protocol

from nbddp.wire.launch_specs import Invitation


@dataclass(frozen=True)
class EngineOptions:
    """The options of the user about the agents."""

    nnodes: int
    nproc_per_node: int
    hosts: tuple[str, ...] = ()  #: machines, in order
    python: str = ""  #: the interpreter on these machines; empty: the path of this one
    tunnel: bool = False  #: agents reach the notebook through the connection that starts them
    arguments: tuple[str, ...] = ()  #: further words for the engine's own command


class Engine(Protocol):
    """Starts one agent on each node, and says what has become of them.

    All methods but `start` return at once. `start` and `stop` are called once.
    """

    #: Seconds in which all agents have to join; None: the user waits, or ends the wait.
    join_timeout_s: float | None

    def address(self) -> str:
        """Return the address of this machine at which the agents reach it.

        Raises:
            PoolStartError: there is none.
        """

    def start(self, invitation: Invitation) -> None:
        """Begin to start the agents.

        Raises:
            PoolStartError: the engine cannot do that here.
        """

    def state(self) -> str:
        """Return what the engine waits for, for the progress line; empty: nothing to say."""

    def end(self, node: int) -> str:
        """Return why the agent of a node has ended or cannot come; empty: it has not."""

    def stop(self) -> None:
        """End what was started; agents that still run end without the notebook."""


class RemoteAgent:
    """The agent of one node on another machine, as the hub and its engine know it."""

    #: There is no process here.
    exit_fd = -1
    pid = 0

    def __init__(self, node: int, engine: Engine, host: str = "") -> None:
        self.node = node
        self._engine = engine
        self._host = host  #: its machine, if that is known before it comes
        self._has_come = False
        self._reason: str | None = None

    def note_end(self, reason: str) -> None:
        """Note that the agent has ended."""
        if self._reason is None:
            self._reason = reason

    def revive(self) -> None:
        """Note that an agent has come for this node, perhaps in the place of another one."""
        self._has_come = True
        self._reason = None

    def wake(self) -> None:
        """Do nothing: a process of another machine cannot be resumed from here."""

    def has_exited(self) -> bool:
        """Return whether the agent has ended, or its engine knows that it cannot come."""
        if self._reason is None and (reason := self._engine.end(self.node)):
            self._reason = reason
        return self._reason is not None

    @property
    def never_came(self) -> str:
        """The machine, or the node, whose agent never came; empty: it did, or may still do so."""
        if self._has_come or not self.has_exited():
            return ""
        return self._host or f"node {self.node}"

    def exit_code(self) -> int:
        """Return 0: the exit code of another machine's process is not known."""
        return 0

    def end_reason(self) -> str:
        """Return why it has ended."""
        return self._reason or "it was asked to end"

    def last_output(self) -> str:
        """Return nothing: `end_reason` has the output of the engine."""
        return ""

    def kill(self) -> None:
        """Take it for ended; its engine ends it, or it notices that the notebook has gone."""
        self.note_end("it did not answer")

    def kill_ranks(self, pids: object) -> None:
        """Do nothing: the system of that machine ends them with their agent."""

    def close(self) -> None:
        """Do nothing."""
