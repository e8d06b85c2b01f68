"""Finds the part of the user's code that some ranks run and others do not.

Runs in: the notebook's process. Pure. The facts are lines that ranks have recorded; the branches
around them are read from the source. Which branch is decisive is a guess, unless there is one only.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from nbddp.controller.diagnosis.callers import frames_or_source
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.control_flow import Branch, Code, Exit, Sources
from nbddp.controller.diagnosis.disagreement import Disagreement
from nbddp.controller.diagnosis.iterations import has_left_out, loops_around
from nbddp.controller.diagnosis.rank_conditions import holds
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import LoopVariable, Operation, Site
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

_Line: TypeAlias = tuple[str, int, int]  #: file, cell, line

#: Words of conditions that are not equal on all ranks.
_OF_RANKS = re.compile(r"(?:\b|_)rank\b|get_rank|main_process|master|is_main", re.IGNORECASE)


@dataclass(frozen=True)
class LeftOut:
    """A call that ranks have left out in an iteration of a loop which they have run."""

    ranks: RankSet
    iteration: LoopVariable | None  #: the first one; None: it is not known
    line: int  #: a line with ``no_sync()``; 0: none


#: ``way``: the caller's line does not name the function; ``callers``: several lines call it.
SkipKind: TypeAlias = Literal[
    "exit", "branch", "decorator", "expression", "no_sync", "way", "callers"
]


@dataclass(frozen=True)
class PossibleSkip:
    """Something between a loop and a call in it by which a rank may have left out the call."""

    kind: SkipKind
    place: Site  #: its line
    leaving: Exit | None = None  #: of ``exit``
    branch: Branch | None = None  #: of ``branch``
    name: str = ""  #: of ``way`` and ``callers``: the function that is called
    lines: tuple[int, ...] = ()  #: of ``callers``: the lines that call it


@dataclass(frozen=True)
class Unsettled:
    """Possible reasons why ranks did not reach a call in a loop; nothing tells which."""

    caller: int  #: a line in the loop by which ranks come to the call; 0: the line of the call
    skips: tuple[PossibleSkip, ...]
    loops: tuple[tuple[Site, Branch], ...]  #: those that may be shorter; none: they are not
    iteration: LoopVariable | None = None  #: the first one without the call; None: not known

    @property
    def is_left_out(self) -> bool:
        """Whether the loops are as long on all ranks."""
        return bool(self.skips) and not self.loops


@dataclass(frozen=True)
class Divergence:
    """A line that ranks have come to, and the statements that may have kept others from it."""

    site: Site
    code: Code
    branches: tuple[Branch, ...] = ()  #: conditions and ``try`` around the line, outermost first
    is_certain: bool = False  #: the one condition is false on the other ranks
    loop: Branch | None = None  #: the loop around it
    exits: tuple[Exit, ...] = ()
    #: The calls that each rank has made at the line; empty: they are not known.
    calls: Mapping[Rank, int] = field(default_factory=dict)
    is_inner: bool = False  #: the line is in a function that the line of the operation calls
    is_extra: bool = False  #: the line is that of an earlier call, which only some ranks made
    left_out: LeftOut | None = None  #: the loop is as long on the other ranks
    is_repeated: bool = False  #: a loop calls the function of the line
    is_over_data: bool = False  #: the loop iterates over data, which may be split unevenly
    unsettled: Unsettled | None = None  #: there are several possible reasons; the others are empty

    @property
    def lines(self) -> tuple[int, ...]:
        """The lines that explain it, in order."""
        lines = {self.site.line, *(leave.line for leave in self.exits)}
        branches = [*self.branches, *(leave.condition for leave in self.exits)]
        branches += [] if self.loop is None else [self.loop]
        lines.update(line for branch in branches for line in branch.headers)
        lines.update(
            [] if self.left_out is None or not self.left_out.line else [self.left_out.line]
        )
        return tuple(sorted(lines))

    @property
    def weight(self) -> int:
        """How much it tells: a condition on ranks more than any, that more than a loop."""
        conditions = [branch for branch in self.branches if branch.kind == "condition"]
        if self.is_certain or self.is_extra:
            return 6
        if self.exits:
            return 5 if any(is_of_ranks(leave.condition) for leave in self.exits) else 2
        if conditions:
            return 4 if any(map(is_of_ranks, conditions)) else 3
        return 1 if self.branches else 0


def is_of_ranks(branch: Branch) -> bool:
    """Whether a condition names ranks, so that it is not equal on all of them."""
    other = branch.other
    return names_ranks(branch.source) or (other is not None and is_of_ranks(other))


def names_ranks(source: str) -> bool:
    """Return whether a piece of code names ranks: ``rank == 0``, ``dist.get_rank()``."""
    return bool(_OF_RANKS.search(source))


def missing_calls(
    cause: Cause, graph: WaitForGraph, sources: Sources
) -> list[tuple[RankSet, Divergence]]:
    """Return the reasons in the code why culprits have not made a call.

    Args:
        cause: ranks wait in an operation that the culprits have not called.
        graph: the ranks.
        sources: the code.

    Returns:
        The ranks that wait at each place, with the reason; none if none is found. There are several
        places if ranks have made the call, or have called its function, at different lines.
    """
    operation = cause.operation
    if operation is None or all(graph.views[rank].state == "idle" for rank in cause.culprits):
        return []
    places: dict[tuple[_Line, ...], list[Rank]] = {}
    operations: dict[Rank, Operation] = {cause.owner: operation}
    for rank in {*cause.direct, cause.owner}:
        mine = graph.histories[rank].collective(operation.pg_id, operation.collective_seq_id)
        operations[rank] = mine or operation
        around = frames_or_source(graph, rank, operations[rank], sources)
        places.setdefault(tuple(site.position for site in around), []).append(rank)
    calls = {
        min(ranks): _Call(cause, graph, min(ranks), operations[min(ranks)])
        for ranks in places.values()
    }
    # The culprits come to the lines where they have been before, and not to those of other ranks.
    been = {
        rank for rank, call in calls.items() if call.operation.site.line in _reached_lines(call)
    }
    divergences = []
    for ranks in places.values():
        if been and min(ranks) not in been:
            continue
        divergence = _best(calls[min(ranks)], sources)
        if divergence is None and len(been or calls) > 1:
            site = operations[min(ranks)].site
            code = sources(site)
            divergence = None if code is None else Divergence(site, code)
        if divergence is not None:
            divergences.append((RankSet.of(ranks), divergence))
    divergences.sort(key=lambda pair: pair[1].site.line)
    has_reason = any(one.branches or one.exits or one.loop for _, one in divergences)
    return divergences if has_reason else []


@dataclass(frozen=True)
class _Call:
    """A call of one rank that the culprits have not made."""

    cause: Cause
    graph: WaitForGraph
    rank: Rank
    operation: Operation

    def is_met(self, branch: Branch, rank: Rank) -> bool | None:
        """Whether a rank takes a branch; None: that is not known."""
        return is_met(branch, rank, len(self.graph.views))

    def keeps_away(self, branch: Branch) -> bool | None:
        """Whether a branch keeps all culprits away, and not this rank; None: that is not known."""
        met = {self.is_met(branch, rank) for rank in self.cause.culprits}
        if True in met or self.is_met(branch, self.rank) is False:
            return False
        return None if None in met else True

    def is_left_out(self, sources: Sources) -> bool:
        """Whether the culprits have left out the call in an iteration that they have run."""
        around = frames_or_source(self.graph, self.rank, self.operation, sources)
        culprits = self.cause.culprits
        return has_left_out(
            self.operation, around, culprits, self.rank, graph=self.graph, sources=sources
        )

    def may_leave(self, leaving: Exit) -> bool:
        """Whether a culprit may take an exit."""
        return any(
            self.is_met(leaving.condition, rank) is not False for rank in self.cause.culprits
        )


def is_met(branch: Branch, rank: Rank, world_size: int) -> bool | None:
    """Return whether a rank takes a branch; None: that is not known."""
    if branch.other is not None:
        other = is_met(branch.other, rank, world_size)
        return None if other is None else not other
    return holds(branch.test, rank, world_size)


def _best(call: _Call, sources: Sources) -> Divergence | None:
    """The most telling reason, of those in the functions around a call."""
    around = frames_or_source(call.graph, call.rank, call.operation, sources)
    lines = [site.position for site in around]
    at_call = lines.index(call.operation.site.position)
    divergences = [
        replace(divergence, is_inner=number < at_call)
        for number, site in enumerate(around)
        if site.line and (code := sources(site)) is not None
        if (divergence := _divergence(call, site, code, around[number + 1 :], sources)) is not None
    ]
    # Of equal ones, `max` returns the first, which is the innermost.
    return max(divergences, key=lambda each: each.weight, default=None)


def _divergence(
    call: _Call, site: Site, code: Code, callers: Sequence[Site], sources: Sources
) -> Divergence | None:
    is_call = site.position == call.operation.site.position
    reached = _reached_lines(call)
    has_run = call.operation.site.line in reached  # the culprits have made this call before
    branches = [each for each in code.branches(site.line)[::-1] if "__name__" not in each.source]
    exits = code.exits(site.line)
    loops = [branch for branch in branches if branch.kind == "loop"]
    calls = calls_of(call.graph, call.operation) if is_call else {}
    if is_call and has_run and calls:
        fewest = min(calls.get(rank, 0) for rank in call.cause.culprits)
        if calls[call.rank] <= fewest:  # each has made this call as often: another one is too many
            return _extra_call(call, sources)
    if has_run and loops:
        # An iteration has left it out: the statements outside of the loops have not.
        branches = [branch for branch in branches if branch.line >= loops[0].line]
        exits = tuple(leave for leave in exits if leave.line in loops[0])
    elif has_run and _is_in_loop(callers, sources):
        # An iteration has left it out, by a statement of this function; or the loop is shorter.
        calls = calls or calls_of(call.graph, call.operation)
        if not call.is_left_out(sources):
            branches = list(filter(is_of_ranks, branches))
            exits = tuple(leave for leave in exits if is_of_ranks(leave.condition))
        place = Divergence(site, code, calls=calls, is_repeated=True)
        return _most_telling(call, place, branches, exits)
    elif has_run and is_call:
        return None  # the code as a whole has run several times
    elif has_run:  # from another line, or from this one: only ranks make a difference
        branches = list(filter(is_of_ranks, branches))
        exits = ()
    elif is_call:
        branches = [each for each in branches if not any(line in each for line in reached)]
    place = Divergence(site, code, loop=loops[-1] if loops else None, calls=calls)
    divergence = _most_telling(call, place, branches, exits)
    if divergence is not None and divergence.exits:
        # The loop whose iterations the first exit leaves.
        left = [loop for loop in loops if divergence.exits[0].line in loop]
        divergence = replace(divergence, loop=left[-1] if left else None)
    return divergence


def _is_in_loop(sites: Sequence[Site], sources: Sources) -> bool:
    """Whether a loop is around one of these lines."""
    codes = ((site.line, sources(site)) for site in sites if site.line)
    return any(loops_around(code, line) for line, code in codes if code is not None)


def _most_telling(
    call: _Call, place: Divergence, branches: Sequence[Branch], exits: Sequence[Exit]
) -> Divergence | None:
    """Choose the statements to quote; None: nothing has kept ranks away."""
    possible = [branch for branch in branches if call.keeps_away(branch) is not False]
    conditions = [branch for branch in possible if branch.kind == "condition"]
    certain = [branch for branch in conditions if call.keeps_away(branch)]
    if certain:
        return replace(place, branches=(certain[-1],), is_certain=True, loop=None)
    exits = tuple(filter(call.may_leave, exits))
    of_ranks = tuple(leave for leave in exits if is_of_ranks(leave.condition))
    if of_ranks:
        return replace(place, exits=of_ranks)
    if any(map(is_of_ranks, conditions)):
        return replace(place, branches=tuple(filter(is_of_ranks, conditions)), loop=None)
    decisive = tuple(branch for branch in possible if branch.kind != "loop")
    if conditions:
        return replace(place, branches=decisive, loop=None)
    if exits:
        return replace(place, exits=exits)
    return replace(place, branches=decisive[-1:]) if possible else None


def _extra_call(call: _Call, sources: Sources) -> Divergence | None:
    """An earlier call that only this rank has made, after which the calls do not meet."""
    op, run_id = call.operation.signature.op, call.operation.run_id
    site_by_line: dict[_Line, Site] = {}
    counts: dict[Rank, Counter[_Line]] = {}
    for rank in (call.rank, *call.cause.culprits):
        counts[rank] = Counter()
        for operation in call.graph.histories[rank].operations.values():
            if (operation.run_id, operation.pg_id) == (run_id, call.operation.pg_id):
                counts[rank][operation.site.position] += operation.signature.op == op
                site_by_line.setdefault(operation.site.position, operation.site)
    for line, site in site_by_line.items():
        most = max(counts[rank][line] for rank in call.cause.culprits)
        if counts[call.rank][line] > most and (code := sources(site)) is not None:
            conditions = [each for each in code.branches(site.line) if each.kind == "condition"]
            calls = {rank: counts[rank][line] for rank in counts}
            return Divergence(site, code, tuple(conditions[:1]), calls=calls, is_extra=True)
    return None


def calls_of(graph: WaitForGraph, operation: Operation) -> dict[Rank, int]:
    """Return the number of such calls of each rank at the line of an operation, in its run.

    Args:
        graph: the ranks.
        operation: the call.

    Returns:
        Empty: the records of a rank do not have all of them.
    """
    counts: dict[Rank, int] = {}
    for rank, history in graph.histories.items():
        if not history.is_whole(operation.run_id):
            return {}
        counts[rank] = sum(
            (each.run_id, each.signature.op) == (operation.run_id, operation.signature.op)
            and each.site.position == operation.site.position
            for each in history.operations.values()
        )
    return counts


def _reached_lines(call: _Call) -> set[int]:
    """The lines of the same function where the culprits have called operations."""
    operation = call.operation
    return {
        each.site.line
        for rank in call.cause.culprits
        for each in call.graph.histories[rank].operations.values()
        if each.run_id == operation.run_id and _function(each.site) == _function(operation.site)
    }


def _function(site: Site) -> tuple[str, int, str]:
    return site.file, site.cell, site.function


def differing_branches(
    disagreement: Disagreement, graph: WaitForGraph, sources: Sources
) -> list[tuple[RankSet, Divergence]]:
    """Return the lines at which ranks made different calls, with the branch that only they took.

    Args:
        disagreement: calls of ranks that belong together and do not match.
        graph: the ranks.
        sources: the code.

    Returns:
        The ranks at each line; none if no line has such a branch, or all calls are at one line. The
        line of a call is that of its caller, where only there ranks are in the same function.
    """
    if not disagreement.is_of_collectives:
        return []  # one rank sends, the other receives: their lines are not meant to be equal
    return branches_apart(_in_one_function(disagreement, graph, sources), sources)


def branches_apart(
    site_by_rank: Mapping[Rank, Site], sources: Sources
) -> list[tuple[RankSet, Divergence]]:
    """Return the lines at which ranks are, with the branch that only the ranks there took.

    Args:
        site_by_rank: the lines.
        sources: the code.

    Returns:
        The ranks at each line; none if no line has such a branch, or they are in several cells.
    """
    ranks_by_line = ranks_by_value({rank: site.position for rank, site in site_by_rank.items()})
    site_by_line = {site.position: site for site in site_by_rank.values()}
    places = []
    for key, site in site_by_line.items():
        code = sources(site) if site.line else None
        if code is None or key[:2] != next(iter(site_by_line))[:2]:
            return []
        others = [line for *_, line in site_by_line if line != site.line]
        branches = [
            branch
            for kind in ("condition", "loop")
            for branch in code.branches(site.line)
            if branch.kind == kind and not any(line in branch for line in others)
        ]
        branch = next(iter(branches), None) if others else None
        around = () if branch is None else (branch,)
        places.append((ranks_by_line[key], Divergence(site, code, around)))
    places.sort(key=lambda place: place[1].site.line)
    return places if any(place.branches for _, place in places) else []


def call_in_try(
    disagreement: Disagreement, graph: WaitForGraph, sources: Sources
) -> tuple[RankSet, Divergence] | None:
    """Return a call of some ranks inside a ``try`` that the others have left, perhaps by an error.

    Args:
        disagreement: calls of ranks that belong together and do not match.
        graph: the ranks.
        sources: the code.

    Returns:
        The ranks there, and their line with the ``try`` around it; None: there is none.
    """
    if not disagreement.is_of_collectives:
        return None
    site_by_rank = _in_one_function(disagreement, graph, sources)
    if len({_function(site) for site in site_by_rank.values()}) != 1:
        return None
    for ranks in ranks_by_value(
        {rank: site.position for rank, site in site_by_rank.items()}
    ).values():
        site = site_by_rank[ranks.ranks[0]]
        others = [each.line for rank, each in site_by_rank.items() if rank not in ranks]
        code = sources(site) if site.line else None
        for branch in () if code is None else code.branches(site.line):
            has_left = all(line > branch.end for line in others)
            if branch.kind == "try" and code is not None and others and has_left:
                return ranks, Divergence(site, code, (branch,))
    return None


def _in_one_function(
    disagreement: Disagreement, graph: WaitForGraph, sources: Sources
) -> Mapping[Rank, Site]:
    """The line of each rank in the innermost function in which all of them are; else their own."""
    calls = disagreement.operation_by_rank
    own = {rank: call.site for rank, call in calls.items()}
    if len({_function(site) for site in own.values()}) == 1:
        return own
    around = {rank: frames_or_source(graph, rank, call, sources) for rank, call in calls.items()}
    for function in map(_function, next(iter(around.values()))):
        lines = {
            rank: site
            for rank, stack in around.items()
            for site in stack[::-1]
            if _function(site) == function
        }
        if len(lines) == len(calls):
            return lines
    return own


def sole_branch(
    places: Sequence[tuple[RankSet, Divergence]], calls: Mapping[Rank, Operation], world_size: int
) -> tuple[RankSet, Divergence] | None:
    """Return the one place that ranks came to by a condition about ranks, which all others left.

    Args:
        places: the lines of different calls.
        calls: these calls.
        world_size: the number of ranks of the pool.

    Returns:
        The ranks there, and their line; None: it is not known that these ranks made one call more.
    """
    inside = [(ranks, place) for ranks, place in places if place.branches]
    conditions = [each for each in inside if each[1].branches[0].kind == "condition"]
    if len(conditions) == 1 and _have_passed(conditions[0], inside, calls):
        inside = conditions
    if len(inside) != 1:
        return None
    ((ranks, place),) = inside
    (branch,) = place.branches
    others = [rank for there, _ in places if there is not ranks for rank in there]
    is_theirs = all(is_met(branch, rank, world_size) for rank in ranks)
    if branch.kind != "condition" or not others or not is_theirs:
        return None
    if any(is_met(branch, rank, world_size) is not False for rank in others):
        return None
    return ranks, replace(place, is_certain=True)


def _have_passed(
    there: tuple[RankSet, Divergence],
    inside: Sequence[tuple[RankSet, Divergence]],
    calls: Mapping[Rank, Operation],
) -> bool:
    """Whether the ranks in other loops are in a later iteration of the loops around a line.

    Args:
        there: the ranks at the line, and the line.
        inside: these, and the ranks in other loops.
        calls: the call of each rank.
    """
    mine = calls[there[0].ranks[0]].iteration
    names, values = [each.name for each in mine], [each.value for each in mine]
    for ranks, place in inside:
        for rank in ranks:
            call = calls[rank]
            if call.site.position != place.site.position:
                return False  # its iterations are those of loops in another function
            outer = call.iteration[: len(mine)]
            is_same = names == [each.name for each in outer]
            if ranks is not there[0] and not (is_same and [each.value for each in outer] > values):
                return False
    return bool(mine)
