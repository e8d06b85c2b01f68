"""What was proven of a cell, in the few lines of its error; the card tells the whole.

Runs in: the notebook's process. Pure; a part of `nbddp.controller.failures`.
"""

from nbddp.controller.ends import site_of
from nbddp.controller.report import Finding, PerRank, place
from nbddp.controller.states import RunOutcome
from nbddp.controller.wording import brought, quote
from nbddp.wire.observed import LEFT_DEBUGGER, Mismatch
from nbddp.wire.ranks import Rank, RankSet

#: What the rank raised that saw it.
MISMATCH_ERROR = "CollectiveMismatchError"
_LOST_ERROR = "CollectiveFailedError"
#: Ranks told by a line of their own.
_MAX_LINES = 8


def is_cause(outcome: RunOutcome) -> bool:
    """Whether the verdict ended the cell on some rank.

    Where the time-outs of the user's own operations did that, their errors are the lesson.
    """
    return any(
        result.was_freed or result.status == "unfinished" for result in outcome.results.values()
    )


def raised_mismatches(outcome: RunOutcome) -> list[Mismatch]:
    """Those that were raised in the user's line."""
    return [
        mismatch
        for result in outcome.results.values()
        if result.error is not None and result.error.ename == MISMATCH_ERROR
        for mismatch in result.mismatches[-1:]
    ]


def mismatch_lines(mismatches: list[Mismatch]) -> list[str]:
    """Both sides of the first one, with their lines."""
    first = mismatches[0]
    sides = sorted([(first.rank, first.mine), (first.peer, first.theirs)], key=lambda side: side[0])
    ranks = RankSet.of(rank for rank, _ in sides)
    lines = [
        f"{ranks.describe()} called operations that do not match; it was seen before data moved"
    ]
    for rank, operation in sides:
        what = brought(operation.signature, first.fields)
        lines.append(f"  rank {rank:<4} called {what} at {quote(operation)}")
    return lines


def finding_lines(finding: Finding) -> list[str]:
    """The headline, then where the culprits and those who wait for them are."""
    lines = [finding.headline.rstrip(".")]
    order = [*finding.culprits, *(finding.waiting - finding.culprits)]
    told = [finding.ranks[rank] for rank in order if rank in finding.ranks]
    lines += [_where(each) for each in told[:_MAX_LINES]]
    if len(told) > _MAX_LINES:
        rest = RankSet.of(each.rank for each in told[_MAX_LINES:])
        lines.append(f"  and {rest.describe()}")
    return lines


def _where(each: PerRank) -> str:
    where = f", at {place(each.site)}" if each.site is not None else ""
    return f"  rank {each.rank:<4} {each.what}{where}"


def left_debugger(outcome: RunOutcome) -> RankSet:
    """Ranks whose user has left the cell by ``q`` in the debugger: that is no error of theirs."""
    return RankSet.of(
        rank
        for rank, result in outcome.results.items()
        if result.error is not None and result.error.ename == LEFT_DEBUGGER and not result.was_freed
    )


def is_consequence(outcome: RunOutcome, rank: Rank) -> bool:
    """Whether the error of a rank only follows from what is told of others: a line is enough."""
    result = outcome.results[rank]
    if result.error is None or result.was_freed:
        return result.was_freed
    if result.error.ename == _LOST_ERROR:
        return bool(outcome.ranks("exited"))
    return result.error.ename == MISMATCH_ERROR and rank != _first_mismatched(outcome)


def _first_mismatched(outcome: RunOutcome) -> Rank | None:
    found = [
        (result.failed_at_ns, rank)
        for rank, result in outcome.results.items()
        if result.error is not None and result.error.ename == MISMATCH_ERROR
    ]
    return min(found)[1] if found else None


def consequence_lines(outcome: RunOutcome) -> list[str]:
    """One line for the ranks that failed at the same place because of others."""
    by_text: dict[tuple[str, bool], list[Rank]] = {}
    for rank, result in outcome.results.items():
        if is_consequence(outcome, rank):
            by_text.setdefault((_place(outcome, rank), result.was_freed), []).append(rank)
    lines = []
    for (place_text, was_freed), ranks in by_text.items():
        were = "was" if len(ranks) == 1 else "were"
        lines.append(
            f"{RankSet.of(ranks).describe()} {place_text}{f'{were} freed' if was_freed else ''}"
        )
    return lines


def _place(outcome: RunOutcome, rank: Rank) -> str:
    """``waited in all_reduce #17 (cell [4], line 5) and ``; empty where that is not known."""
    result = outcome.results[rank]
    site = site_of(result.error) if result.error is not None else None
    if not result.was_freed and result.error is not None:
        is_lost = result.error.ename == _LOST_ERROR
        what = "lost the connection" if is_lost else f"raised {result.error.ename} too"
        return f"{what} ({site})" if site is not None else what
    each = outcome.report.ranks.get(rank) if outcome.report is not None else None
    what = "waited"
    if each is not None and each.what.startswith("waits "):
        what, site = f"waited {each.what.removeprefix('waits ')}", each.site or site
    elif site is None:
        return ""
    return f"{what} ({site}) and " if site is not None else f"{what} and "
