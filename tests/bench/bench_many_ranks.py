"""What do many ranks cost: on one machine, and on one hub?

Real: 32 ranks on this machine, from nothing to the first ``pass`` on all of them, then ``pass`` in
a living pool, and the memory of all. Simulated: 64 agents with 8 ranks each connect to one real hub
thread with the real state machine; timed is one cell, from `HubThread.begin` to the end of its run,
with every message of every rank encoded, sent, decoded and handled. Beside it: the same messages
decoded and handled without sockets, which is the part that only our own code can make faster.

Misleading would be: agents that answer for all of their ranks by themselves (real ones pass on what
each rank says; what comes at the same time travels in one message, here the eight beginnings and
the eight ends of a node. Ranks that are slow one after the other need more messages), an echo that
the hub does not decode, or simulated agents that share the hub's interpreter lock (so they live in
processes of their own; on a machine with few processors they still take time from the hub).
"""

import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import nbddp
from nbddp.controller.diagnosis.analysis import diagnose
from nbddp.controller.hub.hub_thread import HubThread
from nbddp.controller.hub.run import Run
from nbddp.controller.launch.local import LocalAgent
from nbddp.controller.recovery.machine import RecoveryMachine
from nbddp.controller.state.actions import AnnounceFailure
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.stimuli import RunRequested
from nbddp.settings import Settings
from nbddp.wire import codec, messages
from nbddp.wire.channels import HubChannel, ipc_address
from nbddp.wire.message_types import AgentEnd, PoolSpec
from nbddp.wire.messages import Execute, RankReady, RunFinished, RunStarted
from nbddp.wire.rank_set import RankSet
from tests.bench import common
from tests.bench.common import Report, interleaved, ms, parser, timed
from tests.support.machines import make_spec

_PROCESSES = 4


class SimulatedNode:
    """The part of `LocalAgent` that the hub uses; one process serves several of them."""

    exit_fd = -1

    def __init__(self, node: int, process: "subprocess.Popen[bytes]") -> None:
        self.node = node
        self.pid = process.pid
        self._process = process

    def has_exited(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> AgentEnd:
        return AgentEnd("exited", self._process.returncode)

    def last_output(self) -> str:
        return ""

    def kill_ranks(self, pids: object) -> None:
        pass


class SimulatedPool:
    """A real hub with agents that have no ranks."""

    def __init__(self, folder: Path, nodes: int, per_node: int) -> None:
        self._ranks = RankSet.all(nodes * per_node)
        self._numbers = iter(range(1_000_000))
        token = secrets.token_hex(16)
        path = folder / "hub.sock"
        self.spec = make_spec(per_node, nodes)
        self._settings = Settings()
        machine = PoolMachine(self.spec, self._settings, time.monotonic(), host="simulated", port=0)
        recovery = RecoveryMachine(machine, self._settings, diagnose)
        self._hub = HubThread(
            HubChannel(path, token, nodes), token, recovery, lambda segment, rank: None
        )
        processes = min(_PROCESSES, nodes)
        self._processes: list[subprocess.Popen[bytes]] = []
        agents: list[SimulatedNode] = []
        for index in range(processes):
            first, end = index * nodes // processes, (index + 1) * nodes // processes
            command = [sys.executable, "-m", "tests.bench.simulated_agents", ipc_address(path)]
            numbers = [str(number) for number in (first, end - first, per_node)]
            process = subprocess.Popen([*command, token, *numbers])
            self._processes.append(process)
            agents += [SimulatedNode(node, process) for node in range(first, end)]
        self._hub.start(cast("list[LocalAgent]", agents))
        result = self._hub.start_results.get(timeout=30)
        if isinstance(result, AnnounceFailure):
            raise RuntimeError(result.reason)  # noqa: TRY004 - not a matter of types

    def run_cell(self) -> None:
        """Broadcast a cell and gather how it ended on each rank."""
        run = Run(f"run-{next(self._numbers)}", self._ranks, self._settings.output_backlog_bytes)
        refusal = self._hub.begin(run, RunRequested(execute(run.run_id), self._ranks))
        if refusal is not None:
            raise RuntimeError(refusal)
        while run.get(timeout_s=30) is not None:
            pass
        assert run.outcome is not None
        if run.outcome.ranks("ok") != self._ranks:
            raise RuntimeError("not all ranks have answered")

    def stop(self) -> None:
        self._hub.shut_down(grace_s=0.1)
        for process in self._processes:
            process.wait(timeout=10)
        self._hub.join(2)


def without_sockets(spec: PoolSpec) -> Callable[[], None]:
    """The same messages, decoded and handled in the calling thread."""
    ranks = RankSet.all(spec.world_size)
    machine = PoolMachine(spec, Settings(), time.monotonic(), host="simulated", port=0)
    for node in range(spec.nnodes):
        hello = messages.AgentHello(version=1, token="", node=node, pid=1, host="simulated")
        machine.handle(hello, 0.0)
    machine.handle(messages.StoreReady(host="simulated", port=1, pid=1), 0.0)
    for rank in ranks:
        ready = RankReady(rank=rank, pid=1, local_rank=0, device="cpu", backend="gloo")
        machine.handle(ready, 0.0)
    events: list[messages.Event] = [RunStarted(run_id="run", rank=rank) for rank in ranks]
    events += [RunFinished(run_id="run", rank=r, elapsed_s=0.0, error=None) for r in ranks]
    payloads = [codec.encode(event) for event in events]

    def work() -> None:
        machine.handle(RunRequested(execute("run"), ranks), 0.0)
        for payload in payloads:
            event = codec.decode_event(payload)
            assert isinstance(event, RunStarted | RunFinished)
            machine.handle(event, 0.0)
        if machine.active_run_id is not None:
            raise RuntimeError("the cell has not ended")

    return work


def execute(run_id: str) -> Execute:
    """``pass``."""
    return Execute(run_id=run_id, code="pass\n", execution_count=1, first_line=1)


def measure_real(report: Report, ranks: int, rounds: int) -> None:
    """Ranks on this machine."""
    starts: list[float] = []
    passes: list[float] = []
    memory: list[float] = []
    stops: list[float] = []
    for _ in range(max(1, min(3, rounds))):
        began = time.perf_counter()
        pool = nbddp.start(ranks)
        pool.run("pass")
        starts.append(time.perf_counter() - began)
        run = partial(pool.run, "pass")
        passes += interleaved({"pass": timed(run)}, rounds, warmup=1)["pass"]
        memory.append(common.pss_bytes(common.descendants()) / 1e6)
        stops.append(timed(pool.stop)())
    report.add(f"start to first pass, {ranks} real ranks", "s", starts)
    report.add(f"pass, {ranks} real ranks", "ms", ms(passes))
    report.add(f"PSS of {ranks} real ranks and all behind them", "MB", memory)
    report.add(f"stop, {ranks} real ranks", "s", stops)


def measure_simulated(report: Report, nodes: int, per_node: int, rounds: int, warmup: int) -> None:
    """Ranks that answer at once."""
    total = nodes * per_node
    with tempfile.TemporaryDirectory(prefix="nbddp-") as folder:
        pool = SimulatedPool(Path(folder), nodes, per_node)
        try:
            samples = interleaved(
                {
                    "hub": timed(pool.run_cell),
                    "alone": timed(without_sockets(pool.spec)),
                },
                rounds,
                warmup,
            )
        finally:
            pool.stop()
    name = f"{total} simulated ranks, {nodes} agents"
    cell = report.add(f"one cell, {name}", "ms", ms(samples["hub"]))
    report.add("its messages without sockets", "ms", ms(samples["alone"]))
    report.at_most(f"broadcast + gather, {name}", cell.median, "ms", 15)


def main() -> None:
    arguments = parser(__doc__, rounds=50, warmup=10)
    arguments.add_argument("--ranks", type=int, default=32, help="real ranks")
    arguments.add_argument("--nodes", type=int, default=64, help="simulated agents")
    arguments.add_argument("--per-node", type=int, default=8, help="simulated ranks of each")
    chosen = arguments.parse_args()
    report = Report("many ranks")
    measure_simulated(report, chosen.nodes, chosen.per_node, chosen.n, chosen.warmup)
    measure_real(report, chosen.ranks, chosen.n)
    report.show()


if __name__ == "__main__":
    main()
