"""An agent's end of the connection to the hub: on its machine here, see also `remote_uplink`.

Runs in: the agent.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice

import zmq

from nbddp.errors import BadMessageError
from nbddp.wire import codec
from nbddp.wire.channels.peers import agent_identity
from nbddp.wire.channels.sockets import EVENT_HIGH_WATER, Channel, send_frames
from nbddp.wire.messages import Event

#: Events that ranks send at the same time are sent as one message, up to this size.
_BATCH_BYTES = 1 << 16
#: An agent without a hub tries to connect this often, in milliseconds.
_WAITING_MS = 250
#: The first frame of a message that holds several events in one frame.
BATCH_MARK = b""


class Uplink(Channel):
    """An agent's end of the connection to the hub.

    Messages that do not fit into the socket wait in order. `backlog_bytes` is their size, so that
    the agent can leave out text instead of keeping it.
    """

    def __init__(self, identity: bytes) -> None:
        super().__init__(zmq.DEALER, identity)
        self._waiting: deque[list[bytes]] = deque()
        self._waiting_bytes = 0
        self._unsent_bytes = 0  #: bytes that were added since the last `flush`

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the messages that wait."""
        return self._waiting_bytes

    def lost_reason(self) -> str:
        """Return why this agent has to end without its hub; empty: it does not have to."""
        return ""

    def send(self, event: Event) -> None:
        """Send one event of the agent itself, at once."""
        self._append([codec.encode(event)])
        self.flush()

    def forward(self, frames: list[bytes]) -> None:
        """Send one event of a rank unchanged, no later than the next `flush`."""
        self._append(frames)
        if self._unsent_bytes > _BATCH_BYTES:
            self.flush()

    def flush(self) -> bool:
        """Send the messages that fit, and return whether all of them did."""
        self._unsent_bytes = 0
        while self._waiting:
            count = self._batch_size()
            payloads = [frames[0] for frames in islice(self._waiting, count)]
            message = self._waiting[0] if count == 1 else [BATCH_MARK, codec.encode_batch(payloads)]
            if not self._put(message):
                return False
            for _ in range(count):
                self._waiting_bytes -= sum(map(len, self._waiting.popleft()))
        return True

    def _put(self, message: list[bytes]) -> bool:
        """Give a message to the socket; returns whether there was room for it."""
        try:
            send_frames(self._socket, message, may_wait=False)
        except zmq.Again:
            return False
        return True

    def _messages(self) -> Iterator[list[bytes]]:
        return self._receive_all()

    def _append(self, frames: list[bytes]) -> None:
        size = sum(map(len, frames))
        self._waiting.append(frames)
        self._waiting_bytes += size
        self._unsent_bytes += size

    def _batch_size(self) -> int:
        """Return the number of events of the next message; an event with buffers is sent alone."""
        size = count = 0
        for frames in self._waiting:
            size += len(frames[0])
            if len(frames) > 1 or size > _BATCH_BYTES:
                break
            count += 1
        return max(count, 1)

    def receive(self) -> Iterator[tuple[tuple[int, ...], list[bytes]]]:
        """Yield ``(ranks, [payload, *buffers])`` of each request; no ranks: it is for the agent."""
        for frames in self._messages():
            try:
                ranks = codec.decode_ranks(frames[0])
                codec.peek_type(frames[1])
            except (BadMessageError, IndexError):
                self.bad_frames += 1
            else:
                yield ranks, frames[1:]


class AgentUplink(Uplink):
    """The end of an agent on the notebook's machine.

    Args:
        address: of the hub.
        node: number of the agent's node.
        token: the secret of the agents.
        is_waiting: there may be no hub for hours; the owner calls `connect`.
    """

    def __init__(self, address: str, node: int, token: str, *, is_waiting: bool = False) -> None:
        super().__init__(agent_identity(node, token))
        self._socket.sndhwm = EVENT_HIGH_WATER
        if is_waiting:
            self._socket.reconnect_ivl = _WAITING_MS
        self._address = address
        if not is_waiting:
            self.connect()

    def connect(self) -> None:
        """Connect to the hub as soon as there is one."""
        self._socket.connect(self._address)
