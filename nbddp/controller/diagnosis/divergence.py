"""Finds the part of the user's code that some ranks run and others do not.

Runs in: the notebook's process. Pure. The facts are lines that ranks have recorded; the branches
around them are read from the source. Which branch is decisive is a guess, unless there is one only.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.control_flow import Branch, Code, Exit
from nbddp.controller.diagnosis.wait_graph import Disagreement, WaitForGraph
from nbddp.wire.flight_recorder import Operation, Site
from nbddp.wire.rank_set import Rank, RankSet

#: Gives the code that has a line; None: it is not known.
Sources: TypeAlias = Callable[[Site], Code | None]

#: Words of conditions that are not equal on all ranks.
_OF_RANKS = re.compile(r"rank|main_process|master|is_main", re.IGNORECASE)


@dataclass(frozen=True)
class Divergence:
    """A line that ranks have come to, and the statements that may have kept others from it."""

    site: Site
    code: Code
    branch: Branch | None = None  #: the decisive branch around the line
    loop: Branch | None = None  #: the innermost loop around it
    exits: tuple[Exit, ...] = ()
    handler: Branch | None = None  #: a ``try`` around it, inside the loop
    #: The calls that each rank has made at the line; empty: they are not known.
    calls: Mapping[Rank, int] = field(default_factory=dict)
    is_inner: bool = False  #: the line is in a function that the line of the operation calls

    @property
    def lines(self) -> tuple[int, ...]:
        """The lines that explain it, in order."""
        lines = {self.site.line, *(leave.line for leave in self.exits)}
        branches = [
            self.branch,
            self.loop,
            self.handler,
            *(leave.condition for leave in self.exits),
        ]
        lines.update(line for branch in branches if branch is not None for line in branch.headers)
        return tuple(sorted(lines))


def no_sources(site: Site) -> Code | None:
    """No code is known."""
    return None


def missing_call(cause: Cause, graph: WaitForGraph, sources: Sources) -> Divergence | None:
    """Return the reason in the code why culprits have not made a call; None: none is found.

    Args:
        cause: ranks wait in an operation that the culprits have not called.
        graph: the ranks.
        sources: the code.
    """
    operation = cause.operation
    if operation is None or all(graph.views[rank].state == "idle" for rank in cause.culprits):
        return None
    frames = _frames(graph, cause.owner, operation)
    known = [(site, code) for site in frames if (code := sources(site)) is not None and site.line]
    lines = [_line(site) for site in frames]
    found = [
        replace(divergence, is_inner=lines.index(_line(site)) < lines.index(_line(operation.site)))
        for site, code in known
        if (divergence := _divergence(cause, graph, operation, site, code)) is not None
    ]
    return max(found, key=_weight, default=None)  # the innermost of the most telling ones


def _weight(divergence: Divergence) -> int:
    """How much a divergence tells: a condition on ranks more than any, that more than a loop."""
    conditions = [leave.condition for leave in divergence.exits]
    if divergence.branch is not None:
        return 5 if is_of_ranks(divergence.branch) else 3
    if conditions:
        return 4 if any(map(is_of_ranks, conditions)) else 2
    return 1 if divergence.handler is not None else 0


def is_of_ranks(branch: Branch) -> bool:
    """Whether a condition names ranks, so that it is not equal on all of them."""
    other = branch.other
    return bool(_OF_RANKS.search(branch.source)) or (other is not None and is_of_ranks(other))


def _frames(graph: WaitForGraph, rank: Rank, operation: Operation) -> tuple[Site, ...]:
    """The line of a call, and those of the functions around it, innermost first."""
    for waiting in graph.waits[rank]:
        stack = waiting.thread.stack
        if operation in waiting.operations and _line(operation.site) in map(_line, stack):
            return stack
    return (operation.site,)


def _divergence(
    cause: Cause, graph: WaitForGraph, operation: Operation, site: Site, code: Code
) -> Divergence | None:
    is_call = _line(site) == _line(operation.site)
    reached = _reached_lines(cause.culprits, graph, operation)
    has_run = operation.site.line in reached  # the culprits have made this call before
    branches = [each for each in code.branches(site.line) if "__name__" not in each.source]
    exits = code.exits(site.line)
    loop = next((branch for branch in branches if branch.kind == "loop"), None)
    if has_run and loop is not None:
        # An iteration has left it out: the statements outside of the loop have not.
        branches = [branch for branch in branches if branch.line >= loop.line]
        exits = tuple(leave for leave in exits if leave.line in loop)
    elif has_run and is_call:
        return None  # the code as a whole has run several times
    elif has_run:  # from another line, or from this one: only ranks make a difference
        branches = list(filter(is_of_ranks, branches))
        exits = ()
    elif is_call:
        branches = [each for each in branches if not any(line in each for line in reached)]
    found = _most_telling(branches, exits)
    if found is None:
        return None
    branch, exits, handler = found
    calls = _calls(graph, operation) if is_call else {}
    return Divergence(site, code, branch, None if branch else loop, exits, handler, calls)


def _most_telling(
    branches: Sequence[Branch], exits: tuple[Exit, ...]
) -> tuple[Branch | None, tuple[Exit, ...], Branch | None] | None:
    """The decisive branch, or the exits, or the ``try``; None: nothing has kept ranks away.

    All are empty if only a loop can have.
    """
    conditions = [branch for branch in branches if branch.kind == "condition"]
    branch = next(filter(is_of_ranks, conditions), None)
    if branch is not None:
        return branch, (), None
    of_ranks = tuple(leave for leave in exits if is_of_ranks(leave.condition))
    if of_ranks:
        return None, of_ranks, None
    if conditions:
        return conditions[0], (), None
    if exits:
        return None, exits, None
    if not branches:
        return None
    return None, (), next((each for each in branches if each.kind == "try"), None)


def _calls(graph: WaitForGraph, operation: Operation) -> dict[Rank, int]:
    """The number of such calls of each rank at the line of an operation, in its run."""
    counts: dict[Rank, int] = {}
    for rank, history in graph.histories.items():
        if history.is_cut and not _begins_before(history.operations.values(), operation.run_id):
            return {}
        counts[rank] = sum(
            (each.run_id, each.signature.op) == (operation.run_id, operation.signature.op)
            and _line(each.site) == _line(operation.site)
            for each in history.operations.values()
        )
    return counts


def _begins_before(operations: Iterable[Operation], run_id: str) -> bool:
    """Whether the oldest operation that is known is of an earlier run."""
    oldest = next(iter(operations), None)
    return oldest is not None and oldest.run_id != run_id


def _reached_lines(ranks: RankSet, graph: WaitForGraph, operation: Operation) -> set[int]:
    """The lines of the same function where these ranks have called operations."""
    return {
        each.site.line
        for rank in ranks
        for each in graph.histories[rank].operations.values()
        if each.run_id == operation.run_id and _function(each.site) == _function(operation.site)
    }


def _line(site: Site) -> tuple[str, int, int]:
    return site.file, site.cell, site.line


def _function(site: Site) -> tuple[str, int, str]:
    return site.file, site.cell, site.function


def differing_branches(
    disagreement: Disagreement, sources: Sources
) -> list[tuple[RankSet, Divergence]]:
    """Return the lines at which ranks made different calls, with the branch that only they took.

    Args:
        disagreement: calls of ranks that belong together and do not match.
        sources: the code.

    Returns:
        The ranks at each line; none if no line has such a branch, or all calls are at one line.
    """
    ranks_by_line: dict[tuple[str, int, int], list[Rank]] = {}
    site_by_line: dict[tuple[str, int, int], Site] = {}
    for rank, operation in disagreement.operation_by_rank.items():
        if operation.signature.kind != "collective":
            return []  # one rank sends, the other receives: their lines are not meant to be equal
        ranks_by_line.setdefault(_line(operation.site), []).append(rank)
        site_by_line[_line(operation.site)] = operation.site
    places = []
    for key, site in site_by_line.items():
        code = sources(site) if site.line else None
        if code is None or key[:2] != next(iter(site_by_line))[:2]:
            return []
        others = [line for *_, line in site_by_line if line != site.line]
        branches = (
            branch
            for branch in code.branches(site.line)
            if branch.kind == "condition" and not any(line in branch for line in others)
        )
        branch = next(branches, None) if others else None
        places.append((RankSet.of(ranks_by_line[key]), Divergence(site, code, branch)))
    places.sort(key=lambda place: place[1].site.line)
    return places if any(place.branch is not None for _, place in places) else []
