"""Proves that ranks have skipped a call in an iteration of a loop, and not the iteration.

Runs in: the notebook's process. Pure. They skip it by a `continue` or `return` above it; or their
backward calls no collective, under ``no_sync()`` or with a detached loss. A suggested change needs
the proof: another reason, such as a loop with fewer iterations, needs another change.
"""

import ast
from collections.abc import Iterable
from itertools import pairwise

from nbddp.controller.diagnosis.control_flow import Exit
from nbddp.controller.diagnosis.divergence import Divergence, LeftOut, is_met, names_ranks
from nbddp.controller.diagnosis.loop_lengths import loop_of
from nbddp.controller.diagnosis.rank_conditions import number
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import LoopVariable, Operation, Site
from nbddp.wire.rank_set import Rank, RankSet

_Iteration = tuple[LoopVariable, ...]


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
    is_taken = _has_equal_iterations(loop, size) or all(
        _has_left_out(divergence.site, loop, graph.histories[rank].operations.values(), run_id)
        for rank in ranks
    )
    return leaving if is_taken else None


def _has_equal_iterations(loop: ast.For, size: int) -> bool:
    """Whether a loop is over a ``range`` that is the same on all ranks."""
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


# --- a backward without its collective -----------------------------------------------------------


def left_out_call(
    divergence: Divergence, operation: Operation, ranks: RankSet, others: RankSet,
    graph: WaitForGraph,
) -> LeftOut | None:  # fmt: skip
    """Return the proof that ranks have left out a call in an iteration which they have run.

    Args:
        divergence: the line of the call, in a loop.
        operation: the call.
        ranks: the ranks that have not made it.
        others: ranks that wait in it.
        graph: the ranks.

    Returns:
        None: the loop may have had fewer iterations on these ranks.
    """
    loop = loop_of(divergence)
    is_bare = not divergence.branches and not divergence.exits and not divergence.is_extra
    if loop is None or not is_bare or operation.site.position != divergence.site.position:
        return None
    line = _line_without_sync(loop, divergence)
    made = _iterations(operation, others.ranks[0], graph)
    own = [_iterations(operation, rank, graph) for rank in ranks]
    is_proven = (
        _has_equal_iterations(loop, len(graph.views))
        or all(_has_gone_on(made, each) for each in own)
        or (line > 0 and names_ranks(divergence.code.source(line)))
    )
    if not is_proven:
        return None
    skipped = {_skipped(made, each) for each in own}
    first = skipped.pop() if len(skipped) == 1 else None
    return LeftOut(ranks, None if first is None else first[-1], line)


def _line_without_sync(loop: ast.For, divergence: Divergence) -> int:
    """The last line of the loop with ``no_sync()``, up to the call; 0: there is none."""
    lines = (
        node.lineno
        for node in ast.walk(loop)
        if isinstance(node, ast.Attribute) and node.attr == "no_sync"
    )
    return max((line for line in lines if line <= divergence.site.line), default=0)


def _iterations(operation: Operation, rank: Rank, graph: WaitForGraph) -> list[_Iteration] | None:
    """The iterations in which a rank has made a call; None: not all of them are known."""
    history = graph.histories[rank]
    calls = [
        each.iteration
        for each in history.operations.values()
        if (each.run_id, each.signature.op) == (operation.run_id, operation.signature.op)
        and each.site.position == operation.site.position
    ]
    return calls if history.is_whole(operation.run_id) and all(calls) else None


def _skipped(made: list[_Iteration] | None, own: list[_Iteration] | None) -> _Iteration | None:
    """The first iteration of other ranks in which a rank has not made the call."""
    if made is None or own is None:
        return None
    return next((each for each in made if each not in own), None)


def _has_gone_on(made: list[_Iteration] | None, own: list[_Iteration] | None) -> bool:
    """Whether a rank made the call in a later iteration of the loop than one that it left out."""
    skipped = _skipped(made, own)
    if skipped is None or own is None:
        return False
    *around, last = skipped
    return any([*around] == [*outer] and last.value < inner.value for *outer, inner in own)
