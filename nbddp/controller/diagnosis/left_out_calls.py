"""Proves that ranks have left out a call in one iteration of a loop, and not a whole iteration.

Runs in: the notebook's process. Pure. A backward calls no collective under ``no_sync()``, or where
the loss is detached: no ``if`` is around the line, and the loop is as long as that of other ranks.
"""

import ast

from nbddp.controller.diagnosis.divergence import Divergence, LeftOut, names_ranks
from nbddp.controller.diagnosis.loop_lengths import loop_of
from nbddp.controller.diagnosis.skipped_calls import has_equal_iterations
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import LoopVariable, Operation
from nbddp.wire.rank_set import Rank, RankSet

_Iteration = tuple[LoopVariable, ...]


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
        has_equal_iterations(loop, len(graph.views))
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
