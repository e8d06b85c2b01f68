"""The actions that the machines of a pool return, for the hub to carry out.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nbddp.controller.diagnosis import RankView, Report
from nbddp.controller.state.outcome import RunOutcome
from nbddp.controller.state.silent_nodes import Silence
from nbddp.controller.state.snapshot import GroupObstacle
from nbddp.wire.flight_recorder import RankLook
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import (
    AgentRequest,
    RankExited,
    RankRequest,
    StackDumped,
)
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet


@dataclass(frozen=True)
class SendToAgent:
    """Send a request to one agent."""

    node: int
    request: AgentRequest


@dataclass(frozen=True)
class SendToRanks:
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
    exited: RankExited | None = None  #: the end of a rank that has caused it


@dataclass(frozen=True)
class AnnounceExit:
    """A rank's process has ended: everything that waits for the rank must be notified."""

    exited: RankExited
    run_id: str | None  #: the run of the cell that the rank was in


@dataclass(frozen=True)
class EndRun:
    """A cell has ended."""

    outcome: RunOutcome


LifeAction: TypeAlias = (
    SendToAgent | SendToRanks | AnnounceUp | AnnounceFailure | AnnounceExit | EndRun
)


@dataclass(frozen=True)
class NoticeChanged:
    """The notice about slow or waiting ranks of a cell has changed. Also an event of its run."""

    run_id: str
    report: Report | None  #: None: the ranks go on, the notice no longer holds


@dataclass(frozen=True)
class VerdictReached:
    """The diagnosis has proven why ranks of a cell are stuck. Also an event of its run."""

    run_id: str
    report: Report
    acted: bool  #: the ranks are being freed; False: the report is only shown
    views: Mapping[Rank, RankView] = field(default_factory=dict)  #: the views that prove it
    #: The fingerprint of the same verdict with fewer ranks, in whose place this one comes.
    replaces: str = ""
    #: Stuck ranks of the report that have raised since, by the timeout of their own operation.
    timed_out: RankSet = NO_RANKS


@dataclass(frozen=True)
class RanksHeld:
    """A verdict holds, and nobody is freed before the user says so. Also an event of its run."""

    run_id: str
    report: Report


@dataclass(frozen=True)
class Diagnosed:
    """Answer to `DiagnoseRequested`."""

    number: int
    report: Report
    looks: Mapping[Rank, RankLook]
    peeks: Mapping[Rank, StackDumped]  #: of the ranks in the request, and of silent ones
    silent: RankSet  #: ranks of which nothing is known
    views: Mapping[Rank, RankView] = field(default_factory=dict)  #: all of that, by rank

    def only(self, ranks: RankSet) -> "Diagnosed":
        """The same answer for these ranks only; its report stays that of all ranks."""
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
    failure: str = ""  #: why the pool could not be repaired; empty: it is complete again
    silent: tuple[Silence, ...] = ()  #: nodes whose silence is the reason
    has_begun: bool = False  #: processes had been asked to end before these nodes became silent
    ended: RankSet = NO_RANKS  #: the same: ranks whose old processes have ended
    obstacle: GroupObstacle | None = None  #: why nothing was done: no rank was ended
    unanswered: tuple[int, ...] = ()  #: nodes that gave no sign of life: no rank was ended
    is_withdrawn: bool = False  #: the answer to `RestartWithdrawn`: no rank was ended


@dataclass(frozen=True)
class NotifyUser:
    """Show a message about something that happened between cells."""

    rank: Rank | None  #: None: the message is about a process behind the ranks
    text: str


Action: TypeAlias = (
    LifeAction
    | NoticeChanged
    | VerdictReached
    | RanksHeld
    | Diagnosed
    | RanksRestarted
    | NotifyUser
)
