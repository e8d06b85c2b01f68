"""The state machine of a pool, with a clock that the test sets."""

from collections.abc import Sequence
from typing import Any

from nbddp.controller.state.actions import (
    Action,
    AnnounceExit,
    AnnounceUp,
    EndRun,
    LifeAction,
    SendToAgent,
)
from nbddp.controller.state.outcome import RunOutcome
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import Phase
from nbddp.controller.state.stimuli import LifeStimulus, RunRequested
from nbddp.settings import Settings
from nbddp.wire.message_types import ErrorInfo, PoolSpec
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AgentHello,
    Execute,
    Interrupt,
    RankExited,
    RankReady,
    RankSpawned,
    RunFinished,
    StoreReady,
)
from nbddp.wire.rank_set import RankSet

SETTINGS = Settings()


def make_spec(n: int = 2, nnodes: int = 1, *, plain: bool = False) -> PoolSpec:
    return PoolSpec(
        pool_id="pool",
        generation=0,
        nproc_per_node=n,
        nnodes=nnodes,
        backend="auto",
        device="auto",
        devices=(),
        init="env",
        init_file="/tmp/init",
        threads=1,
        timeout_s=0.0,
        cwd="/",
        sys_path=(),
        env={},
        use_arena=True,
        plain=plain,
    )


class Pool:
    """Feeds a `PoolMachine` and keeps its actions."""

    def __init__(
        self,
        n: int = 2,
        nnodes: int = 1,
        settings: Settings = SETTINGS,
        *,
        plain: bool = False,
    ) -> None:
        self.now = 100.0
        self.settings = settings
        self.machine = PoolMachine(
            make_spec(n, nnodes, plain=plain), settings, self.now, host="127.0.0.1", port=0
        )
        self._runs = 0

    def feed(self, stimulus: LifeStimulus, after_s: float = 0.0) -> list[LifeAction]:
        self.now += after_s
        return self.machine.handle(stimulus, self.now)

    def phase(self) -> Phase:
        return self.machine.phase

    def active_run_id(self) -> str | None:
        return self.machine.active_run_id

    def states(self) -> str:
        """The states of the ranks, for example ``IDLE BUSY``."""
        return " ".join(info.state.name for info in self.machine.ranks.values())

    # --- stimuli ---------------------------------------------------------------------------------

    def hello(self, node: int = 0) -> list[LifeAction]:
        return self.feed(
            AgentHello(version=PROTOCOL_VERSION, token="t", node=node, pid=1, host="here")
        )

    def store_ready(self) -> list[LifeAction]:
        return self.feed(StoreReady(host="127.0.0.1", port=29500, pid=2))

    def spawned(self, rank: int) -> list[LifeAction]:
        node = rank // self.machine.spec.nproc_per_node
        return self.feed(
            RankSpawned(rank=rank, node=node, pid=1000 + rank, log_path=f"/logs/rank{rank}.log")
        )

    def ready(self, rank: int) -> list[LifeAction]:
        return self.feed(
            RankReady(rank=rank, pid=1000 + rank, local_rank=rank, device="cpu", backend="gloo")
        )

    def exited(self, rank: int, exit_code: int = -9, last_output: str = "") -> list[LifeAction]:
        return self.feed(
            RankExited(
                rank=rank,
                pid=1000 + rank,
                exit_code=exit_code,
                out_of_memory=False,
                last_output=last_output,
            )
        )

    def start(self) -> "Pool":
        """Bring it up."""
        for node in range(self.machine.spec.nnodes):
            self.hello(node)
        self.start_ranks()
        return self

    def start_ranks(self) -> None:
        """Starts the store and all ranks."""
        self.store_ready()
        actions: list[LifeAction] = []
        for rank in self.machine.ranks:
            self.spawned(rank)
            actions = self.ready(rank)
        assert actions == [AnnounceUp()]
        assert self.phase() is Phase.UP

    def run(self, ranks: str = "all", timeout_s: float | None = None) -> str:
        """Begin a cell; gives its id."""
        self._runs += 1
        run_id = f"run{self._runs}"
        chosen = RankSet.parse(ranks, len(self.machine.ranks))
        execute = Execute(run_id=run_id, code="pass", execution_count=1, first_line=1)
        self.feed(RunRequested(execute, chosen, timeout_s))
        return run_id

    def finished(
        self, rank: int, run_id: str, ename: str = "", at_ns: int = 0, **more: Any
    ) -> list[LifeAction]:
        error = ErrorInfo(ename=ename, evalue="", traceback=[]) if ename else None
        return self.feed(
            RunFinished(
                run_id=run_id, rank=rank, elapsed_s=0.5, error=error, failed_at_ns=at_ns, **more
            )
        )


def outcome_in(actions: Sequence[Action]) -> RunOutcome:
    """The end of a cell among actions; there must be one."""
    [outcome] = [action.outcome for action in actions if isinstance(action, EndRun)]
    return outcome


def announced_exits(actions: Sequence[Action]) -> list[int]:
    """The ranks of the actions, which must all announce an exit."""
    assert all(isinstance(action, AnnounceExit) for action in actions)
    return [action.exited.rank for action in actions if isinstance(action, AnnounceExit)]


def interrupted_ranks(actions: Sequence[Action]) -> dict[int, tuple[int, ...]]:
    """The ranks to be interrupted, by node."""
    return {
        action.node: action.request.ranks
        for action in actions
        if isinstance(action, SendToAgent) and isinstance(action.request, Interrupt)
    }


def statuses(outcome: RunOutcome) -> dict[int, str]:
    return {rank: result.status for rank, result in outcome.results.items()}
