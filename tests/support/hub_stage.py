"""A real hub whose agents the test plays."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nbddp.controller.diagnosis.analysis import diagnose
from nbddp.controller.hub.hub_thread import HubThread
from nbddp.controller.launch.local import LocalAgent
from nbddp.controller.recovery.machine import RecoveryMachine
from nbddp.controller.state.actions import AnnounceUp
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import Phase
from nbddp.settings import Settings
from nbddp.wire import channels, codec
from nbddp.wire.channels import AgentUplink, HubChannel
from nbddp.wire.message_types import AgentEnd
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AgentHello,
    Event,
    RankReady,
    RunFinished,
    ShutdownAgent,
    StartRanks,
    StartStore,
    StoreReady,
)
from tests.support.machines import make_spec
from tests.support.polling import poll_until

TOKEN = "the right token"


class FakeAgent(LocalAgent):
    """Speaks the protocol of an agent; there is no process and there are no ranks."""

    def __init__(self, address: str, node: int = 0, token: str = TOKEN) -> None:
        self.node = node
        self.exit_fd = -1
        self.uplink = AgentUplink(address, node, token)
        self.requests: list[Any] = []
        self.has_ended = False
        self.on_kill_ranks: Callable[[], None] = lambda: None

    @property
    def pid(self) -> int:
        return os.getpid()  # it is never stopped

    def has_exited(self) -> bool:
        return self.has_ended

    def end(self) -> AgentEnd:
        return AgentEnd("exited")

    def last_output(self) -> str:
        return ""

    def kill_ranks(self, pids: Iterable[int]) -> None:
        self.on_kill_ranks()

    def hello(self, token: str = TOKEN, version: int = PROTOCOL_VERSION, node: int = 0) -> None:
        self.uplink.send(AgentHello(version=version, token=token, node=node, pid=1, host="here"))

    def send(self, *events: Event) -> None:
        for event in events:
            self.uplink.send(event)

    def next_request(self, kind: type[Any]) -> Any:
        """Wait for a request of this type."""

        def found() -> list[Any]:
            for ranks, frames in self.uplink.receive():
                decode: Callable[[bytes], Any] = (
                    codec.decode_rank_request if ranks else codec.decode_agent_request
                )
                self.requests.append(decode(frames[0]))
            return [request for request in self.requests if isinstance(request, kind)]

        return poll_until(found)[-1]


class Stage:
    """A hub with one agent that has two ranks."""

    def __init__(self, folder: Path) -> None:
        self.address = channels.ipc_address(folder / "hub.sock")
        machine = PoolMachine(make_spec(2), Settings(), 0.0, host="127.0.0.1", port=0)
        # The hub's own clock is monotonic; this start never times out.
        machine._starts_until = None
        recovery = RecoveryMachine(machine, Settings(), diagnose)
        self.hub = HubThread(
            HubChannel(folder / "hub.sock", TOKEN, 1), TOKEN, recovery, lambda segment, rank: None
        )
        self.agent = FakeAgent(self.address)
        self.others: list[FakeAgent] = []
        self.hub.start([self.agent])

    def stranger(self, node: int, token: str) -> FakeAgent:
        self.others.append(FakeAgent(self.address, node, token))
        return self.others[-1]

    def start(self) -> None:
        self.agent.hello()
        self.agent.next_request(StartStore)
        self.agent.send(StoreReady(host="127.0.0.1", port=1, pid=1))
        self.agent.next_request(StartRanks)
        self.agent.send(*(ready(rank) for rank in range(2)))
        assert isinstance(self.hub.start_results.get(timeout=10), AnnounceUp)

    def phase(self) -> Phase:
        return self.hub.snapshot.phase

    def close(self) -> None:
        self.hub.shut_down(0.1)
        if self.hub.is_alive and not self.agent.has_ended:
            self.agent.next_request(ShutdownAgent)
        self.agent.has_ended = True
        assert self.hub.join(10)
        for agent in (self.agent, *self.others):
            agent.uplink.close()


def ready(rank: int) -> RankReady:
    return RankReady(rank=rank, pid=10 + rank, local_rank=rank, device="cpu", backend="gloo")


def finished(rank: int) -> RunFinished:
    return RunFinished(run_id="r", rank=rank, elapsed_s=1.0, error=None)
