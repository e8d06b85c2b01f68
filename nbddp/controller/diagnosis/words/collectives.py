"""The words about collectives that ranks never call, or call in another order.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from dataclasses import replace

from nbddp.controller.diagnosis.callers import frames_or_source
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.divergence import Divergence, calls_of, is_of_ranks, missing_calls
from nbddp.controller.diagnosis.divergence_phrases import Places, excerpt, helper_step, next_step
from nbddp.controller.diagnosis.extra_callers import line_of_second_call
from nbddp.controller.diagnosis.guarded_calls import skipped_after_error
from nbddp.controller.diagnosis.helper_barriers import helper_call
from nbddp.controller.diagnosis.line_groups import LineGroups, has_called_line, line_groups
from nbddp.controller.diagnosis.loop_lengths import LoopLength, is_over_data, loop_length
from nbddp.controller.diagnosis.loop_phrases import sharding_step
from nbddp.controller.diagnosis.passed_calls import is_passed
from nbddp.controller.diagnosis.phrases import subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import CodeChange, CodeLine
from nbddp.controller.diagnosis.sharded_loops import dividing_condition
from nbddp.controller.diagnosis.skipped_calls import left_out_call, skipped_iteration, skipping_exit
from nbddp.controller.diagnosis.suggested_change import (
    moved_before,
    moved_out,
    skipped_together,
)
from nbddp.controller.diagnosis.uneven_loops import even_loop
from nbddp.controller.diagnosis.unsettled_reasons import with_all_reasons
from nbddp.controller.diagnosis.words.shared import Words, code_change, cycle, in_turn, name
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.rank_set import Rank, RankSet

#: Sets of ranks in a sentence about the groups of a line.
_MAX_GROUPS = 3


def group_cycle(cause: Cause, reports: RankReports) -> Words:
    """Ranks wait for each other in collectives of different groups."""
    problem = "each is in a collective of another group"
    step = "Call the groups in the same order on all ranks that are members of several."
    words = cycle(cause, reports, problem, step)
    missed = _missing_in(cause)
    left = [pair for each in missed if (pair := _left_out_in(each, reports)) is not None]
    if len(left) == 1:
        ((operation, culprits, places),) = left
        is_of_all = _is_of_all(operation, reports)
        step, change, code = call_everywhere(
            places, operation, culprits, reports, is_of_all=is_of_all
        )
        return replace(words, next_step=step, change=change, code=code)
    passed = (_passed_without(each, reports) for each in missed if not left)
    return replace(words, next_step=next(filter(None, passed), step))


def _left_out_in(cause: Cause, reports: RankReports) -> tuple[Operation, RankSet, Places] | None:
    """A call that ranks made in earlier iterations, or have passed for good, and the reason."""
    operation, culprits = cause.operation, cause.culprits
    calls = {} if operation is None else calls_of(reports.graph, operation)
    if operation is None:
        return None
    if not all(calls.get(rank) for rank in culprits) and not is_passed(cause, reports):
        return None
    missing = missing_calls(cause, reports.graph, reports.sources)
    places = with_loop_facts(missing, cause, reports)
    has_reason = any(
        one.branches or one.exits or one.left_out or (one.unsettled and one.unsettled.is_left_out)
        for _, one in places
    )
    return (operation, culprits, places) if len(places) == 1 and has_reason else None


def _missing_in(cause: Cause) -> list[Cause]:
    """Each call of a circle, as a cause: the ranks of the circle that have not made it."""
    waiting: dict[object, list[Rank]] = {}
    calls: dict[object, tuple[Operation, RankSet]] = {}
    for rank, operation, missing in cause.circle:
        key = operation.pg_id, operation.collective_seq_id, operation.site.position, missing
        waiting.setdefault(key, []).append(rank)
        calls.setdefault(key, (operation, missing))
    return [
        replace(
            cause, kind="missing-rank", culprits=missing, waiting=RankSet.of(waiting[key]),
            owner=waiting[key][0], direct=RankSet.of(waiting[key]), operation=operation, circle=(),
        )
        for key, (operation, missing) in calls.items()
    ]  # fmt: skip


def _passed_without(cause: Cause, reports: RankReports) -> str:
    """The next step where ranks are behind the line of a call and made none; empty: not known.

    That is what torch does, with a warning, on ranks that are no members of the group. Or they made
    the call in another group.
    """
    operation, culprits = cause.operation, cause.culprits
    code = None if operation is None else reports.sources(operation.site)
    if operation is None or code is None or not operation.site.line:
        return ""
    line, is_of_cell = operation.site.line, operation.site.function == "<module>"
    runs_once = is_of_cell and not code.branches(line) and not code.exits(line)
    if not all(_is_past(rank, operation, reports, runs_once=runs_once) for rank in culprits):
        return ""
    groups = line_groups(operation, culprits, reports)
    if groups is not None:
        return _in_other_groups(groups, operation, cause)
    group = reports.graph.group(operation)
    has_call = any(has_called_line(rank, operation, reports) for rank in culprits)
    is_own = group is not None and not group.is_default and "group" in operation.site.source
    if group is None or not is_own or not runs_once or has_call:
        return ""
    return (
        f"Look at the `group` in line {line} on {culprits.describe()}: "
        f"{culprits.verb('it has', 'they have')} run that line without the call, as torch does, "
        f"with a warning, on ranks that are not members. It must be {group.label} there, too."
    )


def _is_past(rank: Rank, operation: Operation, reports: RankReports, *, runs_once: bool) -> bool:
    """Whether a rank cannot come to the line of a call again: no loop or function is around it."""
    if reports.graph.views[rank].state == "finished":
        return True
    site = reports.rank(rank).site
    is_same = site is not None and site.position[:2] == operation.site.position[:2]
    return runs_once and is_same and site is not None and site.line > operation.site.line


def _in_other_groups(groups: LineGroups, operation: Operation, cause: Cause) -> str:
    """The next step where ranks called a line in different groups."""
    concerned = {*cause.culprits, *cause.direct}
    ordered = sorted(
        groups.ranks_by_groups.items(), key=lambda item: (concerned.isdisjoint(item[1]), item[1])
    )
    parts = [
        f"{ranks.describe()} in {' and '.join(labels)}" for labels, ranks in ordered[:_MAX_GROUPS]
    ]
    others = ", others in other groups" if len(ordered) > _MAX_GROUPS else ""
    text = (
        f"Look at the `group` in line {operation.site.line}: ranks called it in different groups: "
        f"{', '.join(parts)}{others}."
    )
    if groups.odd is not None:
        rank, label = groups.odd
        return (
            f"{text} Perhaps rank {rank} is the odd one: if it calls the line in {label}, all "
            f"members of each group call it."
        )
    equally = " equally often" if groups.is_repeated else ""
    return f"{text} Let all members of a group call it there{equally}, or none."


def _is_of_all(operation: Operation, reports: RankReports) -> bool:
    group = reports.graph.group(operation)
    return group is not None and group.is_default


def missing_rank(cause: Cause, reports: RankReports) -> Words:
    """Ranks can no longer call a collective in which others wait."""
    operation, ranks, culprits = cause.operation, cause.direct, cause.culprits
    group = reports.graph.group(operation) if operation else None
    places: Places = []
    if cause.proven:
        places = with_loop_facts(
            missing_calls(cause, reports.graph, reports.sources), cause, reports
        )
        second = None
        if operation is not None:
            second = line_of_second_call(operation, ranks, culprits, reports.graph, reports.sources)
        # If the others never call the function, the waiting ranks stand in the call itself.
        if second is not None and all(second.calls[rank] for rank in culprits):
            places = [(ranks, second)]
    is_called = operation is None or not operation.is_by_library
    step = (
        f"{'Call it' if is_called else 'Run this line'} on all ranks of the group: look for an "
        "`if`, a `break`, or a loop with a different number of iterations around it."
    )
    change: CodeChange | None = None
    code: Sequence[CodeLine] = ()
    if places and operation is not None:
        step, change, code = call_everywhere(
            places, operation, culprits, reports, is_of_all=_is_of_all(operation, reports)
        )
        if uneven := shared_out(places, cause, reports):
            step, change = uneven, None
    elif passed := _passed_without(cause, reports):
        step = passed
    elif all(reports.graph.views[rank].state == "idle" for rank in culprits):
        where = f"No cell runs on {culprits.describe()}"
        step = f"{where}: call it in a cell of all ranks of the group, one without -r."
    called = "called" if is_called else "came to"
    return Words(
        f"{subject(culprits)} never {called} {name(cause, reports)}; {ranks.describe()} "
        f"{ranks.verb('waits', 'wait')} for {culprits.verb('it', 'them')}.",
        f"a collective needs every member{f' of {group.label}' if group else ''}, and "
        f"{culprits.describe()} can no longer call it.{in_turn(cause)}",
        step,
        code=code,
        change=change,
        places=places,
    )


def shared_out(places: Places, cause: Cause, reports: RankReports) -> str:
    """The next step where a condition divides a loop among the ranks, unevenly; empty: none does.

    Args:
        places: the lines that ranks have not come to.
        cause: the call, the ranks that wait in it, and those that have not made it.
        reports: the ranks.
    """
    divergence = places[0][1]
    condition = dividing_condition(divergence, reports.sources)
    if len(places) != 1 or condition is None:
        return ""
    return sharding_step(divergence, condition, cause.direct, cause.culprits)


def with_loop_facts(places: Places, cause: Cause, reports: RankReports) -> Places:
    """Add to the one place what is known of its loop.

    The culprits have left out its call, and not an iteration; or the loop is over data.

    Args:
        places: the line that ranks have not come to.
        cause: the call, and the ranks that have not made it.
        reports: the ranks.
    """
    if len(places) != 1 or cause.operation is None:
        return places
    ((waiting, divergence),) = places
    graph, sources, rank = reports.graph, reports.sources, waiting.ranks[0]
    operation = _call_of(rank, cause.operation, reports)
    around = frames_or_source(graph, rank, operation, sources)
    left_out = left_out_call(
        divergence, operation, around, cause.culprits, waiting, graph=graph, sources=sources
    )
    code = sources(operation.site)
    if left_out is None or left_out.line == 0:
        divergence = with_all_reasons(
            divergence, operation, around, cause.culprits, waiting, graph=graph, sources=sources
        )
        if divergence.unsettled is not None:
            return [(waiting, divergence)]
    if left_out is None or code is None:
        is_data = is_over_data(divergence, sources)
        return [(waiting, replace(divergence, is_over_data=is_data))]
    if divergence.site.position == operation.site.position:
        return [(waiting, replace(divergence, left_out=left_out))]
    return [
        (
            waiting,
            Divergence(operation.site, code, calls=calls_of(graph, operation), left_out=left_out),
        )
    ]


def _call_of(rank: Rank, operation: Operation, reports: RankReports) -> Operation:
    """The call of a rank that belongs to a collective."""
    history = reports.graph.histories[rank]
    return history.collective(operation.pg_id, operation.collective_seq_id) or operation


def call_everywhere(
    places: Places, operation: Operation, culprits: RankSet, reports: RankReports,
    *, is_of_all: bool,
) -> tuple[str, CodeChange | None, Sequence[CodeLine]]:  # fmt: skip
    """The next step by which all ranks make a call, its change of the code, and lines of the code.

    Args:
        places: the lines that ranks have not come to.
        operation: the call.
        culprits: the ranks that have not made it.
        reports: the ranks.
        is_of_all: the group of the call has all ranks.
    """
    code = excerpt(places, operation, reports.sources)
    if len(places) == 1 and not places[0][1].is_extra:
        helper = helper_call(places[0][1], operation, reports.sources)
        if helper is not None:
            return helper_step(helper, culprits), helper.change, code
    change = _change(places, culprits, reports, is_of_all=is_of_all)
    length = _loop_length(places, operation, reports)
    skipped = None
    if len(places) == 1:
        ((waiting, divergence),) = places
        skipped = skipped_iteration(
            divergence.site, culprits, waiting, reports.graph, reports.run_id
        )
    step = next_step(
        places, operation, culprits, change, length, skipped=skipped, is_of_all=is_of_all
    )
    if length is not None and change is None:
        code = [*length.lines, *code]
    return step, change, code


def _loop_length(places: Places, operation: Operation, reports: RankReports) -> LoopLength | None:
    """The value that sets the length of the loop around a line; None: no loop is the reason."""
    ranks, divergence = places[0]
    is_loop = divergence.loop is not None and not divergence.branches and not divergence.exits
    if len(places) > 1 or divergence.is_extra or not is_loop or divergence.left_out is not None:
        return None
    graph, rank = reports.graph, ranks.ranks[0]
    around = frames_or_source(graph, rank, _call_of(rank, operation, reports), reports.sources)
    lines = [site.position for site in around]
    here = lines.index(divergence.site.position) if divergence.site.position in lines else 0
    return loop_length(divergence, around[here + 1 :], graph, reports.sources)


def _change(
    places: Places, culprits: RankSet, reports: RankReports, *, is_of_all: bool
) -> CodeChange | None:
    """Move the call to where all ranks come, or give all ranks as many iterations."""
    if len(places) != 1:
        return None
    ((_, divergence),) = places
    branches, site, graph = divergence.branches, divergence.site, reports.graph
    leaving = skipping_exit(divergence, culprits, graph, reports.run_id)
    if leaving is not None:
        lines = divergence.code, site.line, leaving.condition.line
        change = moved_before(*lines)
        if not change and is_of_all:
            change = skipped_together(*lines, has_device=bool(site.cell))
        return code_change(site, change)
    if not branches:
        return even_loop(divergence, reports.sources, len(graph.views))
    if divergence.exits or divergence.is_extra or len(branches) != 1:
        return None
    if branches[0].kind == "try" and is_of_all and site.cell:
        return code_change(site, skipped_after_error(divergence.code, site.line))
    is_of_branch = branches[0].kind == "condition" and is_of_ranks(branches[0])
    return code_change(site, moved_out(divergence.code, site.line) if is_of_branch else ())
