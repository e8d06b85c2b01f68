"""The words of a pool's life: states, stimuli, actions, outcomes.

Runs in: the notebook's process. Pure; `lifecycle` and `recovery`, beside it, move between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Literal, TypeAlias, get_args

from nbddp.controller.history import RankView
from nbddp.controller.report import Report
from nbddp.wire.messages import (
    AgentHello,
    AgentRequest,
    Execute,
    Freed,
    InputRequest,
    Looked,
    OnMismatch,
    Peeked,
    Quiet,
    RankExited,
    RankReady,
    RankRequest,
    RankSpawned,
    RanksStopped,
    Reformed,
    RunFinished,
    RunStarted,
    StartFailed,
    StoreExited,
    StoreReady,
)
from nbddp.wire.observed import GroupMark, Mismatch, RankLook
from nbddp.wire.parts import ErrorInfo
from nbddp.wire.ranks import Rank, RankSet

NO_RANKS = RankSet()


class RankState(Enum):
    """Where a rank is in its life."""

    ABSENT = auto()  #: no process
    STARTING = auto()  #: its process exists, or is being made
    IDLE = auto()  #: waits for a cell
    BUSY = auto()  #: runs a cell
    EXITED = auto()  #: its process has ended


LEGAL_MOVES: frozenset[tuple[RankState, RankState]] = frozenset(
    {
        (RankState.ABSENT, RankState.STARTING),
        (RankState.STARTING, RankState.IDLE),
        (RankState.STARTING, RankState.EXITED),
        (RankState.IDLE, RankState.BUSY),
        (RankState.IDLE, RankState.EXITED),
        (RankState.BUSY, RankState.IDLE),
        (RankState.BUSY, RankState.EXITED),
        (RankState.EXITED, RankState.STARTING),
        (RankState.EXITED, RankState.EXITED),  # its agent is lost as well
    }
)


class Phase(Enum):
    """What the pool as a whole is doing."""

    AGENTS = auto()  #: waits for the agents' first words
    STORE = auto()  #: waits for the store
    RANKS = auto()  #: waits for the ranks to be ready
    UP = auto()  #: takes cells
    STOPPING = auto()  #: ends ranks and store, to start new ones
    FAILED = auto()  #: could not start; everything is to be ended


#: What became of the process whose place another one took.
Replaced: TypeAlias = Literal["", "exited", "restarted"]


@dataclass
class RankInfo:
    """What is known of one rank."""

    rank: Rank
    node: int
    state: RankState = RankState.ABSENT
    pid: int = 0
    log_path: str = ""
    device: str = ""
    backend: str = ""
    note: str = ""
    run_id: str | None = None  #: of the cell it is in
    exited: RankExited | None = None
    is_unwanted: bool = False  #: the user wants another process in the place of this one
    replaced: Replaced = ""  #: of its predecessor, until its own first cell is over
    story: list[str] = field(default_factory=list)


RankStatus: TypeAlias = Literal["ok", "error", "exited", "unfinished"]


@dataclass(frozen=True)
class RankResult:
    """How a cell ended on one rank."""

    rank: Rank
    status: RankStatus
    elapsed_s: float = 0.0
    error: ErrorInfo | None = None
    failed_at_ns: int = 0
    exited: RankExited | None = None
    was_freed: bool = False  #: ``error`` came about because nbddp ended an operation
    mismatches: tuple[Mismatch, ...] = ()  #: seen by this rank, raised or not
    marks: tuple[GroupMark, ...] = ()
    torn: tuple[str, ...] = ()  #: operations whose tensors may hold partial results
    group_count: int = 0  #: torch's number for the next group
    stuck: str = ""  #: why a blocked operation could not be ended


@dataclass(frozen=True, repr=False)
class RunOutcome:
    """How a cell ended."""

    run_id: str
    results: dict[Rank, RankResult]
    elapsed_s: float
    interrupted: bool = False
    timed_out: bool = False
    ended_by: str = ""  #: the command that ended it on ranks that had not finished
    #: Ranks that had raised before it was interrupted: what others raised may be its doing.
    raised_before: RankSet = NO_RANKS
    is_plain: bool = False  #: its pool cannot free or replace ranks
    report: Report | None = None  #: the verdict on it, if there was one
    fresh: RankSet = NO_RANKS  #: these ranks exited and were replaced
    dead: RankSet = NO_RANKS  #: these have no process, whenever they exited
    mend_failure: str = ""  #: why the pool is not as good as before

    def __repr__(self) -> str:
        counts = [
            f"{self.ranks(status).describe()} {status}"
            for status in get_args(RankStatus)
            if self.ranks(status)
        ]
        return f"<RunOutcome: {', '.join(counts)}; {self.elapsed_s:.2f} s>"

    def ranks(self, *statuses: RankStatus) -> RankSet:
        """The ranks on which it ended so."""
        return RankSet.of(r for r, result in self.results.items() if result.status in statuses)


OnDeadlock: TypeAlias = Literal["abort", "report"]
OnDeath: TypeAlias = Literal["respawn", "keep"]


@dataclass(frozen=True)
class Config:
    """What a user may change while the pool lives."""

    on_deadlock: OnDeadlock = "abort"  #: ``report``: show it, and leave the ranks where they are
    on_mismatch: OnMismatch = "raise"
    on_death: OnDeath = "respawn"  #: ``keep``: no fresh rank takes the place of one that exited


# --- stimuli that are not messages ---------------------------------------------------------------


@dataclass(frozen=True)
class RunRequested:
    """Run a cell. The caller has checked `PoolMachine.refusal`."""

    execute: Execute
    ranks: RankSet
    timeout_s: float | None = None


@dataclass(frozen=True)
class InterruptRequested:
    """The user interrupts a cell."""

    run_id: str


@dataclass(frozen=True)
class AbandonRequested:
    """The user does not wait for a cell any longer."""

    run_id: str


@dataclass(frozen=True)
class InputAnswered:
    """The user has answered a question of a rank, which is told by whoever asked."""

    rank: Rank
    question: int


@dataclass(frozen=True)
class RestartRequested:
    """End all ranks and start new ones."""


@dataclass(frozen=True)
class StopRequested:
    """The pool is about to end."""


@dataclass(frozen=True)
class RespawnRequested:
    """Start fresh processes for ranks that have exited. From `nbddp.controller.mending`."""

    ranks: RankSet


@dataclass(frozen=True)
class RestartRanksRequested:
    """Put fresh processes in the place of ranks. Answered by `RanksRestarted`."""

    number: int
    ranks: RankSet


@dataclass(frozen=True)
class DiagnoseRequested:
    """Look at all ranks now. Answered by `Diagnosed`."""

    number: int
    peek: RankSet = NO_RANKS  #: these are described by their agents too
    last: int = 64  #: operations that each rank tells though they are complete
    #: For ``%ddp status``: the memory of all, and no report.
    survey: bool = False


@dataclass(frozen=True)
class Configured:
    """The user has changed the configuration."""

    config: Config


@dataclass(frozen=True)
class AgentExited:
    """An agent's process has ended, and its ranks with it."""

    node: int
    exit_code: int
    last_output: str


@dataclass(frozen=True)
class MendRequested:
    """Somebody wants to use a pool whose groups could not be formed: try again."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


#: What the life of the pool consists of, see `PoolMachine`.
LifeStimulus: TypeAlias = (
    AgentHello
    | StoreReady
    | StoreExited
    | StartFailed
    | RankSpawned
    | RankReady
    | RunStarted
    | InputRequest
    | RunFinished
    | RankExited
    | RanksStopped
    | RunRequested
    | InterruptRequested
    | AbandonRequested
    | InputAnswered
    | RestartRequested
    | RespawnRequested
    | StopRequested
    | AgentExited
    | Tick
)
#: What is for `RecoveryMachine` alone.
WatchStimulus: TypeAlias = (
    Quiet
    | Looked
    | Peeked
    | Freed
    | Reformed
    | RestartRanksRequested
    | DiagnoseRequested
    | Configured
    | MendRequested
)
Stimulus: TypeAlias = LifeStimulus | WatchStimulus


# --- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TellAgent:
    """Send a request to one agent."""

    node: int
    request: AgentRequest


@dataclass(frozen=True)
class TellRanks:
    """Send a request to ranks."""

    ranks: RankSet
    request: RankRequest


@dataclass(frozen=True)
class AnnounceUp:
    """All ranks are ready."""


@dataclass(frozen=True)
class AnnounceFailure:
    """The pool could not start; it must be ended."""

    reason: str
    error: ErrorInfo | None = None


@dataclass(frozen=True)
class AnnounceExit:
    """A rank's process has ended: whoever waits for that rank must hear of it."""

    exited: RankExited
    run_id: str | None  #: of the cell it was in


@dataclass(frozen=True)
class EndRun:
    """A cell has ended."""

    outcome: RunOutcome


LifeAction: TypeAlias = TellAgent | TellRanks | AnnounceUp | AnnounceFailure | AnnounceExit | EndRun


@dataclass(frozen=True)
class Noticed:
    """Who waits for whom in a cell, and nothing is claimed. Also an event of its run."""

    run_id: str
    report: Report | None  #: None: it goes on, there is nothing to tell any longer


@dataclass(frozen=True)
class Judged:
    """What is proven of a cell. Also an event of its run."""

    run_id: str
    report: Report
    acted: bool  #: the ranks are being freed; False: it is shown only
    views: Mapping[Rank, RankView] = field(default_factory=dict)  #: what it was judged by


@dataclass(frozen=True)
class Diagnosed:
    """Answer to `DiagnoseRequested`."""

    number: int
    report: Report
    looks: Mapping[Rank, RankLook]
    peeks: Mapping[Rank, Peeked]  #: of ranks that were asked for, and of silent ones
    silent: RankSet  #: ranks of which nothing is known
    views: Mapping[Rank, RankView] = field(default_factory=dict)  #: all of that in one

    def only(self, ranks: RankSet) -> "Diagnosed":
        """The same, of these ranks; the report stays."""
        return replace(
            self,
            looks={rank: look for rank, look in self.looks.items() if rank in ranks},
            peeks={rank: peek for rank, peek in self.peeks.items() if rank in ranks},
            silent=RankSet.of(rank for rank in self.silent if rank in ranks),
            views={rank: view for rank, view in self.views.items() if rank in ranks},
        )


@dataclass(frozen=True)
class RanksRestarted:
    """Answer to `RestartRanksRequested`."""

    number: int
    fresh: RankSet
    failure: str = ""  #: what went wrong; empty: the pool is whole again


@dataclass(frozen=True)
class TellUser:
    """Something has happened between cells."""

    rank: Rank | None  #: None: to a process behind the ranks
    text: str


Action: TypeAlias = LifeAction | Noticed | Judged | Diagnosed | RanksRestarted | TellUser
