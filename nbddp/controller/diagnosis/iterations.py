"""The iterations of loops in which ranks have made a call, and such that they have left out.

Runs in: the notebook's process. Pure. Records have the variables of the loops around a call, also
of loops around the functions that called its function.
"""

import ast
from collections.abc import Sequence
from typing import TypeAlias

from nbddp.controller.diagnosis.code_places import called, lines_of, unwrapped
from nbddp.controller.diagnosis.control_flow import Code, Sources
from nbddp.controller.diagnosis.definitions import Scope
from nbddp.controller.diagnosis.item_counts import item_count
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import LoopVariable, Operation, Site
from nbddp.wire.rank_set import Rank, RankSet

#: Functions that give the items of their argument in its order, or in the opposite one.
_IN_TURN = ("list", "tuple", "reversed")

Iteration: TypeAlias = tuple[LoopVariable, ...]


def iterations_of(operation: Operation, rank: Rank, graph: WaitForGraph) -> list[Iteration] | None:
    """Return the iterations in which a rank has made a call; None: not all of them are known."""
    history = graph.histories[rank]
    calls = [
        each.iteration
        for each in history.operations.values()
        if (each.run_id, each.signature.op) == (operation.run_id, operation.signature.op)
        and each.site.position == operation.site.position
    ]
    return calls if history.is_whole(operation.run_id) and all(calls) else None


def first_skipped(made: list[Iteration] | None, own: list[Iteration] | None) -> Iteration | None:
    """Return the first iteration of other ranks in which a rank has not made the call."""
    if made is None or own is None:
        return None
    return next((each for each in made if each not in own), None)


def has_gone_on(made: list[Iteration] | None, own: list[Iteration] | None) -> bool:
    """Return whether a rank made the call in a later iteration than one that it left out."""
    skipped = first_skipped(made, own)
    if skipped is None or own is None:
        return False
    *around, last = skipped
    return any([*around] == [*outer] and last.value < inner.value for *outer, inner in own)


def has_equal_iterations(loop: ast.stmt, scope: Scope, size: int) -> bool:
    """Return whether a loop has the same number of iterations on all ranks, as the code tells.

    Args:
        loop: the loop.
        scope: a line in it.
        size: the number of ranks of the pool.
    """
    if not isinstance(loop, ast.For):
        return False
    counts = {item_count(loop.iter, scope, rank, size) for rank in range(size)}
    return len(counts) == 1 and None not in counts


def loops_around(code: Code, line: int) -> list[ast.stmt]:
    """Return the loops around a line, up to its function, the innermost first."""
    loops = ast.For | ast.AsyncFor | ast.While
    nodes = ast.walk(ast.Module(code.statements, []))
    by_line = {node.lineno: node for node in nodes if isinstance(node, loops)}
    lines = (branch.line for branch in code.branches(line) if branch.kind == "loop")
    return [by_line[each] for each in lines if each in by_line]


def loop_over_items(code: Code, line: int) -> str | None:
    """Return what the loop around a call goes through, if the call uses its item; None: no items.

    ``stats.items()`` of ``for key, value in stats.items(): dist.all_reduce(value)``; a ``range``
    and what is sorted have one order.
    """
    for loop in loops_around(code, line)[:1]:
        if isinstance(loop, ast.For):
            targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
            names = {
                node.id
                for statement in loop.body
                if statement.lineno <= line <= (statement.end_lineno or 0)
                for node in ast.walk(statement)
                if isinstance(node, ast.Name)
            }
            items = unwrapped(loop.iter)
            while isinstance(items, ast.Call) and called(items) in _IN_TURN and items.args:
                items = unwrapped(items.args[0])
            is_in_order = isinstance(items, ast.Call) and called(items) in ("range", "sorted")
            if targets & names and not is_in_order:
                return ast.unparse(items)
    return None


def has_left_out(
    operation: Operation, around: Sequence[Site], ranks: RankSet, other: Rank,
    *, graph: WaitForGraph, sources: Sources,
) -> bool:  # fmt: skip
    """Return whether ranks have left out a call in an iteration that they have run.

    Args:
        operation: the call.
        around: its line and those of the functions around it.
        ranks: the ranks that have made it fewer times.
        other: a rank that waits in it.
        graph: the ranks.
        sources: the code.

    Returns:
        False: a loop may have had fewer iterations on these ranks, or have ended early.
    """
    made = iterations_of(operation, other, graph)
    if all(has_gone_on(made, iterations_of(operation, rank, graph)) for rank in ranks):
        return True
    loops = [
        (site, loop)
        for site in around
        if site.line and (code := sources(site)) is not None
        for loop in loops_around(code, site.line)
    ]
    if any(is_in_loop(loop, site, rank, graph) for site, loop in loops for rank in ranks):
        return False
    if _may_end_early(around, sources):
        return False
    size = len(graph.views)
    return bool(loops) and all(
        has_equal_iterations(loop, Scope(site, code, sources), size)
        for site, loop in loops
        if (code := sources(site)) is not None
    )


def _may_end_early(around: Sequence[Site], sources: Sources) -> bool:
    """Whether a `break`, a `return`, or an exception that is caught outside may end the loops."""
    is_in_loop = False
    for site in around:
        code = sources(site) if site.line else None
        for branch in () if code is None else code.branches(site.line):
            if is_in_loop and branch.kind == "try":
                return True
            is_in_loop = is_in_loop or branch.kind == "loop"
        leaving = () if code is None else code.exits(site.line)
        if is_in_loop and any(not each.is_continue for each in leaving):
            return True
    return False


def is_in_loop(loop: ast.stmt, place: Site, rank: Rank, graph: WaitForGraph) -> bool:
    """Return whether a rank is still in a loop, and may come to its call.

    Args:
        loop: the loop.
        place: a line of its cell or file.
        rank: the rank.
        graph: the ranks.
    """
    view = graph.views[rank]
    main = view.look.main if view.state == "running" and view.look is not None else None
    return any(
        site.position[:2] == place.position[:2] and site.line in lines_of(loop)
        for site in (() if main is None else main.stack)
    )
