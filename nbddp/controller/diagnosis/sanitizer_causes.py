"""Groups what the sanitizers of the ranks saw in a cell: one cause for one mistake of the code.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Container, Mapping

from nbddp.controller.diagnosis.batch_parts import takes_part_by_rank
from nbddp.controller.diagnosis.causes import Cause, shifted_causes
from nbddp.controller.diagnosis.control_flow import Sources, no_sources
from nbddp.controller.diagnosis.crossed_lines import find_crossed_lines
from nbddp.controller.diagnosis.crossed_messages import find_crossed_messages
from nbddp.controller.diagnosis.data_reads import DataFinding, compare_reads
from nbddp.controller.diagnosis.guard import NO_GUARD, Guard
from nbddp.controller.diagnosis.parted_replicas import find_parted_replicas
from nbddp.controller.diagnosis.replica_comparison import PartedReplicas
from nbddp.controller.diagnosis.report import Kind
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import SanitizerFinding
from nbddp.wire.rank_set import Rank, RankSet

#: The kinds of findings in which a line has used a tensor before the end of its operation.
_ACCESSES = ("write", "read", "resize")


def sanitizer_causes(
    graph: WaitForGraph,
    run_id: str,
    *,
    has_failed: bool,
    sources: Sources = no_sources,
    guard: Guard = NO_GUARD,
) -> list[Cause]:
    """The causes of findings that only ``--sanitize`` gives.

    Args:
        graph: the ranks after the cell.
        run_id: names the run of the cell.
        has_failed: the cell has not ended well: the records of ranks end at different places.
        sources: the code of the user, which may take a part of each batch by rank.
        guard: of the search for each kind.

    Returns:
        Findings about single operations in the order of time, then what only the whole cell shows.
    """
    views = graph.views.values()
    if not any(view.sanitizer for view in views):
        return []
    findings = [
        (rank, finding)
        for rank, view in graph.views.items()
        if view.sanitizer is not None
        for finding in view.sanitizer.findings
    ]
    only_data = all(view.sanitizer is None or view.sanitizer.only_data for view in views)
    values = [each for each in findings if each[1].kind == "not-finite"]
    buffers = [each for each in findings if each[1].kind != "not-finite"]
    causes = [
        *guard.found(lambda: _first_not_finite(values)),
        *guard.found(lambda: _buffers(buffers)),
    ]
    accesses = [finding for _, finding in findings if finding.kind in _ACCESSES]
    races = {finding.site.position for finding in accesses}
    raced = {finding.operation.site.position for finding in accesses}
    return [
        *sorted(causes, key=_began_ns),
        *guard.found(
            lambda: (
                Cause(
                    "parted-replicas",
                    parted.culprits,
                    RankSet(),
                    parted=parted,
                    is_consequence=_is_of_race(parted, graph, races, raced),
                )
                for parted in find_parted_replicas(graph)
            )
        ),
        *guard.found(lambda: _data(graph, sources, has_failed=has_failed)),
        *([] if has_failed or only_data else _orders(graph, run_id, guard)),
    ]


def _orders(graph: WaitForGraph, run_id: str, guard: Guard) -> list[Cause]:
    """Operations that ranks called in other iterations, at other lines, or in another order."""
    return [
        *guard.found(lambda: shifted_causes(graph, run_id, is_evidence=False)),
        *guard.found(lambda: _crossed(graph, run_id)),
    ]


def _is_of_race(
    parted: PartedReplicas, graph: WaitForGraph, races: Container[object], raced: Container[object]
) -> bool:
    """Whether code used gradients of the model before the end of an operation on them.

    Args:
        parted: its replicas.
        graph: the ranks after the cell.
        races: the places of lines that used tensors of open operations.
        raced: the places of lines that issued these operations.
    """
    is_known = parted.setting or parted.step_counts or parted.without_tensor
    if not parted.step or is_known or parted.is_before or parted.alone:
        return False  # another reason is known
    model = parted.steps.pg_id, parted.steps.number
    return any(
        site.position in (races if steps.optimizers else raced)
        for view in graph.views.values()
        if view.sanitizer is not None
        for steps in view.sanitizer.replicas
        if (steps.pg_id, steps.number) == model
        for site in steps.sites
    )


def _data(graph: WaitForGraph, sources: Sources, *, has_failed: bool) -> list[Cause]:
    """Data that ranks have read twice, never, or in the same order."""
    reads = {
        rank: view.sanitizer.reads
        for rank, view in graph.views.items()
        if view.sanitizer is not None and view.sanitizer.reads
    }
    findings, _ = compare_reads(reads, len(graph.views), has_failed=has_failed)
    return [
        Cause(finding.kind, finding.culprits, RankSet(), proven=finding.proven, data=finding)
        for finding in findings
        if not _uses_parts(finding, sources)
    ]


def _uses_parts(finding: DataFinding, sources: Sources) -> bool:
    """Whether each rank uses a part of the batches that all have read."""
    if finding.kind != "samples-twice" or not finding.is_open:
        return False
    site = next(iter(finding.epochs.values())).site
    code = sources(site) if site.line else None
    return code is not None and takes_part_by_rank(code, site.line)


def _began_ns(cause: Cause) -> int:
    """The time of the first rank's finding: findings are in the order of the program."""
    return min(finding.time_ns for finding in cause.finding_by_rank.values())


def _crossed(graph: WaitForGraph, run_id: str) -> list[Cause]:
    """Collectives at different lines, messages in another order: a suspicion, never a verdict."""
    return [
        Cause(
            "crossed-lines",
            crossed.culprits,
            RankSet(),
            proven=False,
            owner=rank,
            operation=operation,
            crossed=crossed,
        )
        for crossed in (
            *find_crossed_lines(graph, run_id),
            *find_crossed_messages(graph, run_id),
        )
        for rank, operation in [next(iter(crossed.operation_by_rank.items()))]
    ]


def _buffers(findings: list[tuple[Rank, SanitizerFinding]]) -> list[Cause]:
    """One cause for the same lines on several ranks."""
    by_lines: dict[object, dict[Rank, SanitizerFinding]] = {}
    for rank, finding in findings:
        lines = finding.operation.site.position, finding.site.position
        key = finding.kind, finding.operation.signature.op, *lines
        by_lines.setdefault(key, {}).setdefault(rank, finding)
    # A later cell may wait for an operation whose handle is there.
    return [
        _cause("buffer-in-use", each, proven=not all(one.has_handle for one in each.values()))
        for each in by_lines.values()
    ]


def _first_not_finite(findings: list[tuple[Rank, SanitizerFinding]]) -> list[Cause]:
    """The first operation that was given NaN or Inf, and the ranks that gave it.

    Numbers order the operations of one group, clocks those of several.
    """
    if not findings:
        return []
    _, first = min(findings, key=lambda each: each[1].time_ns)
    if first.operation.collective_seq_id:
        group = first.operation.pg_id
        numbered = [each for each in findings if _number(each[1], group)]
        _, first = min(numbered, key=lambda each: _number(each[1], group))
        number = _number(first, group)
        return [
            _cause(
                "not-finite", {r: each for r, each in numbered if _number(each, group) == number}
            )
        ]
    return [_cause("not-finite", {rank: each for rank, each in findings if each is first})]


def _number(finding: SanitizerFinding, group: str) -> int:
    """The number of the operation in a group; 0: it has none there."""
    return finding.operation.collective_seq_id if finding.operation.pg_id == group else 0


def _cause(
    kind: Kind, finding_by_rank: Mapping[Rank, SanitizerFinding], *, proven: bool = True
) -> Cause:
    rank, finding = next(iter(finding_by_rank.items()))
    return Cause(
        kind,
        RankSet.of(finding_by_rank),
        RankSet(),
        proven=proven,
        owner=rank,
        operation=finding.operation,
        finding_by_rank=finding_by_rank,
    )
