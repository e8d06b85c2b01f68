"""Finds collectives that ranks called in another order, where kinds and shapes agree.

Runs in: the notebook's process. Pure. ``if rank == 0: broadcast(a) else: broadcast(b)`` is right,
and no records tell it from a mistake. So only calls that cross count: what one rank calls as
number 5, another calls as number 6.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nbddp.controller.diagnosis.history import is_local_failure
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.flight_recorder.matching import BARRIERS, MESSAGES
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

#: A rank that has no more data makes the calls of the others at the end of its `with` block.
_JOIN = "Join"
#: A tensor that has a name: ``x``, ``model.weight.grad``, ``parts[0]``.
_NAME = re.compile(r"[A-Za-z_][\w.]*(\[\w+\])?")

#: By the number of the collective.
_Calls: TypeAlias = Mapping[int, Operation]


@dataclass(frozen=True)
class CrossedLines:
    """A collective that ranks called at different lines."""

    operation_by_rank: Mapping[Rank, Operation]
    clusters: tuple[RankSet, ...]  #: ranks with the same tensor or line, most ranks first

    @property
    def culprits(self) -> RankSet:
        """The minority; without one, all ranks."""
        has_majority = len(self.clusters[0]) > len(self.clusters[1])
        return RankSet.of(rank for ranks in self.clusters[has_majority:] for rank in ranks)


def find_crossed_lines(graph: WaitForGraph, run_id: str) -> list[CrossedLines]:
    """Find for each group the first collective whose lines cross.

    Args:
        graph: the ranks after the cell.
        run_id: only operations of this run count; empty: those of all runs.
    """
    calls: dict[str, dict[Rank, dict[int, Operation]]] = {}
    for rank, history in graph.histories.items():
        for operation in history.operations.values():
            signature = operation.signature
            is_call = signature.kind == "collective" and signature.op not in BARRIERS
            is_call = is_call and operation.origin != _JOIN
            if is_call and not is_local_failure(operation) and run_id in ("", operation.run_id):
                by_rank = calls.setdefault(operation.pg_id, {})
                by_rank.setdefault(rank, {})[operation.collective_seq_id] = operation
    return [
        lines
        for _, by_rank in sorted(calls.items())
        if (lines := _first_crossed(graph, by_rank)) is not None
    ]


def _first_crossed(graph: WaitForGraph, by_rank: Mapping[Rank, _Calls]) -> CrossedLines | None:
    for number in sorted({number for calls in by_rank.values() for number in calls}):
        operations = {rank: calls[number] for rank, calls in by_rank.items() if number in calls}
        if len({each.site.position for each in operations.values()}) < 2:
            continue
        rank, operation = next(iter(operations.items()))
        point = operation.pg_id, number
        if graph.disagreement(point) is not None or graph.has_unaligned_numbers(rank, operation):
            continue
        ranks_by_key = ranks_by_value({each: key_of(one) for each, one in operations.items()})
        leaders = [ranks.ranks[0] for ranks in ranks_by_key.values()]
        if any(
            _crosses(number, by_rank[one], by_rank[other])
            for one in leaders
            for other in leaders
            if one != other
        ):
            clusters = sorted(ranks_by_key.values(), key=lambda ranks: (-len(ranks), ranks.ranks))
            return CrossedLines(operations, tuple(clusters))
    return None


def _crosses(number: int, mine: _Calls, theirs: _Calls) -> bool:
    """Whether the other rank makes my call, as a number at which I make another one."""
    key = key_of(mine[number])
    return key_of(theirs[number]) != key and any(
        other in mine and key_of(call) == key != key_of(mine[other])
        for other, call in theirs.items()
    )


def key_of(operation: Operation) -> str:
    """The name for a call: that of its tensor, or else its line."""
    return tensor_of(operation) or str(operation.site.position)


def tensor_of(operation: Operation) -> str:
    """The name of the tensor in the line of a call: ``grad``; empty: the line does not show one."""
    source = operation.site.source.strip()
    try:
        tree = ast.parse(f"{source} pass" if source.endswith(":") else source)
    except (SyntaxError, ValueError):
        return ""
    op = operation.signature.op
    names = (op, f"i{op}") if operation.signature.kind in MESSAGES else (op,)
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) in names
    ]
    if len(calls) != 1:
        return ""
    named = [each.value for each in calls[0].keywords if each.arg == "tensor"]
    arguments = [*calls[0].args, *named]
    text = ast.unparse(arguments[0]) if arguments else ""
    return text if _NAME.fullmatch(text) else ""


def _name(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""
