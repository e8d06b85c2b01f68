"""What was proven of a cell, in the few lines of its error; the card tells the whole.

Runs in: the notebook's process. Pure; a part of `nbddp.controller.cell_errors.build`.
"""

from dataclasses import dataclass

from nbddp.controller.diagnosis.phrases import Doing, brought, quote
from nbddp.controller.diagnosis.report import Finding, Report
from nbddp.controller.state.exit_text import one_line
from nbddp.controller.state.outcome import MISMATCH_ERROR, RunOutcome
from nbddp.wire.flight_recorder.schema import LEFT_DEBUGGER, Mismatch, Operation
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import Rank, RankSet

_LOST_ERROR = "CollectiveFailedError"
#: What a rank raises that was freed, from Python or from C++.
_OF_FREED = (
    "CollectiveAbortedError",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "KeyboardInterrupt",
    "RuntimeError",
    _LOST_ERROR,
    MISMATCH_ERROR,
)
#: What torch says of ``monitored_barrier`` on its rank 0, which alone knows who is missing, and on
#: others that came: there it is the end of rank 0's wait that they see.
_MISSED = "failed to pass monitoredBarrier"
_REACHED = "successfully reached monitoredBarrier"
#: Ranks told by a line of their own.
_MAX_LINES = 8


def is_cause(outcome: RunOutcome) -> bool:
    """Whether the verdict ended the cell on some rank.

    Where the timeouts of the user's own operations did that, their errors are the lesson.
    """
    return any(
        result.was_freed or result.status == "unfinished" for result in outcome.results.values()
    )


def is_end_of_wait(report: Report, rank: Rank, error: ErrorInfo | None) -> bool:
    """Whether a rank raised where ``report`` proves that it waits in vain: by a timeout."""
    if error is None or rank not in report.stuck:
        return False
    each, raised = report.ranks.get(rank), error.site
    sites = () if each is None else (each.site, each.waits_at)
    lines = {(site.cell, site.line) for site in sites if site is not None and site.cell}
    if not lines or raised is None:
        return True  # in a file: lines of cells tell nothing
    return (raised.cell, raised.line) in lines


def came_of_interrupt(outcome: RunOutcome) -> bool:
    """Whether an interrupt, or the cell's timeout, has sent ranks into what does not match."""
    return (outcome.interrupted or outcome.timed_out) and any(
        error.ename == MISMATCH_ERROR and error.handling is not None and error.handling.is_interrupt
        for result in outcome.results.values()
        if (error := result.error) is not None
    )


def mismatch_lines(mismatches: list[Mismatch], report: Report | None) -> list[str]:
    """Who called what, as the card says it, and where.

    A rank that saw it knows of one other rank, which one is chance: the report knows of all.
    """
    key = _operation_key(mismatches[0].mine)
    same = [each for each in mismatches if _operation_key(each.mine) == key]
    by_rank = {each.peer: each.theirs for each in same} | {each.rank: each.mine for each in same}
    fields = {name for each in same for name in each.fields}
    ranks_by_call: dict[str, list[Rank]] = {}
    ranks_by_line: dict[str, list[Rank]] = {}
    for rank, operation in sorted(by_rank.items()):
        what = brought(operation.signature, fields)
        ranks_by_call.setdefault(what, []).append(rank)
        ranks_by_line.setdefault(f"called {what} at {quote(operation)}", []).append(rank)
    finding = _told(report, key)
    if finding is not None:
        headline = finding.headline.rstrip(".")
    else:
        told = sorted(ranks_by_call.items(), key=lambda each: (len(each[1]), each[1]))
        calls = [f"{RankSet.of(ranks).describe()} called {what}" for what, ranks in told]
        headline = f"{', '.join(calls)}; it was seen before any data was lost"
    lines = [
        f"  {RankSet.of(ranks).describe():<9} {line}"
        for line, ranks in list(ranks_by_line.items())[:_MAX_LINES]
    ]
    return [headline, *lines]


def _operation_key(operation: Operation) -> tuple[str, int]:
    return operation.pg_id, operation.collective_seq_id


def _told(report: Report | None, key: tuple[str, int]) -> Finding | None:
    """The finding on an operation."""
    for finding in report.proven if report is not None else ():
        pg_id = finding.group.pg_id if finding.group is not None else key[0]
        if finding.kind == "mismatched-collective" and (pg_id, finding.collective_seq_id) == key:
            return finding
    return None


def finding_lines(finding: Finding) -> list[str]:
    """The headline, then where the culprits and those who wait for them are."""
    lines = [finding.headline.rstrip(".")]
    order = [*finding.culprits, *(finding.waiting - finding.culprits)]
    told = [finding.ranks[rank] for rank in order if rank in finding.ranks]
    lines += [f"  rank {each.rank:<4} {each.what_and_where}" for each in told[:_MAX_LINES]]
    if len(told) > _MAX_LINES:
        rest = RankSet.of(each.rank for each in told[_MAX_LINES:])
        lines.append(f"  and {rest.describe()}")
    return lines


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
        if _REACHED in result.error.evalue:
            return any(
                each.error is not None and _MISSED in each.error.evalue
                for each in outcome.results.values()
            )
        return bool(outcome.ranks("exited"))
    return result.error.ename == MISMATCH_ERROR and rank != _first_mismatched(outcome)


def _first_mismatched(outcome: RunOutcome) -> Rank | None:
    found = [
        (result.failed_at_ns, rank)
        for rank, result in outcome.results.items()
        if result.error is not None and result.error.ename == MISMATCH_ERROR
    ]
    return min(found)[1] if found else None


def _raised_in_turn(error: ErrorInfo | None) -> str:
    """What the code of the user raised while it handled that it was freed: it is told as well."""
    if error is None or error.ename in _OF_FREED:
        return ""
    site = error.site
    return f", and raised {one_line(error)}{f' ({site})' if site is not None else ''} in turn"


@dataclass(frozen=True)
class _Consequence:
    """What became of a rank because of others."""

    active: str = ""  #: ``waited in all_reduce #17 (cell [4], line 5)``
    passive: str = ""  #: ``freed``: behind ``was``, or ``were``

    def said_of(self, ranks: RankSet) -> str:
        """``ranks 0,2 waited in all_reduce #17 (cell [4], line 5) and were freed``."""
        passive = f"{ranks.verb('was', 'were')} {self.passive}" if self.passive else ""
        return f"{ranks.describe()} {' and '.join(filter(None, (self.active, passive)))}"


def consequence_lines(outcome: RunOutcome) -> list[str]:
    """One line for the ranks that failed at the same place because of others."""
    ranks_by_consequence: dict[_Consequence, list[Rank]] = {}
    for rank in outcome.results:
        if is_consequence(outcome, rank):
            ranks_by_consequence.setdefault(_consequence(outcome, rank), []).append(rank)
    return [what.said_of(RankSet.of(ranks)) for what, ranks in ranks_by_consequence.items()]


def _consequence(outcome: RunOutcome, rank: Rank) -> _Consequence:
    result = outcome.results[rank]
    site = result.error.site if result.error is not None else None
    at = f" ({site})" if site is not None else ""
    if not result.was_freed and result.error is not None:
        if _REACHED in result.error.evalue:
            return _Consequence(f"came to monitored_barrier{at}")
        is_lost = result.error.ename == _LOST_ERROR
        what = "lost the connection" if is_lost else f"raised {result.error.ename} too"
        return _Consequence(f"{what}{at}")
    each = outcome.report.ranks.get(rank) if outcome.report is not None else None
    if each is not None and each.predicate.doing is Doing.WAITS:
        site = each.site or site
        at = f" ({site})" if site is not None else ""
        freed = f"freed{_raised_in_turn(result.error)}"
        return _Consequence(f"waited{each.predicate.rest}{at}", freed)
    if result.error is not None and result.error.ename == "KeyboardInterrupt":
        return _Consequence(passive=f"interrupted{at}")  # perhaps it did not wait for anybody
    return _Consequence(f"waited{at}" if at else "", "freed")
