"""Finds which of the loops around a call is shorter on ranks that made it fewer times.

Runs in: the notebook's process. Pure. The code tells the length of some loops; the records tell the
iterations of loops with a counter.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from nbddp.controller.diagnosis.control_flow import Branch, Code, Sources
from nbddp.controller.diagnosis.definitions import Scope
from nbddp.controller.diagnosis.item_counts import item_count
from nbddp.controller.diagnosis.iterations import Iteration, iterations_of, loops_around
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Operation, Site
from nbddp.wire.rank_set import Rank, RankSet


@dataclass(frozen=True)
class LoopAround:
    """A loop around a call, or around the call of its function."""

    site: Site  #: the line in it
    code: Code
    branch: Branch
    statement: ast.stmt

    @property
    def names(self) -> set[str]:
        """The variables in its header."""
        match self.statement:
            case ast.For(target=target):
                return {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
            case _:
                return set()


def loops_of(around: Sequence[Site], sources: Sources) -> list[LoopAround]:
    """Return the loops around the lines of a call and of its callers, the innermost first."""
    loops = []
    for site in around:
        code = sources(site) if site.line else None
        for statement in () if code is None else loops_around(code, site.line):
            assert code is not None  # noqa: S101 - it has a loop
            branches = (each for each in code.branches(site.line) if each.kind == "loop")
            branch = next(each for each in branches if each.line == statement.lineno)
            loops.append(LoopAround(site, code, branch, statement))
    return loops


def counts(loop: LoopAround, size: int, sources: Sources) -> list[int | None]:
    """Return the number of iterations of a loop on each rank; None: the code does not tell it."""
    if not isinstance(loop.statement, ast.For):
        return [None] * size
    items, scope = loop.statement.iter, Scope(loop.site, loop.code, sources)
    return [item_count(items, scope, rank, size) for rank in range(size)]


def shorter_loops(
    operation: Operation, around: Sequence[Site], ranks: RankSet, other: Rank,
    *, graph: WaitForGraph, sources: Sources,
) -> tuple[list[LoopAround], bool]:  # fmt: skip
    """Return the loops that may be shorter on some ranks, and whether the code proves it of one.

    Args:
        operation: the call.
        around: its line and those of the functions around it.
        ranks: the ranks that have made it fewer times.
        other: a rank that waits in it.
        graph: the ranks.
        sources: the code.

    Returns:
        The innermost first; none: all loops are as long on these ranks, as the code says.
    """
    size = len(graph.views)
    loops = loops_of(around, sources)
    lengths = [counts(loop, size, sources) for loop in loops]

    def is_shorter(length: Sequence[int | None]) -> bool:
        most, own = length[other], [length[rank] for rank in ranks]
        return most is not None and all(each is not None and each < most for each in own)

    proven = [each for each, length in zip(loops, lengths, strict=True) if is_shorter(length)]
    if len(proven) == 1:
        return proven, True
    possible = [
        each
        for each, length in zip(loops, lengths, strict=True)
        if None in length or len(set(length)) > 1
    ]
    made = iterations_of(operation, other, graph)
    ends = {_end(loops, made, iterations_of(operation, rank, graph)) for rank in ranks}
    end = ends.pop() if len(ends) == 1 else None
    if end is not None and (end.is_missing or _are_recorded(loops[end.place :], made)):
        loop, inner = loops[end.place], loops[: end.place]
        is_loop = end.is_missing and any(loop is each for each in possible)
        inside = [each for each in possible if any(each is one for one in inner)]
        possible = [loop] if is_loop else inside or possible
    return possible, False


@dataclass(frozen=True)
class _End:
    """Where the iterations of a rank and of another one part."""

    place: int  #: of a loop with a counter, counted from the innermost one
    is_missing: bool  #: the rank has no call in an iteration of it; else fewer of them


def _are_recorded(loops: Sequence[LoopAround], made: list[Iteration] | None) -> bool:
    """Whether the records have a variable of each loop."""
    names = {variable.name for each in made or () for variable in each}
    return all(loop.names & names for loop in loops)


def _end(
    loops: Sequence[LoopAround], made: list[Iteration] | None, own: list[Iteration] | None
) -> _End | None:
    """Where a rank's iterations end, as the records show; None: they do not show it."""
    if not made or not own:
        return None
    depth = len(made[0])
    if any(len(each) != depth for each in (*made, *own)):
        return None
    for level in range(1, depth + 1):
        mine = {each[:level] for each in own}
        missing = next((each[:level] for each in made if each[:level] not in mine), None)
        if missing is not None or level == depth:
            name = (missing or made[0])[-1].name
            place = next((n for n, loop in enumerate(loops) if name in loop.names), None)
            return None if place is None else _End(place, missing is not None)
    return None
