"""Which events are heard: those of our own agents, about their own ranks.

Runs in: the hub thread.
"""

import secrets

from nbddp.controller.lifecycle import PoolMachine
from nbddp.wire.messages import PROTOCOL_VERSION, AgentHello, Event


class Trust:
    """Knows the nodes whose agents have shown the token of the connection file."""

    def __init__(self, token: str, pool: PoolMachine) -> None:
        self._token = token
        self._pool = pool
        self._nodes: set[int] = set()
        #: Events that were left out, and what was wrong with the latest that made no sense.
        self.refused = 0
        self.last_refusal = ""

    def accepts(self, node: int, event: Event) -> bool:
        """Whether the sender has shown the token, and speaks of itself and its own ranks."""
        is_ours = self._is_ours(node, event)
        self.refused += not is_ours
        return is_ours

    def refuse(self, reason: str) -> None:
        """An event of our own has made no sense; it is left out, and the others go on."""
        self.refused += 1
        self.last_refusal = reason

    def _is_ours(self, node: int, event: Event) -> bool:
        if isinstance(event, AgentHello):
            is_known = secrets.compare_digest(event.token.encode(), self._token.encode())
            if is_known and event.version == PROTOCOL_VERSION and event.node == node:
                self._nodes.add(node)
        if node not in self._nodes or getattr(event, "node", node) != node:
            return False
        rank = getattr(event, "rank", None)
        info = self._pool.ranks.get(rank) if rank is not None else None
        return rank is None or (info is not None and info.node == node)
