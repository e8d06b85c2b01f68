"""Sockets, the poller that waits for them, and the pipe that wakes a thread which waits.

Runs in: every process.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import zmq

from nbddp.wire import codec

#: A buffer that travels beside a message.
Frame = bytes | bytearray | memoryview
#: Messages with text that may wait in a socket; further text waits, bounded, in the agent.
EVENT_HIGH_WATER = 64
_WAKE_UPS_READ = 4096
#: After this many messages, the owner of a socket does its other work: commands, signals, timers.
_MESSAGES_PER_TURN = 256


#: As plain numbers: pyzmq's own functions for messages with several frames combine flags, and ask
#: for each frame whether it is the last one, which takes most of their time.
_NOBLOCK, _MORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)


class HasFileno(Protocol):
    """Anything with a file descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


def ipc_address(path: Path) -> str:
    """Return the ``ipc://`` address of a socket file."""
    return f"ipc://{path}"


def send_frames(
    socket: "zmq.Socket[bytes]", frames: Sequence[Frame], *, may_wait: bool = True
) -> None:
    """Send one message. Raises `zmq.Again`: there is no room for it, and it may not wait."""
    flags = 0 if may_wait else _NOBLOCK
    for frame in frames[:-1]:
        socket.send(frame, flags | _MORE)
    socket.send(frames[-1], flags)


def keep_alive(socket: "zmq.Socket[bytes]") -> None:
    """Let the system notice dead connections, and let no address translator drop idle ones."""
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = 30
    socket.tcp_keepalive_intvl = 10
    socket.tcp_keepalive_cnt = 3


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

    @property
    def side_sockets(self) -> "Sequence[zmq.Socket[bytes]]":
        """Further sockets whose messages `_receive_all` callers look at, for `Poller` only."""
        return ()

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket; messages that are being sent get ``linger_s`` to leave."""
        for socket in self.side_sockets:
            socket.close(linger=0)
        self._socket.close(linger=int(linger_s * 1000))
        self._context.term()

    def _receive_all(self) -> Iterator[list[bytes]]:
        """Yield the messages that have arrived, without waiting, up to a limit in a flood."""
        for _ in range(_MESSAGES_PER_TURN):
            try:
                frame = self._socket.recv(_NOBLOCK, copy=False)
            except zmq.Again:
                return
            frames = [frame.bytes]
            while frame.more:
                frame = self._socket.recv(_NOBLOCK, copy=False)
                frames.append(frame.bytes)
            yield frames


class Poller:
    """Waits for channels, wakers and file descriptors."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()

    def add(self, source: Channel | HasFileno | int) -> None:
        """Wait for ``source`` to become readable."""
        self._poller.register(_pollable(source), zmq.POLLIN)
        if isinstance(source, Channel):
            for socket in source.side_sockets:
                self._poller.register(socket, zmq.POLLIN)

    def remove(self, source: Channel | HasFileno | int) -> None:
        """Stop waiting for ``source``."""
        self._poller.unregister(_pollable(source))
        if isinstance(source, Channel):
            for socket in source.side_sockets:
                self._poller.unregister(socket)

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
