"""Explains why a run makes no progress: `diagnose`, from rank states and records to a report.

Runs in: the notebook's process, hub thread. Pure: no I/O, no clock.

    RankView of each rank --> wait_graph (stuck ranks) --> causes, notices --> Report
                                  facts in rank_reports, English in phrases, words --'

docs/diagnosis.md describes every kind of finding, and what is not detected.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from nbddp.controller.diagnosis.causes import Cause, find_causes, shifted_causes
from nbddp.controller.diagnosis.control_flow import Sources, no_sources
from nbddp.controller.diagnosis.guard import ErrorHandler, Guard
from nbddp.controller.diagnosis.notices import find_notices
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.rank_view import RankView, RankViews
from nbddp.controller.diagnosis.report import TITLES, Finding, Report
from nbddp.controller.diagnosis.sanitizer_causes import sanitizer_causes
from nbddp.controller.diagnosis.silent_mismatches import (
    find_mismatched_messages,
    find_silent_mismatches,
)
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.controller.diagnosis.words import plain_finding, write_finding
from nbddp.wire.rank_set import Rank

#: The records that are compared after a cell; each contains the next.
CompareScope: TypeAlias = Literal["all", "messages", "sanitizer"]

#: Findings with which a report has the different iterations of ranks as evidence.
_WITH_SHIFTS = ("Deadlock", "Mismatch")


def diagnose(
    ranks: Mapping[Rank, RankView],
    *,
    now_ns: int,
    run_id: str,
    sources: Sources = no_sources,
    on_error: ErrorHandler | None = None,
) -> Report:
    """Report which ranks wait for which, and what of it is proven.

    A report with a ``verdict`` is a proof only if the looks show one moment. To make sure, the
    caller asks all ranks twice: if the ``version`` of every rank in ``report.involved`` is the same
    in both rounds, all of them were in this state between the rounds.

    Args:
        ranks: every rank of the pool, also ranks that take no part in the run.
        now_ns: `time.monotonic_ns` of the caller, for ranks that did not tell their own time.
        run_id: names the run of the cell.
        sources: the code of the user, from which findings quote the `if` around a line.
        on_error: is called with an error of nbddp in one finding, which costs the others nothing;
            None: it is raised.

    Returns:
        The findings, the stuck ranks, and where each rank is.

    It takes O(ranks * members of their groups) steps.
    """
    ranks = RankViews(ranks)
    graph = WaitForGraph(ranks)
    reports = RankReports(graph, now_ns, run_id, sources)
    guard = Guard(on_error)
    causes = [
        *guard.found(lambda: find_causes(graph, guard)),
        *guard.found(lambda: find_notices(graph, now_ns, guard)),
    ]
    if any(cause.proven and TITLES[cause.kind] in _WITH_SHIFTS for cause in causes):
        causes += guard.found(lambda: shifted_causes(graph, run_id, is_evidence=True))
    timeouts = _timeouts(graph, reports)
    stuck = graph.stuck
    blocked = [
        operation
        for rank in stuck
        for waiting in graph.waits[rank]
        for operation in waiting.operations
    ]
    return Report(
        run_id=run_id,
        findings=tuple(_written(cause, reports, guard) for cause in causes),
        stuck=stuck,
        involved=graph.involved(),
        pg_ids=tuple(dict.fromkeys(each.pg_id for each in blocked if each.pg_id)),
        waits_for_store=type(stuck).of(
            rank
            for rank in stuck
            for waiting in graph.waits[rank]
            if any(each.signature.kind in ("store", "creation") for each in waiting.operations)
        ),
        earliest_timeout_ms=min((timeout for timeout, _ in timeouts), default=None),
        earliest_timeout_left_ms=min((left for _, left in timeouts), default=None),
        ranks=reports.ranks(ranks),
    )


def compare_records(
    ranks: Mapping[Rank, RankView],
    *,
    now_ns: int = 0,
    run_id: str = "",
    sources: Sources = no_sources,
    scope: CompareScope = "all",
    has_failed: bool = False,
    on_error: ErrorHandler | None = None,
) -> tuple[Finding, ...]:
    """Find errors that showed no sign, after a cell has ended.

    These are operations that ranks called with different arguments, operations that some members
    issued and others never will, and what sanitizers saw.

    Args:
        ranks: every rank of the pool.
        now_ns: `time.monotonic_ns` of the caller.
        run_id: only operations of this run count; empty: those of all runs.
        sources: the code of the user, from which findings name lines.
        scope: what the marks of groups tell of; the others cannot be found.
        has_failed: the cell has not ended well: the records of its ranks end at different places.
        on_error: is called with an error of nbddp in one finding, which costs the others nothing;
            None: it is raised.

    Returns:
        Findings of the kind ``silent-mismatch``, and those that only a sanitized cell has.
    """
    graph = WaitForGraph(RankViews(ranks))
    reports = RankReports(graph, now_ns, run_id, sources)
    guard = Guard(on_error)
    causes = guard.found(
        lambda: sanitizer_causes(graph, run_id, has_failed=has_failed, sources=sources, guard=guard)
    )
    if scope == "all":
        causes = [*guard.found(lambda: find_silent_mismatches(graph, run_id)), *causes]
    elif scope == "messages":
        causes = [*guard.found(lambda: find_mismatched_messages(graph, run_id)), *causes]
    return tuple(_written(cause, reports, guard) for cause in causes)


def _written(cause: Cause, reports: RankReports, guard: Guard) -> Finding:
    """The finding that reports a cause; most of the code that may fail reads the user's source."""
    graph, now_ns, run_id = reports.graph, reports.now_ns, reports.run_id
    without_source = RankReports(graph, now_ns, run_id)
    for described in (reports, without_source):
        with guard:
            return write_finding(cause, described)
    return plain_finding(cause)


def _timeouts(graph: WaitForGraph, reports: RankReports) -> list[tuple[int, int]]:
    """The timeouts of operations that block stuck ranks, with the time left, in milliseconds."""
    return [
        (operation.timeout_ms, left_ms)
        for rank in graph.stuck
        for waiting in graph.waits[rank]
        for operation, left_ms in reports.timeouts(waiting)
    ]
