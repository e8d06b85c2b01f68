"""The peers that may send on a socket: their numbers and identities.

Runs in: the notebook's process and agents.
"""

import secrets

from nbddp.errors import BadMessageError


def agent_identity(node: int, token: str) -> bytes:
    """Return the identity with which an agent connects to the hub."""
    return f"agent-{node}-{token}".encode()


def rank_identity(rank: int) -> bytes:
    """Return a new identity for one process of that rank."""
    return f"rank-{rank}-{secrets.token_hex(16)}".encode()


class Peers:
    """The peers that may send on a socket: numbers of nodes or ranks, and their identities."""

    def __init__(self) -> None:
        self._identities: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        self._unknown_identity = secrets.token_hex(16).encode()

    def admit(self, number: int, identity: bytes) -> None:
        """Accept this identity, and no other, under this number."""
        self._numbers.pop(self.identity(number), None)
        self._identities[number] = identity
        self._numbers[identity] = number

    def identity(self, number: int) -> bytes:
        """Return the identity of a peer, or one to which ZeroMQ sends nothing."""
        return self._identities.get(number, self._unknown_identity)

    def number(self, identity: bytes) -> int:
        """Return the number of a peer. Raises `BadMessageError`: it was not admitted."""
        if identity not in self._numbers:
            raise BadMessageError("from an unknown peer")
        return self._numbers[identity]

    def remove(self, number: int) -> bytes | None:
        """Forget a peer; returns its identity, or None: there was none."""
        identity = self._identities.pop(number, None)
        if identity is not None:
            del self._numbers[identity]
        return identity
