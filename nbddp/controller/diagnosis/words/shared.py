"""The words of one finding, and the phrases that findings of several kinds share.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.divergence_phrases import Places
from nbddp.controller.diagnosis.phrases import rank_at, subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import ChangedLine, CodeChange, CodeLine, PerRank
from nbddp.wire.flight_recorder import Site
from nbddp.wire.rank_set import Rank, RankSet

#: Ranks of a circle in a sentence.
_MAX_CIRCLE = 8


@dataclass(frozen=True)
class Words:
    """The sentences of a finding, and the code that they are about."""

    headline: str
    reason: str
    next_step: str
    code: Sequence[CodeLine] = ()  #: lines that explain the finding
    change: CodeChange | None = None  #: the next step, as a change of the code
    places: Places = ()  #: the parts of the code that culprits did not run
    ranks: Mapping[Rank, PerRank] = field(default_factory=dict)  #: not as `RankReports` has them
    begins_with_ranks: bool = True  #: the headline does


def code_change(site: Site, lines: tuple[ChangedLine, ...]) -> CodeChange | None:
    """The change of the cell or file of a site; None: there are no lines."""
    return CodeChange(site.cell, site.file, lines) if lines else None


def line_of(site: Site) -> str:
    """``line 3``: the card shows its cell or file below."""
    return f"line {site.line}" if site.line else "the display of a result"


def code_of(*lines: tuple[Site, RankSet]) -> list[CodeLine]:
    """The lines in their order; ranks stand beside the line that is wrong."""
    known = [CodeLine(site, ranks) for site, ranks in lines if site.line]
    known.sort(key=lambda line: line.site.position)
    is_one = len({line.site.position for line in known}) == 1
    return known[-1:] if is_one else known


def name(cause: Cause, reports: RankReports, *, has_call: bool = True) -> str:
    """``the 3rd all_reduce (#17) of group 'tp' (ranks 0-1)``; see `RankReports.said`."""
    if cause.operation is None:
        return "an operation"
    return reports.said(cause.owner, cause.operation, has_call=has_call)


def they_wait(cause: Cause, reports: RankReports) -> str:
    """``ranks 0-1 wait for it in all_reduce``; empty if no rank waits."""
    ranks = cause.direct or cause.waiting
    if not ranks:
        return ""
    waits, them = ranks.verb("waits", "wait"), cause.culprits.verb("it", "them")
    return f"{ranks.describe()} {waits} for {them} in {name(cause, reports)}"


def in_turn(cause: Cause) -> str:
    """A sentence on the ranks that wait for the waiting ranks, with a blank in front."""
    others = cause.waiting - cause.direct - cause.culprits
    if not others or not cause.direct:
        return ""
    return (
        f" {subject(others)} {others.verb('waits', 'wait')} for {cause.direct.describe()} in turn."
    )


def cycle(
    cause: Cause,
    reports: RankReports,
    problem: str,
    next_step: str,
    change: CodeChange | None = None,
) -> Words:
    """The words about ranks that wait for each other in a circle, or in several."""
    circle, alike = cause.circle, cause.alike
    parts = []
    for rank, waited, ranks in circle[:_MAX_CIRCLE]:
        whom = f" for {ranks.describe()}" if waited.signature.kind == "collective" else ""
        parts.append(f"rank {rank} waits in {reports.said(rank, waited)}{whom}")
    if len(circle) > _MAX_CIRCLE:
        parts.append(f"and {len(circle) - _MAX_CIRCLE} more")
    reason, where = ", ".join(parts), "" if len(circle) == 2 else " in a circle"
    if alike:
        reason += f"; so do {_describe_alike(alike)}"
        where = f" in {1 + len(alike)} {'pairs' if len(circle) == 2 else 'circles'}"
    if others := cause.waiting - cause.culprits:
        reason += f". {subject(others)} {others.verb('waits', 'wait')} for these in turn"
    headline = f"{subject(cause.culprits)} wait for each other{where}: {problem}."
    return Words(headline, f"{reason}.", next_step, change=change)


def _describe_alike(circles: Sequence[RankSet]) -> str:
    """``ranks 2 and 3, 4 and 5``; many pairs by their distance, if that is always the same."""
    distances = {ranks.ranks[-1] - ranks.ranks[0] for ranks in circles}
    if len(circles) > _MAX_CIRCLE and len(distances) == 1 and len(circles[0]) == 2:
        lower = RankSet.of(ranks.ranks[0] for ranks in circles).describe(in_full=True)
        return f"each of {lower} and {rank_at(distances.pop())}"
    return f"ranks {', '.join(' and '.join(map(str, ranks)) for ranks in circles)}"
