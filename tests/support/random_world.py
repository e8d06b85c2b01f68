"""Agents and ranks that answer in any order, late, never, or die: for property tests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nbddp.controller.diagnosis.report import Report
from nbddp.controller.recovery.machine import RecoveryMachine
from nbddp.controller.recovery.probes import Views
from nbddp.controller.state.actions import (
    Action,
    Diagnosed,
    EndRun,
    RanksRestarted,
    SendToAgent,
    SendToRanks,
)
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import Phase, RankState
from nbddp.controller.state.stimuli import AgentExited, RanksAnswered, RunRequested, Stimulus, Tick
from nbddp.settings import Settings
from nbddp.wire.flight_recorder.schema import GroupMark
from nbddp.wire.message_types import AgentEnd, ErrorInfo
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AbortOperations,
    AgentHello,
    DescribeRank,
    DumpStack,
    Execute,
    GroupsRebuilt,
    KillRanks,
    OperationsAborted,
    RankDescribed,
    RankExited,
    RankReady,
    RankSpawned,
    RanksStalled,
    RanksStopped,
    RebuildGroups,
    RunFinished,
    StackDumped,
    StartFailed,
    StartRanks,
    StartStore,
    StopRanks,
    StoreReady,
)
from nbddp.wire.rank_set import RankSet
from tests.support.machines import make_spec
from tests.support.recovering import NOTHING, WORLD, seen, world

_BY_AGENTS = ("spawn", "kill", "stop", "store")
ERROR = ErrorInfo(ename="RuntimeError", evalue="no", traceback=[])


@dataclass
class Process:
    """A rank's process."""

    pid: int
    is_ready: bool = False
    run_id: str = ""
    version: int = 0


@dataclass(frozen=True, eq=False)
class Due:
    """Something that an agent or a rank will do."""

    what: str
    rank: int  #: whose process must live for it; -1: no process
    node: int
    do: Callable[[], None]
    fail: Callable[[], None] | None = None  #: how it may go wrong instead


class World:
    """A `RecoveryMachine` and everything around it."""

    def __init__(self, n: int, nnodes: int) -> None:
        self.now = 0.0
        self.n, self.per_node = n * nnodes, n
        self.report: Report = NOTHING
        self.processes: dict[int, Process] = {}
        self.agents = set(range(nnodes))
        self.due: list[Due] = []
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.asked: set[int] = set()
        self.answered: list[int] = []
        self._pids = iter(range(1000, 1_000_000))
        settings = Settings()
        life = PoolMachine(make_spec(n, nnodes), settings, 0.0, host="127.0.0.1", port=0)
        self.machine = RecoveryMachine(life, settings, self._diagnose)
        for node in self.agents:
            self.feed(
                AgentHello(version=PROTOCOL_VERSION, token="t", node=node, pid=1, host="here")
            )
        self.drain()
        assert self.pool.phase is Phase.UP

    @property
    def pool(self) -> PoolMachine:
        return self.machine.pool

    def _diagnose(self, views: Views, /, *, now_ns: int, run_id: str) -> Report:
        return self.report

    # --- what happens ----------------------------------------------------------------------------

    def take(self, index: int) -> Due:
        """Does an action that is due; an agent does its requests in order."""
        due = self.due[index]
        if due.what in _BY_AGENTS:
            due = next(
                each for each in self.due if each.node == due.node and each.what in _BY_AGENTS
            )
        self.due.remove(due)
        return due

    def feed(self, stimulus: Stimulus) -> None:
        for action in self.machine.handle(stimulus, self.now):
            self._do(action)

    def tick(self, after_s: float) -> None:
        self.now += after_s
        self.feed(Tick())

    def begin(self, ranks: RankSet) -> bool:
        if self.machine.is_rebuilding or self.machine.refusal(ranks) is not None:
            return False
        run_id = f"run{len(self.begun) + 1}"
        self.begun.append(run_id)
        execute = Execute(run_id=run_id, code="", execution_count=1, first_line=1)
        self.feed(RunRequested(execute, ranks))
        return True

    def finish(self, rank: int, end: Literal["ok", "error", "freed"]) -> None:
        process = self.processes.get(rank)
        if process is None or not process.run_id:
            return
        run_id, process.run_id = process.run_id, ""
        process.version += 1
        mark = GroupMark(pg_id=WORLD, collective_seq_id=1, digest=1, is_broken=end == "freed")
        self.feed(
            RunFinished(
                run_id=run_id,
                rank=rank,
                elapsed_s=1.0,
                error=None if end == "ok" else ERROR,
                was_freed=end == "freed",
                marks=(mark,),
            )
        )

    def stick(self, report: Report) -> None:
        """Ranks get stuck, and each reports it twice."""
        self.report = report
        self.feed(RanksStalled(node=0, ranks=report.stuck.ranks))
        for _ in range(2):
            self.tick(0.2)
            looks = [each for each in self.due if each.what == "look"]
            self.due = [each for each in self.due if each.what != "look"]
            for look in looks:
                look.do()

    def exit(self, rank: int) -> None:
        process = self.processes.pop(rank, None)
        if process is None:
            return
        self.due = [each for each in self.due if each.rank != rank]
        self.feed(
            RankExited(
                rank=rank, pid=process.pid, exit_code=-9, out_of_memory=False, last_output=""
            )
        )

    def lose_agent(self, node: int) -> None:
        if node not in self.agents:
            return
        self.agents.discard(node)
        self.due = [each for each in self.due if each.node != node]
        for rank in list(self.processes):
            if rank // self.per_node == node:
                del self.processes[rank]
        self.feed(AgentExited(node, AgentEnd("exited", -9), ""))

    def drain(self) -> None:
        """Every request gets a good answer, all cells end, and time passes."""
        for _ in range(200):
            while self.due:
                self.due.pop(0).do()
            for rank, process in list(self.processes.items()):
                if process.run_id:
                    self.finish(rank, "ok")
            if not self.due and self.is_quiet():
                return
            self.tick(1.0)
        raise AssertionError("it does not come to rest")

    def is_quiet(self) -> bool:
        return (
            self.machine.active_run_id is None
            and not self.machine.is_rebuilding
            and self.machine.next_deadline() is None
        )

    # --- agents and ranks ------------------------------------------------------------------------

    def _add(
        self,
        what: str,
        rank: int,
        do: Callable[[], None],
        fail: Callable[[], None] | None = None,
        node: int | None = None,
    ) -> None:
        node = rank // self.per_node if node is None else node
        if node in self.agents:
            self.due.append(Due(what, rank, node, do, fail))

    def _do(self, action: Action) -> None:
        match action:
            case SendToRanks():
                for rank in action.ranks:
                    process = self.processes.get(rank)
                    if process is not None:
                        self._ask_rank(rank, process, action)
            case SendToAgent():
                self._ask_agent(action)
            case EndRun():
                self.ended.append(action.outcome.run_id)
                assert sorted(action.outcome.results) == list(action.outcome.results)
            case Diagnosed() | RanksRestarted():
                self.answered.append(action.number)
            case _:
                pass

    def _ask_rank(self, rank: int, process: Process, told: SendToRanks) -> None:
        match request := told.request:
            case Execute():
                assert not process.run_id
                assert process.is_ready
                process.run_id = request.run_id
                process.version += 1
            case DescribeRank():
                self._add("look", rank, lambda: self._look(rank, request.number))
            case AbortOperations():
                freed = OperationsAborted(
                    number=request.number, rank=rank, phase=request.phase, pg_ids=request.pg_ids
                )
                self._add("freed", rank, lambda: self.feed(RanksAnswered((freed,))))
            case RebuildGroups():
                good = GroupsRebuilt(number=request.number, rank=rank)
                bad = GroupsRebuilt(number=request.number, rank=rank, error=ERROR)
                self._add("reformed", rank, lambda: self.feed(good), lambda: self.feed(bad))
            case _:
                raise AssertionError(request)

    def _look(self, rank: int, number: int) -> None:
        process = self.processes[rank]
        look = seen(rank, process.version, is_running=bool(process.run_id), groups=(world(self.n),))
        described = RankDescribed(number=number, rank=rank, look=look)
        self.feed(RanksAnswered((described,)))

    def _ask_agent(self, told: SendToAgent) -> None:
        node = told.node
        on_node = range(node * self.per_node, (node + 1) * self.per_node)
        match request := told.request:
            case StartStore():
                ready = StoreReady(host="127.0.0.1", port=1, pid=1)
                self._add("store", -1, lambda: self.feed(ready), node=node)
            case StartRanks():
                for rank in request.ranks or on_node:
                    assert rank not in self.processes
                    self._add("spawn", -1, *self._starts(rank, node), node=node)
            case KillRanks():
                for rank in request.ranks:
                    self._add("kill", rank, lambda rank=rank: self.exit(rank))  # type: ignore[misc]  # mypy cannot type a lambda with a default
            case DumpStack():
                for rank in request.ranks:
                    dumped = StackDumped(
                        number=request.number, rank=rank, version=0, operations=(), stack=""
                    )
                    peeked = RanksAnswered((dumped,))
                    self._add("peek", rank, lambda peeked=peeked: self.feed(peeked))  # type: ignore[misc]  # as above
            case StopRanks():
                self._add("stop", -1, lambda: self._stop(node, list(on_node)), node=node)
            case _:
                pass  # an interrupt: the ranks end when they like

    def _starts(self, rank: int, node: int) -> tuple[Callable[[], None], Callable[[], None]]:
        def spawn() -> None:
            if rank in self.processes:
                return
            pid = next(self._pids)
            self.processes[rank] = Process(pid)
            self._add("ready", rank, lambda: self._ready(rank), lambda: self.exit(rank))
            self.feed(RankSpawned(rank=rank, node=node, pid=pid, log_path=""))

        def fail() -> None:
            self.feed(StartFailed(node=node, rank=rank, error=ERROR))

        return spawn, fail

    def _ready(self, rank: int) -> None:
        process = self.processes[rank]
        process.is_ready = True
        ready = RankReady(rank=rank, pid=process.pid, local_rank=0, device="cpu", backend="gloo")
        self.feed(ready)

    def _stop(self, node: int, ranks: list[int]) -> None:
        self.due = [each for each in self.due if not (each.node == node and each.what == "spawn")]
        for rank in ranks:
            self.exit(rank)
        self.feed(RanksStopped(node=node))

    def states(self) -> set[RankState]:
        return {info.state for info in self.pool.ranks.values()}
