"""Numbered messages over a connection that may break: nothing is lost, nothing comes twice.

Runs in: the notebook's process and agents on other machines. Pure: the owner has socket and clock.

ZeroMQ drops what it has sent when a connection ends. Each end of a session therefore numbers its
messages, and keeps them until the other end has acknowledged them. After each new connection both
ends say which message they have seen last, and send all later ones again, in order.

A frame list of a session is ``[header, *frames]``. The header holds a kind, the number of the
message, and the number of the last message that its sender has seen.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence

from nbddp.errors import BadMessageError
from nbddp.wire.channels.clock_offset import ClockOffset
from nbddp.wire.channels.sockets import Frame

_HEADER = struct.Struct("<cQQ")
_TIME = struct.Struct("<q")
_MESSAGE, _ACKNOWLEDGE = b"m", b"a"
#: Sent after a new connection, and the answer.
_RESUME, _RESUMED = b"r", b"R"
#: A question about the time, and the answer.
_PING, _PONG = b"p", b"q"
#: The other end knows nothing of this session.
_UNKNOWN = b"x"
#: A message is acknowledged after this many, or bytes, without an answer that could carry it.
_ACK_EVERY = 64
_ACK_BYTES = 1 << 20


class Session:
    """One end.

    Args:
        send: gives a frame list to the socket; it may get lost there.

    Example:
        >>> there, back = [], []
        >>> one, other = Session(there.append), Session(back.append)
        >>> one.send([b"text"])
        >>> other.receive([bytes(frame) for frame in there.pop()], 0)
        [b'text']
    """

    def __init__(self, send: Callable[[list[Frame]], object]) -> None:
        self._send = send
        self._last_sent = 0
        self._seen = 0
        self._acknowledged = 0
        self._kept: deque[tuple[int, Sequence[Frame]]] = deque()
        self._unacknowledged = 0  #: messages of the other end
        self._unacknowledged_bytes = 0
        self.kept_bytes = 0  #: of messages that the other end has not acknowledged
        self.is_refused = False  #: the other end has said that it does not know this session
        self.clock = ClockOffset()  #: of the other end, by the answers to `ping`
        self._pings: deque[int] = deque()  #: when those were sent that have no answer yet

    @property
    def is_new(self) -> bool:
        """Whether no message has come yet."""
        return self._seen == 0

    @property
    def unanswered_ns(self) -> int | None:
        """When the oldest `ping` without an answer was sent; None: all were answered.

        All that was sent before an answered one has arrived: it goes the same way, in order.
        """
        return self._pings[0] if self._pings else None

    def send(self, frames: Sequence[Frame]) -> None:
        """Send a message, and keep it until it is acknowledged."""
        self._last_sent += 1
        self._kept.append((self._last_sent, frames))
        self.kept_bytes += _size(frames)
        self._put(_MESSAGE, self._last_sent, frames)

    def resume(self) -> None:
        """Tell the other end what was seen, after a new connection; it answers with the same."""
        self._put(_RESUME)

    def refuse(self) -> None:
        """Tell the other end that its session is not known here."""
        self._put(_UNKNOWN)

    def ping(self, now_ns: int) -> None:
        """Ask for the time of the other end. The question is also a sign of life."""
        self._pings.append(now_ns)
        self._put(_PING, 0, [_TIME.pack(now_ns)])

    def receive(self, frames: Sequence[bytes], now_ns: int) -> list[bytes] | None:
        """Take a frame list from the socket.

        Args:
            frames: as they came.
            now_ns: the time of this end, for questions about it.

        Returns:
            The frames of the message, or None: there was none, or it came before.

        Raises:
            BadMessageError: the frames are not of a session.
        """
        kind, number, seen = _parse(frames)
        if kind == _RESUMED and seen < self._acknowledged:
            # The question came to an end that had forgotten this session, and began another one.
            self.is_refused = True
        self._forget_until(seen)
        match kind:
            case b"m":
                return self._take(number, frames[1:])
            case b"r" | b"R":
                if kind == _RESUME:
                    self._put(_RESUMED)
                for kept_number, kept in self._kept:
                    self._put(_MESSAGE, kept_number, kept)
            case b"p":
                self._put(_PONG, 0, [bytes(frames[1]), _TIME.pack(now_ns)])
            case b"q":
                sent_ns, there_ns = (_TIME.unpack(frame)[0] for frame in frames[1:])
                self.clock.add(sent_ns, there_ns, now_ns)
                while self._pings and self._pings[0] <= sent_ns:
                    self._pings.popleft()
            case b"x":
                self.is_refused = True
            case _:
                pass  # an acknowledgement
        return None

    def _take(self, number: int, frames: Sequence[bytes]) -> list[bytes] | None:
        if number != self._seen + 1:
            return None  # seen before, or the ones in between follow when both ends resume
        self._seen = number
        self._unacknowledged += 1
        self._unacknowledged_bytes += _size(frames)
        if self._unacknowledged >= _ACK_EVERY or self._unacknowledged_bytes >= _ACK_BYTES:
            self._put(_ACKNOWLEDGE)
        return list(frames)

    def _forget_until(self, seen: int) -> None:
        self._acknowledged = max(self._acknowledged, seen)
        while self._kept and self._kept[0][0] <= seen:
            self.kept_bytes -= _size(self._kept.popleft()[1])

    def _put(self, kind: bytes, number: int = 0, frames: Sequence[Frame] = ()) -> None:
        self._unacknowledged = self._unacknowledged_bytes = 0
        self._send([_HEADER.pack(kind, number, self._seen), *frames])


def begins_session(frames: Sequence[bytes]) -> bool:
    """Return whether a frame list can be the first of a session. Raises `BadMessageError`."""
    kind, number, seen = _parse(frames)
    return seen == 0 and (kind == _RESUME or (kind == _MESSAGE and number == 1))


_LENGTHS = {_PING: (1, 8), _PONG: (2, 8)}


def _parse(frames: Sequence[bytes]) -> tuple[bytes, int, int]:
    try:
        kind, number, seen = _HEADER.unpack(frames[0])
    except (struct.error, IndexError):
        raise BadMessageError("not a frame of a session") from None
    if kind == _MESSAGE:
        return kind, number, seen  # the commonest one may have any frames
    count, size = _LENGTHS.get(kind, (len(frames) - 1, -1))
    is_sound = len(frames) - 1 == count and all(len(f) == size or size < 0 for f in frames[1:])
    if kind not in (*_LENGTHS, _ACKNOWLEDGE, _RESUME, _RESUMED, _UNKNOWN) or not is_sound:
        raise BadMessageError("not a frame of a session")
    return kind, number, seen


def _size(frames: Sequence[Frame]) -> int:
    return sum(map(len, frames))
