"""The interface of engines, which start agents on other machines; a package can add one.

Runs in: the notebook's process.

A package adds an engine with an entry point in the group ``nbddp.launchers``, whose name is that of
``--launcher NAME``. It is called with `EngineOptions`, and returns an `Engine`. docs/machines.md
shows the lines of a pyproject.toml.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from nbddp.wire.invitation import Invitation


@dataclass(frozen=True)
class EngineOptions:
    """The options of the user about the agents. An engine is made with them.

    An engine raises `BadOptionError` if it cannot follow one of them.

    >>> from nbddp.controller.launch import EngineOptions
    >>> EngineOptions(nnodes=2, nproc_per_node=4, hosts=("a", "b")).hosts
    ('a', 'b')
    """

    nnodes: int  #: agents to start, one on each node
    nproc_per_node: int  #: ranks that each agent starts
    hosts: tuple[str, ...] = ()  #: machines, in order
    python: str = ""  #: the interpreter on these machines; empty: the path of this one
    tunnel: bool = False  #: agents reach the notebook through the connection that starts them
    device: str = "auto"  #: of the ranks: ``auto``, ``cpu`` or ``cuda``
    address: str = ""  #: the value of `--address`
    image: str = ""  #: of the containers
    kind: str = ""  #: of the object that makes the pods
    namespace: str = ""  #: of Kubernetes
    template: str = ""  #: the path of `--k8s-template`
    keep_s: float = 0.0  #: for so many seconds the agents outlive the notebook
    port: int = 0  #: the value of `--port`
    via: str = ""  #: the login node that runs the commands of the engine; empty: this machine
    arguments: tuple[str, ...] = ()  #: the words of `--slurm`, for the engine's own command
    job: Mapping[str, str] = field(default_factory=dict)  #: the pairs of `--job`


@dataclass(frozen=True)
class LostNode:
    """A node whose agent has ended, for `ReplacingEngine.replace`.

    >>> from nbddp.controller.launch import LostNode
    >>> LostNode(1, host="n2", job="4711").host
    'n2'
    """

    node: int  #: its number
    host: str = ""  #: name of its machine
    place: str = ""  #: the engine's own name of that machine, if the agent has found one
    job: str = ""  #: the engine's name of the job that the agent was in


class Engine(Protocol):
    """Starts one agent on each node, and says what has become of them.

    An agent is a process that runs ``nbddp agent --connect -`` and gets the invitation as a line on
    its standard input. The invitation is a secret, so it belongs in no command line. The agent ends
    when this input ends. The variable ``NBDDP_NODE`` tells an agent the number of its node; agents
    without it are numbered by nbddp.

    nbddp calls `address`, then `start` once, then `state` and `end` again and again, from several
    threads, and `stop` once at the end, also if `start` has failed. All methods but `start` and
    `stop` return at once. ``join_timeout_s`` is the number of seconds in which all agents have to
    join; None: the user waits, or ends the wait. ``owns_address``, which an engine may leave out,
    is True if ``--address`` names a place of the engine, not the address of the notebook's machine.
    An engine that can put another agent in the place of a lost one is a `ReplacingEngine`.

    This engine starts all agents on the notebook's own machine:

    >>> import os, subprocess, sys
    >>> class HereEngine:
    ...     join_timeout_s = 120.0
    ...     def __init__(self, options):
    ...         self.nodes, self.agents = range(options.nnodes), []
    ...     def address(self):
    ...         return "127.0.0.1"
    ...     def start(self, invitation):
    ...         words = [sys.executable, "-P", "-m", "nbddp", "agent", "--connect", "-"]
    ...         for node in self.nodes:
    ...             env = {**os.environ, "NBDDP_NODE": str(node)}
    ...             agent = subprocess.Popen(words, stdin=subprocess.PIPE, text=True, env=env)
    ...             self.agents.append(agent)
    ...             print(invitation.text(), file=agent.stdin, flush=True)
    ...     def state(self):
    ...         return f"{len(self.agents)} agents on this machine"
    ...     def end(self, node):
    ...         code = self.agents[node].poll() if node < len(self.agents) else None
    ...         return "" if code is None else f"its process ended with exit code {code}"
    ...     def stop(self):
    ...         for agent in self.agents:
    ...             agent.stdin.close()  # this ends the agent
    ...         for agent in self.agents:
    ...             agent.wait()
    >>> from nbddp.controller.launch import EngineOptions
    >>> HereEngine(EngineOptions(nnodes=2, nproc_per_node=1)).address()
    '127.0.0.1'
    """

    #: Seconds in which all agents have to join; None: the user waits, or ends the wait.
    join_timeout_s: float | None
    #: ``--address`` is a place of the engine, such as the head of a cluster; False: it is that of
    #: this machine. An engine without this attribute has False.
    owns_address: bool

    def address(self) -> str:
        """Return the address of this machine at which the agents reach it.

        It is not called if the user gives ``--address``, unless ``owns_address`` is True.

        Returns:
            An IPv4 address, at which the notebook then listens.

        Raises:
            PoolStartError: there is none.
        """

    def start(self, invitation: Invitation) -> None:
        """Begin to start the agents.

        Args:
            invitation: has all that an agent needs; its method ``text`` returns it as one line.

        Raises:
            PoolStartError: the engine cannot do that here.
        """

    def state(self) -> str:
        """Say what the engine waits for.

        Returns:
            Words for the progress line, such as ``job 17 is queued``; empty: there are none.
        """

    def end(self, node: int) -> str:
        """Say why the agent of a node has ended or cannot come.

        Args:
            node: the number of the node, from 0.

        Returns:
            The reason, perhaps with ``. Next: `` and what the user can do; empty: the agent runs,
            or may still come.
        """

    def stop(self) -> None:
        """End what was started.

        The pool has then asked all agents to end. Agents that this method cannot reach end by
        themselves, since they hear nothing of the notebook.
        """


class ReplacingEngine(Engine, Protocol):
    """An `Engine` that can put another agent in the place of one that has ended.

    Without these two methods nbddp says that the launcher cannot replace a node.

    A part of one that keeps its processes by node:

    >>> class HereEngine:
    ...     def replace(self, lost, invitation):
    ...         self.withdraw(lost.node)  # it may hang
    ...         self.agents[lost.node] = self.start_agent(lost.node, invitation)
    ...     def withdraw(self, node):
    ...         self.agents[node].kill()
    """

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        """Begin to start another agent in the place of one that has ended.

        Processes that are left of the old agent must end, as far as the engine reaches them. From
        now on `end` is about the new agent.

        Args:
            lost: the node.
            invitation: the same as that of `start`.

        Raises:
            PoolStartError: the engine cannot do that here.
        """

    def withdraw(self, node: int) -> None:
        """End what `replace` has begun: the user does not wait for it any longer.

        Args:
            node: the number of the node.

        It is not called once the agent has come.
        """


@runtime_checkable
class LastingEngine(Engine, Protocol):
    """An engine of nbddp whose agents can outlive the notebook."""

    def leave(self) -> None:
        """End what this process has for the agents, which have been let go and go on."""

    def take_back(self, mark: str, invitation: Invitation) -> None:
        """Go on with the agents that another notebook has left.

        Args:
            mark: what that one has noted, see `mark_of`.
            invitation: for agents that come in the places of others.
        """


@runtime_checkable
class ReachingEngine(LastingEngine, Protocol):
    """A `LastingEngine` that makes the ways on which agents reach the notebook.

    ``reach_s`` is the number of seconds that this takes at most.
    """

    reach_s: float

    def reach(self, mark: str, invitation: Invitation) -> None:
        """Make the ways again, before agents that another notebook has left are waited for.

        `leave` ends them if no agent comes. `take_back` follows if agents have come.

        Args:
            mark: what that one has noted, see `mark_of`.
            invitation: of the agents.

        Raises:
            PoolStartError: the engine cannot do that here.
        """

    def obstacle(self) -> str:
        """Say why there is no way, such as the words of ssh; empty: nothing is known."""


def mark_of(engine: Engine) -> str:
    """Return what a later notebook needs to know of the agents, such as the number of a job."""
    return str(getattr(engine, "mark", ""))


def state_of(engine: Engine, nodes: Collection[int]) -> str:
    """Return what an engine waits for, once no agents but those of some nodes are awaited.

    Args:
        engine: its ``state_of``, which an engine may leave out, takes the nodes.
        nodes: their numbers.
    """
    words = getattr(engine, "state_of", None)
    return str(words(nodes)) if callable(words) else engine.state()
