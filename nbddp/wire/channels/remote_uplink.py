"""The end of an agent on another machine.

Runs in: the agent.
"""

import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from nbddp.errors import AgentJoinError, BadMessageError
from nbddp.system import network
from nbddp.wire.channels.session import Session
from nbddp.wire.channels.sockets import Frame, keep_alive, send_frames
from nbddp.wire.channels.uplink import Uplink
from nbddp.wire.invitation import Invitation

_RECONNECT_S = (0.1, 1.0)
_WAITING_S = (0.25, 2.0)
_CONNECT_S = 2.0
#: The hub's process has ended if its machine refuses connections for this long.
_REFUSED_S = 4.0
_PROBE_EVERY_S = 1.0
#: The hub answers a connection within this time, or is none of ours.
_HANDSHAKE_S = 15.0


class RemoteUplink(Uplink):
    """An agent's end of the connection to the hub on another machine.

    Args:
        invitation: of the hub.
        address: the one of its addresses that this machine reaches.
        patience_s: the agent has to end if it hears nothing of the hub for this long.
        is_waiting: there may be no hub for hours; the owner calls `connect`, and makes another one
            as soon as this one has a `lost_reason`.

    Raises:
        AgentJoinError: the keys of the invitation are no keys.
    """

    def __init__(
        self,
        invitation: Invitation,
        address: str,
        patience_s: float,
        *,
        is_waiting: bool = False,
    ) -> None:
        super().__init__(f"agent-{secrets.token_hex(16)}".encode())
        self._host, self._port = network.split_address(address)
        self.patience_s = patience_s
        self._has_way = invitation.is_tunnelled or invitation.is_relayed
        self.is_kept = invitation.keep_s > 0  #: the agent can outlive its hub
        socket = self._socket
        try:
            socket.curve_serverkey = invitation.server_key.encode()
            socket.curve_publickey = invitation.public_key.encode()
            socket.curve_secretkey = invitation.secret_key.encode()
        except zmq.ZMQError:
            self._socket.close(linger=0)
            self._context.term()
            raise AgentJoinError(
                "the invitation has keys that are none: it was altered, or cut. Next: use the file "
                "or the line that the notebook shows now"
            ) from None
        every_s = _WAITING_S if is_waiting else _RECONNECT_S
        socket.reconnect_ivl, socket.reconnect_ivl_max = (int(s * 1000) for s in every_s)
        socket.connect_timeout = int(_CONNECT_S * 1000)
        keep_alive(socket)
        self._monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED
        )
        self._session = Session(self._give)
        self._heard_at = time.monotonic()
        self._is_connected = False
        self._refused_since: float | None = None
        self._probe_at = 0.0
        self._refusal = ""
        self._loss = ""  #: while it waits: why no hub can take this connection over any longer
        #: Whether the hub has ever shown that it has the key of the invitation.
        self.has_met_hub = False
        self._meets_until = time.monotonic() + _HANDSHAKE_S
        self._is_waiting = is_waiting
        self._address = address
        if not is_waiting:
            self.connect()

    def connect(self) -> None:
        """Connect to the hub, as soon as there is one."""
        self._socket.connect(self._address)

    def begin_service(self) -> None:
        """Serve the hub that has come: from now on its silence counts."""
        self._is_waiting = False
        self._heard_at = time.monotonic()
        self._loss = ""

    @property
    def silence_s(self) -> float:
        """For how many seconds nothing was heard of the hub."""
        return time.monotonic() - self._heard_at

    @property
    def is_out_of_patience(self) -> bool:
        """Whether nothing was heard of the hub for too long."""
        return self.silence_s > self.patience_s

    @property
    def side_sockets(self) -> "Sequence[zmq.Socket[bytes]]":
        """The socket on which ZeroMQ reports new and lost connections."""
        return (self._monitor,)

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the messages that wait, or that the hub has not acknowledged."""
        return self._waiting_bytes + self._session.kept_bytes

    def lost_reason(self) -> str:
        """Return why this agent has to end without its hub; empty: it does not have to."""
        now = time.monotonic()
        if self._session.is_refused:
            return "the hub has given this agent up"
        if self._refusal or self._is_waiting:  # another hub does not know what this one has seen
            return self._refusal or self._loss
        if not self.has_met_hub and now >= self._meets_until:
            return (
                f"tcp://{self._host}:{self._port} takes connections, and nothing there answers to "
                f"the key of this pool within {_HANDSHAKE_S:g} s: the file is of another pool, or "
                "was altered, or a firewall drops what follows. Next: use the file or the line "
                f"that the notebook shows now; `{sys.executable} -m nbddp agent --connect FILE "
                "--check` tries again"
            )
        if self.is_out_of_patience:
            return f"nothing was heard of the notebook for {self.patience_s:g} s"
        # The tunnel of a kept pool is made again: that it is not there says nothing of the hub.
        refusals_count = not self._is_connected and not (self._has_way and self.is_kept)
        if refusals_count and now >= self._probe_at:
            self._probe_at = now + _PROBE_EVERY_S
            if not network.refuses_connections(self._host, self._port):
                self._refused_since = None
            elif self._refused_since is None:
                self._refused_since = now
        if self._refused_since is not None and now - self._refused_since >= _REFUSED_S:
            return "the notebook's process has ended"
        return ""

    def _put(self, message: list[bytes]) -> bool:
        self._session.send(message)
        return True

    def _give(self, frames: list[Frame]) -> None:
        """Give frames to the socket. They are lost where ZeroMQ has given the connection up.

        It does so, and does not connect again, when something else answers at the port. A send that
        waits would then wait forever. The session keeps what it sends, and there is no other limit.
        """
        with suppress(zmq.Again):
            send_frames(self._socket, frames, may_wait=False)

    def _messages(self) -> Iterator[list[bytes]]:
        self._read_monitor()
        for frames in self._receive_all():
            self._heard_at = time.monotonic()
            try:
                payload = self._session.receive(frames, time.monotonic_ns())
            except BadMessageError:
                self.bad_frames += 1
            else:
                if payload is not None:
                    yield payload

    def _read_monitor(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._is_connected = self.has_met_hub = True
                self._refused_since = None
                self._session.resume()
            elif event == zmq.EVENT_DISCONNECTED:
                self._is_connected = False
                self._loss = "the connection has ended"
            else:
                self._refusal = "the hub does not know the key of this agent"
