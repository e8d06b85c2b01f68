"""Watches the agents for the hub: processes of this machine, or what is known of other machines.

Runs in: the hub thread.
"""

from collections.abc import Collection, Iterable, Sequence

from nbddp.controller.hub.helper_notices import AGENT
from nbddp.controller.launch import LocalAgent, RemoteAgent
from nbddp.controller.state import AgentExited, PoolMachine
from nbddp.wire.channels import Poller
from nbddp.wire.message_types import AgentEnd
from nbddp.wire.messages import HelperStopped
from nbddp.wire.stopped_processes import StoppedProcesses

#: Seconds between checks for stopped agents.
_LOOK_S = 0.5
_ASK_ENGINES_S = 0.1


class Agents:
    """The agents of a pool, one for each node.

    Args:
        local: those that run on this machine.
        remote: those that engines have started on others.
    """

    def __init__(
        self, local: Sequence[LocalAgent] = (), remote: Sequence[RemoteAgent] = ()
    ) -> None:
        self._local = {agent.node: agent for agent in local}
        self._remote = {agent.node: agent for agent in remote}
        self._poller: Poller | None = None
        self._listened: set[int] = set()  #: descriptors that tell the ends of agents
        self._stopped_processes = StoppedProcesses()
        self._look_at = 0.0
        self._ask_engines_at = 0.0

    @property
    def nodes(self) -> list[int]:
        """The nodes of the agents."""
        return [*self._local, *self._remote]

    def listen(self, poller: Poller) -> None:
        """Let ``poller`` wake up when an agent of this machine ends, where there are pidfds."""
        self._poller = poller
        for agent in self._local.values():
            self._listen_to(agent.exit_fd)

    def _listen_to(self, fd: int) -> None:
        if fd >= 0 and self._poller is not None:
            self._poller.add(fd)
            self._listened.add(fd)

    def ignore(self, ended: Iterable[object]) -> None:
        """Wait no longer for those of these descriptors whose agents have ended."""
        for fd in self._listened.intersection(ended):
            if self._poller is not None:
                self._poller.remove(fd)
            self._listened.discard(fd)

    @property
    def ended(self) -> frozenset[int]:
        """The nodes whose agents have ended."""
        local = {node for node, agent in self._local.items() if agent.has_exited()}
        return frozenset(
            local | {node for node, agent in self._remote.items() if agent.has_exited()}
        )

    def all_ended(self) -> bool:
        """Whether no agent is left."""
        return self.ended.issuperset(self.nodes)

    def reap(self, pool: PoolMachine, now: float, but: Collection[int] = ()) -> list[AgentExited]:
        """Return the agents that have ended unknown to ``pool``, ``but`` those of some nodes.

        The processes that they have left end first: once a loss is known, another agent may come.

        Engines know of thousands of agents; they are asked ten times a second, and when an agent
        has said that it ends.
        """
        if not self._local and now < self._ask_engines_at:
            return []
        self._ask_engines_at = now + _ASK_ENGINES_S
        nodes = sorted(self.ended - pool.lost_agents.keys() - set(but))
        for node in nodes:
            self._end_ranks(node, pool)
        return [self._exited(node) for node in nodes]

    def _exited(self, node: int) -> AgentExited:
        if local := self._local.get(node):
            return AgentExited(node, local.end(), local.last_output())
        remote = self._remote[node]
        return AgentExited(node, remote.end(), never_came=remote.never_came, host=remote.host)

    def revive(self, node: int, host: str) -> None:
        """Note that an agent has come from a host, perhaps in the place of one that has ended."""
        if remote := self._remote.get(node):
            remote.revive(host)

    def put(self, agent: LocalAgent) -> None:
        """Watch an agent of this machine in the place of one that has ended."""
        before = self._local.get(agent.node)
        if before is not None:
            self.ignore([before.exit_fd])
            before.close()
        self._local[agent.node] = agent
        self._listen_to(agent.exit_fd)

    def note_end(self, node: int, end: AgentEnd) -> None:
        """Note that the agent of another machine has ended."""
        self._ask_engines_at = 0.0
        if remote := self._remote.get(node):
            remote.note_end(end)

    def _end_ranks(self, node: int, pool: PoolMachine) -> None:
        """End the processes that ranks of ``node`` have left behind, after its agent has ended.

        The system of another machine ends them with their agent.
        """
        if local := self._local.get(node):
            local.kill_ranks([info.pid for info in pool.ranks.values() if info.node == node])

    def stopped(self, now: float) -> list[HelperStopped]:
        """The agents that were stopped, or have resumed; checks them every half second."""
        if now < self._look_at:
            return []
        self._look_at = now + _LOOK_S
        looks = [
            self._stopped_processes.check(node, AGENT, agent.pid, now)
            for node, agent in self._local.items()
            if not agent.has_exited()
        ]
        return [change for change in looks if change is not None]
