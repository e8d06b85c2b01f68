"""What does one hub cost with the agents of many machines?

Simulated agents with 8 ranks each join one real hub thread with the real state machine, over TCP
and CURVE on the loopback. Timed are: the join, from the moment at which all processes are told to
connect until the pool is up; a cell that does nothing, with every message of every rank; a cell
that all ranks but one cannot end, until the deadlock is told and until all are freed. The time of
processors of the hub's process is beside the cell, since the simulated agents need the same
processors.

Misleading would be: agents that answer without encoding each rank's message; looks without the
members of the groups, which are most of their bytes; a network without latency taken for one
(the loopback has none), and, on a machine with few processors, the wall time of a thousand agents.
"""

import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import psutil

from nbddp.controller.diagnosis.analysis import diagnose
from nbddp.controller.hub.hub_thread import HubThread
from nbddp.controller.hub.remote_nodes import RemoteNodes
from nbddp.controller.hub.run import Run
from nbddp.controller.launch import Engine, RemoteAgent
from nbddp.controller.recovery.machine import RecoveryMachine
from nbddp.controller.state import Lobby
from nbddp.controller.state.actions import AnnounceFailure, VerdictReached
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.stimuli import RunRequested
from nbddp.settings import Settings
from nbddp.wire.channels import RemoteHubChannel
from nbddp.wire.messages import Execute
from nbddp.wire.rank_set import RankSet
from tests.bench.common import Report, ms, parser
from tests.bench.simulated_machines import HANG, HANG_RUN, PYTHON
from tests.support.machines import make_spec

_HOST = "127.0.0.1"
_PROCESSES = 2
_LIMIT_S = 300.0
_LIMITS = {512: (15.0, 0.0), 8192: (120.0, 1.5)}  #: ms of hub for a cell, s for a verdict


class NoEngine:
    """The simulated agents come by themselves, and never end."""

    join_timeout_s = None

    def end(self, node: int) -> str:
        return ""


class MachinesPool:
    """A real hub with agents that have no ranks."""

    def __init__(self, folder: Path, nodes: int, per_node: int) -> None:
        self._ranks = RankSet.all(nodes * per_node)
        self._count = 0
        self._settings = Settings(node_timeout_s=_LIMIT_S, silent_after_s=_LIMIT_S)
        self._rss_before = _rss_mb()
        token = secrets.token_hex(16)
        channel = RemoteHubChannel(_HOST)
        spec = make_spec(per_node, nodes)
        machine = PoolMachine(spec, self._settings, time.monotonic(), host="", port=0)
        self._hub = HubThread(
            channel,
            token,
            RecoveryMachine(machine, self._settings, diagnose),
            lambda segment, rank: None,
            RemoteNodes(channel, token, Lobby(nodes, PYTHON), self._settings),
        )
        path = folder / "invitation.json"
        channel.invitation("bench", [_HOST], token).write(path)
        processes = min(_PROCESSES, nodes)
        self._processes = []
        for index in range(processes):
            first, end = index * nodes // processes, (index + 1) * nodes // processes
            numbers = [str(number) for number in (first, end - first, per_node, nodes)]
            command = [sys.executable, "-m", "tests.bench.simulated_machines", str(path), *numbers]
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.readline()
        engine = cast("Engine", NoEngine())
        self._hub.start(remote=[RemoteAgent(node, engine) for node in range(nodes)])
        began = time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        result = self._hub.start_results.get(timeout=_LIMIT_S)
        if isinstance(result, AnnounceFailure):
            raise RuntimeError(result.reason)  # noqa: TRY004 - not a matter of types
        self.join_s = time.perf_counter() - began

    @property
    def more_mb(self) -> float:
        """Memory that this process has taken since before the hub was made."""
        return _rss_mb() - self._rss_before

    def run_cell(self) -> tuple[float, float]:
        """Run a cell on all ranks; give its time, and the time of processors of this process."""
        self._count += 1
        began, used = time.perf_counter(), time.process_time()
        run = self._begin(f"run-{self._count}", "pass\n")
        while run.get(_LIMIT_S) is not None:
            pass
        taken = time.perf_counter() - began, time.process_time() - used
        if run.outcome is None or run.outcome.ranks("ok") != self._ranks:
            raise RuntimeError("not all ranks have answered")
        return taken

    def hang(self) -> tuple[float, float]:
        """Let all ranks but one wait; give the times until that is told and until all are free."""
        began = time.perf_counter()
        told_s = 0.0
        run = self._begin(HANG_RUN, HANG)
        while (event := run.get(_LIMIT_S)) is not None:
            if isinstance(event, VerdictReached):
                told_s = told_s or time.perf_counter() - began
        freed_s = time.perf_counter() - began
        if run.outcome is None or not told_s or len(run.outcome.ranks("ok")) != 1:
            raise RuntimeError("the deadlock was not found")
        return told_s, freed_s

    def _begin(self, run_id: str, code: str) -> Run:
        run = Run(run_id, self._ranks, self._settings.output_backlog_bytes)
        execute = Execute(run_id=run_id, code=code, execution_count=1, first_line=1)
        refusal = self._hub.begin(run, RunRequested(execute, self._ranks))
        if refusal is not None:
            raise RuntimeError(refusal)
        return run

    def stop(self) -> None:
        self._hub.shut_down(grace_s=0.1)
        for process in self._processes:
            process.communicate(timeout=60)
        self._hub.join(5)


def _rss_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


def measure(report: Report, nodes: int, per_node: int, rounds: int, pools: int) -> None:
    """So many pools, and so many cells in each of them."""
    joins: list[float] = []
    memory: list[float] = []
    after: list[float] = []
    cells: list[tuple[float, float]] = []
    hangs: list[tuple[float, float]] = []
    for _ in range(pools):
        with tempfile.TemporaryDirectory(prefix="nbddp-") as folder:
            pool = MachinesPool(Path(folder), nodes, per_node)
            try:
                joins.append(pool.join_s)
                cells += [pool.run_cell() for _ in range(rounds + 1)][1:]
                memory.append(pool.more_mb)
                hangs.append(pool.hang())
                after.append(pool.more_mb)
            finally:
                pool.stop()
    total = nodes * per_node
    name = f"{total} ranks, {nodes} agents"
    report.add(f"join, {name}", "s", joins)
    report.add(f"one cell, {name}", "ms", ms([wall for wall, _ in cells]))
    hub = report.add(f"processor time of the hub, {name}", "ms", ms([cpu for _, cpu in cells]))
    told = report.add(f"a deadlock of one rank is told, {name}", "s", [t for t, _ in hangs])
    report.add(f"and all are freed, {name}", "s", [freed for _, freed in hangs])
    kept = report.add(f"more memory of the hub's process, {name}", "MB", memory)
    report.add(f"and after the deadlock, {name}", "MB", after)
    if total in _LIMITS:
        cell_ms, verdict_s = _LIMITS[total]
        report.at_most(f"hub time of a cell, {name}", hub.median, "ms", cell_ms)
        report.at_most(f"more memory, {name}", kept.median, "MB", 150)
        if verdict_s:
            report.at_most(f"verdict, {name}", told.median, "s", verdict_s)


def main() -> None:
    arguments = parser(__doc__, rounds=10, warmup=1)
    arguments.add_argument("--nodes", type=int, nargs="+", default=[64], help="simulated agents")
    arguments.add_argument("--per-node", type=int, default=8, help="simulated ranks of each")
    arguments.add_argument("--pools", type=int, default=3, help="pools, one after another")
    chosen = arguments.parse_args()
    report = Report("machines")
    for nodes in chosen.nodes:
        measure(report, nodes, chosen.per_node, chosen.n, chosen.pools)
    report.show()


if __name__ == "__main__":
    main()
