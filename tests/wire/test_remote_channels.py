"""The port for agents on other machines: broken connections lose nothing, strangers get nothing."""

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import msgspec
import pytest
import zmq

from nbddp.errors import AgentJoinError
from nbddp.system import network
from nbddp.wire import codec
from nbddp.wire.channels import RemoteHubChannel, RemoteUplink, remote_uplink
from nbddp.wire.invitation import Invitation
from nbddp.wire.message_types import NodeFacts
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AgentJoined,
    Event,
    Interrupt,
    Output,
    ShutdownAgent,
)
from tests.support.polling import poll_until

HOST = "127.0.0.1"
FACTS = NodeFacts(
    host="n1", address=HOST, python="3", torch="2", nbddp="1", cpus=1, machine_cpus=1, gpus=0
)
JOINED = AgentJoined(version=PROTOCOL_VERSION, token="t", pid=1, facts=FACTS)


class Proxy:
    """Passes bytes between agents and the hub, and ends connections when the test says so."""

    def __init__(self, port: int) -> None:
        self._hub_port = port
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection((HOST, self._hub_port))
                except OSError:  # the hub has ended
                    near.close()
                    continue
                with self._lock:
                    if self._is_closed:
                        near.close()
                        far.close()
                        return
                    self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_copy, args=(source, target), daemon=True).start()

    def cut(self) -> None:
        """End all connections, with whatever is on its way in them."""
        with self._lock:
            ended, self._open = self._open, []
        for each in ended:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 12):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class Ends:
    """A hub and one agent, with a proxy between them."""

    def __init__(self) -> None:
        self.hub = RemoteHubChannel(HOST)
        self.proxy = Proxy(self.hub.port)
        self.invitation = self.hub.invitation("p", [HOST], "t")
        self.uplink = RemoteUplink(self.invitation, f"tcp://{HOST}:{self.proxy.port}", 120.0)
        self.events: list[tuple[int, Event]] = []
        self.requests: list[Any] = []

    def pump(self) -> bool:
        """Reads what has come to both ends; False, so that `or` asks on."""
        self.uplink.flush()
        for node, event, _ in self.hub.receive():
            self.events.append((node, event))
        for _, frames in self.uplink.receive():
            self.requests.append(codec.decode_agent_request(frames[0]))
        return False

    def join(self) -> None:
        self.uplink.send(JOINED)
        poll_until(lambda: self.pump() or self.events)
        assert self.events == [(-1, JOINED)]
        self.hub.admit(-1, 0)
        self.events.clear()

    def close(self) -> None:
        self.uplink.close()
        self.hub.close()
        self.proxy.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with closing(Ends()) as made:
        yield made


def test_both_directions_and_the_number_of_the_node(ends: Ends):
    ends.join()
    ends.hub.send_to_agent(0, ShutdownAgent(grace_s=1.0))
    ends.uplink.send(Output(run_id=None, rank=0, stream="stdout", text="hello"))
    poll_until(lambda: ends.pump() or (ends.events and ends.requests))
    assert ends.events == [(0, Output(run_id=None, rank=0, stream="stdout", text="hello"))]
    assert ends.requests == [ShutdownAgent(grace_s=1.0)]


def test_a_broken_connection_loses_and_doubles_nothing(ends: Ends):
    ends.join()
    count, cuts = 600, 6
    for number in range(count):
        ends.uplink.forward(
            [codec.encode(Output(run_id=None, rank=0, stream="stdout", text=f"{number} " * 50))]
        )
        ends.hub.send_to_agent(0, Interrupt(run_id=str(number), ranks=()))
        ends.pump()
        if number % (count // cuts) == count // cuts // 2:
            ends.proxy.cut()
    poll_until(
        lambda: ends.pump() or (len(ends.events) >= count and len(ends.requests) >= count), 30.0
    )
    texts = [event.text for _, event in ends.events if isinstance(event, Output)]
    assert texts == [f"{number} " * 50 for number in range(count)]
    assert [request.run_id for request in ends.requests] == [str(n) for n in range(count)]


def test_a_forgotten_agent_is_told_to_end(ends: Ends):
    ends.join()
    ends.hub.send_to_agent(0, ShutdownAgent(grace_s=1.0))
    poll_until(lambda: ends.pump() or ends.requests)
    ends.hub.forget(0)
    assert ends.uplink.lost_reason() == ""
    ends.uplink.send(Output(run_id=None, rank=0, stream="stdout", text="too late"))
    poll_until(lambda: ends.pump() or ends.uplink.lost_reason())
    assert ends.uplink.lost_reason() == "the hub has given this agent up"
    assert ends.events == []


def test_an_agent_that_was_forgotten_before_it_got_a_message_is_told_to_end(ends: Ends):
    """It comes back as one that has seen nothing, as a new one does."""
    ends.join()
    ends.hub.beat(time.monotonic())
    poll_until(lambda: ends.pump() or ends.uplink.backlog_bytes == 0)
    ends.hub.forget(0)
    ends.proxy.cut()
    poll_until(lambda: ends.pump() or ends.uplink.lost_reason())
    assert ends.uplink.lost_reason() == "the hub has given this agent up"


def test_an_agent_notices_that_the_process_of_the_hub_has_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remote_uplink, "_REFUSED_S", 0.5)
    hub = RemoteHubChannel(HOST)
    uplink = RemoteUplink(hub.invitation("p", [HOST], "t"), f"tcp://{HOST}:{hub.port}", 120.0)
    with closing(uplink):
        uplink.send(JOINED)
        poll_until(lambda: bool(list(uplink.receive())) or bool(list(hub.receive())))
        hub.close()
        poll_until(lambda: list(uplink.receive()) or uplink.lost_reason(), 20.0)
        assert uplink.lost_reason() == "the notebook's process has ended"


def test_clocks_of_one_machine_are_equal(ends: Ends):
    ends.join()
    assert ends.hub.clock(0) is None
    ends.hub.beat(time.monotonic())
    poll_until(lambda: ends.pump() or ends.hub.clock(0))
    offset_ns, error_ns = ends.hub.clock(0) or (0, 0)
    assert abs(offset_ns) <= error_ns


def _with_other_keys(invitation: Invitation) -> Invitation:
    public, secret = zmq.curve_keypair()
    return msgspec.structs.replace(
        invitation, public_key=public.decode(), secret_key=secret.decode()
    )


def test_an_agent_without_the_key_of_the_pool_is_refused_before_its_first_message(ends: Ends):
    ends.join()
    stranger = RemoteUplink(
        _with_other_keys(ends.invitation), f"tcp://{HOST}:{ends.hub.port}", 120.0
    )
    with closing(stranger):
        stranger.send(JOINED)
        poll_until(lambda: ends.pump() or list(stranger.receive()) or stranger.lost_reason())
        assert stranger.lost_reason() == "the hub does not know the key of this agent"
    assert ends.events == []
    assert ends.hub.refused_keys >= 1


def test_a_file_with_another_key_ends_the_agent_with_the_reason(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote_uplink, "_HANDSHAKE_S", 0.5)
    altered = msgspec.structs.replace(ends.invitation, server_key=zmq.curve_keypair()[0].decode())
    with closing(RemoteUplink(altered, f"tcp://{HOST}:{ends.hub.port}", 120.0)) as stranger:
        stranger.send(JOINED)
        poll_until(lambda: ends.pump() or list(stranger.receive()) or stranger.lost_reason())
        assert "the file is of another pool, or was altered" in stranger.lost_reason()
        assert not stranger.has_met_hub
    assert ends.events == []


def test_an_agent_does_not_wait_for_a_program_that_speaks_another_language(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
):
    """ZeroMQ connects to it no more: nothing would ever take a message out."""
    monkeypatch.setattr(remote_uplink, "_HANDSHAKE_S", 0.5)
    with (
        socket.create_server((HOST, 0)) as server,
        closing(
            RemoteUplink(ends.invitation, f"tcp://{HOST}:{server.getsockname()[1]}", 120.0)
        ) as uplink,
    ):
        connection, _ = server.accept()
        with connection:
            connection.settimeout(30)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8)
            with suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass  # until ZeroMQ has given the connection up
            poll_until(lambda: list(uplink.receive()) or uplink.lost_reason())
        sends = threading.Thread(target=uplink.send, args=(JOINED,), daemon=True)
        sends.start()
        sends.join(20)
        assert not sends.is_alive()


def test_keys_that_are_none_are_refused(ends: Ends):
    cut = msgspec.structs.replace(ends.invitation, server_key="abc")
    with pytest.raises(AgentJoinError, match="altered, or cut"):
        RemoteUplink(cut, f"tcp://{HOST}:{ends.hub.port}", 120.0)


@pytest.mark.parametrize("has_server_key", [False, True])
def test_ten_thousand_frames_of_a_stranger_leave_nothing(ends: Ends, has_server_key: bool):
    ends.join()
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.linger, dealer.sndhwm = 0, 0
    if has_server_key:  # but not that of an agent
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.curve_serverkey = ends.invitation.server_key.encode()
    dealer.connect(f"tcp://{HOST}:{ends.hub.port}")
    for number in range(10_000):
        # libzmq gives up a connection whose mechanism is refused: then the socket takes no more.
        with suppress(zmq.Again):
            dealer.send_multipart(
                [b"m" + number.to_bytes(16, "little"), secrets.token_bytes(50)], zmq.DONTWAIT
            )
    for number in range(20):
        ends.uplink.send(Output(run_id=None, rank=0, stream="stdout", text=str(number)))
        poll_until(lambda: ends.pump() or len(ends.events) > number)  # noqa: B023
    dealer.close()
    context.term()
    assert [event.text for _, event in ends.events if isinstance(event, Output)] == [
        str(number) for number in range(20)
    ]
    assert len(ends.events) == 20
    assert ends.hub.bad_frames == 0
    assert (ends.hub.guests, len(ends.hub._lines)) == ([], 1)


def test_garbage_at_the_port_reaches_no_decoder(ends: Ends):
    ends.join()
    for _ in range(50):
        with socket.create_connection((HOST, ends.hub.port)) as connection:
            with suppress(OSError):
                connection.sendall(secrets.token_bytes(2_000))
            ends.pump()
    plain = zmq.Context()
    dealer = plain.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(f"tcp://{HOST}:{ends.hub.port}")
    with suppress(zmq.Again):  # libzmq has given up the connection, see below
        dealer.send_multipart([b"m" + bytes(16), codec.encode(JOINED)], zmq.DONTWAIT)
    ends.uplink.send(Output(run_id=None, rank=0, stream="stdout", text="still here"))
    poll_until(lambda: ends.pump() or ends.events)
    dealer.close()
    plain.term()
    assert [type(event) for _, event in ends.events] == [Output]
    assert ends.hub.bad_frames == 0


def test_addresses_of_this_machine():
    assert "127.0.0.1" in [address for _, address in network.interfaces()]
    assert network.interface_towards("127.0.0.1") == "lo"
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        address = f"tcp://{HOST}:{port}"
        assert network.first_reachable([address], 2.0)[:2] == (address, HOST)
    assert network.refuses_connections(HOST, port)
    reached, own, failures = network.first_reachable([address], 2.0)
    assert (reached, own, failures) == ("", "", [(address, "Connection refused")])
