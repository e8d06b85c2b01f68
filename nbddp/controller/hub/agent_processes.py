"""Watches the processes of the agents for the hub.

Runs in: the hub thread.
"""

from collections.abc import Sequence

from nbddp.controller.hub.helper_notices import AGENT
from nbddp.controller.launch import AgentHandle, RemoteAgent
from nbddp.controller.state import AgentExited, PoolMachine
from nbddp.wire.messages import HelperStopped
from nbddp.wire.stopped_processes import StoppedProcesses

#: Seconds between checks for stopped agents.
_LOOK_S = 0.5


class Agents:
    """The agents of a pool.

    Args:
        agents: one for each node.
    """

    def __init__(self, agents: Sequence[AgentHandle] = ()) -> None:
        self._by_node = {agent.node: agent for agent in agents}
        self._stopped_processes = StoppedProcesses()
        self._look_at = 0.0

    @property
    def nodes(self) -> list[int]:
        """The nodes of the agents."""
        return list(self._by_node)

    @property
    def exit_fds(self) -> set[int]:
        """Descriptors that become readable when an agent ends; none where there are no pidfds."""
        return {agent.exit_fd for agent in self._by_node.values() if agent.exit_fd >= 0}

    def all_ended(self) -> bool:
        """Whether no agent is left."""
        return all(agent.has_exited() for agent in self._by_node.values())

    def lost(self, pool: PoolMachine) -> list[AgentExited]:
        """The agents that have ended and that ``pool`` does not know about."""
        return [
            AgentExited(
                node,
                agent.exit_code(),
                agent.last_output(),
                agent.end_reason() if isinstance(agent, RemoteAgent) else "",
                agent.never_came if isinstance(agent, RemoteAgent) else "",
            )
            for node, agent in self._by_node.items()
            if node not in pool.lost_agents and agent.has_exited()
        ]

    @property
    def ended(self) -> frozenset[int]:
        """The nodes whose agents have ended."""
        return frozenset(node for node, agent in self._by_node.items() if agent.has_exited())

    def revive(self, node: int) -> None:
        """Note that another agent has taken the place of one that has ended."""
        agent = self._by_node.get(node)
        if isinstance(agent, RemoteAgent):
            agent.revive()

    def note_end(self, node: int, reason: str) -> None:
        """Note that the agent of another machine has ended."""
        agent = self._by_node.get(node)
        if isinstance(agent, RemoteAgent):
            agent.note_end(reason)

    def end_ranks(self, node: int, pool: PoolMachine) -> None:
        """End the processes that ranks of ``node`` have left behind, after its agent has ended."""
        pids = [info.pid for info in pool.ranks.values() if info.node == node]
        self._by_node[node].kill_ranks(pids)

    def stopped(self, now: float) -> list[HelperStopped]:
        """The agents that were stopped, or have resumed; checks them every half second."""
        if now < self._look_at:
            return []
        self._look_at = now + _LOOK_S
        looks = [
            self._stopped_processes.check(node, AGENT, agent.pid, now)
            for node, agent in self._by_node.items()
            if agent.pid and not agent.has_exited()
        ]
        return [change for change in looks if change is not None]
