"""Finds the line by which some ranks alone called a function with a collective, once too often.

Runs in: the notebook's process. Pure. Such ranks may have left the call, so that no stack tells the
line. The proof: all other lines that call the function run on every rank, and the records show a
second call in an iteration, or one outside of the loops of the other lines.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nbddp.controller.diagnosis.callers import lines_that_call
from nbddp.controller.diagnosis.control_flow import Branch, Code, Sources
from nbddp.controller.diagnosis.definitions import function_at
from nbddp.controller.diagnosis.disagreement import Disagreement
from nbddp.controller.diagnosis.divergence import Divergence, is_met
from nbddp.controller.diagnosis.iterations import Iteration, loops_around
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

_Names = tuple[str, ...]  #: the variables of loops around a line, the outermost first


def extra_caller(
    disagreement: Disagreement, graph: WaitForGraph, sources: Sources
) -> tuple[RankSet, Divergence] | None:
    """Return the line by which some ranks alone have called a function, more often than the others.

    Args:
        disagreement: calls of ranks that belong together and do not match.
        graph: the ranks.
        sources: the code.

    Returns:
        The ranks and the line, with the condition that keeps the others away; None: it is not
        proven that this line is the reason.
    """
    calls = disagreement.operation_by_rank
    if not disagreement.is_of_collectives:
        return None
    by_line = ranks_by_value({rank: call.site.position for rank, call in calls.items()})
    for ranks in by_line.values() if len(by_line) > 1 else ():
        place = line_of_second_call(
            calls[ranks.ranks[0]], ranks, RankSet.of(calls) - ranks, graph, sources
        )
        if place is not None:
            return ranks, place
    return None


def line_of_second_call(
    call: Operation, ranks: RankSet, others: RankSet, graph: WaitForGraph, sources: Sources
) -> Divergence | None:
    """Return the line by which ranks have called the function of a call once more than others.

    Args:
        call: of one of the ranks, in a function.
        ranks: the ranks that made it, at one line.
        others: those that have called the function less often.
        graph: the ranks.
        sources: the code.
    """
    code = sources(call.site) if call.site.line else None
    if code is None or call.site.function == "<module>":
        return None
    lines = _callers(call.site.function, code)
    guarded = [
        (line, branch)
        for line in lines
        if (branch := _only_of(ranks, others, code, line, len(graph.views))) is not None
    ]
    if len(guarded) != 1:
        return None
    ((line, condition),) = guarded
    others_lines = [each for each in lines if each != line]
    if not all(_is_plain(code, each) for each in others_lines):
        return None
    if not _is_second_call(call, ranks, others, [_names(code, n) for n in others_lines], graph):
        return None
    source = code.source(line).strip()
    site = msgspec.structs.replace(call.site, line=line, source=source)
    made = {rank: len(_iterations(call, rank, graph) or ()) for rank in (*ranks, *others)}
    return Divergence(site, code, (condition,), calls=made, is_extra=True)


def extra_line(
    disagreement: Disagreement, graph: WaitForGraph, sources: Sources
) -> tuple[Operation, Divergence] | None:
    """Return an earlier call that ranks of one side have made, inside a condition of ranks.

    It is the reason if each other line before the mismatch has run on both sides.

    Args:
        disagreement: collectives of ranks that belong together and do not match.
        graph: the ranks.
        sources: the code.
    """
    calls = disagreement.operation_by_rank
    by_op = ranks_by_value({rank: call.signature.op for rank, call in calls.items()})
    if not disagreement.is_of_collectives or len(by_op) != 2:
        return None
    made = {rank: _made_before(call, rank, graph) for rank, call in calls.items()}
    if not all(made.values()):
        return None
    sides = by_op.values()
    lines = {line for each in made.values() for line in each}
    # At any other line there were ranks of both sides.
    own = [each for each in lines if any(all(each not in made[r] for r in side) for side in sides)]
    ranks = _sole_side(own[0], made, sides) if len(own) == 1 else None
    if ranks is None:
        return None
    line = own[0]
    earlier, call = made[ranks.ranks[0]][line], calls[ranks.ranks[0]]
    # One line of a library may call several collectives: those of a module's forward and backward.
    kind = call.signature.op, call.origin
    alike = (each for each in earlier if (each.signature.op, each.origin) == kind)
    first = next(alike, earlier[0])
    code = sources(first.site) if first.site.line else None
    if code is None:
        return None
    others = RankSet.of(calls) - ranks
    condition = _only_of(ranks, others, code, first.site.line, len(graph.views))
    if condition is None:
        return None
    counts = {rank: len(each.get(line, ())) for rank, each in made.items()}
    return first, Divergence(first.site, code, (condition,), calls=counts, is_extra=True)


_Line = tuple[str, int, int]
_Made = dict[_Line, list[Operation]]  #: the calls of a rank by their lines


def _made_before(call: Operation, rank: Rank, graph: WaitForGraph) -> _Made:
    """The collectives of a rank before a call, in its run and group; empty: not all are known."""
    history = graph.histories[rank]
    by_line: _Made = {}
    for other in history.operations.values() if history.is_whole(call.run_id) else ():
        is_before = other.collective_seq_id < call.collective_seq_id
        if is_before and (other.run_id, other.pg_id) == (call.run_id, call.pg_id):
            by_line.setdefault(other.site.position, []).append(other)
    return by_line


def _sole_side(line: _Line, made: Mapping[Rank, _Made], sides: Iterable[RankSet]) -> RankSet | None:
    """The side of which all ranks have made calls at a line, and no other rank; None: neither."""
    there = {rank for rank, each in made.items() if line in each}
    return next((ranks for ranks in sides if {*ranks} == there), None)


def _callers(function: str, code: Code) -> Sequence[int]:
    """The lines that call a function, all in the code outside of functions; else none."""
    nodes = [node for statement in code.statements for node in ast.walk(statement)]
    named = sum(isinstance(node, ast.Name) and node.id == function for node in nodes)
    lines = list(lines_that_call(code, function))
    is_known = named == len(lines) and all(
        function_at(code.statements, line) is None for line in lines
    )
    return lines if is_known and len(set(lines)) == len(lines) else ()


def _only_of(
    ranks: Iterable[Rank], others: Iterable[Rank], code: Code, line: int, size: int
) -> Branch | None:
    """The innermost condition that may let ranks come to a line, and surely keeps others away."""
    for branch in code.branches(line):
        may_come = all(is_met(branch, rank, size) is not False for rank in ranks)
        are_kept = all(is_met(branch, rank, size) is False for rank in others)
        if branch.kind == "condition" and may_come and are_kept:
            return branch
    return None


def _is_plain(code: Code, line: int) -> bool:
    """Whether only loops with variables are around a line, and nothing may skip it."""
    are_loops = all(branch.kind == "loop" for branch in code.branches(line))
    loops = loops_around(code, line)
    return are_loops and not code.exits(line) and all(isinstance(loop, ast.For) for loop in loops)


def _names(code: Code, line: int) -> _Names:
    """The variables that records may have of the loops around a line."""
    targets = [loop.target for loop in loops_around(code, line)[::-1] if isinstance(loop, ast.For)]
    first = [each.elts[0] if isinstance(each, ast.Tuple) else each for each in targets]
    return tuple(each.id for each in first if isinstance(each, ast.Name))


def _iterations(call: Operation, rank: Rank, graph: WaitForGraph) -> list[Iteration] | None:
    """The iterations of a rank's calls at a line; None: the records do not have all of them."""
    history = graph.histories[rank]
    if not history.is_whole(call.run_id):
        return None
    return [
        each.iteration
        for each in history.operations.values()
        if (each.run_id, each.signature.op) == (call.run_id, call.signature.op)
        and each.site.position == call.site.position
    ]


def _is_second_call(
    call: Operation, ranks: RankSet, others: RankSet, plain: Sequence[_Names], graph: WaitForGraph
) -> bool:
    """Whether ranks made more calls than the others, and no iteration more of the plain lines."""
    made = {rank: _iterations(call, rank, graph) for rank in (*ranks, *others)}
    known = {rank: Counter(each) for rank, each in made.items() if each is not None}
    if len(known) != len(made):
        return False
    for other in others:
        # The others ran the plain lines only: their records show whether loops have variables.
        if {_names_of(each) for each in known[other]} != set(plain):
            return False
        for rank in ranks:
            more = known[rank] - known[other]
            are_second = all(known[other][each] or _names_of(each) not in plain for each in more)
            if not more or not are_second:
                return False
    return True


def _names_of(iteration: Iteration) -> _Names:
    return tuple(variable.name for variable in iteration)
