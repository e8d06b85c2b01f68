"""Finds the assignments by which ranks bring different tensors, or arguments, to one call.

Runs in: the notebook's process. Pure.
"""

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from nbddp.controller.diagnosis.code_places import Simple, called, find_place, names_in
from nbddp.controller.diagnosis.control_flow import Branch, Code, Sources
from nbddp.controller.diagnosis.definitions import function_at, nodes_of
from nbddp.controller.diagnosis.disagreement import Disagreement
from nbddp.controller.diagnosis.divergence import Divergence, is_met, is_of_ranks
from nbddp.wire.flight_recorder import Site
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by_value

_Assignment = ast.Assign | ast.AugAssign | ast.AnnAssign


#: The names of the root of an operation, and its position among the arguments.
_ROOT: Mapping[str, tuple[tuple[str, ...], int]] = {
    **dict.fromkeys(("broadcast", "broadcast_object_list"), (("src", "group_src"), 1)),
    **dict.fromkeys(("reduce",), (("dst", "group_dst"), 1)),
    **dict.fromkeys(("gather", "gather_object"), (("dst", "group_dst"), 2)),
    **dict.fromkeys(("scatter", "scatter_object_list"), (("src", "group_src"), 2)),
}
#: The position of the ``ReduceOp``.
_REDUCTION: Mapping[str, int] = {
    "all_reduce": 1,
    "reduce": 2,
    "reduce_scatter": 2,
    "reduce_scatter_tensor": 2,
}
#: A position that no call has.
_NONE = 9


@dataclass(frozen=True)
class AssignedName:
    """A name that a call uses, assigned inside a condition that not all ranks meet."""

    name: str
    ranks: RankSet  #: the ranks that ran the assignment; empty: that is not known
    place: Divergence  #: its line, and the conditions around it
    is_change: bool  #: the name had a value before


def assigned_names(
    disagreement: Disagreement, world_size: int, sources: Sources
) -> list[AssignedName]:
    """Return the assignments before a call that some ranks ran, and that explain a mismatch.

    Args:
        disagreement: calls of one line that do not match.
        world_size: the number of ranks of the pool.
        sources: the code.

    Returns:
        Those by ranks that brought the same, and other things than the rest, the minority first.
        If there are none: those of which it is not known which ranks ran them.
    """
    calls = disagreement.operation_by_rank
    site = next(iter(calls.values())).site
    is_one_line = len({call.site.position for call in calls.values()}) == 1
    code = sources(site) if is_one_line and site.line else None
    place = None if code is None else find_place(code, site.line)
    if code is None or place is None:
        return []
    assignments = _assignments_before(code, site.line)
    names = _used(_names_that_differ(place.statement, disagreement), assignments)
    around_call = code.branches(site.line)
    is_of_sizes = set(disagreement.differences.reported) <= {"input_sizes", "output_sizes"}
    candidates = [
        AssignedName(
            name,
            NO_RANKS,
            Divergence(_site_of(site, code, each.lineno), code, around[::-1]),
            name in names_in(each.value) or _is_bound(name, earlier, code, around_call),
        )
        for index, each in enumerate(assignments)
        for name in sorted(_targets(each) & names)
        if not (is_of_sizes and _is_factor(each.value))
        if (earlier := assignments[:index]) is not None
        if (around := _conditions(code, each.lineno, site.line))
        if not _is_bound(name, assignments[index + 1 :], code, around_call)
    ]
    known = [
        each
        for one in candidates
        if (ranks := _ranks_that_met(one.place, calls, world_size)) is not None
        if _tells_apart(ranks, disagreement)
        for each in [AssignedName(one.name, ranks, one.place, one.is_change)]
    ]
    known.sort(
        key=lambda each: (not set(each.ranks) <= set(disagreement.culprits), len(each.ranks))
    )
    return known or [
        one for one in candidates if _ranks_that_met(one.place, calls, world_size) is None
    ]


def names_assigned_on(
    site: Site, rank: Rank, world_size: int, sources: Sources
) -> list[AssignedName]:
    """Return the assignments before a call that only some ranks ran, this one among them.

    Args:
        site: the line of the call.
        rank: the rank.
        world_size: the number of ranks of the pool.
        sources: the code.

    Returns:
        Those of names that the call uses, inside conditions about ranks that this rank meets.
    """
    code = sources(site) if site.line else None
    place = None if code is None else find_place(code, site.line)
    if code is None or place is None:
        return []
    assignments = _assignments_before(code, site.line)
    names = _used(names_in(place.statement.value), assignments)
    candidates = [
        (name, each, around)
        for each in assignments
        for name in sorted(_targets(each) & names)
        if (around := _conditions(code, each.lineno, site.line))
    ]
    return [
        AssignedName(
            name,
            RankSet.of([rank]),
            Divergence(_site_of(site, code, each.lineno), code, around[::-1]),
            is_change=True,
        )
        for name, each, around in candidates
        if all(is_met(branch, rank, world_size) for branch in around)
    ]


def _is_factor(value: ast.expr | None) -> bool:
    """Whether a value is a number with a fraction, which sets no shape."""
    return isinstance(value, ast.Constant) and isinstance(value.value, float)


def _names_that_differ(statement: Simple, disagreement: Disagreement) -> set[str]:
    """The names in the arguments of a call that differ; those of all, if it is not in the line."""
    op = next(iter(disagreement.operation_by_rank.values())).signature.op
    call = next((node for node in ast.walk(statement) if called(node).startswith(op)), None)
    fields = set(disagreement.differences.reported)
    if not isinstance(call, ast.Call) or "op" in fields:
        return names_in(statement.value)
    by_name = {each.arg: each.value for each in call.keywords}
    roots = _arguments(call, by_name, *_ROOT.get(called(call), ((), _NONE)))
    reductions = _arguments(call, by_name, ("op",), _REDUCTION.get(called(call), _NONE))
    if fields <= {"root"}:
        return {name for each in roots for name in names_in(each)}
    if fields <= {"reduce_op"}:
        return {name for each in reductions for name in names_in(each)}
    others = [each for each in (*call.args, *by_name.values()) if each not in (*roots, *reductions)]
    is_dtype = fields <= {"input_dtypes", "output_dtypes"}
    return {name for each in others for name in names_in(_dtype_of(each) if is_dtype else each)}


def _arguments(
    call: ast.Call, by_name: Mapping[str | None, ast.expr], names: Sequence[str], position: int
) -> list[ast.expr]:
    """The argument of a call with one of these names, or at a position."""
    return [*(by_name[name] for name in names if name in by_name), *call.args[position:][:1]]


def _dtype_of(value: ast.expr) -> ast.expr:
    """The part of an expression that sets its dtype: ``dtype`` of ``x.to(dtype)``."""
    match value:
        case ast.Call(func=ast.Attribute(attr="to" | "type"), args=[dtype], keywords=[]):
            return dtype
        case _:
            return value


def assigned_by_ranks(name: str, site: Site, code: Code) -> tuple[int, ...]:
    """Return the lines that assign a name only on some ranks, before a line of the same function.

    Args:
        name: the name.
        site: the line that uses it.
        code: the code of the line.

    Returns:
        The condition about ranks and the assignment inside it, the last one if there are several.
    """
    for assignment in reversed(_assignments_before(code, site.line)):
        conditions = _conditions(code, assignment.lineno, site.line)
        if name in _targets(assignment) and any(map(is_of_ranks, conditions)):
            return tuple(sorted({conditions[0].line, assignment.lineno}))
    return ()


def _assignments_before(code: Code, line: int) -> list[_Assignment]:
    """The assignments of the function with a line that stand above it, in order."""
    function = function_at(code.statements, line)
    body = code.statements if function is None else function.body
    assignments = [
        each for each in nodes_of(body) if isinstance(each, _Assignment) and each.lineno < line
    ]
    return sorted(assignments, key=lambda each: each.lineno)


def _used(names: set[str], assignments: Sequence[_Assignment]) -> set[str]:
    """The names, and those from which their values were made."""
    used = set(names)
    for assignment in reversed(assignments):
        if _targets(assignment) & used:
            used |= names_in(assignment.value)
    return used


def _targets(assignment: _Assignment) -> set[str]:
    targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
    return {
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _conditions(code: Code, line: int, call: int) -> tuple[Branch, ...]:
    """The conditions around a line that are not around the call, the innermost first."""
    return tuple(b for b in code.branches(line) if b.kind == "condition" and call not in b)


def _is_bound(
    name: str, assignments: Sequence[_Assignment], code: Code, around: Collection[Branch]
) -> bool:
    """Whether every rank that makes the call has run one of these assignments again."""
    return any(
        name in _targets(each)
        and name not in names_in(each.value)
        and all(branch in around for branch in code.branches(each.lineno))
        for each in assignments
    )


def _ranks_that_met(place: Divergence, ranks: Collection[Rank], world_size: int) -> RankSet | None:
    """The ranks that meet all conditions of a place; None: that is not known of each."""
    met: list[Rank] = []
    for rank in ranks:
        meets = {is_met(branch, rank, world_size) for branch in place.branches}
        if None in meets and False not in meets:
            return None
        met += [rank] if meets == {True} else []
    return RankSet.of(met)


def _tells_apart(ranks: RankSet, disagreement: Disagreement) -> bool:
    """Whether some ranks brought something else than all others."""
    calls = disagreement.operation_by_rank
    alike = ranks_by_value({rank: call.signature for rank, call in calls.items()}).values()
    shares = [len(set(each) & set(ranks)) for each in alike]
    is_whole = all(share in (0, len(each)) for share, each in zip(shares, alike, strict=True))
    return is_whole and 0 < len(ranks) < len(calls)


def _site_of(call: Site, code: Code, line: int) -> Site:
    return msgspec.structs.replace(call, line=line, source=code.source(line).strip())
