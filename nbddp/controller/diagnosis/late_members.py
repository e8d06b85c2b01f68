"""Ranks that were still on their way when a verdict was reached, and the report with all of them.

Runs in: the notebook's process. Pure. A verdict is proven as soon as some ranks can never continue;
on a busy machine other members of their group come to the same call, or to the end of the cell,
seconds later. At the end of the cell all of them have come, and their places are known.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec

from nbddp.controller.diagnosis.phrases import RankVerb
from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.diagnosis.report import Finding, Kind, PerRank, Report
from nbddp.wire.flight_recorder import Operation, ThreadLook, Wait
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

#: Kinds whose lists of ranks grow while members of a group come.
_GROWING: Final[frozenset[Kind]] = frozenset(
    {"missing-rank", "mismatched-collective", "p2p-cycle", "store-wait"}
)


def late_ranks(report: Report) -> RankSet:
    """Return the members of the group of the first finding that may still come to its call."""
    finding = report.proven[0] if report.proven else None
    if finding is None or finding.kind not in _GROWING or finding.group is None:
        return NO_RANKS
    members = (finding.ranks[rank] for rank in finding.group.ranks if rank in finding.ranks)
    return RankSet.of(
        each.rank
        for each in members
        if each.status in ("running", "silent")
        and each.predicate.verb is not RankVerb.CALLED
        and each.rank not in report.stuck
    )


def settled_views(
    report: Report, first: Mapping[Rank, RankView], last: Mapping[Rank, RankView]
) -> dict[Rank, RankView]:
    """Return the places to which all ranks have come.

    Args:
        report: the verdict.
        first: the views that prove it.
        last: the views after the end of the cell, when all ranks were freed.

    Returns:
        For a rank that was late its place at the end, as if nobody had freed it; for any other rank
        the view of the proof.
    """
    return {
        rank: _as_it_waited(last.get(rank, view), report.run_id)
        if view.state in ("running", "silent") and rank not in report.stuck
        else view
        for rank, view in first.items()
    }


def completed(before: Report, after: Report) -> Report | None:
    """Return the verdict with all ranks.

    Args:
        before: the verdict.
        after: the report of settled views.

    Returns:
        ``after``; None: it does not have the finding of the verdict, with more ranks or as many.
    """
    if not before.proven or not after.proven:
        return None
    old, new = before.proven[0], after.proven[0]
    if _subject(old) != _subject(new) or not set(_ranks(new)).issuperset(_ranks(old)):
        return None
    late = late_ranks(before)  # they were freed as soon as they came: their waits tell nothing
    findings = [replace(each, ranks=_without_waits(each.ranks, late)) for each in after.findings]
    return replace(after, findings=tuple(findings), ranks=_without_waits(after.ranks, late))


def _without_waits(places: Mapping[Rank, PerRank], late: RankSet) -> dict[Rank, PerRank]:
    return {
        rank: replace(place, since_s=None) if rank in late else place
        for rank, place in places.items()
    }


def _subject(finding: Finding) -> tuple[object, ...]:
    pg_id = finding.group.pg_id if finding.group is not None else ""
    return finding.kind, pg_id, finding.op, finding.collective_seq_id


def _ranks(finding: Finding) -> tuple[Rank, ...]:
    called = (r for r, each in finding.ranks.items() if each.predicate.verb is RankVerb.CALLED)
    return (*finding.culprits, *finding.waiting, *called)


def _as_it_waited(view: RankView, run_id: str) -> RankView:
    """Return the view of a freed rank at the moment before it was freed."""
    look = view.look
    if look is None or view.state != "raised" or not view.was_freed:
        return view
    freed = next((each for each in look.operations if _was_freed(each, run_id)), None)
    if freed is None:
        return view
    wait = Wait(kind="operation", record_ids=(freed.record_id,), since_ns=freed.time_created_ns)
    main = ThreadLook(name="MainThread", is_main=True, wait=wait, stack=(freed.site,))
    operations = tuple(
        msgspec.structs.replace(each, state="scheduled", failure=None) if each is freed else each
        for each in look.operations
    )
    waiting = msgspec.structs.replace(
        look,
        activity="running",
        time_ns=max(freed.time_completed_ns, freed.time_created_ns),
        threads=(main,),
        operations=operations,
    )
    return replace(view, state="running", look=waiting, error=None, was_freed=False, after=None)


def _was_freed(operation: Operation, run_id: str) -> bool:
    failure = operation.failure
    return operation.run_id == run_id and failure is not None and failure.kind == "freed"
