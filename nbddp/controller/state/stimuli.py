"""The stimuli of the machines of a pool: messages of agents and ranks, and commands of users.

Runs in: the notebook's process. Pure.
"""

from dataclasses import dataclass
from typing import TypeAlias

from nbddp.controller.state.config import Config
from nbddp.controller.state.silent_nodes import SilentNode
from nbddp.wire.message_types import AgentEnd, LostAgent
from nbddp.wire.messages import (
    AgentHello,
    Execute,
    FaultStruck,
    GroupsRebuilt,
    ImportChanged,
    InputRequest,
    OperationsAborted,
    RankDescribed,
    RankExited,
    RankReady,
    RankSpawned,
    RanksStalled,
    RanksStopped,
    RunFinished,
    RunsFinished,
    RunStarted,
    StackDumped,
    StartFailed,
    StoreExited,
    StoreReady,
)
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet


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
class FreeRequested:
    """The user has seen a deadlock for which ranks were held: free them."""

    run_id: str
    is_last: bool  #: later deadlocks of the cell are freed at once


@dataclass(frozen=True)
class ChangedAtPrompt:
    """The user has typed a command that, perhaps, makes a cell do other than its code says."""

    run_id: str
    text: str  #: ``rank 2 left out barrier #3 at the prompt, cell [4], line 7``
    is_skip: bool  #: ranks leave out an operation; False: they got a call or code


@dataclass(frozen=True)
class AbandonRequested:
    """The user no longer waits for a cell."""

    run_id: str


@dataclass(frozen=True)
class InputAnswered:
    """The user has answered an input request of a rank; the thread that asked posts this."""

    rank: Rank
    question: int


@dataclass(frozen=True)
class RestartRequested:
    """End all ranks and start new ones."""


@dataclass(frozen=True)
class StopRequested:
    """The pool is about to end, or to be left to itself."""

    by: str = "%ddp stop"  #: the command of the user


@dataclass(frozen=True)
class RespawnRequested:
    """Start fresh processes for ranks that have exited. From `controller.recovery.rebuild`."""

    ranks: RankSet


@dataclass(frozen=True)
class RestartRanksRequested:
    """Start fresh processes in the places of ranks. Answered by `RanksRestarted`."""

    number: int
    ranks: RankSet


@dataclass(frozen=True)
class RestartWithdrawn:
    """Forget a `RestartRanksRequested` if no process has begun to end. Answered as that."""

    number: int
    request: int  #: the number of the other one


@dataclass(frozen=True)
class DiagnoseRequested:
    """Ask all ranks for a description now. Answered by `Diagnosed`."""

    number: int
    peek: RankSet = NO_RANKS  #: ranks that their agents describe too
    last: int = 64  #: the number of completed operations that each rank reports
    #: For ``%ddp status``: the memory of all ranks, and no report.
    survey: bool = False


@dataclass(frozen=True)
class Configured:
    """The user has changed the configuration."""

    config: Config


@dataclass(frozen=True)
class AgentExited:
    """An agent's process has ended, and its ranks with it."""

    node: int
    end: AgentEnd
    last_output: str = ""
    never_came: str = ""  #: the machine, if the agent never came
    host: str = ""  #: of the agent, if it is on another machine that is known

    @property
    def lost(self) -> LostAgent:
        """The cause of the exits of its ranks."""
        return LostAgent(self.node, self.end, self.never_came)


@dataclass(frozen=True)
class NodesSilent:
    """These nodes on other machines are silent from now on, and no others."""

    nodes: tuple[SilentNode, ...]


@dataclass(frozen=True)
class RanksAnswered:
    """The answers to `DescribeRank`, `AbortOperations` and `DumpStack`."""

    answers: tuple[RankDescribed | OperationsAborted | StackDumped, ...]


@dataclass(frozen=True)
class RebuildRequested:
    """Try again to form the groups of a pool that a user wants to use."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


#: The stimuli of `PoolMachine`.
LifeStimulus: TypeAlias = (
    AgentHello
    | StoreReady
    | StoreExited
    | StartFailed
    | RankSpawned
    | RankReady
    | RunStarted
    | InputRequest
    | FaultStruck
    | ImportChanged
    | RunFinished
    | RunsFinished
    | RankExited
    | RanksStopped
    | RunRequested
    | InterruptRequested
    | AbandonRequested
    | InputAnswered
    | ChangedAtPrompt
    | RestartRequested
    | RespawnRequested
    | StopRequested
    | AgentExited
    | Tick
)


#: The stimuli of `RecoveryMachine` alone.
WatchStimulus: TypeAlias = (
    RanksStalled
    | RanksAnswered
    | GroupsRebuilt
    | RestartRanksRequested
    | RestartWithdrawn
    | DiagnoseRequested
    | FreeRequested
    | Configured
    | NodesSilent
    | RebuildRequested
)


Stimulus: TypeAlias = LifeStimulus | WatchStimulus
