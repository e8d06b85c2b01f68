"""The recovery of a pool, with a clock that the test sets and ranks that answer on demand."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from nbddp.controller.diagnosis.report import Finding, Kind, Report
from nbddp.controller.recovery.machine import RecoveryMachine
from nbddp.controller.recovery.probes import Views
from nbddp.controller.state.actions import (
    Action,
    AnnounceUp,
    EndRun,
    NoticeChanged,
    SendToAgent,
    SendToRanks,
    VerdictReached,
)
from nbddp.controller.state.config import Config
from nbddp.controller.state.outcome import RunOutcome
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.stimuli import Configured, RanksAnswered, RunRequested, Stimulus, Tick
from nbddp.settings import Settings
from nbddp.wire.flight_recorder.schema import (
    GroupInfo,
    GroupMark,
    Mismatch,
    RankLook,
    Site,
    ThreadLook,
    Wait,
)
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AbortOperations,
    AgentHello,
    DescribeRank,
    DumpStack,
    Execute,
    GroupsRebuilt,
    OperationsAborted,
    RankDescribed,
    RankExited,
    RankReady,
    RankSpawned,
    RanksStalled,
    RebuildGroups,
    RunFinished,
    StackDumped,
    StartRanks,
    StoreReady,
)
from nbddp.wire.rank_set import RankSet
from tests.support.looks import brief
from tests.support.machines import make_spec

WORLD = "0@world"

T = TypeVar("T")


def world(n: int, seq: int = 0) -> GroupInfo:
    """The default group of ``n`` ranks."""
    return GroupInfo.of(
        pg_id=WORLD,
        name="0",
        desc="default_pg",
        ranks=tuple(range(n)),
        backend="gloo",
        collective_seq_id=seq,
    )


def finding(kind: Kind = "missing-rank", proven: bool = True, **more: Any) -> Finding:
    values: dict[str, Any] = {
        "culprits": RankSet.of([1]),
        "waiting": RankSet.of([0]),
        "headline": "rank 0 waits for rank 1",
        "reason": "it is.",
        "next_step": "fix the cell",
    }
    return Finding(kind=kind, proven=proven, **(values | more))


def verdict(
    stuck: Iterable[int] = (0,),
    involved: Iterable[int] = (0, 1),
    kind: Kind = "missing-rank",
    pg_ids: tuple[str, ...] = (WORLD,),
    **more: Any,
) -> Report:
    """A report that proves something."""
    return Report(
        run_id="run1",
        findings=(finding(kind),),
        stuck=RankSet.of(stuck),
        involved=RankSet.of(involved),
        pg_ids=pg_ids,
        **more,
    )


def notice() -> Report:
    return Report(run_id="run1", findings=(finding("straggler", proven=False),))


NOTHING = Report(run_id="run1")


def seen(
    rank: int,
    version: int = 1,
    *,
    is_running: bool = True,
    waits: bool = True,
    groups: tuple[GroupInfo, ...] = (),
    **more: Any,
) -> RankLook:
    """The description of a rank by itself."""
    wait = Wait(kind="operation", record_ids=(1,), since_ns=0) if waits else None
    more.setdefault("group_count", 1)
    return RankLook(
        rank=rank,
        pid=1000 + rank,
        activity="running" if is_running else "idle",
        version=version,
        time_ns=0,
        threads=(ThreadLook(name="MainThread", is_main=True, wait=wait),),
        groups=groups,
        **more,
    )


class Pool:
    """Feeds a `RecoveryMachine`, keeps its actions, and answers for its ranks.

    `report` is what the next diagnoses say. `looks` are the ranks' answers: those without one are
    silent.
    """

    def __init__(
        self,
        n: int = 3,
        nnodes: int = 1,
        settings: Settings | None = None,
        *,
        plain: bool = False,
    ) -> None:
        self.now = 100.0
        self.n = n * nnodes
        self.settings = settings or Settings()
        self.report = NOTHING
        self.views: list[Views] = []  # as they were diagnosed
        self.looks: dict[int, RankLook] = {rank: self.idle(rank) for rank in range(self.n)}
        spec = make_spec(n, nnodes, plain=plain)
        life = PoolMachine(spec, self.settings, self.now, host="127.0.0.1", port=0)
        self.machine = RecoveryMachine(life, self.settings, self._diagnose)
        self.done: list[Action] = []
        self._runs = 0
        for node in range(nnodes):
            self.feed(
                AgentHello(version=PROTOCOL_VERSION, token="t", node=node, pid=1, host="here")
            )
        self.feed(StoreReady(host="127.0.0.1", port=29500, pid=2))
        for rank in range(self.n):
            self.spawned(rank)
            last = self.ready(rank)
        assert last == [AnnounceUp()]
        self.done.clear()

    def idle(self, rank: int, **more: Any) -> RankLook:
        return seen(rank, is_running=False, waits=False, groups=(world(self.n),), **more)

    def _diagnose(self, views: Views, /, *, now_ns: int, run_id: str) -> Report:
        assert now_ns == int(self.now * 1e9)
        self.views.append(views)
        return self.report

    # --- time and stimuli ------------------------------------------------------------------------

    def feed(self, stimulus: Stimulus, after_s: float = 0.0) -> list[Action]:
        """Feed a stimulus; no rank answers."""
        self.now += after_s
        actions = self.machine.handle(stimulus, self.now)
        self.done += actions
        return actions

    def active(self) -> str | None:
        return self.machine.active_run_id

    def is_rebuilding(self) -> bool:
        return self.machine.is_rebuilding

    def tick(self, after_s: float = 0.0) -> list[Action]:
        return self.feed(Tick(), after_s)

    def put_off_answers(self, busy_s: float) -> None:
        """The hub was busy: answers are waited for so much longer."""
        self.machine.put_off(busy_s)

    def spawned(self, rank: int, pid: int | None = None) -> list[Action]:
        node = self.machine.pool.ranks[rank].node
        pid = 1000 + rank if pid is None else pid
        return self.feed(RankSpawned(rank=rank, node=node, pid=pid, log_path=f"/logs/{rank}"))

    def ready(self, rank: int) -> list[Action]:
        return self.feed(
            RankReady(rank=rank, pid=1000 + rank, local_rank=rank, device="cpu", backend="gloo")
        )

    def exited(self, rank: int, exit_code: int = -9, **more: Any) -> list[Action]:
        return self.feed(
            RankExited(
                rank=rank,
                pid=1000 + rank,
                exit_code=exit_code,
                out_of_memory=False,
                last_output="",
                **more,
            )
        )

    def run(self, ranks: str = "all", timeout_s: float | None = None) -> str:
        self._runs += 1
        run_id = f"run{self._runs}"
        chosen = RankSet.parse(ranks, self.n)
        execute = Execute(run_id=run_id, code="pass", execution_count=1, first_line=1)
        self.feed(RunRequested(execute, chosen, timeout_s))
        return run_id

    def finished(
        self,
        rank: int,
        run_id: str,
        ename: str = "",
        *,
        was_freed: bool = False,
        marks: tuple[GroupMark, ...] = (),
        mismatches: tuple[Mismatch, ...] = (),
        site: Site | None = None,
    ) -> list[Action]:
        error = ErrorInfo(ename=ename, evalue="", traceback=[], site=site) if ename else None
        return self.feed(
            RunFinished(
                run_id=run_id,
                rank=rank,
                elapsed_s=0.5,
                error=error,
                was_freed=was_freed,
                marks=marks,
                mismatches=mismatches,
            )
        )

    def quiet(self, *ranks: int, after_s: float = 0.0, node: int = 0) -> list[Action]:
        return self.feed(RanksStalled(node=node, ranks=ranks), after_s)

    def configure(self, **changes: Any) -> None:
        self.feed(Configured(Config(**changes)))

    # --- answers ---------------------------------------------------------------------------------

    def answer_looks(
        self, actions: Sequence[Action], ranks: Iterable[int] | None = None
    ) -> list[Action]:
        """Ranks answer a `DescribeRank`; all of them or some."""
        [(asked, look)] = requests(actions, DescribeRank)
        new_actions: list[Action] = []
        for rank in asked if ranks is None else ranks:
            if rank in self.looks:
                new_actions += self.described(look.number, rank, is_brief=look.is_brief)
        return new_actions

    def described(self, number: int, rank: int, *, is_brief: bool = False) -> list[Action]:
        """A rank answers a `DescribeRank`."""
        look = brief(self.looks[rank]) if is_brief else self.looks[rank]
        answer = RankDescribed(number=number, rank=rank, look=look)
        return self.feed(RanksAnswered((answer,)))

    def answer_peeks(self, actions: Sequence[Action]) -> list[Action]:
        new_actions: list[Action] = []
        for _, peek in agent_requests(actions, DumpStack):
            for rank in peek.ranks:
                dumped = StackDumped(
                    number=peek.number, rank=rank, version=1, operations=(), stack="stack"
                )
                new_actions += self.feed(RanksAnswered((dumped,)))
        return new_actions

    def answer_free(
        self,
        actions: Sequence[Action],
        ranks: Iterable[int] | None = None,
        pg_ids: tuple[str, ...] | None = None,
        stuck: Mapping[int, str] | None = None,
    ) -> list[Action]:
        """Ranks answer an `AbortOperations`; all of them or some."""
        [(asked, free)] = requests(actions, AbortOperations)
        new_actions: list[Action] = []
        for rank in asked if ranks is None else ranks:
            aborted = OperationsAborted(
                number=free.number,
                rank=rank,
                phase=free.phase,
                pg_ids=free.pg_ids if pg_ids is None else pg_ids,
                stuck=(stuck or {}).get(rank, ""),
            )
            new_actions += self.feed(RanksAnswered((aborted,)))
        return new_actions

    def answer_reform(
        self, actions: Sequence[Action], errors: Mapping[int, str] | None = None
    ) -> list[Action]:
        [(asked, reform)] = requests(actions, RebuildGroups)
        new_actions: list[Action] = []
        for rank in asked:
            text = (errors or {}).get(rank)
            error = ErrorInfo(ename="RuntimeError", evalue=text, traceback=[]) if text else None
            new_actions += self.feed(GroupsRebuilt(number=reform.number, rank=rank, error=error))
        return new_actions

    def start_fresh(self, actions: Sequence[Action]) -> list[Action]:
        """The requested fresh ranks start."""
        new_actions: list[Action] = []
        for _, start in agent_requests(actions, StartRanks):
            assert start.joins
            for rank in start.ranks:
                self.spawned(rank)
                new_actions += self.ready(rank)
        return new_actions


# --- what is in actions --------------------------------------------------------------------------


def requests(actions: Sequence[Action], kind: type[T]) -> list[tuple[tuple[int, ...], T]]:
    """Requests of one type to ranks, with these ranks."""
    return [
        (action.ranks.ranks, action.request)
        for action in actions
        if isinstance(action, SendToRanks) and isinstance(action.request, kind)
    ]


def agent_requests(actions: Sequence[Action], kind: type[T]) -> list[tuple[int, T]]:
    """Requests of one type to agents, with their nodes."""
    return [
        (action.node, action.request)
        for action in actions
        if isinstance(action, SendToAgent) and isinstance(action.request, kind)
    ]


def of_type(actions: Sequence[Action], kind: type[T]) -> list[T]:
    return [action for action in actions if isinstance(action, kind)]


def kinds(actions: Sequence[Action]) -> list[str]:
    """Actions as short texts: ``DescribeRank 0-2``, ``VerdictReached``."""
    names = []
    for action in actions:
        match action:
            case SendToRanks():
                request = action.request
                phase = f" {request.phase}" if isinstance(request, AbortOperations) else ""
                names.append(f"{type(request).__name__}{phase} {action.ranks}")
            case SendToAgent():
                ranks = getattr(action.request, "ranks", ())
                names.append(f"{type(action.request).__name__} {RankSet.of(ranks)}".strip())
            case NoticeChanged():
                names.append("NoticeChanged" if action.report else "NoticeChanged nothing")
            case VerdictReached():
                names.append("VerdictReached" if action.acted else "VerdictReached only")
            case _:
                names.append(type(action).__name__)
    return names


def outcome_of(actions: Sequence[Action]) -> RunOutcome:
    [end] = of_type(actions, EndRun)
    return end.outcome


def statuses(outcome: RunOutcome) -> dict[int, str]:
    return {rank: result.status for rank, result in outcome.results.items()}
