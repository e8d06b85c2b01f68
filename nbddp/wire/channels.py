"""Sockets: the only file that uses ZeroMQ.

Runs in: every process. One thread owns each channel; other threads pass their messages to the
owner through a queue and wake it with a `Waker`.

    HubChannel (ROUTER)  <-- ipc:// -->  AgentUplink (DEALER)      one per node
    AgentDownlink (ROUTER)  <-- ipc:// -->  RankChannel (DEALER)   one per rank

Sockets of one machine are ``ipc://`` files in a folder that only their owner can enter. A peer
connects with an *identity* that holds a secret, which it got before it had a socket: no other
process can send as that peer, or receive its messages. The identity is sent once per connection.
"""

import os
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Protocol, get_args

import zmq

from nbddp.errors import BadMessageError
from nbddp.wire import codec
from nbddp.wire.messages import AgentRequest, Event, RankEvent, RankRequest

#: A buffer that travels beside a message.
Frame = bytes | bytearray | memoryview
#: ``sun_path`` holds 108 bytes on Linux and 104 on macOS, including the closing zero.
MAX_IPC_PATH_BYTES = 100
#: Messages with text that may wait in a socket; further text waits, bounded, in the agent.
_EVENT_HIGH_WATER = 64
_WAKE_UPS_READ = 4096
#: Events that ranks send at the same time are sent as one message, up to this size.
_BATCH_BYTES = 1 << 16
#: The first frame of a message that holds several events in one frame.
_BATCH_MARK = b""
#: After this many messages, the owner of a socket does its other work: commands, signals, timers.
_MESSAGES_PER_TURN = 256
_RANK_EVENTS = frozenset(kind.__name__ for kind in get_args(RankEvent))


class HasFileno(Protocol):
    """Anything with a file descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


def ipc_address(path: Path) -> str:
    """Return the ``ipc://`` address of a socket file."""
    return f"ipc://{path}"


class Waker:
    """Wakes a thread that waits in `Poller.wait`. `wake` may be called from any thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        # Reentrant: a garbage collection in `wake` may release a value, which wakes again.
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._read

    def wake(self) -> None:
        """Make the descriptor readable; does nothing after `close`."""
        with self._lock, suppress(BlockingIOError):  # the pipe is full, so it is readable already
            if self._write >= 0:
                os.write(self._write, b"x")

    def clear(self) -> None:
        """Discard all wake-ups so far. Call it before handling the messages that they announced."""
        with suppress(BlockingIOError):  # no wake-up is left
            while len(os.read(self._read, _WAKE_UPS_READ)) == _WAKE_UPS_READ:
                pass

    def close(self) -> None:
        """Close both ends. The system may reuse their numbers for other files afterwards."""
        with self._lock:
            ends = self._read, self._write
            self._read = self._write = -1
        for fd in ends:
            os.close(fd)


class Channel:
    """A socket with its context; the base class of the four ends."""

    def __init__(self, kind: int, identity: bytes = b"") -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.linger = 0
        self._socket.sndhwm = 0
        # A longer frame ends the connection before memory is allocated for it; ZeroMQ reconnects.
        self._socket.maxmsgsize = codec.MAX_FRAME_BYTES
        if identity:
            self._socket.setsockopt(zmq.IDENTITY, identity)
        #: Number of frames that were dropped because they were not a valid message.
        self.bad_frames = 0

    @property
    def socket(self) -> "zmq.Socket[bytes]":
        """The socket, for `Poller` only."""
        return self._socket

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket; messages that are being sent get ``linger_s`` to leave."""
        self._socket.close(linger=int(linger_s * 1000))
        self._context.term()

    def _receive_all(self) -> Iterator[list[bytes]]:
        """Yield the messages that have arrived, without waiting, up to a limit in a flood."""
        for _ in range(_MESSAGES_PER_TURN):
            try:
                yield self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return


class Poller:
    """Waits for channels, wakers and file descriptors."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()

    def add(self, source: Channel | HasFileno | int) -> None:
        """Wait for ``source`` to become readable."""
        self._poller.register(_pollable(source), zmq.POLLIN)

    def remove(self, source: Channel | HasFileno | int) -> None:
        """Stop waiting for ``source``."""
        self._poller.unregister(_pollable(source))

    def also_writable(self, channel: Channel, wanted: bool) -> None:
        """Wait for room in ``channel`` as well, or stop waiting for it."""
        self._poller.modify(_pollable(channel), zmq.POLLIN | (zmq.POLLOUT if wanted else 0))

    def wait(self, timeout_s: float | None) -> list[object]:
        """Return the sources that are ready: sockets of channels, and descriptors as numbers.

        Args:
            timeout_s: the longest wait in seconds; None: no limit.
        """
        timeout_ms = None if timeout_s is None else max(0, int(timeout_s * 1000 + 0.999))
        return [source for source, _ in self._poller.poll(timeout_ms)]


def _pollable(source: Channel | HasFileno | int) -> "zmq.Socket[bytes] | int":
    if isinstance(source, Channel):
        return source.socket
    return source if isinstance(source, int) else source.fileno()


class HubChannel(Channel):
    """The notebook's end of the connections to all agents.

    Args:
        path: path of the socket.
        token: the secret of the agents.
        nnodes: number of agents.
    """

    def __init__(self, path: Path, token: str, nnodes: int) -> None:
        super().__init__(zmq.ROUTER)
        self._socket.rcvhwm = _EVENT_HIGH_WATER
        self._peers = _Peers()
        for node in range(nnodes):
            self._peers.admit(node, agent_identity(node, token))
        self._socket.bind(ipc_address(path))

    def send_to_agent(self, node: int, request: AgentRequest) -> None:
        """Send one request for the agent itself."""
        self._socket.send_multipart(
            [self._peers.identity(node), codec.encode_ranks(()), codec.encode(request)]
        )

    def send_to_ranks(
        self, node: int, ranks: tuple[int, ...], request: RankRequest, frames: Sequence[Frame] = ()
    ) -> None:
        """Send one request for some ranks of a node, once; the agent copies it to each rank."""
        self._socket.send_multipart(
            [
                self._peers.identity(node),
                codec.encode_ranks(ranks),
                codec.encode(request),
                *frames,
            ]
        )

    def receive(self) -> Iterator[tuple[int, Event, list[bytes]]]:
        """Yield ``(node, event, buffers)`` of each event; bad frames are dropped and counted."""
        for identity, *frames in self._receive_all():
            try:
                node = self._peers.number(identity)
                if frames[0] != _BATCH_MARK:
                    yield node, codec.decode_event(frames[0]), frames[1:]
                    continue
                payloads = codec.decode_batch(frames[1])
            except (BadMessageError, IndexError):
                self.bad_frames += 1
                continue
            for payload in payloads:
                try:
                    event = codec.decode_event(payload)
                except BadMessageError:
                    self.bad_frames += 1
                else:
                    yield node, event, []


class AgentUplink(Channel):
    """An agent's end of the connection to the hub.

    Messages that do not fit into the socket wait in order. `backlog_bytes` is their size, so that
    the agent can leave out text instead of keeping it.
    """

    def __init__(self, address: str, node: int, token: str) -> None:
        super().__init__(zmq.DEALER, agent_identity(node, token))
        self._socket.sndhwm = _EVENT_HIGH_WATER
        self._socket.connect(address)
        self._waiting: deque[list[bytes]] = deque()
        self.backlog_bytes = 0
        self._unsent_bytes = 0  #: bytes that were added since the last `flush`

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
            message = (
                self._waiting[0] if count == 1 else [_BATCH_MARK, codec.encode_batch(payloads)]
            )
            try:
                self._socket.send_multipart(message, zmq.NOBLOCK)
            except zmq.Again:
                return False
            for _ in range(count):
                self.backlog_bytes -= sum(map(len, self._waiting.popleft()))
        return True

    def _append(self, frames: list[bytes]) -> None:
        size = sum(map(len, frames))
        self._waiting.append(frames)
        self.backlog_bytes += size
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
        for frames in self._receive_all():
            try:
                ranks = codec.decode_ranks(frames[0])
                codec.peek_type(frames[1])
            except (BadMessageError, IndexError):
                self.bad_frames += 1
            else:
                yield ranks, frames[1:]


class AgentDownlink(Channel):
    """An agent's end of the connections to the ranks of its node."""

    def __init__(self, path: Path) -> None:
        super().__init__(zmq.ROUTER)
        self._peers = _Peers()
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


def agent_identity(node: int, token: str) -> bytes:
    """Return the identity with which an agent connects to the hub."""
    return f"agent-{node}-{token}".encode()


def rank_identity(rank: int) -> bytes:
    """Return a new identity for one process of that rank."""
    return f"rank-{rank}-{secrets.token_hex(16)}".encode()


class _Peers:
    """The peers that may send on a socket: numbers of nodes or ranks, and their identities."""

    def __init__(self) -> None:
        self._identities: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        self._unknown_identity = secrets.token_hex(16).encode()

    def admit(self, number: int, identity: bytes) -> None:
        self._numbers.pop(self.identity(number), None)
        self._identities[number] = identity
        self._numbers[identity] = number

    def identity(self, number: int) -> bytes:
        """Return the identity of a peer, or one to which ZeroMQ sends nothing."""
        return self._identities.get(number, self._unknown_identity)

    def number(self, identity: bytes) -> int:
        if identity not in self._numbers:
            raise BadMessageError("from an unknown peer")
        return self._numbers[identity]
