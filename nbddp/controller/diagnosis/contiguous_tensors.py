"""The next step where ranks pass tensors that lie otherwise in memory.

Runs in: the notebook's process. Pure.
"""

import ast
from collections.abc import Mapping

from nbddp.wire.flight_recorder import Operation
from nbddp.wire.rank_set import Rank, RankSet

_WHY = "elements are sent in the order of memory."
_PARAMETER = "tensor"  #: the name of the first argument of these calls


def contiguous_step(operation_by_rank: Mapping[Rank, Operation]) -> str:
    """Return the step: which tensors become contiguous, on which ranks, before which lines."""
    ranks_by_line: dict[tuple[str, str], list[Rank]] = {}
    for rank, operation in sorted(operation_by_rank.items()):
        if operation.signature.strides:
            place = operation.site.place if operation.site.line else ""
            ranks_by_line.setdefault((place, _tensor(operation)), []).append(rank)
    parts = []
    for (place, name), ranks in ranks_by_line.items():
        copy = f"`{name} = {name}.contiguous()`" if name else "with a copy by `.contiguous()`"
        before = f" before {place}" if place else ""
        parts.append(f", on {RankSet.of(ranks).describe()} {copy}{before}")
    return f"Pass contiguous tensors on all ranks of the group{''.join(parts)}: {_WHY}"


def _tensor(operation: Operation) -> str:
    """The tensor of a call, as its line names it; empty: the line shows no such name."""
    op = operation.signature.op
    if op == "scatter":  # its list may be what lies otherwise
        return ""
    try:
        tree = ast.parse(operation.site.source.strip())
    except (SyntaxError, ValueError):  # the call has more lines, or its line is cut
        return ""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == op
    ]
    if len(calls) != 1:
        return ""
    named = [keyword.value for keyword in calls[0].keywords if keyword.arg == _PARAMETER]
    first = next(iter([*calls[0].args, *named]), None)
    return ast.unparse(first) if first is not None and _is_path(first) else ""


def _is_path(node: ast.expr) -> bool:
    """Whether an expression is a name, perhaps with attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
