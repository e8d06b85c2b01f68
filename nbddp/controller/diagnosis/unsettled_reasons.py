"""Tells a loop that is shorter on some ranks from a call in it that they left out.

Runs in: the notebook's process. Pure. If neither the code nor the records tell the two apart, all
possible reasons are facts of the finding, and none is its cause.
"""

from collections.abc import Sequence
from dataclasses import replace

from nbddp.controller.diagnosis.control_flow import Sources
from nbddp.controller.diagnosis.divergence import (
    Divergence,
    PossibleSkip,
    Unsettled,
    calls_of,
    is_of_ranks,
)
from nbddp.controller.diagnosis.iterations import has_left_out
from nbddp.controller.diagnosis.possible_skips import possible_skips
from nbddp.controller.diagnosis.shorter_loops import LoopAround, loops_of, shorter_loops
from nbddp.controller.diagnosis.skipped_calls import skipped_iteration
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Operation, Site
from nbddp.wire.rank_set import RankSet


def with_all_reasons(
    divergence: Divergence, operation: Operation, around: Sequence[Site], ranks: RankSet,
    others: RankSet, *, graph: WaitForGraph, sources: Sources,
) -> Divergence:  # fmt: skip
    """Return a divergence in a loop with the loop that is shorter, or with all possible reasons.

    Args:
        divergence: the line of the call, or one that calls its function.
        operation: the call.
        around: its line and those of the functions around it.
        ranks: the ranks that have made it fewer times.
        others: ranks that wait in it.
        graph: the ranks.
        sources: the code.

    Returns:
        The same divergence, if its reason is the only one, or one about ranks.
    """
    other, loops = others.ranks[0], loops_of(around, sources)
    code = sources(operation.site)
    is_loop = not divergence.branches and not divergence.exits
    is_told = divergence.is_extra or divergence.is_certain or _is_told(divergence)
    if not loops or code is None or is_told or not _has_run(operation, ranks, graph):
        return divergence
    skips = possible_skips(
        operation, around, ranks, other, size=len(graph.views), sources=sources
    )  # fmt: skip
    possible, is_proven = shorter_loops(
        operation, around, ranks, other, graph=graph, sources=sources
    )
    if is_loop and possible and (is_proven or (not skips and len(possible) == 1)):
        return _of_loop(divergence, possible[0], operation)
    is_left_out = has_left_out(operation, around, ranks, other, graph=graph, sources=sources)
    is_sole = not skips and (is_left_out or len(possible) == 1)
    if is_sole if is_loop else not _has_others(divergence, skips):
        return divergence
    may_be = [] if is_left_out else possible
    caller = next((site.line for site in around if site.position == loops[0].site.position), 0)
    is_same = loops[0].site.position[:2] == operation.site.position[:2]
    at = skipped_iteration(operation.site, ranks, others, graph, operation.run_id)
    unsettled = Unsettled(
        caller if is_same and caller != operation.site.line else 0,
        tuple(skips),
        tuple((each.site, each.branch) for each in may_be),
        at if is_left_out else None,
    )
    calls = calls_of(graph, operation)
    return Divergence(operation.site, code, calls=calls, unsettled=unsettled)


def _has_run(operation: Operation, ranks: RankSet, graph: WaitForGraph) -> bool:
    """Whether each of the ranks has made the call before."""
    return all(
        any(
            (each.run_id, each.site.position) == (operation.run_id, operation.site.position)
            for each in graph.histories[rank].operations.values()
        )
        for rank in ranks
    )


def _is_told(divergence: Divergence) -> bool:
    """Whether its statements are about ranks."""
    return any(map(is_of_ranks, divergence.branches)) or any(
        is_of_ranks(leave.condition) for leave in divergence.exits
    )


def _has_others(divergence: Divergence, skips: Sequence[PossibleSkip]) -> bool:
    """Whether something else may have left out the call than the statements of a divergence."""
    if divergence.is_repeated and len(skips) > 1:
        return True
    lines = {(*divergence.site.position[:2], line) for line in divergence.lines}
    return any(
        skip.place.position not in lines
        for skip in skips
        if skip.place.position[:2] != divergence.site.position[:2]
        or skip.place.function != divergence.site.function
    )


def _of_loop(divergence: Divergence, loop: LoopAround, operation: Operation) -> Divergence:
    """The line in a loop as the place that ranks came to fewer times."""
    is_call = loop.site.position == operation.site.position
    calls = divergence.calls if is_call else {}
    return replace(divergence, site=loop.site, code=loop.code, loop=loop.branch, calls=calls)
