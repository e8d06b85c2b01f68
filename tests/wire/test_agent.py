"""A real agent without its process, between a hub and a rank that are played by the test."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from nbddp.agent.agent import Agent
from nbddp.agent.output_pipes import RankPipes
from nbddp.agent.parent_watch import ParentWatch
from nbddp.settings import Settings
from nbddp.wire import channels, codec
from nbddp.wire.channels import HubChannel, RankChannel
from nbddp.wire.flight_recorder.schema import RankLook
from nbddp.wire.flight_recorder.writer import NodeMemory, Writer
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.messages import (
    AgentHello,
    DescribeValue,
    Display,
    Event,
    Execute,
    Free,
    Freed,
    Look,
    Looked,
    Output,
    Quiet,
    RankRequest,
    Reform,
    Reformed,
    RunFinished,
    ShutdownAgent,
    Synced,
    ValueDescribed,
)
from nbddp.wire.values.fingerprints import Tree, TreeOf
from tests.support.machines import make_spec
from tests.support.polling import poll_until

LIMIT = 1_000_000
HTML = Display(run_id="r", rank=0, data={"text/html": "x" * 200_000}, metadata={}, transient={})
CELL = Execute(run_id="r1", code="pass", execution_count=1, first_line=1)
LOOK = Look(number=1)
FREE = Free(number=2, run_id="r1", phase="arm", reason="deadlock")
REFORM = Reform(number=3, groups=(), group_count=1)
ANSWERS: list[Event] = [
    Looked(number=1, rank=0, look=RankLook(rank=0, pid=1, activity="idle", version=1, time_ns=1)),
    Freed(number=2, rank=0, phase="arm", pg_ids=("0:0",)),
    Reformed(number=3, rank=0),
]


class Scene:
    """The agent's loop runs in a thread; its rank 0 is the test's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hub = HubChannel(folder / "hub.sock", "secret", nnodes=1)
        settings = Settings(output_backlog_bytes=LIMIT)
        launch = AgentLaunch(
            hub=channels.ipc_address(folder / "hub.sock"),
            token="secret",
            pool_id="p",
            node=0,
            folder=str(folder),
            controller_pid=os.getpid(),
            settings=settings,
        )
        # Children of the tests are no orphans of an agent.
        monkeypatch.setattr("nbddp.agent.agent.reap_orphans", lambda known: None)
        monkeypatch.setattr("nbddp.agent.termination.end_orphans", lambda known: True)
        maker = cast("Any", SimpleNamespace(forks=True, end_if_held=lambda: None))
        self.agent = Agent(launch, maker, ParentWatch(0, os.getpid(), maker))
        self.pipes = RankPipes(0, folder / "rank0.log", settings)
        process = SimpleNamespace(
            pipes=self.pipes,
            record_descendants=lambda: None,
            await_begin=lambda run_id: None,
            note_begun=lambda run_id: None,
            pulling="",
            interrupt_at=float("inf"),
            interrupt_if_due=lambda now: None,
        )
        self.agent._ranks[0] = cast("Any", process)
        identity = channels.rank_identity(0)
        self.agent._downlink.admit(0, identity)
        self.rank = RankChannel(channels.ipc_address(launch.rank_socket), identity)
        fd = self.agent._stall_monitor.prepare(make_spec(1), 0)
        assert fd is not None
        self.memory = NodeMemory.attach(os.dup(fd), 1)
        self.writer = Writer(self.memory, 0)
        self._received: list[RankRequest] = []
        self._events: list[Event] = []
        self.thread = threading.Thread(target=self.agent.serve)
        self.thread.start()
        poll_until(lambda: [e for _, e, _ in self.hub.receive() if isinstance(e, AgentHello)])

    def show(self, number: int) -> None:
        """As a rank does, which then waits to be answered."""
        self.rank.send(codec.encode(msgspec.structs.replace(HTML, sync=number)))

    def received(self) -> list[RankRequest]:
        """All that the rank has got."""
        self._received += [request for request, _ in self.rank.receive()]
        return self._received

    def answered(self) -> list[int]:
        return [request.number for request in self.received() if isinstance(request, Synced)]

    def events(self) -> list[Event]:
        """All that the hub has got, but displays."""
        found = [event for _, event, _ in self.hub.receive()]
        self._events += [event for event in found if not isinstance(event, Display)]
        return self._events

    def issue(self) -> int:
        return self.writer.issue(0, 0, 0, 0, 1, 0, -1, 0, 0, 1, 0, 1)

    def flood(self) -> int:
        """The hub does not read: shows until the agent holds back; gives the number of the last."""
        number = 0
        while self.backlog() <= LIMIT:
            number += 1
            assert number < 1000, "the hub's socket takes everything"
            self.show(number)
            poll_until(lambda: number in self.answered() or self.backlog() > LIMIT)  # noqa: B023
        return number

    def backlog(self) -> int:
        return self.agent._uplink.backlog_bytes

    def close(self) -> None:
        self.agent._ranks.clear()
        self.hub.send_to_agent(0, ShutdownAgent(grace_s=0.0))
        poll_until(lambda: [*self.hub.receive()] == [] and not self.thread.is_alive())
        del self.writer
        self.memory.close()
        self.pipes.close_write_ends()
        self.pipes.close()
        self.rank.close()
        self.hub.close()


@pytest.fixture
def scene(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(short_folder, monkeypatch)
    yield made
    made.close()


def test_a_flood_of_displays_waits_in_the_rank_while_the_hub_does_not_read(scene: Scene):
    held = scene.flood() + 1
    scene.show(held)
    poll_until(lambda: (0, held) in scene.agent._held_syncs)
    assert held not in scene.answered()
    assert scene.backlog() < LIMIT + 3 * 200_000
    poll_until(lambda: scene.events() == [] and held in scene.answered())


def test_a_display_has_its_place_in_the_text(scene: Scene):
    scene.hub.send_to_ranks(0, (0,), CELL)
    poll_until(lambda: CELL in scene.received())
    stdout_fd = scene.pipes.write_ends()[0].take()
    os.write(stdout_fd, b"before")
    scene.show(1)
    poll_until(lambda: scene.answered() == [1])
    os.write(stdout_fd, b"after")
    scene.rank.send(codec.encode(RunFinished(run_id="r1", rank=0, elapsed_s=1.0, error=None)))
    found: list[str] = []

    def has_ended() -> bool:
        for _, event, _ in scene.hub.receive():
            found.append(event.text if isinstance(event, Output) else type(event).__name__)
        return "RunFinished" in found

    poll_until(has_ended)
    assert [each for each in found if each != "Quiet"] == [
        "before",
        "Display",
        "after",
        "RunFinished",
    ]


def test_a_look_at_values_can_be_interrupted_until_it_is_answered(scene: Scene):
    process = scene.agent._ranks[0]
    request = DescribeValue(request_id="v2", question=TreeOf("x"), ranks=(0,))
    scene.hub.send_to_ranks(0, (0,), request)
    poll_until(lambda: scene.received() == [request])
    assert process.pulling == "v2"
    late = ValueDescribed(request_id="v1", rank=0, answer=Tree())
    scene.rank.send(codec.encode(late))
    poll_until(lambda: scene.events() == [late])
    assert process.pulling == "v2"
    answer = ValueDescribed(request_id="v2", rank=0, answer=Tree())
    scene.rank.send(codec.encode(answer))
    poll_until(lambda: scene.events() == [late, answer])
    assert process.pulling == ""


def test_what_concerns_collectives_passes_while_displays_wait(scene: Scene):
    held = scene.flood() + 1
    scene.show(held)
    poll_until(lambda: (0, held) in scene.agent._held_syncs)
    for request in (LOOK, FREE, REFORM):
        scene.hub.send_to_ranks(0, (0,), request)
    poll_until(lambda: scene.received()[-3:] == [LOOK, FREE, REFORM])
    assert held not in scene.answered()
    for answer in ANSWERS:
        scene.rank.send(codec.encode(answer))
    poll_until(lambda: scene.events() == ANSWERS)


def test_a_rank_is_watched_while_its_cell_runs(scene: Scene):
    idle_s = scene.agent._timeout()
    assert idle_s > 0.5  # woken by nothing
    record = scene.issue()
    scene.hub.send_to_ranks(0, (0,), CELL)
    quiet = Quiet(node=0, ranks=(0,))
    poll_until(lambda: scene.events() == [quiet, quiet])
    assert scene.agent._timeout() <= 0.1
    scene.writer.complete(record, 1)
    count = poll_until(lambda: len(scene.events()))
    scene.issue()
    poll_until(lambda: scene.events()[count:])
    finished = RunFinished(run_id="r1", rank=0, elapsed_s=1.0, error=None)
    scene.rank.send(codec.encode(finished))
    poll_until(lambda: scene.events()[-1] == finished)
    poll_until(lambda: scene.agent._timeout() == idle_s)
    assert scene.events()[-1] == finished
