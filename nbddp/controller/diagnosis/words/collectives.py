"""The words about collectives that ranks never call, or call in another order.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from dataclasses import replace

from nbddp.controller.diagnosis.callers import frames_or_source
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.divergence import Divergence, calls_of, is_of_ranks, missing_calls
from nbddp.controller.diagnosis.divergence_phrases import Places, excerpt, helper_step, next_step
from nbddp.controller.diagnosis.guarded_calls import skipped_after_error
from nbddp.controller.diagnosis.helper_barriers import helper_call
from nbddp.controller.diagnosis.loop_lengths import LoopLength, is_over_data, loop_length
from nbddp.controller.diagnosis.loop_phrases import sharding_step
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
from nbddp.controller.diagnosis.suspicions import was_interrupted
from nbddp.controller.diagnosis.uneven_loops import even_loop
from nbddp.controller.diagnosis.words.shared import Words, code_change, cycle, in_turn, name
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.rank_set import Rank, RankSet


def group_cycle(cause: Cause, reports: RankReports) -> Words:
    """Ranks wait for each other in collectives of different groups."""
    problem = "each is in a collective of another group"
    step = "Call the groups in the same order on all ranks that are members of several."
    return cycle(cause, reports, problem, step)


def missing_rank(cause: Cause, reports: RankReports) -> Words:
    """Ranks can no longer call a collective in which others wait."""
    operation, ranks, culprits = cause.operation, cause.direct, cause.culprits
    group = reports.graph.group(operation) if operation else None
    places: Places = []
    if cause.proven and not was_interrupted(cause, reports):
        places = with_loop_facts(
            missing_calls(cause, reports.graph, reports.sources), cause, reports
        )
    is_called = operation is None or not operation.is_by_library
    step = (
        f"{'Call it' if is_called else 'Run this line'} on all ranks of the group: look for an "
        "`if`, a `break`, or a loop with a different number of iterations around it."
    )
    is_of_all = group is not None and group.is_default
    change: CodeChange | None = None
    code: Sequence[CodeLine] = ()
    if places and operation is not None:
        step, change, code = call_everywhere(
            places, operation, culprits, reports, is_of_all=is_of_all
        )
        divergence = places[0][1]
        condition = dividing_condition(divergence, reports.sources)
        if len(places) == 1 and condition is not None:
            change, step = None, sharding_step(divergence, condition, ranks, culprits)
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
    if len(places) == 1:
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
    step = next_step(places, operation, culprits, change, length, skipped=skipped)
    if length is not None and change is None:
        code = [*length.lines, *code]
    return step, change, code


def _loop_length(places: Places, operation: Operation, reports: RankReports) -> LoopLength | None:
    """What sets the length of the loop around a line; None: not a loop keeps ranks from it."""
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
