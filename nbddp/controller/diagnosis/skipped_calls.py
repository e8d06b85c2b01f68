"""Proves that ranks have skipped a call in an iteration of a loop, and not the iteration.

Runs in: the notebook's process. Pure. They skip it by a `continue` or `return` above it; or their
backward calls no collective, under ``no_sync()`` or with a detached loss. A suggested change needs
the proof: another reason, such as a loop with fewer iterations, needs another change.
"""

import ast
from collections.abc import Iterable, Sequence
from itertools import pairwise

from nbddp.controller.diagnosis.control_flow import Code, Exit, Sources, no_sources
from nbddp.controller.diagnosis.definitions import Scope, function_at
from nbddp.controller.diagnosis.divergence import Divergence, LeftOut, is_met, names_ranks
from nbddp.controller.diagnosis.iterations import (
    first_skipped,
    has_equal_iterations,
    has_left_out,
    iterations_of,
    loops_around,
)
from nbddp.controller.diagnosis.loop_lengths import loop_of
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
    loop = loop_of(divergence)
    if loop is None or not is_only:
        return None
    scope = Scope(divergence.site, divergence.code, no_sources)
    is_taken = has_equal_iterations(loop, scope, size) or all(
        _has_left_out(divergence.site, loop, graph.histories[rank].operations.values(), run_id)
        for rank in ranks
    )
    return leaving if is_taken else None


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

    if not all(graph.histories[rank].is_whole(run_id) for rank in (*ranks, *others)):
        return None
    made = iterations(others.ranks[0])
    skipped = {
        next((each for each in made if each not in own), None)
        for own in (iterations(rank) for rank in ranks)
    }
    first = skipped.pop() if len(skipped) == 1 else None
    return None if first is None else first[-1]


# --- a backward without its collective -----------------------------------------------------------


def left_out_call(
    divergence: Divergence, operation: Operation, around: Sequence[Site], ranks: RankSet,
    others: RankSet, *, graph: WaitForGraph, sources: Sources,
) -> LeftOut | None:  # fmt: skip
    """Return the proof that ranks have left out a call in an iteration which they have run.

    Args:
        divergence: the line of the call in a loop, or a line there that calls its function.
        operation: the call.
        around: its line and those of the functions around it.
        ranks: the ranks that have not made it.
        others: ranks that wait in it.
        graph: the ranks.
        sources: the code.

    Returns:
        None: the loop may have had fewer iterations on these ranks.
    """
    is_bare = not divergence.branches and not divergence.exits and not divergence.is_extra
    code = sources(operation.site)
    if loop_of(divergence) is None or not is_bare or code is None:
        return None
    line = _line_without_sync(code, operation.site)
    is_by_rank = line > 0 and names_ranks(code.source(line))
    if not is_by_rank and not has_left_out(
        operation, around, ranks, others.ranks[0], graph=graph, sources=sources
    ):
        return None
    made = iterations_of(operation, others.ranks[0], graph)
    skipped = {first_skipped(made, iterations_of(operation, rank, graph)) for rank in ranks}
    first = skipped.pop() if len(skipped) == 1 else None
    return LeftOut(ranks, None if first is None else first[-1], line)


def _line_without_sync(code: Code, site: Site) -> int:
    """The last line with ``no_sync()`` up to a call, in its loop or its function; 0: none."""
    loops = loops_around(code, site.line)
    inside = loops[0] if loops else function_at(code.statements, site.line)
    lines = (
        node.lineno
        for node in ([] if inside is None else ast.walk(inside))
        if isinstance(node, ast.Attribute) and node.attr == "no_sync"
    )
    return max((line for line in lines if line <= site.line), default=0)
