"""Finds the call that some ranks made, or left out, so that calls behind it do not match.

Runs in: the notebook's process. Pure. Two facts show it: a condition about ranks, by which only
some ranks come to their call; or records of a loop, in which ranks have skipped an iteration, or
have gone on to the next one without a call.
"""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import replace

from nbddp.controller.diagnosis.callers import frames_in_source, frames_or_source
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.code_places import (
    communicates,
    find_place,
    is_communication,
    lines_of,
)
from nbddp.controller.diagnosis.control_flow import Branch, Code, Exit, Sources
from nbddp.controller.diagnosis.disagreement import Disagreement
from nbddp.controller.diagnosis.divergence import Divergence, calls_of, is_met
from nbddp.controller.diagnosis.iterations import is_in_loop, loops_around
from nbddp.controller.diagnosis.shifted_loops import find_shifted_loops
from nbddp.controller.diagnosis.shorter_loops import loops_of
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Operation, Site
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value


def missed_in_loop(cause: Cause, graph: WaitForGraph, run_id: str) -> Cause | None:
    """Return the call in a loop that ranks left out in an iteration, as a cause of its own.

    Args:
        cause: calls that do not match.
        graph: the ranks.
        run_id: of the cell.

    Returns:
        Ranks are in the call, and the culprits made one call less; None: it is not known.
    """
    assert cause.disagreement is not None  # noqa: S101 - the caller has looked
    calls = cause.disagreement.operation_by_rank
    for loop in find_shifted_loops(graph, run_id):
        if loop.ends_in(calls):
            inside = RankSet.of(calls) - loop.ahead
            owner = inside.ranks[0]
            return replace(
                cause, kind="missing-rank", culprits=loop.ahead, owner=owner, waiting=inside,
                direct=inside, operation=calls[owner], disagreement=None,
            )  # fmt: skip
    return None


def missed_behind_loop(cause: Cause, graph: WaitForGraph, sources: Sources) -> Cause | None:
    """Return the call in a loop that ranks behind the loop made fewer times, as a cause of its own.

    Args:
        cause: calls that do not match.
        graph: the ranks.
        sources: the code.

    Returns:
        Ranks are in the call, and the culprits are past the loop. They have made it before, as
        often or fewer times; None: there are no such ranks.
    """
    assert cause.disagreement is not None  # noqa: S101 - the caller has looked
    calls = cause.disagreement.operation_by_rank
    if not cause.disagreement.is_of_collectives:
        return None
    by_line = ranks_by_value({rank: call.site.position for rank, call in calls.items()})
    missed: list[Cause] = []

    def around(call: Operation) -> tuple[Site, ...]:
        return frames_in_source(call.site, graph.places(call.run_id), sources)

    for ranks in by_line.values() if len(by_line) > 1 else ():
        owner, behind = ranks.ranks[0], RankSet.of(calls) - ranks
        operation = calls[owner]
        loops = loops_of(frames_or_source(graph, owner, operation, sources), sources)
        made = calls_of(graph, operation)
        is_behind = not any(
            is_in_loop(loop.statement, loop.site, rank, graph)
            or (
                not _is_later(calls[rank], operation)
                and any(_is_in(loop.statement, loop.site, at) for at in around(calls[rank]))
            )
            for loop in loops
            for rank in behind
        )
        if loops and is_behind and all(0 < made.get(rank, 0) <= made[owner] for rank in behind):
            missed.append(
                replace(
                    cause, kind="missing-rank", culprits=behind, owner=owner, waiting=ranks,
                    direct=ranks, operation=operation, disagreement=None,
                )
            )  # fmt: skip
    return missed[0] if len(missed) == 1 else None


def _is_later(call: Operation, other: Operation) -> bool:
    """Whether a call is in a later iteration of the same loops than another one."""
    one, two = call.iteration, other.iteration
    is_same = [each.name for each in one] == [each.name for each in two]
    return is_same and [each.value for each in one] > [each.value for each in two]


def sole_call(
    disagreement: Disagreement, graph: WaitForGraph, sources: Sources
) -> tuple[RankSet, Divergence] | None:
    """Return the call to which only its ranks come, by a condition about ranks.

    Args:
        disagreement: calls of ranks that belong together and do not match.
        graph: the ranks.
        sources: the code.

    Returns:
        The ranks that made it, and its line, or the line that called its function; or a call that
        the others have passed by a `continue`, as records show. None: there is none, or each call
        has such a condition.
    """
    calls = disagreement.operation_by_rank
    if not disagreement.is_of_collectives:
        return None
    by_line = ranks_by_value({rank: call.site.position for rank, call in calls.items()})
    sole: list[tuple[RankSet, Divergence]] = []
    for ranks in by_line.values() if len(by_line) > 1 else ():
        rank, others = ranks.ranks[0], RankSet.of(calls) - ranks
        for site in frames_or_source(graph, rank, calls[rank], sources):
            code = sources(site) if site.line else None
            place = None if code is None else _sole(site, code, ranks, others, len(graph.views))
            if place is not None:
                sole.append((ranks, place))
                break
    if sole:
        return sole[0] if len(sole) == 1 else None
    return _passed_call(calls, graph, sources)


def _sole(
    site: Site, code: Code, ranks: Iterable[Rank], others: Iterable[Rank], size: int
) -> Divergence | None:
    """The line, if a condition lets these ranks come to it, and surely keeps the others away."""

    def parts(branch: Branch, inside: Iterable[Rank], outside: Iterable[Rank]) -> bool:
        is_theirs = all(is_met(branch, rank, size) is True for rank in inside)
        return is_theirs and all(is_met(branch, rank, size) is False for rank in outside)

    for leave in code.exits(site.line):
        if parts(leave.condition, others, ranks):
            return Divergence(site, code, exits=(leave,), is_certain=True, is_repeated=True)
    for branch in code.branches(site.line):
        if branch.kind == "condition" and parts(branch, ranks, others):
            return Divergence(site, code, branches=(branch,), is_certain=True)
    return None


# --- a call that ranks have passed ---------------------------------------------------------------


def _passed_call(
    calls: Mapping[Rank, Operation], graph: WaitForGraph, sources: Sources
) -> tuple[RankSet, Divergence] | None:
    """The call in a loop that all other ranks have left out: they are in its next iterations.

    One `continue` alone may skip the call.
    """
    by_line = ranks_by_value({rank: call.site.position for rank, call in calls.items()})
    passed: list[tuple[RankSet, Divergence]] = []
    for ranks in by_line.values() if len(by_line) > 1 else ():
        call, others = calls[ranks.ranks[0]], RankSet.of(calls) - ranks
        code = sources(call.site) if call.site.line else None
        leaving = None if code is None else _sole_continue(code, call.site.line)
        iterations = {calls[rank].iteration for rank in ranks}
        if code is None or leaving is None or len(iterations) != 1:
            continue
        size = len(graph.views)
        has_passed = all(
            is_met(leaving.condition, rank, size) is not False
            and _has_passed(call, code, calls[rank], rank, graph=graph, sources=sources)
            for rank in others
        )
        if has_passed and all(is_met(leaving.condition, rank, size) is not True for rank in ranks):
            place = Divergence(call.site, code, exits=(leaving,), is_certain=True, is_repeated=True)
            passed.append((ranks, place))
    return passed[0] if len(passed) == 1 else None


def _sole_continue(code: Code, line: int) -> Exit | None:
    """The `continue` without which each iteration of the loop around a line makes its call."""
    branches, exits, place = code.branches(line), code.exits(line), find_place(code, line)
    is_plain = bool(branches) and branches[0].kind == "loop"
    if place is None or not is_plain or any(branch.kind == "try" for branch in branches):
        return None
    # The statement is the call itself: no part of it decides whether the call is made.
    match place.statement:
        case ast.Expr(value=ast.Call(args=args) as call) if is_communication(
            call
        ) and not communicates(*args):
            return exits[0] if len(exits) == 1 and exits[0].is_continue else None
        case _:
            return None


def _has_passed(
    passed: Operation, code: Code, call: Operation, rank: Rank,
    *, graph: WaitForGraph, sources: Sources,
) -> bool:  # fmt: skip
    """Whether a rank was in the iteration of a call, and is in a later one without the call."""
    iteration, loop = passed.iteration, loops_around(code, passed.site.line)[0]
    history = graph.histories[rank]
    if not (iteration and call.iteration and history.is_whole(call.run_id)):
        return False
    match loop:
        case (
            ast.For(target=ast.Name(id=name))
            | ast.For(target=ast.Tuple(elts=[ast.Name(id=name), _]))
        ):
            is_told = iteration[-1].name == call.iteration[-1].name == name
        case _:
            is_told = False
    around = frames_in_source(call.site, graph.places(call.run_id), sources)
    is_there = any(_is_in(loop, passed.site, site) for site in around)
    is_next = iteration[:-1] == call.iteration[:-1] and iteration != call.iteration
    made = [
        each.site.position
        for each in history.operations.values()
        if each.run_id == call.run_id and each.iteration == iteration
    ]
    is_skipped = call.site.position in made and passed.site.position not in made
    return is_told and is_there and is_next and is_skipped


def _is_in(loop: ast.stmt, place: Site, site: Site) -> bool:
    """Whether a line is in a loop of the cell or file of a place."""
    return site.position[:2] == place.position[:2] and site.line in lines_of(loop)
