"""Proves that ranks have skipped a call by a `continue` or `return` above it.

Runs in: the notebook's process. Pure. A suggested change needs the proof: another reason, such as
a loop with fewer iterations, needs another change.
"""

import ast
from collections.abc import Iterable
from itertools import pairwise

from nbddp.controller.diagnosis.control_flow import Exit
from nbddp.controller.diagnosis.divergence import Divergence, is_met
from nbddp.controller.diagnosis.rank_conditions import number
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import LoopVariable, Operation, Site
from nbddp.wire.rank_set import Rank, RankSet


def skipping_exit(
    divergence: Divergence, ranks: RankSet, graph: WaitForGraph, run_id: str
) -> Exit | None:
    """Return the statement by which ranks have skipped a call.

    Args:
        divergence: the line of the call.
        ranks: the ranks that have not made it.
        graph: the ranks.
        run_id: of the cell.

    Returns:
        The statement; None: that it was taken is not proven.
    """
    if len(divergence.exits) != 1 or divergence.branches or divergence.is_extra:
        return None
    (leaving,) = divergence.exits
    size = len(graph.views)
    if all(is_met(leaving.condition, rank, size) for rank in ranks):
        return leaving
    is_only = len(divergence.code.exits(divergence.site.line)) == 1 and leaving.is_continue
    loop = _loop(divergence)
    if loop is None or not is_only:
        return None
    is_taken = has_equal_iterations(loop, size) or all(
        _has_left_out(divergence.site, loop, graph.histories[rank].operations.values(), run_id)
        for rank in ranks
    )
    return leaving if is_taken else None


def _loop(divergence: Divergence) -> ast.For | None:
    line = 0 if divergence.loop is None else divergence.loop.line
    nodes = (node for each in divergence.code.statements for node in ast.walk(each))
    return next((node for node in nodes if isinstance(node, ast.For) and node.lineno == line), None)


def has_equal_iterations(loop: ast.For, size: int) -> bool:
    """Return whether a loop is over a ``range`` that is the same on all ranks.

    Args:
        loop: the loop.
        size: the number of ranks of the pool.
    """
    match loop.iter:
        case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]):
            values = [{number(each, rank, size) for rank in range(size)} for each in arguments]
            return all(len(each) == 1 and None not in each for each in values)
        case _:
            return False


def _has_left_out(site: Site, loop: ast.For, operations: Iterable[Operation], run_id: str) -> bool:
    """Whether a rank has made a call in an iteration, not in the next one, and in a later one.

    Records have the variables only of loops whose body does not change them.
    """
    match loop.target, loop.iter:
        case ast.Name(id=name), ast.Call(func=ast.Name(id="range"), args=[_] | [_, _]):
            pass
        case ast.Tuple(elts=[ast.Name(id=name), _]), ast.Call(func=ast.Name(id="enumerate")):
            pass
        case _:
            return False  # its values may leave out a number
    iterations = [
        {variable.name: variable.value for variable in each.iteration}
        for each in operations
        if each.run_id == run_id and each.site.position == site.position
    ]
    return any(
        one.keys() == other.keys()
        and name in one
        and other[name] > one[name] + 1
        and {**one, name: 0} == {**other, name: 0}
        for one, other in pairwise(iterations)
    )


def skipped_iteration(
    site: Site, ranks: RankSet, others: RankSet, graph: WaitForGraph, run_id: str
) -> LoopVariable | None:
    """Return the first iteration in which ranks have left out a call that the others made.

    Args:
        site: the line of the call.
        ranks: the ranks that left it out.
        others: ranks that made it.
        graph: the ranks.
        run_id: of the cell.

    Returns:
        The variable of the innermost loop; None: that is not known, or not the same on all ranks.
    """

    def iterations(rank: Rank) -> list[tuple[LoopVariable, ...]]:
        return [
            each.iteration
            for each in graph.histories[rank].operations.values()
            if each.run_id == run_id and each.site.position == site.position and each.iteration
        ]

    if any(graph.histories[rank].is_cut for rank in (*ranks, *others)):
        return None
    made = iterations(others.ranks[0])
    skipped = {
        next((each for each in made if each not in own), None)
        for own in (iterations(rank) for rank in ranks)
    }
    first = skipped.pop() if len(skipped) == 1 else None
    return None if first is None else first[-1]
