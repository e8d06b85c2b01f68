"""Puts causes into words: `write_finding`, from a table with a writer for each kind.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.disagreement import used_as_scratch
from nbddp.controller.diagnosis.phrases import subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import AFTER_INTERRUPT, Finding, Kind
from nbddp.controller.diagnosis.suspicions import suspicions, was_interrupted
from nbddp.controller.diagnosis.wait_graph import Waiting
from nbddp.controller.diagnosis.words import (
    collectives,
    data_reads,
    ended_ranks,
    messages,
    mismatches,
    notices,
    parted_replicas,
    sanitizer,
    store,
)
from nbddp.controller.diagnosis.words.shared import Words
from nbddp.wire.flight_recorder import Site
from nbddp.wire.rank_set import RankSet

WRITERS: Final[Mapping[Kind, Callable[[Cause, RankReports], Words]]] = {
    "dead-rank": ended_ranks.dead_rank,
    "first-error": ended_ranks.first_error,
    "mismatched-collective": mismatches.mismatched_collective,
    "p2p-cycle": messages.p2p_cycle,
    "group-cycle": collectives.group_cycle,
    "p2p-unmatched": messages.p2p_unmatched,
    "store-wait": store.store_wait,
    "missing-rank": collectives.missing_rank,
    "left-debugger": ended_ranks.left_debugger,
    "straggler": notices.straggler,
    "stuck-outside": notices.straggler,
    "silent-mismatch": mismatches.silent_mismatch,
    "desynchronized-loop": mismatches.desynchronized_loop,
    "not-finite": sanitizer.not_finite,
    "buffer-in-use": sanitizer.buffer_in_use,
    "parted-replicas": parted_replicas.parted_replicas,
    "samples-twice": data_reads.samples_twice,
    "samples-unread": data_reads.samples_unread,
    "uneven-batches": data_reads.uneven_batches,
    "same-order": data_reads.same_order,
    "crossed-lines": sanitizer.crossed_lines,
}

#: Findings about calls that ranks have made at other lines than others, or not at all.
_OF_CALLS: Final = frozenset[Kind](
    (
        "mismatched-collective",
        "p2p-cycle",
        "group-cycle",
        "p2p-unmatched",
        "store-wait",
        "missing-rank",
    )
)


def write_finding(cause: Cause, reports: RankReports) -> Finding:
    """Return the finding that reports a cause."""
    words = _words(cause, reports)
    operation, disagreement = cause.operation, cause.disagreement
    group = reports.graph.group(operation) if operation else None
    is_alone = cause.kind == "dead-rank" or bool(cause.finding_by_rank)
    members = group.ranks if group and not is_alone else RankSet()
    concerned = {*cause.culprits, *cause.waiting, *members, *words.ranks}
    waits = [reports.since_s(rank, operation) for rank in cause.waiting]
    has_errors = disagreement is not None and bool(disagreement.differences.hard)
    has_written = disagreement is not None and cause.kind == "mismatched-collective"
    return Finding(
        kind=cause.kind,
        proven=cause.proven,
        culprits=cause.culprits,
        waiting=cause.waiting,
        headline=words.headline,
        reason=words.reason,
        next_step=words.next_step,
        group=group,
        op=operation.signature.op if operation else "",
        origin=operation.origin if operation else "",
        collective_seq_id=operation.collective_seq_id if operation else 0,
        fields=disagreement.differences.all if disagreement else (),
        suspicions=suspicions(cause, reports, words.places),
        ranks={**reports.ranks(concerned, operation.pg_id if operation else None), **words.ranks},
        since_s=max((wait for wait in waits if wait is not None), default=None),
        is_error=cause.kind == "silent-mismatch" and cause.proven and has_errors,
        written=disagreement.written if disagreement and has_written else RankSet(),
        scratch=_scratch(cause, reports),
        code=tuple(words.code),
        change=words.change,
        is_consequence=cause.is_consequence,
        is_handled=cause.proven and _is_handled(cause, reports),
        begins_with_ranks=words.begins_with_ranks,
    )


def _words(cause: Cause, reports: RankReports) -> Words:
    words = WRITERS[cause.kind](cause, reports)
    if cause.kind not in _OF_CALLS or not was_interrupted(cause, reports):
        return words
    code = words.code if cause.kind == "mismatched-collective" else ()  # the lines of the calls
    return replace(words, next_step=AFTER_INTERRUPT, change=None, code=code, places=())


def plain_finding(cause: Cause) -> Finding:
    """Return the finding that reports a cause where `write_finding` fails, a bug of nbddp."""
    waiting, culprits = cause.waiting, cause.culprits
    others = culprits - waiting
    headline = f"nbddp has found '{cause.kind}', and could not describe it."
    if waiting:
        for_others = f" for {others.describe()}" if others else ""
        waits = f"{waiting.verb('waits', 'wait')}{for_others}"
        headline = f"{subject(waiting)} {waits} ('{cause.kind}'), and nbddp could not say why."
    elif culprits:
        headline = f"{subject(culprits)}: {headline}"
    return Finding(
        kind=cause.kind,
        proven=cause.proven,
        culprits=culprits,
        waiting=waiting,
        headline=headline,
        reason="an internal error of nbddp has cost the details of this finding.",
        next_step="Please report this: the log of the notebook has the traceback.",
        is_consequence=cause.is_consequence,
        begins_with_ranks=bool(waiting or culprits),
    )


def _scratch(cause: Cause, reports: RankReports) -> RankSet:
    """The ranks on which a reduce, in which others wait forever, may have left partial sums."""
    operation = cause.operation
    if operation is None or not (cause.proven and cause.waiting):
        return RankSet()
    point = operation.pg_id, operation.collective_seq_id
    calls = {
        rank: call
        for rank, history in reports.graph.histories.items()
        if (call := history.collective(*point)) is not None
    }
    return used_as_scratch(calls)


def _is_handled(cause: Cause, reports: RankReports) -> bool:
    """Whether each rank that waits is inside a ``try`` that takes the error of a freed rank."""
    lines = {
        rank: [site for wait in reports.graph.waits[rank] for site in _stack(wait)]
        for rank in cause.waiting
    }
    return bool(lines) and all(
        any(
            handler.takes_all
            for site in sites
            if (code := reports.sources(site)) is not None
            for branch in code.branches(site.line)
            for handler in branch.handlers
        )
        for sites in lines.values()
    )


def _stack(wait: Waiting) -> tuple[Site, ...]:
    return wait.thread.stack or tuple(each.site for each in wait.operations)
