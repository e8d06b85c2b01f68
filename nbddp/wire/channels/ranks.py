"""Both ends of the connections between an agent and the ranks of its node.

Runs in: agents and ranks.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import zmq

from nbddp.errors import BadMessageError
from nbddp.wire import codec
from nbddp.wire.channels.peers import Peers
from nbddp.wire.channels.sockets import Channel, Frame, ipc_address
from nbddp.wire.messages import RankEvent, RankRequest

_RANK_EVENTS = frozenset(kind.__name__ for kind in get_args(RankEvent))


class AgentDownlink(Channel):
    """An agent's end of the connections to the ranks of its node."""

    def __init__(self, path: Path) -> None:
        super().__init__(zmq.ROUTER)
        self._peers = Peers()
        self._socket.bind(ipc_address(path))

    def admit(self, rank: int, identity: bytes) -> None:
        """Accept this identity, and no other, as that rank: each process has its own identity."""
        self._peers.admit(rank, identity)

    def send(self, rank: int, frames: Sequence[Frame]) -> None:
        """Send one request of the hub unchanged, or `OutputDrained`."""
        self._socket.send_multipart([self._peers.identity(rank), *frames])

    def receive(self) -> Iterator[tuple[int, codec.Tag, list[bytes]]]:
        """Yield ``(rank, tag, [payload, *buffers])`` of each event.

        A rank may send events about itself only. An event about another rank, or about processes,
        which only the agent can know, is dropped and counted as a bad frame.
        """
        for identity, *frames in self._receive_all():
            try:
                rank, tag = self._peers.number(identity), codec.peek(frames[0])
            except (BadMessageError, IndexError):
                self.bad_frames += 1
                continue
            if tag.type in _RANK_EVENTS and tag.rank in (rank, None):
                yield rank, tag, frames
            else:
                self.bad_frames += 1


class RankChannel(Channel):
    """A rank's end of the connection to its agent."""

    def __init__(self, address: str, identity: bytes) -> None:
        super().__init__(zmq.DEALER, identity)
        self._socket.connect(address)

    def send(self, payload: bytes, frames: Sequence[Frame] = ()) -> None:
        """Send one encoded event."""
        self._socket.send_multipart([payload, *frames])

    def receive(self) -> Iterator[tuple[RankRequest, list[bytes]]]:
        """Yield each request that has arrived; bad frames are dropped and counted."""
        for payload, *frames in self._receive_all():
            try:
                yield codec.decode_rank_request(payload), frames
            except BadMessageError:
                self.bad_frames += 1
