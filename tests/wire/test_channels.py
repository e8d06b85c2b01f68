"""Real sockets: messages arrive, and frames that are no messages are dropped and counted."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from nbddp.errors import TooLargeError
from nbddp.wire import channels, codec
from nbddp.wire.channels import (
    AgentDownlink,
    AgentUplink,
    Channel,
    HubChannel,
    Poller,
    RankChannel,
    Waker,
)
from nbddp.wire.messages import (
    ClearOutput,
    Event,
    Execute,
    Output,
    RankExited,
    RanksStopped,
    RunFinished,
    RunStarted,
    SegmentReleased,
    Shutdown,
    StopRanks,
    StoreExited,
)
from tests.support.polling import poll_until

TOKEN = "secret"
STARTED = RunStarted(run_id="r", rank=0)
EXECUTE = Execute(run_id="r", code="1", execution_count=1, first_line=1)


class Sockets:
    """Everything that a test opens; a frame may be kept from being read by never polling."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: list[Channel] = []

    def keep(self, channel: Any) -> Any:
        self.open.append(channel)
        return channel

    def hub(self) -> HubChannel:
        made = HubChannel(self.folder / "hub.sock", TOKEN, nnodes=4)
        return self.keep(made)  # type: ignore[no-any-return]

    def uplink(self, node: int = 0, token: str = TOKEN) -> AgentUplink:
        address = channels.ipc_address(self.folder / "hub.sock")
        return self.keep(AgentUplink(address, node, token))  # type: ignore[no-any-return]

    def downlink(self) -> AgentDownlink:
        made: AgentDownlink = self.keep(AgentDownlink(self.folder / "agent.sock"))
        for rank in range(8):
            made.admit(rank, b"secret of %d" % rank)
        return made

    def rank(self, rank: int = 0, identity: bytes = b"") -> RankChannel:
        address = channels.ipc_address(self.folder / "agent.sock")
        made = RankChannel(address, identity or b"secret of %d" % rank)
        return self.keep(made)  # type: ignore[no-any-return]


@pytest.fixture
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sockets]:
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="nbt-"))  # short: a path of tmp_path may be too long
    made = Sockets(folder)
    yield made
    for channel in made.open:
        channel.close()
    shutil.rmtree(folder)


def gather(receive: Callable[[], Iterator[Any]], count: int = 1) -> list[Any]:
    """Wait for ``count`` messages."""
    found: list[Any] = []
    poll_until(lambda: found.extend(receive()) or len(found) >= count)  # type: ignore[func-returns-value]
    return found


def send_raw(channel: Channel, *frames: bytes) -> None:
    channel.socket.send_multipart(list(frames))


# --- the four ends -------------------------------------------------------------------------------


def test_hub_and_agent(sockets: Sockets):
    hub, agent = sockets.hub(), sockets.uplink(3)
    agent.send(STARTED)
    agent.forward([codec.encode(STARTED), b"buffer", b""])
    agent.flush()
    assert gather(hub.receive, 2) == [(3, STARTED, []), (3, STARTED, [b"buffer", b""])]
    hub.send_to_agent(3, StopRanks(grace_s=1.0))
    hub.send_to_ranks({3: (0, 2)}, EXECUTE, [b"one", memoryview(b"two")])
    own, for_ranks = gather(agent.receive, 2)
    assert own == ((), [codec.encode(StopRanks(grace_s=1.0))])
    assert for_ranks == ((0, 2), [codec.encode(EXECUTE), b"one", b"two"])
    assert (hub.bad_frames, agent.bad_frames) == (0, 0)


def test_agent_and_rank(sockets: Sockets):
    agent, rank = sockets.downlink(), sockets.rank(5)
    shown = ClearOutput(run_id="r", rank=5, wait=False, sync=7)
    rank.send(codec.encode(shown), [b"x"])
    [(number, tag, frames)] = gather(agent.receive)
    assert (number, tag) == (5, codec.Tag("ClearOutput", 5, 7))
    assert frames == [codec.encode(shown), b"x"]
    agent.send(5, [codec.encode(EXECUTE), b"buffer"])
    assert gather(rank.receive) == [(EXECUTE, [b"buffer"])]


def test_messages_keep_their_order(sockets: Sockets):
    hub, agent = sockets.hub(), sockets.uplink()
    sent: list[Event] = [
        Output(run_id="r", rank=0, stream="stdout", text=str(n)) for n in range(500)
    ]
    found: list[Any] = []
    for event in sent:
        agent.send(event)
        found += hub.receive()

    def all_there() -> bool:
        agent.flush()
        found.extend(hub.receive())
        return len(found) >= len(sent)

    poll_until(all_there)
    assert [event for _, event, _ in found] == sent


def test_events_that_come_together_travel_together(sockets: Sockets):
    """Events travel in one ZeroMQ message; a damaged event costs none of the others."""
    hub, agent = sockets.hub(), sockets.uplink(2)
    sent = [Output(run_id="r", rank=0, stream="stdout", text=str(n)) for n in range(20)]
    for event in sent[:10]:
        agent.forward([codec.encode(event)])
    agent.forward([b"\x80\x04garbage"])
    for event in sent[10:]:
        agent.forward([codec.encode(event)])
    assert list(hub.receive()) == []  # nothing has left yet
    assert agent.flush()
    assert agent.backlog_bytes == 0
    found = gather(hub.receive, 20)
    assert [event for _, event, _ in found] == sent
    assert hub.bad_frames == 1


def test_events_that_come_together_are_one_message(sockets: Sockets):
    hub, agent = sockets.hub(), sockets.uplink()
    for _ in range(20):
        agent.forward([codec.encode(STARTED)])
    agent.flush()
    [(_, *frames)] = gather(lambda: iter([hub.socket.recv_multipart()]))
    assert frames == [b"", codec.encode_batch([codec.encode(STARTED)] * 20)]


def test_large_events_do_not_wait_for_others(sockets: Sockets):
    hub, agent = sockets.hub(), sockets.uplink()
    large = Output(run_id="r", rank=0, stream="stdout", text="x" * 70_000)
    for event in (STARTED, large, STARTED):
        agent.forward([codec.encode(event)])
    assert [event for _, event, _ in gather(hub.receive, 2)] == [STARTED, large]
    agent.flush()
    assert [event for _, event, _ in gather(hub.receive)] == [STARTED]


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x93\x01\x02\x03", codec.encode(STARTED)])
def test_several_frames_that_are_no_events_are_counted(sockets: Sockets, frame: bytes):
    hub, agent = sockets.hub(), sockets.uplink()
    send_raw(agent, b"", frame)
    agent.send(STARTED)
    assert [event for _, event, _ in gather(hub.receive)] == [STARTED]
    assert hub.bad_frames == 1


def test_messages_for_a_missing_agent_are_dropped(sockets: Sockets):
    hub = sockets.hub()
    hub.send_to_agent(9, StopRanks(grace_s=1.0))
    hub.send_to_ranks({9: (0,)}, Shutdown())


# --- bad frames ----------------------------------------------------------------------------------

BAD_PAYLOADS = [
    b"",
    b"garbage",
    b"\x80\x04\x95\x1a\x00",  # the beginning of a pickle
    b"cos\nsystem\n(S'touch /tmp/owned'\ntR.",
    codec.encode(EXECUTE)[:-1],
    codec.encode(EXECUTE).replace(b"Execute", b"Execume"),
    b"\xff" * 1000,
]


@pytest.mark.parametrize("payload", [*BAD_PAYLOADS, codec.encode(EXECUTE)])
def test_the_hub_drops_what_is_no_event(sockets: Sockets, payload: bytes):
    hub, agent = sockets.hub(), sockets.uplink()
    send_raw(agent, payload)
    send_raw(agent, payload, b"buffer")
    agent.send(STARTED)
    assert gather(hub.receive) == [(0, STARTED, [])]
    assert hub.bad_frames == 2


@pytest.mark.parametrize("payload", [*BAD_PAYLOADS, codec.encode(STARTED)])
def test_a_rank_drops_what_is_no_request(sockets: Sockets, payload: bytes):
    agent, rank = sockets.downlink(), sockets.rank()
    rank.send(codec.encode(STARTED))
    gather(agent.receive)  # the agent knows the rank now
    agent.send(0, [payload])
    agent.send(0, [payload, b"buffer"])
    agent.send(0, [codec.encode(EXECUTE)])
    assert gather(rank.receive) == [(EXECUTE, [])]
    assert rank.bad_frames == 2


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [codec.encode_ranks((0,))],  # no payload
        [b"garbage", codec.encode(EXECUTE)],
        [codec.encode(EXECUTE), codec.encode(EXECUTE)],
        [codec.encode_ranks((0,)), b"garbage"],
        [codec.encode_ranks((0,)).replace(b"\x00", b"\xff"), codec.encode(EXECUTE)],
    ],
)
def test_an_agent_drops_what_is_no_request(sockets: Sockets, frames: list[bytes]):
    hub, agent = sockets.hub(), sockets.uplink()
    agent.send(STARTED)
    gather(hub.receive)
    send_raw(hub, channels.agent_identity(0, TOKEN), *frames)
    hub.send_to_ranks({0: (1,)}, EXECUTE)
    expected = 1 if frames else 0  # ZeroMQ itself drops an empty message
    assert gather(agent.receive) == [((1,), [codec.encode(EXECUTE)])]
    assert agent.bad_frames == expected


@pytest.mark.parametrize(
    ("identity", "frames"),
    [
        (b"secret of 0", [b"garbage"]),
        (b"secret of 0", [b""]),
        (b"secret of 99", [codec.encode(STARTED)]),
        (b"rank-0", [codec.encode(STARTED)]),
        (b"agent-0", [codec.encode(STARTED)]),
        (b"\xff\xfe", [codec.encode(STARTED)]),
        (None, [codec.encode(STARTED)]),  # ZeroMQ makes one up
    ],
)
def test_an_agent_drops_what_is_of_no_rank(
    sockets: Sockets, identity: bytes | None, frames: list[bytes]
):
    agent = sockets.downlink()
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        if identity is not None:
            stranger.setsockopt(zmq.IDENTITY, identity)
        stranger.connect(channels.ipc_address(sockets.folder / "agent.sock"))
        stranger.send_multipart(frames)
        poll_until(lambda: [*agent.receive()] == [] and agent.bad_frames == 1)
    rank = sockets.rank(4)
    rank.send(codec.encode(RunStarted(run_id="r", rank=4)))
    [(number, tag, _)] = gather(agent.receive)
    assert (number, tag.type) == (4, "RunStarted")


@pytest.mark.parametrize(
    "payload",
    [
        codec.encode(RunStarted(run_id="r", rank=1)),
        codec.encode(RunFinished(run_id="r", rank=1, elapsed_s=0.0, error=None)),
        codec.encode(RankExited(rank=0, pid=1, exit_code=0, out_of_memory=False, last_output="")),
        codec.encode(RanksStopped(node=0)),
        codec.encode(StoreExited(pid=1, exit_code=-9)),
        codec.encode(Output(run_id="r", rank=0, stream="stdout", text="forged")),
        codec.encode(EXECUTE),
    ],
)
def test_a_rank_speaks_only_of_itself(sockets: Sockets, payload: bytes):
    agent, rank = sockets.downlink(), sockets.rank(0)
    rank.send(payload)
    rank.send(codec.encode(STARTED))
    assert [(number, tag.type) for number, tag, _ in gather(agent.receive)] == [(0, "RunStarted")]
    assert agent.bad_frames == 1


def test_a_frame_that_is_too_long_is_refused_before_there_is_room_for_it(sockets: Sockets):
    """Its header alone ends the connection, and others go on."""
    hub, agent = sockets.hub(), sockets.uplink(0)
    agent.send(STARTED)
    gather(hub.receive)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    command = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(10)
        stranger.connect(str(sockets.folder / "hub.sock"))
        stranger.sendall(greeting)
        stranger.sendall(b"\x04" + bytes([len(command)]) + command)
        stranger.sendall(b"\x02" + (codec.MAX_FRAME_BYTES + 1).to_bytes(8, "big"))
        while stranger.recv(4096):
            pass
    agent.send(STARTED)
    assert gather(hub.receive) == [(0, STARTED, [])]


def test_a_message_that_does_not_fit_into_a_frame_is_an_error_of_its_sender(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 1 << 20)
    fits = Output(run_id="r", rank=0, stream="stdout", text="x" * 1_000_000)
    assert codec.decode_event(codec.encode(fits)) == fits
    with pytest.raises(TooLargeError, match="Output of 2 MiB is not sent: the limit is 1 MiB"):
        codec.encode(Output(run_id="r", rank=0, stream="stdout", text="x" * (2 << 20)))


def test_a_hub_drops_what_is_of_no_agent(sockets: Sockets):
    hub = sockets.hub()
    right = channels.agent_identity(0, TOKEN)
    for identity in (b"agent-0", right[:-1], right + b"x", channels.agent_identity(9, TOKEN)):
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.linger = 1000
            stranger.setsockopt(zmq.IDENTITY, identity)
            stranger.connect(channels.ipc_address(sockets.folder / "hub.sock"))
            stranger.send(codec.encode(STARTED))
            count = hub.bad_frames
            poll_until(lambda: [*hub.receive()] == [] and hub.bad_frames == count + 1)  # noqa: B023


# --- who is who ----------------------------------------------------------------------------------


def test_a_peer_cannot_take_the_place_of_an_agent(sockets: Sockets):
    """The name alone is not enough, nor is the whole identity while the agent is connected."""
    hub, agent = sockets.hub(), sockets.uplink(0)
    agent.send(STARTED)
    gather(hub.receive)
    for stranger in (sockets.uplink(0, token="guess"), sockets.uplink(0)):
        stranger.send(STARTED)
        hub.send_to_agent(0, StopRanks(grace_s=1.0))
        assert gather(agent.receive) == [((), [codec.encode(StopRanks(grace_s=1.0))])]
        assert [*stranger.receive()] == []
    poll_until(lambda: [*hub.receive()] == [] and hub.bad_frames == 1)


def test_a_restarted_rank_is_another_peer_than_the_one_before(sockets: Sockets):
    agent, old = sockets.downlink(), sockets.rank(3)
    old.send(codec.encode(RunStarted(run_id="r", rank=3)))
    gather(agent.receive)
    identities = {channels.rank_identity(3) for _ in range(10)}
    assert len(identities) == 10
    fresh = identities.pop()
    agent.admit(3, fresh)
    new = sockets.rank(3, fresh)
    old.send(codec.encode(RunStarted(run_id="r", rank=3)))
    new.send(codec.encode(SegmentReleased(segment=1, rank=3)))
    assert [tag.type for _, tag, _ in gather(agent.receive)] == ["SegmentReleased"]
    agent.send(3, [codec.encode(EXECUTE)])
    assert gather(new.receive) == [(EXECUTE, [])]
    assert [*old.receive()] == []
    poll_until(lambda: [*agent.receive()] == [] and agent.bad_frames == 1)


# --- a hub that does not read --------------------------------------------------------------------


def test_an_agent_keeps_messages_that_the_hub_does_not_take(sockets: Sockets):
    """The agent never waits and counts the bytes; no message is lost or out of order."""
    hub, agent = sockets.hub(), sockets.uplink()
    text = "x" * 200_000
    sent = 0
    while agent.backlog_bytes < 20 * len(text) or agent.flush():  # the hub may be late to take some
        agent.send(Output(run_id="r", rank=0, stream="stdout", text=text, dropped_bytes=sent))
        sent += 1
        assert sent < 5000, "the socket takes everything"
    found: list[int] = []

    def read_all() -> bool:
        found.extend(e.dropped_bytes for _, e, _ in hub.receive() if isinstance(e, Output))
        return agent.flush() and len(found) == sent

    poll_until(read_all)
    assert found == list(range(sent))
    assert agent.backlog_bytes == 0


# --- wakers --------------------------------------------------------------------------------------


def test_a_waker_wakes_a_thread():
    waker, poller = Waker(), Poller()
    poller.add(waker)
    assert poller.wait(0) == []
    thread = threading.Thread(target=waker.wake)
    thread.start()
    assert poller.wait(10) == [waker.fileno()]
    thread.join()
    waker.clear()
    assert poller.wait(0) == []
    waker.clear()  # of nothing
    poller.remove(waker)
    waker.close()


def test_many_wake_ups_are_one():
    waker, poller = Waker(), Poller()
    poller.add(waker)
    for _ in range(200_000):  # more than a pipe holds: it must not wait
        waker.wake()
    assert poller.wait(0) == [waker.fileno()]
    waker.clear()
    assert poller.wait(0) == []
    waker.close()


def test_a_closed_waker_writes_into_no_other_file():
    """A value that is released after the end of the pool tries to wake the ended hub."""
    waker = Waker()
    ends = {waker._read, waker._write}
    waker.close()
    taken = os.pipe()
    assert ends == set(taken), "the numbers were meant to be used again"
    os.set_blocking(taken[0], False)
    waker.wake()
    with pytest.raises(BlockingIOError):
        os.read(taken[0], 1)
    for fd in taken:
        os.close(fd)


def test_a_poller_tells_when_there_is_room(sockets: Sockets):
    hub, agent = sockets.hub(), sockets.uplink()
    poller = Poller()
    poller.add(agent)
    poller.also_writable(agent, True)
    poll_until(lambda: agent.socket in poller.wait(0.1))
    poller.also_writable(agent, False)
    assert poller.wait(0) == []
    hub.close()
    sockets.open.remove(hub)
