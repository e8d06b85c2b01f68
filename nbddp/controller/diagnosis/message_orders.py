"""Lets some ranks of a circle send first, where all receive first; or the other way round.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nbddp.controller.diagnosis.callers import frames
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.control_flow import Code, Sources
from nbddp.controller.diagnosis.message_swaps import in_two_orders, swapped, wait_later
from nbddp.controller.diagnosis.report import CodeChange
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Site
from nbddp.wire.rank_set import Rank, RankSet


@dataclass(frozen=True)
class OtherOrder:
    """A change after which some ranks begin with the other call."""

    first: str  #: these ranks: ``the even ranks``, ``rank 0``; empty: all wait later
    code_change: CodeChange
    ranks: RankSet  #: the ranks that are meant by ``first``


def other_order(cause: Cause, graph: WaitForGraph, sources: Sources) -> OtherOrder | None:
    """Return the change by which the messages of a circle meet.

    Args:
        cause: a cycle of messages.
        graph: the ranks.
        sources: the code.

    Returns:
        The change; None: the code is not simple enough.
    """
    circle, alike = cause.circle, cause.alike
    ranks_by_site: dict[Site, list[Rank]] = {}
    for rank, operation, _ in circle:
        ranks_by_site.setdefault(operation.site, []).append(rank)
    if len(ranks_by_site) > 1:
        return None if alike else _in_one_branch(cause, ranks_by_site, sources)
    (site,) = ranks_by_site
    code = sources(site)
    if code is None:
        return None
    is_even = all((rank + operation.peer) % 2 for rank, operation, _ in circle) and all(
        sum(ranks) % 2 for ranks in alike if len(ranks) == 2
    )
    rank_name = "rank" if site.cell and site.function == "<module>" else "dist.get_rank()"
    lowest = min(rank for rank, *_ in circle)
    condition, first = f"{rank_name} == {lowest}", f"rank {lowest}"
    ranks = RankSet.of([lowest])
    if is_even:
        ranks = RankSet.of(rank for rank in cause.culprits if rank % 2 == 0)
        condition, first = f"{rank_name} % 2 == 0", "the even ranks"
    elif alike:
        return None
    for place in (site, *_caller(cause, graph)):
        code, inside = sources(place), place.cell and place.function == "<module>"
        here = condition.replace(rank_name, "rank" if inside else "dist.get_rank()")
        lines = () if code is None else in_two_orders(code, place.line, here)
        if lines:
            return OtherOrder(first, CodeChange(place.cell, place.file, lines), ranks)
    lines = wait_later(sources(site) or Code(""), site.line)
    change = CodeChange(site.cell, site.file, lines)
    return OtherOrder("", change, RankSet()) if lines else None


def _caller(cause: Cause, graph: WaitForGraph) -> tuple[Site, ...]:
    """The line that called the function of the messages, if it is the same on all ranks."""
    around = {frames(graph, rank, each)[1:2] for rank, each, _ in cause.circle}
    return around.pop() if len(around) == 1 else ()


def _in_one_branch(
    cause: Cause, ranks_by_site: Mapping[Site, list[Rank]], sources: Sources
) -> OtherOrder | None:
    """The ranks of one branch do their two calls in the other order; others keep theirs."""
    kinds = {operation.signature.kind for _, operation, _ in cause.circle}
    if len(kinds) > 1:
        return None
    for site, ranks in sorted(ranks_by_site.items(), key=lambda item: (len(item[1]), item[1])):
        code = sources(site)
        others = [each.line for each in ranks_by_site if each is not site]
        around = () if code is None else code.branches(site.line)
        is_own = any(
            branch.kind == "condition" and not any(line in branch for line in others)
            for branch in around
        )
        lines = swapped(code, site.line) if code is not None and is_own else ()
        if lines:
            change = CodeChange(site.cell, site.file, lines)
            return OtherOrder(RankSet.of(ranks).describe(), change, RankSet.of(ranks))
    return None
