"""The evidence in the few lines of a cell's error; the card shows all of it.

Runs in: the notebook's process. Pure; a part of `nbddp.controller.cell_errors.build`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nbddp.controller.cell_errors.lines import Line, labelled
from nbddp.controller.cell_errors.traceback_groups import MAX_FULL
from nbddp.controller.diagnosis import (
    Finding,
    PerRank,
    RankVerb,
    Report,
    describe_calls,
    describe_operation,
    node_sentence,
    quote,
)
from nbddp.controller.state import (
    LOST_CONNECTION,
    MISMATCH_ERROR,
    RankResult,
    RunOutcome,
    VerdictReached,
    error_summary,
)
from nbddp.wire.fault_types import ON_PURPOSE
from nbddp.wire.flight_recorder import LEFT_DEBUGGER, RENDEZVOUS, Mismatch, Operation, Site
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

_LOST_ERROR = LOST_CONNECTION
#: The errors of a rank that was freed, from Python or from C++.
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
#: Part of the message of torch.
NO_GROUP = "Default process group has not been initialized"
#: Torch's messages about ``monitored_barrier``. Its rank 0 alone knows which ranks are missing; the
#: other ranks that came see the end of rank 0's wait.
_MISSED = "failed to pass monitoredBarrier"
_REACHED = "successfully reached monitoredBarrier"
#: Ranks that get a line of their own.
_MAX_LINES = 8


def is_cause(outcome: RunOutcome) -> bool:
    """Whether the verdict ended the cell on some rank.

    Where timeouts of the user's own operations ended it, their errors tell more.
    """
    return any(
        result.was_freed or result.status == "unfinished" for result in outcome.results.values()
    )


def is_end_of_wait(report: Report, rank: Rank, error: ErrorInfo | None) -> bool:
    """Whether a rank raised, by a timeout, in a wait that ``report`` proves to be endless."""
    if error is None or rank not in report.stuck:
        return False
    place, raised_at = report.ranks.get(rank), error.site
    sites = () if place is None else (place.site, place.waits_at)
    lines = {(site.cell, site.line) for site in sites if site is not None and site.cell}
    if not lines or raised_at is None:
        return True  # in a file: lines of cells show nothing
    return (raised_at.cell, raised_at.line) in lines


def called_after_interrupt(outcome: RunOutcome) -> RankSet:
    """The ranks that made a call that does not match while they handled an interrupt."""
    if not (outcome.interrupted or outcome.timed_out):
        return RankSet()
    return RankSet.of(
        rank
        for rank, result in outcome.results.items()
        if (error := result.error) is not None
        and error.ename == MISMATCH_ERROR
        and error.handling is not None
        and error.handling.is_interrupt
    )


@dataclass(frozen=True)
class Proof:
    """A finding that made a cell fail, in the few lines of its error."""

    headline: str  #: as on the card, without a period
    clause: str  #: the headline behind other words
    lines: list[Line]


def proof_of_mismatch(mismatches: list[Mismatch], report: Report | None) -> Proof:
    """The headline of a mismatch, and a line for each call.

    A rank that saw the mismatch knows one other rank, by chance; the report knows all ranks.
    """
    key = _operation_key(mismatches[0].mine)
    seen = [each for each in mismatches if _operation_key(each.mine) == key]
    by_rank = {each.peer: each.theirs for each in seen} | {each.rank: each.mine for each in seen}
    fields = {name for mismatch in seen for name in mismatch.fields}
    line_by_rank = {
        rank: f"called {describe_operation(operation, fields)} at {quote(operation)}"
        for rank, operation in sorted(by_rank.items())
    }
    finding = _mismatch_finding(report, key)
    ranks_by_line = list(ranks_by_value(line_by_rank).items())[:_MAX_LINES]
    lines = [labelled(ranks.describe(), line) for line, ranks in ranks_by_line]
    if finding is not None:
        lines += _node_lines(finding)
        return Proof(finding.headline.rstrip("."), finding.clause, lines)
    headline = f"{describe_calls(by_rank, fields)}; it was seen before any data was lost"
    return Proof(headline, headline, lines)


def then(late: RankSet, outcome: RunOutcome, proof: Proof) -> str:
    """The mismatch behind an interrupt; ``late`` have made their calls after it for certain."""
    seen = outcome.raised_mismatches
    callers = RankSet.of(rank for wrong in seen for rank in (wrong.rank, wrong.peer))
    if not callers - late:
        return f"after that, {proof.clause}"
    return f"{late.describe()} then made a call that does not match: {proof.clause}"


def _operation_key(operation: Operation) -> tuple[str, int]:
    return operation.pg_id, operation.collective_seq_id


def _mismatch_finding(report: Report | None, key: tuple[str, int]) -> Finding | None:
    """The finding about an operation; None: the report has none."""
    for finding in report.proven if report is not None else ():
        pg_id = finding.group.pg_id if finding.group is not None else key[0]
        if finding.kind == "mismatched-collective" and (pg_id, finding.collective_seq_id) == key:
            return finding
    return None


def proof_of(finding: Finding) -> Proof:
    """The headline, and the places of the culprits and of the ranks that wait for them."""
    order = [*finding.culprits, *(finding.waiting - finding.culprits)]
    places = [finding.ranks[rank] for rank in order if rank in finding.ranks]
    lines = [labelled(f"rank {each.rank}", each.description) for each in places[:_MAX_LINES]]
    if len(places) > _MAX_LINES:
        rest = RankSet.of(each.rank for each in places[_MAX_LINES:])
        lines.append(Line(f"  and {rest.describe()}"))
    lines += _node_lines(finding)
    return Proof(finding.headline.rstrip("."), finding.clause, lines)


def _node_lines(finding: Finding) -> list[Line]:
    """The nodes of the culprits, if that tells anything."""
    text = node_sentence(finding.nodes)
    return [labelled("where", text)] if text else []


def partial_results(outcome: RunOutcome, label: str) -> list[Line]:
    """A line for each operation whose tensors may hold partial results, and one for ``reduce``."""
    return [
        *(
            labelled(
                label,
                f"the tensors of {name} on {ranks.describe()}: no copy of them was kept, and they "
                "may hold partial results",
            )
            for name, ranks in outcome.torn.items()
        ),
        *_partial_sums(outcome, label),
    ]


def _partial_sums(outcome: RunOutcome, label: str) -> list[Line]:
    """A line on the ranks on which a ``reduce`` had ended; none if there are none."""
    findings = () if outcome.report is None else outcome.report.proven
    ranks = RankSet.of([*outcome.scratch, *(r for finding in findings for r in finding.scratch)])
    text = (
        f"the tensors of reduce on {ranks.describe()}: it had ended there, and torch may leave "
        "partial sums on ranks that are not the root"
    )
    return [labelled(label, text)] if ranks else []


def not_kept(outcome: RunOutcome, judged: Iterable[VerdictReached]) -> dict[str, RankSet]:
    """Operations whose tensors may hold partial results, but for what findings on cards tell.

    Args:
        outcome: the end of the cell.
        judged: what cards were shown about.
    """
    reports = [outcome.report, *(each.report for each in judged)]
    findings = [finding for report in reports if report for finding in report.findings]
    on_cards = RankSet.of(rank for finding in findings for rank in finding.scratch)
    others = outcome.scratch - on_cards
    return {**outcome.torn, **({"reduce": others} if others else {})}


def wrong_results(findings: Iterable[Finding], label: str = "except") -> list[Line]:
    """A line for each operation that has ended on some ranks, and may have left wrong values."""
    return [
        labelled(
            label,
            f"the tensors that the call writes on {finding.written.describe()}: it had ended there "
            "before the mismatch was found, and they have new values, perhaps wrong ones",
        )
        for finding in findings
        if finding.written
    ]


def time_of(*results: RankResult) -> str:
    """The time at which ranks ended: ``3.2 s after the cell began``."""
    if not all(each.is_time_known for each in results):
        return "while the pool had no notebook"
    return f"{range_of([each.elapsed_s for each in results])} after the cell began"


def range_of(times_s: Sequence[float]) -> str:
    """``3.2 s``, ``2.1 to 2.3 s``: times of several ranks."""
    first, last = f"{min(times_s):.1f}", f"{max(times_s):.1f}"
    return f"{first} s" if first == last else f"{first} to {last} s"


def at_line(errors: Iterable[ErrorInfo | None]) -> str:
    """`` at cell [8], line 6``, if these errors come from one line of a cell."""
    sites = {None if error is None else error.site for error in errors}
    places = {"" if site is None or not site.cell else site.place for site in sites}
    place = places.pop()
    return f" at {place}" if place and not places else ""


def ranks_that_left_debugger(outcome: RunOutcome) -> RankSet:
    """Ranks where the user left the cell with ``q`` in the debugger: that is not their error."""
    return RankSet.of(rank for rank, each in outcome.results.items() if has_left_debugger(each))


def has_left_debugger(result: RankResult) -> bool:
    """Whether the user left the cell with ``q`` in the debugger on a rank."""
    error = result.error
    return error is not None and error.ename == LEFT_DEBUGGER and not result.was_freed


def is_consequence(outcome: RunOutcome, rank: Rank) -> bool:
    """Whether the error of a rank only follows from those of other ranks: a line is enough."""
    result = outcome.results[rank]
    if result.error is None or result.was_freed:
        return result.was_freed
    if result.error.ename == _LOST_ERROR:
        if _REACHED in result.error.evalue:
            return any(
                other.error is not None and _MISSED in other.error.evalue
                for other in outcome.results.values()
            )
        # A process that is gone has closed its connections, and so has a group that is destroyed.
        return bool(outcome.ranks("exited") or ranks_without_group(outcome))
    return result.error.ename == MISMATCH_ERROR and rank != _first_mismatched(outcome)


def lost_connection(outcome: RunOutcome, rank: Rank) -> str:
    """``raised CollectiveFailedError: ...`` of a rank that nbddp did not free; empty: others.

    Beside a process that has ended it is chance which comes first. A node that was given up was
    silent for long before.
    """
    result = outcome.results[rank]
    if result.was_freed or result.error is None or result.error.ename != _LOST_ERROR:
        return ""
    ends = [end for each in outcome.results.values() if (end := each.exited) is not None]
    is_of_node = bool(ends) and all(end.was_lost for end in ends)
    return f"raised {error_summary(result.error)}" if is_of_node else ""


def _is_of_lost_peer(outcome: RunOutcome, rank: Rank) -> bool:
    """Whether a rank lost its connection to one that exited, which says no more than its wait."""
    error = outcome.results[rank].error
    is_lost = error is not None and error.ename == _LOST_ERROR
    return is_lost and is_consequence(outcome, rank) and not lost_connection(outcome, rank)


def ranks_without_group(outcome: RunOutcome) -> RankSet:
    """The ranks that raised, since they have no default process group."""
    return RankSet.of(
        rank
        for rank, result in outcome.results.items()
        if result.error is not None and NO_GROUP in result.error.evalue
    )


def has_rebuilt(outcome: RunOutcome) -> bool:
    """Whether the default group has been made again, since ranks failed in its operations."""
    findings = outcome.report.findings if outcome.report is not None else ()
    return (
        not (outcome.is_plain or outcome.rebuild_failure)
        and not any(finding.op == RENDEZVOUS for finding in findings)
        and any(
            result.was_freed or (result.error is not None and result.error.ename == _LOST_ERROR)
            for result in outcome.results.values()
        )
    )


def _first_mismatched(outcome: RunOutcome) -> Rank | None:
    failures = [
        (result.failed_at_ns, rank)
        for rank, result in outcome.results.items()
        if result.error is not None and result.error.ename == MISMATCH_ERROR
    ]
    return min(failures)[1] if failures else None


def _raised_in_turn(error: ErrorInfo | None) -> str:
    """The exception that the user's code raised while it handled the abort."""
    if error is None or error.ename in _OF_FREED:
        return ""
    site = error.site
    return f", and raised {error_summary(error)}{f' ({site})' if site is not None else ''} in turn"


@dataclass(frozen=True)
class _Consequence:
    """The end of a rank because of others: two verbs, either of which may be empty."""

    active: str = ""  #: ``waited in all_reduce #17 (cell [4], line 5)``
    passive: str = ""  #: ``freed``: follows ``was`` or ``were``

    def describe(self, ranks: RankSet) -> str:
        """``ranks 0,2 waited in all_reduce #17 (cell [4], line 5) and were freed``."""
        passive = f"{ranks.verb('was', 'were')} {self.passive}" if self.passive else ""
        return f"{ranks.describe()} {' and '.join(filter(None, (self.active, passive)))}"


def with_all_raised(report: Report, outcome: RunOutcome) -> Report:
    """Return the report of a first error with all ranks that raised one by the end of the cell.

    When the ranks that waited were freed, some ranks were still about to raise.
    """
    raised = {rank for rank in outcome.ranks("error") if not is_consequence(outcome, rank)}
    findings = tuple(
        replace(
            finding,
            culprits=RankSet.of({*finding.culprits, *raised}),
            waiting=finding.waiting - RankSet.of(raised),
        )
        if finding.kind == "first-error" and not raised.issuperset(finding.waiting)
        else finding
        for finding in report.findings
    )
    return replace(report, findings=findings)


def at_end(
    judged: VerdictReached, outcome: RunOutcome, judged_s: float, now_s: float
) -> VerdictReached:
    """Return a verdict as it stands when the cell has ended.

    Args:
        judged: the verdict.
        outcome: the end of the cell on each rank. Ranks that nobody has freed have waited until
            then at most.
        judged_s: the time of the verdict, in seconds from the beginning of the cell.
        now_s: the time of this call, also from there.
    """
    report = with_all_raised(judged.report, outcome)
    if judged.acted:
        return replace(judged, report=report)
    until_left = {
        rank: max(0.0, (result.elapsed_s if result.left_s is None else result.left_s) - judged_s)
        for rank, result in outcome.results.items()
        if result.status != "unfinished" and result.is_time_known
    }
    return replace(judged, report=report.later(now_s - judged_s, until_left))


def _place_of_wait(outcome: RunOutcome, rank: Rank, site: Site | None) -> PerRank | None:
    """The place at which a rank waited, when the verdict fell or after it.

    A rank that came to the same line and group a moment later was freed there, too: which of them
    came first is chance.
    """
    report = outcome.report
    if report is None:
        return None
    own = report.ranks.get(rank)
    if own is not None and own.predicate.verb is RankVerb.WAITS:
        return own
    if site is None or not site.line:
        return None
    for finding in report.proven:
        members = None if finding.group is None else finding.group.ranks
        if finding.kind != "first-error" or (members and rank not in members):
            continue
        for place in (report.ranks[other] for other in finding.waiting if other in report.ranks):
            there = [each for each in (place.site, place.waits_at) if each is not None]
            is_same = (site.cell, site.line) in [(each.cell, each.line) for each in there]
            if is_same and place.predicate.verb is RankVerb.WAITS and place.predicate.peer < 0:
                return place
    return None


def freed_ranks(outcome: RunOutcome) -> tuple[RankSet, RankSet]:
    """The ranks that waited for others and were freed, and those that the user interrupted."""
    is_ended = outcome.interrupted or outcome.timed_out
    errors = {rank: result.error for rank, result in outcome.results.items()}
    interrupted = {
        rank
        for rank, error in errors.items()
        if is_ended and error is not None and error.ename == "KeyboardInterrupt"
    }
    has_exits = bool(outcome.ranks("exited"))
    freed = {
        rank
        for rank in outcome.ranks("error")
        if outcome.results[rank].was_freed
        # Gloo told it that a peer is gone, before nbddp freed it: see `exited_ranks`.
        or (has_exits and _is_of_lost_peer(outcome, rank))
    }
    return RankSet.of(freed - interrupted), RankSet.of(interrupted)


def timeout_lines(outcome: RunOutcome) -> list[Line]:
    """A line on the timeout that has ended a cell whose ranks were stuck."""
    if not outcome.timed_out or outcome.timeout_s is None:
        return []
    return [labelled("ended", f"the cell ran longer than its --timeout of {outcome.timeout_s:g} s")]


def fault_lines(outcome: RunOutcome, *, is_brief: bool = False) -> list[Line]:
    """One line for each fault on purpose, skip, or line typed at the prompt.

    They come before what they may have caused.

    Brief: a notebook has shown those on faults when they struck.
    """
    texts = () if is_brief else outcome.injected[:MAX_FULL]
    faults = [f"{ON_PURPOSE}: {text}" for text in texts]
    typed = () if outcome.report is None else outcome.typed[:MAX_FULL]  # a plain error needs none
    return [Line(text) for text in (*faults, *outcome.left_out[:MAX_FULL], *typed)]


def consequence_lines(outcome: RunOutcome) -> list[Line]:
    """One line for each place at which ranks failed because of others."""
    ends = {
        rank: _consequence(outcome, rank)
        for rank, result in outcome.results.items()
        if result.exited is None and is_consequence(outcome, rank)
    }
    return [Line(end.describe(ranks)) for end, ranks in ranks_by_value(ends).items()]


def _consequence(outcome: RunOutcome, rank: Rank) -> _Consequence:
    result = outcome.results[rank]
    site = result.error.site if result.error is not None else None
    at = f" ({site.place})" if site is not None else ""
    if not result.was_freed and result.error is not None:
        if _REACHED in result.error.evalue:
            return _Consequence(f"came to monitored_barrier{at}")
        if result.error.ename != _LOST_ERROR:
            return _Consequence(f"raised {result.error.ename} too{at}")
        own = lost_connection(outcome, rank)
        if own or not outcome.ranks("exited"):
            return _Consequence(f"{own or 'lost the connection to another rank'}{at}")
        # Gloo told it that a peer is gone, before nbddp freed it: see `exited_ranks`.
    place = _place_of_wait(outcome, rank, site)
    if place is not None:
        site, predicate = place.site or site, place.predicate
        wait_line = predicate.aside[0].strip(" ()")  # of an operation that another line has begun
        parts = [*([site.place] if site is not None else []), *([wait_line] if wait_line else [])]
        at = f" ({'; '.join(parts)})" if parts else ""
        freed = f"freed{_raised_in_turn(result.error)}"
        return _Consequence(f"waited{predicate.spoken or predicate.rest}{at}", freed)
    if result.error is not None and result.error.ename == "KeyboardInterrupt":
        return _Consequence(passive=f"interrupted{at}")  # perhaps it waited for no other rank
    return _Consequence(f"waited{at}" if site is not None else "", "freed")
