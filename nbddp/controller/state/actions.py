"""What the machines of a pool want done.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.diagnosis.report import Report
from nbddp.controller.state.outcome import RunOutcome
from nbddp.wire.flight_recorder.schema import RankLook
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import (
    AgentRequest,
    RankExited,
    RankRequest,
    StackDumped,
)
from nbddp.wire.rank_set import Rank, RankSet


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
    peeks: Mapping[Rank, StackDumped]  #: of ranks that were asked for, and of silent ones
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
