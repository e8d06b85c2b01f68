"""Compares the ranks' records after a cell that did not hang, and finds errors without a sign.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterator

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.disagreement import Disagreement, Point
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.flight_recorder.matching import compare_message
from nbddp.wire.rank_set import Rank, RankSet


def find_silent_mismatches(graph: WaitForGraph, run_id: str) -> list[Cause]:
    """Find operations on which ranks disagree, and operations that were left open.

    Args:
        graph: the ranks after the cell.
        run_id: only operations of this run count; empty: those of all runs.
    """
    causes = [*_disagreements(graph, run_id), *find_mismatched_messages(graph, run_id)]
    if not any(view.state in ("raised", "dead", "running") for view in graph.views.values()):
        causes += _dangling(graph, run_id)
    return causes


def _disagreements(graph: WaitForGraph, run_id: str) -> Iterator[Cause]:
    points: dict[Point, tuple[Rank, Operation]] = {}
    for rank, history in graph.histories.items():
        for operation in history.operations.values():
            if operation.signature.kind == "collective" and run_id in ("", operation.run_id):
                point = operation.pg_id, operation.collective_seq_id
                points.setdefault(point, (rank, operation))
    for point, (rank, operation) in sorted(points.items()):
        disagreement = graph.disagreement(point)
        if disagreement is not None and not graph.has_unaligned_numbers(rank, operation):
            yield _disagreement_cause(rank, operation, disagreement)


def find_mismatched_messages(graph: WaitForGraph, run_id: str) -> Iterator[Cause]:
    """Find messages whose two ends do not match; one end may be of an earlier cell.

    The two ends have the same number, unless some receives took from any source.

    Args:
        graph: the ranks after the cell.
        run_id: one of the ends is of this run; empty: of any.
    """
    ends = _receives(graph)
    for rank, history in graph.histories.items():
        for sent in history.operations.values():
            if sent.signature.kind != "send" or sent.state == "failed":
                continue
            received = ends.get((sent.peer, sent.pg_id, rank, sent.tag, sent.p2p_seq_id))
            if received is None or run_id not in ("", sent.run_id, received.run_id):
                continue
            differences = compare_message(sent.signature, received.signature)
            if differences and not graph.histories[sent.peer].may_take_any(sent.pg_id, sent.tag):
                culprits = RankSet.of((rank, sent.peer))
                disagreement = Disagreement(
                    point=(sent.pg_id, 0),
                    operation_by_rank={rank: sent, sent.peer: received},
                    clusters=tuple(RankSet.of((end,)) for end in culprits),
                    culprits=culprits,
                    differences=differences,
                )
                yield _disagreement_cause(rank, sent, disagreement)


def _receives(graph: WaitForGraph) -> dict[tuple[Rank, str, Rank, int, int], Operation]:
    """The receives by rank, group, source, tag and number."""
    return {
        (rank, each.pg_id, each.peer, each.tag, each.p2p_seq_id): each
        for rank, history in graph.histories.items()
        for each in history.operations.values()
        if each.signature.kind == "recv" and each.state != "failed"
    }


def _dangling(graph: WaitForGraph, run_id: str) -> Iterator[Cause]:
    """Operations that some members issued, and that others never did before their cells ended."""
    dangling: dict[tuple[str, int, str], tuple[Rank, Operation, set[Rank], set[Rank]]] = {}
    for rank, history in graph.histories.items():
        for operation in history.operations.values():
            if operation.state != "scheduled" or run_id not in ("", operation.run_id):
                continue
            kind = operation.signature.kind
            absent = graph.absent(rank, operation)
            never = {other for other in absent or () if other not in graph.able}
            if not never:
                continue
            key = operation.pg_id, operation.collective_seq_id, ""
            if kind != "collective":
                key = operation.pg_id, operation.record_id, f"{kind} of {rank}"
            _, _, issued, missing = dangling.setdefault(key, (rank, operation, set(), set()))
            issued.add(rank)
            missing |= never
    for rank, operation, issued, missing in dangling.values():
        yield Cause(
            "silent-mismatch",
            RankSet.of(missing),
            RankSet.of(issued),
            owner=rank,
            operation=operation,
        )


def _disagreement_cause(rank: Rank, operation: Operation, disagreement: Disagreement) -> Cause:
    return Cause(
        "silent-mismatch",
        disagreement.culprits,
        RankSet(),
        owner=rank,
        operation=operation,
        disagreement=disagreement,
    )
