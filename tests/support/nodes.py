"""A real agent with real ranks, and a hub that the test plays."""

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from nbddp.controller.launch.local import LocalAgent
from nbddp.settings import Settings
from nbddp.wire import channels
from nbddp.wire.channels import HubChannel, Poller
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.message_types import PoolSpec
from nbddp.wire.messages import (
    AgentHello,
    AgentRequest,
    Event,
    Execute,
    KillRanks,
    RankExited,
    RankReady,
    RankRequest,
    RunFinished,
    RunsFinished,
    RunsStarted,
    RunStarted,
    ShutdownAgent,
    StartFailed,
    StartRanks,
    StartStore,
    StoreReady,
)

T = TypeVar("T", bound=Event)

_PATIENCE_S = 20.0


class Node:
    """One node of a pool.

    Args:
        n: number of its ranks.
        path: first folder in which the agent looks for programs.
        options: of the pool, see `PoolSpec`.
    """

    def __init__(self, n: int = 2, path: Path | None = None, **options: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nbn-"))
        token = secrets.token_hex(8)
        socket_path = self.folder / "hub.sock"
        self._hub = HubChannel(socket_path, token, nnodes=1)
        self._poller = Poller()
        self._poller.add(self._hub)
        launch = AgentLaunch(
            hub=channels.ipc_address(socket_path),
            token=token,
            pool_id=f"node-{token}",
            node=0,
            folder=str(self.folder),
            controller_pid=os.getpid(),
            settings=Settings(),
        )
        self.spec = PoolSpec(
            pool_id=launch.pool_id,
            generation=0,
            nproc_per_node=n,
            nnodes=1,
            backend="gloo",
            device="cpu",
            devices=(),
            init=options.pop("init", "env"),
            init_file="",
            threads=1,
            timeout_s=0.0,
            cwd=str(self.folder),
            sys_path=tuple(sys.path),
            env={},
            use_arena=True,
            **options,
        )
        env = dict(os.environ)
        if path is not None:
            env["PATH"] = f"{path}{os.pathsep}{env['PATH']}"
        self.agent = LocalAgent(launch, env)
        #: All events so far that were not yet taken by `next`.
        self.events: list[Event] = []
        self.pids: dict[int, int] = {}
        self._runs = 0

    def start(self) -> "Node":
        """The store, then all ranks."""
        self.next(AgentHello)
        self.tell(StartStore(pool=self.spec, host="127.0.0.1", port=0))
        self.store = self.next(StoreReady)
        self.start_ranks(range(self.spec.nproc_per_node))
        return self

    def renew(self) -> None:
        """Fresh ranks, as after ``%ddp restart``."""
        ranks = tuple(range(self.spec.nproc_per_node))
        self.tell(KillRanks(ranks=ranks))
        for rank in ranks:
            self.next(RankExited, lambda e, rank=rank: e.rank == rank)  # type: ignore[misc]
        self.spec = msgspec.structs.replace(self.spec, generation=self.spec.generation + 1)
        self.start_ranks(ranks)
        self.events.clear()

    def request(self, ranks: tuple[int, ...] = (), *, joins: bool = False) -> StartRanks:
        """Events of these ranks, or of all."""
        store = self.store
        return StartRanks(
            pool=self.spec,
            master_addr=store.host,
            master_port=store.port,
            ranks=ranks,
            joins=joins,
        )

    def start_ranks(self, ranks: Iterable[int], request: StartRanks | None = None) -> None:
        """Start them and wait until they are ready."""
        self.tell(request or self.request())
        for rank in ranks:
            ready = self.next(RankReady, lambda e, rank=rank: e.rank == rank)  # type: ignore[misc]
            self.pids[rank] = ready.pid

    def tell(self, request: AgentRequest) -> None:
        self._hub.send_to_agent(0, request)

    def tell_ranks(self, ranks: Iterable[int], request: RankRequest) -> None:
        self._hub.send_to_ranks({0: tuple(ranks)}, request)

    def send(self, code: str, *ranks: int) -> str:
        """Send a cell to these ranks."""
        self._runs += 1
        run_id = f"run{self._runs}"
        request = Execute(run_id=run_id, code=code, execution_count=self._runs, first_line=1)
        self.tell_ranks(ranks, request)
        return run_id

    def begin(self, code: str, *ranks: int) -> str:
        """Begin a cell and wait until it has begun on these ranks."""
        run_id = self.send(code, *ranks)
        for rank in ranks:
            self.next(RunStarted, lambda e, rank=rank: e.rank == rank)  # type: ignore[misc]
        return run_id

    def finished(self, *ranks: int) -> list[RunFinished]:
        """Wait for the end of the cell on these ranks."""
        return [
            self.next(RunFinished, lambda e, rank=rank: e.rank == rank)  # type: ignore[misc]
            for rank in ranks
        ]

    def run(self, code: str, *ranks: int) -> None:
        """A whole cell; it must end well."""
        self.begin(code, *ranks)
        for end in self.finished(*ranks):
            assert end.error is None, end.error.evalue

    def next(self, kind: type[T], chosen: Callable[[T], bool] = lambda event: True) -> T:
        """Wait for an event and take it out; those before it stay."""
        give_up_at = time.monotonic() + _PATIENCE_S
        while True:
            for event in self.events:
                if isinstance(event, kind) and chosen(event):
                    self.events.remove(event)
                    return event
                if isinstance(event, StartFailed):
                    pytest.fail("".join(event.error.traceback))
            if time.monotonic() > give_up_at:
                pytest.fail(f"no {kind.__name__}; there are {self.events}\n{self.agent_log()}")
            self.read(0.2)

    def read(self, timeout_s: float = 0.0) -> list[Event]:
        """Wait for events, not longer than ``timeout_s``; gives all that were not taken."""
        self._poller.wait(timeout_s)
        for _, event, _ in self._hub.receive():
            if isinstance(event, RunsStarted | RunsFinished):
                self.events += event.each()
            else:
                self.events.append(event)
        return self.events

    def agent_log(self) -> str:
        return self.agent.last_output()

    def close(self) -> None:
        self.tell(ShutdownAgent(grace_s=0.3))
        give_up_at = time.monotonic() + _PATIENCE_S
        while not self.agent.has_exited() and time.monotonic() < give_up_at:
            self.read(0.02)
        self.agent.kill()
        self.agent.close()
        self._hub.close()
        shutil.rmtree(self.folder, ignore_errors=True)
