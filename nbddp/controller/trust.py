"""Which events are heard: those of our own agents, about their own ranks.

Runs in: the hub thread.
"""

from nbddp.controller.lifecycle import PoolMachine
from nbddp.wire.messages import PROTOCOL_VERSION, AgentHello, Event


class Trust:
    """Knows the nodes whose agents have shown the token of the connection file."""

    def __init__(self, token: str, pool: PoolMachine) -> None:
        self._token = token
        self._pool = pool
        self._nodes: set[int] = set()

    def accepts(self, node: int, event: Event) -> bool:
        """Whether the sender has shown the token, and speaks of itself and its own ranks."""
        if isinstance(event, AgentHello):
            is_ours = event.token == self._token and event.version == PROTOCOL_VERSION
            if is_ours and event.node == node:
                self._nodes.add(node)
        if node not in self._nodes or getattr(event, "node", node) != node:
            return False
        rank = getattr(event, "rank", None)
        info = self._pool.ranks.get(rank) if rank is not None else None
        return rank is None or (info is not None and info.node == node)
