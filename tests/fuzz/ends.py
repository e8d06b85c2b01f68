"""The attacked processes: a real hub, a real agent and a real rank, one at a time.

Each takes frames from a sender that it trusts, and from one that it does not; `check` then lets it
do its work, and fails if it cannot.
"""

import itertools
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from nbddp.controller.hub.run import Run
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.stimuli import RunRequested
from nbddp.errors import BadMessageError
from nbddp.wire import channels, codec
from nbddp.wire.flight_recorder.schema import RankLook
from nbddp.wire.messages import (
    AbortOperations,
    AgentHello,
    BindPushed,
    CommToRank,
    Complete,
    DescribeRank,
    Execute,
    GroupsRebuilt,
    InputReply,
    Inspect,
    OperationsAborted,
    Output,
    OutputDrained,
    PushValue,
    RankDescribed,
    RanksStalled,
    RebuildGroups,
    ReleaseSegment,
    RunFinished,
    StoreExited,
)
from nbddp.wire.rank_set import RankSet
from tests.fuzz.nonsense import AGENT_EVENTS, RANK_EVENTS, REQUESTS, Nonsense
from tests.support.agent_scene import Scene
from tests.support.hub_stage import Stage
from tests.support.polling import poll_until
from tests.support.views import run_cell

_RANKS = 2
#: Bytes that a process may take above the start, while frames of a few megabytes arrive.
_MAX_GROWTH_BYTES = 400 * 1024 * 1024
#: Requests that a rank answers and that leave its variables and its groups as they are.
_HARMLESS = (
    BindPushed,
    CommToRank,
    Complete,
    InputReply,
    Inspect,
    DescribeRank,
    ReleaseSegment,
    OutputDrained,
)


def rss_bytes(pid: int) -> int:
    """The memory of a process in bytes."""
    return int(psutil.Process(pid).memory_info().rss)


class Stranger:
    """Dials a socket of ours under whatever name it likes."""

    def __init__(self, path: Path) -> None:
        self._context = zmq.Context()
        self._path = path
        self._numbers = itertools.count()
        self._socket = self._dial(None)

    def _dial(self, identity: bytes | None) -> "zmq.Socket[bytes]":
        made = self._context.socket(zmq.DEALER)
        made.linger = 0
        made.sndhwm = 0
        if identity is not None:
            made.setsockopt(zmq.IDENTITY, identity)
        made.connect(channels.ipc_address(self._path))
        return made

    def send(self, rng: random.Random, frames: list[bytes]) -> None:
        if rng.random() < 0.01:
            self._socket.close()
            names = (None, b"agent-0-", b"rank-0", b"agent-0-guess", b"\xff" * 200)
            self._socket = self._dial(rng.choice(names))
        self._socket.send_multipart(frames)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class HubEnd:
    """A hub with two ranks; its agent sends what torn ranks and a torn agent would."""

    name = "hub"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._folder = tempfile.TemporaryDirectory(prefix="nbt-")
        self.stage = Stage(Path(self._folder.name))
        self.stage.start()
        self._nonsense = Nonsense(rng, _RANKS, ("r", "0", "0:0", "text/html", "text/plain"))
        self._stranger = Stranger(Path(self._folder.name) / "hub.sock")
        self._sent: list[bytes] = []
        self._begin("r")

    def _begin(self, run_id: str) -> Run | None:
        run = Run(run_id, RankSet.all(_RANKS), 1000)
        execute = Execute(run_id=run_id, code="1", execution_count=1, first_line=1)
        refused = self.stage.hub.begin(run, RunRequested(execute, run.ranks))
        return run if refused is None else None

    def attack(self) -> None:
        """One frame."""
        rng, nonsense = self._rng, self._nonsense
        nonsense.numbers = self._open_questions()
        chance = rng.random()
        payload = codec.encode(self._event())
        if chance < 0.4 and len(payload) < 100_000:
            payload = nonsense.torn(payload)
        elif chance < 0.5 and self._sent:
            payload = rng.choice(self._sent)
        self._sent = [*self._sent[-50:], payload] if len(payload) < 10_000 else self._sent
        frames = [payload, *([rng.randbytes(9)] if rng.random() < 0.2 else [])]
        if rng.random() < 0.2:
            self._stranger.send(rng, frames)
        elif not _ends_the_agent(payload):
            self.stage.agent.uplink.forward(list(frames))

    def _event(self) -> Any:
        rng = self._rng
        kind: Any = rng.choice(
            (*RANK_EVENTS, *RANK_EVENTS, *AGENT_EVENTS, RankDescribed, RankDescribed, RanksStalled)
        )
        fields: dict[str, Any] = {}
        if kind is RanksStalled:
            fields = {"node": 0, "ranks": (rng.randrange(_RANKS),)}
        return self._nonsense.message(kind, **fields)

    def _open_questions(self) -> tuple[int, ...]:
        agent = self.stage.agent
        for ranks, frames in agent.uplink.receive():
            if ranks:
                request = codec.decode_rank_request(frames[0])
                if isinstance(request, DescribeRank | AbortOperations | RebuildGroups):
                    agent.requests.append(request)
        del agent.requests[:-4]
        return tuple(each.number for each in agent.requests if hasattr(each, "number"))

    def check(self) -> None:
        """The hub still serves: a command is done."""
        hub = self.stage.hub
        poll_until(self.stage.agent.uplink.flush, 60.0)
        asked: list[int] = []
        hub._call(lambda: asked.append(1))
        poll_until(lambda: asked or not hub.is_alive, 60.0)
        assert hub.is_alive, hub._failure

    def close(self) -> None:
        self._stranger.close()
        self.stage.close()
        self._folder.cleanup()


def _ends_the_agent(payload: bytes) -> bool:
    """Whether an event, as our own agent, tells of its own end."""
    try:
        event = codec.decode_event(payload)
    except BadMessageError:
        return False
    return isinstance(event, AgentHello | StoreExited)


class AgentEnd:
    """An agent with one rank; both the hub and the rank send what they never would."""

    name = "agent"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._folder = tempfile.TemporaryDirectory(prefix="nbt-")
        self._patch = pytest.MonkeyPatch()
        self.scene = Scene(Path(self._folder.name), self._patch)
        self._nonsense = Nonsense(rng, 1, ("r1", "r"))
        launch = self.scene.agent._launch
        self._stranger = Stranger(Path(str(launch.rank_socket)))
        self._sent: list[bytes] = []

    def attack(self) -> None:
        """One frame."""
        rng, nonsense, scene = self._rng, self._nonsense, self.scene
        kind = rng.choice((*RANK_EVENTS, *AGENT_EVENTS, *REQUESTS))
        payload = codec.encode(nonsense.message(kind))
        if rng.random() < 0.4 and len(payload) < 100_000:
            payload = nonsense.torn(payload)
        elif rng.random() < 0.1 and self._sent:
            payload = rng.choice(self._sent)
        self._sent = [*self._sent[-50:], payload] if len(payload) < 10_000 else self._sent
        match rng.randrange(3):
            case 0:
                self._stranger.send(rng, [payload, b"x"])
            case 1:
                scene.rank.send(payload, [b"x"])
            case _:
                if not _is_agent_request(payload):  # the hub may end it, and that is its right
                    self._as_hub(rng.choice((b"\x90", b"\x91\x00", b"\x91\x07", b"\xdd")), payload)
        if rng.random() < 0.05:
            scene.events()
            scene._events.clear()
            scene.received().clear()

    def _as_hub(self, ranks: bytes, payload: bytes) -> None:
        identity = channels.agent_identity(0, "secret")
        self.scene.hub.socket.send_multipart([identity, ranks, payload])

    def check(self) -> None:
        """It carries messages in both directions."""
        scene = self.scene
        assert scene.thread.is_alive()
        scene._events.clear()
        scene.hub.send_to_ranks({0: (0,)}, DescribeRank(number=77))
        look = RankLook(rank=0, pid=1, activity="idle", version=1, time_ns=1)
        answer = RankDescribed(number=78, rank=0, look=look)
        scene.rank.send(codec.encode(answer))
        poll_until(lambda: DescribeRank(number=77) in scene.received(), 60.0)
        poll_until(lambda: answer in scene.events(), 60.0)

    def close(self) -> None:
        self._stranger.close()
        self.scene.close()
        self._patch.undo()
        self._folder.cleanup()


def _is_agent_request(payload: bytes) -> bool:
    try:
        codec.decode_agent_request(payload)
    except BadMessageError:
        return False
    return True


class RankEnd:
    """Two real ranks: the hub sends rank 0 requests that it never would; rank 1 is torn."""

    name = "rank"

    def __init__(self, rng: random.Random, pool: Pool) -> None:
        self._rng = rng
        self._pool = pool
        self._nonsense = Nonsense(rng, _RANKS, ("r", "0", "pushed"))
        self._of_rank_1: list[bytes] = []
        run_cell(pool, "kept = rank")
        self._rss = {info.rank: rss_bytes(info.pid) for info in pool.ranks()}

    def attack(self) -> None:
        """One frame."""
        rng, nonsense = self._rng, self._nonsense
        if rng.random() < 0.5:
            self._of_rank_1.append(self._torn_event())
            return
        kind: Any = rng.choice((*REQUESTS, *_HARMLESS))
        payload = codec.encode(nonsense.message(kind))
        if rng.random() < 0.6 and len(payload) < 100_000:
            payload = nonsense.torn(payload)
        try:
            request = codec.decode_rank_request(payload)
        except BadMessageError:
            request = None
        if request is None or isinstance(request, _HARMLESS):
            self._send(payload)
        elif isinstance(request, PushValue):
            self._send(codec.encode(msgspec.structs.replace(request, request_id="pushed")))

    def _torn_event(self) -> bytes:
        # A cell, a rebuild or a transfer in progress could not end without the rank's message.
        rng = self._rng
        left_out = (RunFinished, GroupsRebuilt, OperationsAborted, RankDescribed, Output)
        kind = rng.choice([each for each in RANK_EVENTS if each not in left_out] + [*AGENT_EVENTS])
        payload = codec.encode(self._nonsense.message(kind))
        if rng.random() < 0.5 and len(payload) < 100_000:
            payload = self._nonsense.torn(payload)
        return payload

    def _send(self, payload: bytes) -> None:
        hub = self._pool._processes.hub
        identity = hub._channel._peers.identity(0)
        frames = [identity, codec.encode_ranks((0,)), payload, b"x"]

        def send() -> None:
            hub._channel.socket.send_multipart(frames)

        hub._call(send)

    def check(self) -> None:
        """Rank 1 sends what it has; then both run a cell and have what they had."""
        sent, self._of_rank_1 = self._of_rank_1, []
        self._pool.push(ranks=1, frames_to_send=sent)
        run_cell(
            self._pool,
            "link = get_ipython().link\n"
            "for each in frames_to_send:\n"
            "    link._outgoing.append((each, [b'x']))\n"
            "link._waker.wake()\n",
            ranks=[1],
        )
        assert self._pool.pull("kept") == [0, 1]
        run_cell(self._pool, "dist.barrier()")
        for info in self._pool.ranks():
            assert rss_bytes(info.pid) < self._rss[info.rank] + _MAX_GROWTH_BYTES

    def close(self) -> None:
        pass


@contextmanager
def memory_is_bounded(pid: int) -> Iterator[None]:
    """A process does not take much more than before."""
    before = rss_bytes(pid)
    yield
    assert rss_bytes(pid) < before + _MAX_GROWTH_BYTES
