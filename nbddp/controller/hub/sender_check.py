"""Refuses events that their agent may not send.

Runs in: the hub thread.
"""

import secrets

from nbddp.controller.state import PoolMachine
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AgentAttached,
    AgentHello,
    Event,
    RunsFinished,
    RunsStarted,
)


class SenderCheck:
    """Accepts events of agents that have shown the token of the connection file."""

    def __init__(self, token: str, pool: PoolMachine) -> None:
        self._token = token
        self._node_by_rank = {rank: info.node for rank, info in pool.ranks.items()}
        self._ranks_by_node = {
            node: frozenset(ranks) for node, ranks in pool.ranks.by_node(pool.ranks).items()
        }
        self._nodes: set[int] = set()
        #: The number of dropped events, and the reason for the latest that made no sense.
        self.refused = 0
        self.last_refusal = ""

    def accepts(self, node: int, event: Event) -> bool:
        """Whether the sender has shown the token, and the event is about it or its own ranks."""
        is_ours = self._is_ours(node, event)
        self.refused += not is_ours
        return is_ours

    def refuse(self, reason: str) -> None:
        """Count an event of an accepted sender that makes no sense, and note the reason."""
        self.refused += 1
        self.last_refusal = reason

    def _is_ours(self, node: int, event: Event) -> bool:
        if isinstance(event, AgentHello | AgentAttached):
            is_known = secrets.compare_digest(event.token.encode(), self._token.encode())
            if is_known and event.version == PROTOCOL_VERSION and event.node == node:
                self._nodes.add(node)
        if node not in self._nodes or getattr(event, "node", node) != node:
            return False
        if isinstance(event, RunsStarted | RunsFinished):
            is_sound = isinstance(event, RunsStarted) or event.is_sound
            return is_sound and self._ranks_by_node[node].issuperset(event.ranks)
        rank = getattr(event, "rank", None)
        return rank is None or self._node_by_rank.get(rank) == node
