"""The notebook's end of the connections to agents on other machines: one TCP port.

Runs in: the notebook's process.

The port speaks CURVE (https://rfc.zeromq.org/spec/26/) with keys that are new for each pool. The
hub admits the key of its agents and no other one: the answer to ZeroMQ's question about a key (ZAP,
https://rfc.zeromq.org/spec/27/) comes from the thread that owns the socket. Bytes of a stranger
never reach the decoder of messages.
"""

import os
import platform
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from nbddp.errors import BadMessageError
from nbddp.system import process_tree
from nbddp.wire.channels.hub import AgentsChannel
from nbddp.wire.channels.session import Session, begins_session
from nbddp.wire.channels.sockets import Frame, keep_alive, send_frames
from nbddp.wire.invitation import Invitation, PoolKeys

#: Connections that may wait to be accepted: all agents of a large pool at once.
_BACKLOG = 1024
_HANDSHAKE_S = 10.0
#: Agents that have not been given a node; further ones are turned away.
_MAX_GUESTS = 4096
#: Each agent is asked for its time so often.
BEAT_S = 1.0


def _fresh_keys() -> PoolKeys:
    """Make the keys of a pool."""
    server, agents = zmq.curve_keypair(), zmq.curve_keypair()
    return PoolKeys(*(key.decode() for key in (*server, *agents)))


@dataclass
class _Line:
    """The connection to one agent."""

    session: Session
    heard_at: float = field(default_factory=time.monotonic)


class RemoteHubChannel(AgentsChannel):
    """The end of the connections to agents on other machines.

    Agents connect with random identities. A new one is a *guest* and has a negative number, until
    `admit` makes it the agent of a node.

    Args:
        host: address of this machine at which the agents reach it; a number, as ``10.0.0.1``.
        port: 0: any free one.
        keys: of a pool that had another hub; None: fresh ones.

    Raises:
        OSError: this machine does not have the address, or the port is taken.
    """

    def __init__(self, host: str, port: int = 0, keys: PoolKeys | None = None) -> None:
        super().__init__()
        self._zap = self._context.socket(zmq.REP)
        self._zap.linger = 0
        self._zap.bind("inproc://zeromq.zap.01")
        self.keys = keys or _fresh_keys()
        self._agents_key = self.keys.public_key.encode()
        self._lines: dict[bytes, _Line] = {}
        self._numbers: dict[bytes, int] = {}
        self._guests = 0
        self._next_beat_at = 0.0
        #: Connections that were refused since they did not show the key of the pool.
        self.refused_keys = 0
        socket = self._socket
        socket.curve_server = True
        socket.curve_publickey = self.keys.server_key.encode()
        socket.curve_secretkey = self.keys.server_secret.encode()
        socket.zap_domain = b"nbddp"
        socket.backlog = _BACKLOG
        socket.handshake_ivl = int(_HANDSHAKE_S * 1000)
        # An agent whose line was cut comes back before this end knows that the old line is dead.
        socket.router_handover = True
        keep_alive(socket)
        try:
            socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, os.strerror(error.errno or 0)) from None
        self.port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def invitation(
        self,
        pool_id: str,
        addresses: Sequence[str],
        token: str,
        is_tunnelled: bool = False,
        keep_s: float = 0.0,
        *,
        cwd: str = "",
    ) -> Invitation:
        """Make what an agent needs to join.

        Args:
            pool_id: names the pool.
            addresses: of this machine, in the order in which an agent tries them.
            token: the agent shows it in its first message.
            is_tunnelled: the agents reach these addresses on their own machines.
            keep_s: for so many seconds the agents go on after the end of this process.
            cwd: the folder that ranks must be able to enter; empty: none.
        """
        return Invitation(
            pool_id=pool_id,
            addresses=tuple(f"tcp://{address}:{self.port}" for address in addresses),
            token=token,
            server_key=self.keys.server_key,
            public_key=self.keys.public_key,
            secret_key=self.keys.secret_key,
            is_tunnelled=is_tunnelled,
            host=platform.node(),
            pid=os.getpid(),
            started=process_tree.start_time(os.getpid()),
            keep_s=keep_s,
            cwd=cwd,
        )

    @property
    def side_sockets(self) -> "Sequence[zmq.Socket[bytes]]":
        """The socket on which ZeroMQ asks whether a key is welcome."""
        return (self._zap,)

    @property
    def guests(self) -> list[int]:
        """The numbers of agents that have connected and have no node."""
        return [self._peers.number(i) for i in self._lines if i not in self._numbers]

    def admit(self, guest: int, node: int) -> None:
        """Make a guest the agent of a node; an agent that was it before is forgotten."""
        identity = self._peers.remove(guest)
        if identity is None:
            return  # it has gone meanwhile
        self.forget(node)
        self._peers.admit(node, identity)
        self._numbers[identity] = node

    def forget(self, number: int) -> None:
        """Forget an agent or guest: messages from it are answered with a refusal from now on."""
        identity = self._peers.remove(number)
        if identity is not None:
            self._numbers.pop(identity, None)
            self._lines.pop(identity, None)

    def beat(self, now: float) -> bool:
        """Ask all agents for their time, once a second, so that both ends know of each other.

        Returns:
            Whether they were asked now.
        """
        if now < self._next_beat_at:
            return False
        self._next_beat_at = now + BEAT_S
        for line in self._lines.values():
            line.session.ping(time.monotonic_ns())
        return True

    def turn_away(self, guest: int) -> None:
        """Let a guest come again later, with another connection."""
        line = self._lines.get(self._peers.identity(guest))
        if line is not None:
            line.session.refuse()
        self.forget(guest)

    def silence_s(self, node: int, now: float) -> float:
        """Return for how many seconds nothing was heard of the agent of this node."""
        line = self._lines.get(self._peers.identity(node))
        return 0.0 if line is None else now - line.heard_at

    def heard_at(self, node: int) -> float:
        """Return when something was heard last of this node; now, if it is not connected."""
        line = self._lines.get(self._peers.identity(node))
        return time.monotonic() if line is None else line.heard_at

    def unanswered_since(self, node: int) -> float | None:
        """Return when the oldest question was sent that this node has not answered; None: none.

        Messages that were sent since may not have arrived there, even if the node is heard.
        """
        line = self._lines.get(self._peers.identity(node))
        asked_ns = None if line is None else line.session.unanswered_ns
        return None if asked_ns is None else asked_ns / 1e9

    def clock(self, node: int) -> tuple[int, int] | None:
        """Return the offset of the clock of a node, and its error, in ns; None: not known yet."""
        line = self._lines.get(self._peers.identity(node))
        if line is None or not line.session.clock.is_known:
            return None
        return line.session.clock.offset_ns, line.session.clock.error_ns

    def _put(self, node: int, frames: list[Frame]) -> None:
        line = self._lines.get(self._peers.identity(node))
        if line is not None:
            line.session.send(frames)

    def _messages(self) -> Iterator[list[bytes]]:
        self._answer_key_questions()
        now = time.monotonic()
        for identity, *frames in self._receive_all():
            try:
                line = self._lines.get(identity) or self._meet(identity, frames)
                line.heard_at = now
                payload = line.session.receive(frames, time.monotonic_ns())
            except BadMessageError:
                self.bad_frames += 1
                continue
            if payload is not None:
                yield [identity, *payload]

    def _meet(self, identity: bytes, frames: list[bytes]) -> _Line:
        session = Session(lambda out: send_frames(self._socket, [identity, *out]))
        if not begins_session(frames) or len(self._lines) - len(self._numbers) >= _MAX_GUESTS:
            session.refuse()
            raise BadMessageError("from an agent that was forgotten")
        self._guests += 1
        self._peers.admit(-self._guests, identity)
        line = self._lines[identity] = _Line(session)
        return line

    def _answer_key_questions(self) -> None:
        while self._zap.poll(0):
            version, request, _, _, _, mechanism, *credentials = self._zap.recv_multipart()
            is_ours = mechanism == b"CURVE" and secrets.compare_digest(
                z85.encode(credentials[0]), self._agents_key
            )
            self.refused_keys += not is_ours
            status = b"200" if is_ours else b"400"
            self._zap.send_multipart([version, request, status, b"", b"nbddp", b""])
