"""Tensors of different first dimensions in one collective: padded to the largest, or what else.

Runs in: the notebook's process. Pure.
"""

import ast
from collections.abc import Sequence

from nbddp.controller.diagnosis.code_places import (
    Place,
    called,
    find_place,
    lines_of,
    names_in,
    with_comments,
)
from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.disagreement import Disagreement
from nbddp.controller.diagnosis.report import ChangedLine

_GATHERS = ("all_gather", "gather")
_LONGEST = "longest"


def differ_in_length(disagreement: Disagreement) -> bool:
    """Whether ranks brought one tensor each, which differ in the first dimension only."""
    shapes = [each.signature.input_sizes for each in disagreement.operation_by_rank.values()]
    if disagreement.differences.reported != ("input_sizes",) or {*map(len, shapes)} != {1}:
        return False
    return all(shape for (shape,) in shapes) and len({shape[1:] for (shape,) in shapes}) == 1


def advice(disagreement: Disagreement) -> str:
    """A sentence on what to do about different lengths; empty: there is none."""
    signature = next(iter(disagreement.operation_by_rank.values())).signature
    if not differ_in_length(disagreement):
        return ""
    match signature.op:
        case "all_gather" | "gather":
            return f"Pad each tensor to the longest one before, or use {signature.op}_object."
        case "all_reduce" | "reduce":
            return "For a mean of all items, reduce their sum and their number."
        case "broadcast":
            return (
                f"Broadcast the length of the tensor of rank {signature.root} first, and let the "
                "other ranks make theirs of that length."
            )
        case _:
            return ""


def padded(disagreement: Disagreement, code: Code) -> tuple[ChangedLine, ...]:
    """Pad the tensors of an ``all_gather`` or ``gather`` to the longest one.

    Args:
        disagreement: tensors of one line that differ in length.
        code: the code with that line.

    Returns:
        The lines with the change; none where it would change more than the call.
    """
    (site, *others) = {each.site.position for each in disagreement.operation_by_rank.values()}
    place = find_place(code, site[2])
    call = None if place is None else place.statement.value
    if others or place is None or not isinstance(call, ast.Call) or not place.has_own_lines:
        return ()
    names = _names(call) if differ_in_length(disagreement) else None
    if names is None or code.mentions(_LONGEST) or not isinstance(call.func, ast.Attribute):
        return ()
    tensor, gathered = names
    makers = [each for each in place.body[: place.index] if _makes(each, gathered, tensor)]
    if not makers or not _is_local(code, place, makers[-1], tensor):
        return ()
    first, dist = makers[-1], ast.unparse(call.func.value)
    (shape,) = next(iter(disagreement.operation_by_rank.values())).signature.input_sizes
    more = f", *{tensor}.shape[1:]" if len(shape) > 1 else ""
    pad = f"{tensor}.new_zeros(int({_LONGEST}) - len({tensor}){more})"
    added = (
        f"{_LONGEST} = torch.tensor(len({tensor}), device={tensor}.device)",
        f"{dist}.all_reduce({_LONGEST}, op={dist}.ReduceOp.MAX)",
        f"{tensor} = torch.cat([{tensor}, {pad}])",
    )
    outer = " " * first.col_offset
    begin = with_comments(code, first.lineno)
    return (
        *(ChangedLine("added", 0, f"{outer}{source}") for source in added),
        *(
            ChangedLine("same", line, code.source(line))
            for line in range(begin, place.lines[-1] + 1)
        ),
    )


def _names(call: ast.Call) -> tuple[str, str] | None:
    """The names of the tensor and of the list in a call that has nothing else to agree on."""
    match call:
        case ast.Call(args=[ast.Name(id=gathered), ast.Name(id=tensor)], keywords=[]):
            return (tensor, gathered) if called(call) == "all_gather" else None
        case ast.Call(args=[ast.Name(id=tensor), ast.Name(id=gathered), *_], keywords=keywords):
            pass
        case ast.Call(args=[ast.Name(id=tensor)], keywords=keywords):
            lists = [each.value for each in keywords if each.arg == "gather_list"]
            gathered = lists[0].id if lists and isinstance(lists[0], ast.Name) else ""
        case _:
            return None
    is_plain = {each.arg for each in keywords} <= {"dst", "gather_list"} and len(call.args) <= 3
    return (tensor, gathered) if called(call) == "gather" and is_plain else None


def _makes(statement: ast.stmt, gathered: str, tensor: str) -> bool:
    """Whether a statement makes the list, from tensors like the one that each rank brings."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == gathered:
            return any(
                called(node).endswith("_like") and node.args and names_in(node.args[0]) == {tensor}
                for node in ast.walk(value)
                if isinstance(node, ast.Call)
            )
        case _:
            return False


def _is_local(code: Code, place: Place, first: ast.stmt, tensor: str) -> bool:
    """Whether nothing else of the code sees that a tensor is longer than before."""
    module = ast.Module(code.statements, [])
    uses = [node for node in ast.walk(module) if isinstance(node, ast.Name) and node.id == tensor]
    loop = next((each for each in code.branches(place.lines[0]) if each.kind == "loop"), None)
    between = place.body[place.body.index(first) : place.index]
    if _binds(between, tensor) or not _begins_a_line(place.body, first):
        return False
    if any(use.lineno > place.lines[-1] for use in uses):
        return False
    bound = [use for use in uses if isinstance(use.ctx, ast.Store)]
    return loop is None or any(use.lineno in loop for use in bound)


def _begins_a_line(body: Sequence[ast.stmt], first: ast.stmt) -> bool:
    """Whether no other statement of a body is on the first line of one."""
    return all(first.lineno not in lines_of(each) for each in body if each is not first)


def _binds(statements: Sequence[ast.stmt], name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for statement in statements
        for node in ast.walk(statement)
    )
