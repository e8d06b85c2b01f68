"""A real agent in a thread of the test, between a hub and a rank that the test plays."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from nbddp.agent.agent import Agent
from nbddp.agent.lifeline_thread import LifelineThread
from nbddp.agent.output_pipes import RankPipes
from nbddp.settings import Settings
from nbddp.wire import channels, codec
from nbddp.wire.channels import HubChannel, RankChannel
from nbddp.wire.flight_recorder.writer import NodeMemory, Writer
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.messages import (
    AgentHello,
    Display,
    Event,
    OutputDrained,
    RankRequest,
    ShutdownAgent,
)
from tests.support.machines import make_spec
from tests.support.polling import poll_until

LIMIT = 1_000_000
HTML = Display(run_id="r", rank=0, data={"text/html": "x" * 200_000}, metadata={}, transient={})


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
        self.agent = Agent(launch, maker, LifelineThread(0, os.getpid(), maker))
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
        self._connect_rank()

    def _connect_rank(self) -> None:
        """The socket of an agent drops what is for a rank that has not connected yet.

        The hub sends a real rank nothing before its `RankReady` has come.
        """
        self.show(1)
        poll_until(lambda: self.answered() == [1])
        poll_until(lambda: [e for _, e, _ in self.hub.receive() if isinstance(e, Display)])
        self._received.clear()

    def show(self, number: int) -> None:
        """Sends an event as a rank does, which then waits for an answer."""
        self.rank.send(codec.encode(msgspec.structs.replace(HTML, sync=number)))

    def received(self) -> list[RankRequest]:
        """All that the rank has got."""
        self._received += [request for request, _ in self.rank.receive()]
        return self._received

    def answered(self) -> list[int]:
        return [request.number for request in self.received() if isinstance(request, OutputDrained)]

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
