"""The words about calls that do not match, or that ranks made in different iterations of a loop.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nbddp.controller.diagnosis.assigned_names import AssignedName, assigned_names
from nbddp.controller.diagnosis.calls_before_mismatches import (
    missed_behind_loop,
    missed_in_loop,
    sole_call,
)
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.contiguous_tensors import contiguous_step
from nbddp.controller.diagnosis.disagreement import Disagreement
from nbddp.controller.diagnosis.divergence import (
    Divergence,
    call_in_try,
    differing_branches,
    missing_calls,
    sole_branch,
)
from nbddp.controller.diagnosis.divergence_phrases import (
    Places,
    describe_assigned,
    differing_excerpt,
    differing_lines,
    extra_call_step,
    skipped_step,
    sole_reason,
)
from nbddp.controller.diagnosis.extra_callers import extra_caller, extra_line
from nbddp.controller.diagnosis.iterations import loop_over_items
from nbddp.controller.diagnosis.padded_tensors import advice, padded
from nbddp.controller.diagnosis.phrases import (
    Predicate,
    RankVerb,
    describe_calls,
    describe_operation,
    iteration,
    root_argument,
    subject,
)
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import CodeChange, CodeLine, PerRank
from nbddp.controller.diagnosis.shifted_loops import ShiftedLoop, find_shifted_loops
from nbddp.controller.diagnosis.suspicions import error_first, was_interrupted
from nbddp.controller.diagnosis.words.collectives import (
    call_everywhere,
    shared_out,
    with_loop_facts,
)
from nbddp.controller.diagnosis.words.messages import completes_wrongly, message_result
from nbddp.controller.diagnosis.words.shared import Words, code_change, name
from nbddp.wire.flight_recorder import Operation, nth
from nbddp.wire.flight_recorder.matching import MESSAGES
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

#: Sets of ranks in different iterations in a sentence.
_MAX_CLUSTERS = 3
#: Assignments in a sentence, and in the code below it.
_MAX_ASSIGNED = 2
_HUMAN_FIELDS: Mapping[str, str] = {
    "input_dtypes": "dtype",
    "input_sizes": "shape",
    "input_splits": "split sizes",
    "output_dtypes": "dtype",
    "output_sizes": "shape",
    "output_splits": "split sizes",
    "places": "layout and device",
    "reduce_op": "ReduceOp",
    "strides": "strides",
    "tensors": "number of tensors",
}


def mismatched_collective(cause: Cause, reports: RankReports) -> Words:
    """Calls that belong together and do not match, so that a cell fails."""
    disagreement = cause.disagreement
    assert disagreement is not None  # noqa: S101 - each mismatch has one
    reason = "these calls belong together and do not match, so their results are wrong."
    if not disagreement.differences.blocking:
        reason = "these calls belong together and do not match, so their results would be wrong"
        refused = disagreement.refused
        reason += f"; {refused.describe()} sent nothing." if refused else "."
    elif completes_wrongly(disagreement.operation_by_rank):
        reason = (
            "these calls belong together and do not match, so the tensor of the receiver would not "
            "hold what was meant."
        )
    elif inside := RankSet.of(disagreement.operation_by_rank) - disagreement.ended:
        reason = _never_completes(disagreement, inside)
    behind = cause.waiting - RankSet.of(disagreement.operation_by_rank)
    if behind:
        reason += f" {subject(behind)} {behind.verb('is', 'are')} blocked because of it."
    branches = _branches(cause, disagreement, reports)
    assigned = _assigned(cause, disagreement, reports)
    step = f"{_agree(disagreement, assigned)} {differing_lines(branches)}".rstrip()
    step += "" if branches or assigned else _in_one_order(disagreement, reports)
    change = _padded(disagreement, reports)
    code: Sequence[CodeLine] = differing_excerpt(
        [
            *branches,
            *_called_places(disagreement, branches, reports),
            *_assigned_places(disagreement, assigned),
        ]
    )
    extra = sole_branch(branches, disagreement.operation_by_rank, len(reports.graph.views))
    skipped: Places = ()
    missed = cause
    if "op" in disagreement.differences.reported:
        missed, skipped = _left_out(
            cause, disagreement, reports, is_open=extra is None and not _has_condition(branches)
        )
    caller = None if extra is not None else _extra_caller(cause, disagreement, skipped, reports)
    if caller is not None:
        step, change = extra_call_step(caller[1], caller[0]), None
        code = differing_excerpt([(NO_RANKS, caller[1]), *_own_places(disagreement, reports)])
        skipped = ()
    elif skipped:
        step, change, code = _missing_call(missed, skipped, reports)
        if uneven := shared_out(skipped, missed, reports):
            step, change = uneven, None
    elif "op" in disagreement.differences.reported and extra is not None:
        step, change, _ = _missing_call(_without(disagreement, extra, cause), [extra], reports)
    elif missed is not cause:
        step = skipped_step(missed.culprits)
    elif "op" in disagreement.differences.reported and (first := error_first(cause, reports)):
        step = first
    elif (loop := _shifted(disagreement, reports)) is not None:
        there = _iterations(loop)
        shares = f"If each rank has a share of the work, {step[0].lower()}{step[1:]}"
        step = f"{there[0].upper()}{there[1:]}. {shares} {_same_iteration(loop, reports)}"
        change = None
    return Words(
        f"{_calls(disagreement, reports)}.",
        reason,
        step,
        code=code,
        change=change,
        ranks=_ranks_that_disagree(disagreement, reports),
        places=skipped,
    )


def _never_completes(disagreement: Disagreement, inside: RankSet) -> str:
    """The reason, with the ranks on which the operation has ended all the same."""
    if not disagreement.ended:
        return (
            "these calls belong together and do not match, so they cannot all end well: without "
            "nbddp some ranks would wait for a timeout, abort, or end with wrong values."
        )
    return (
        "these calls belong together and do not match: they have ended on "
        f"{disagreement.ended.describe()}, and can never complete on {inside.describe()}."
    )


def silent_mismatch(cause: Cause, reports: RankReports) -> Words:
    """Calls that do not match, and end; or one that some ranks never made."""
    disagreement = cause.disagreement
    if disagreement is None:
        called = name(cause, reports)
        return Words(
            f"{called[0].upper()}{called[1:]} was called by {cause.waiting.describe()}, and never "
            f"by {cause.culprits.describe()}.",
            "all ranks have ended their cells, and this was left open.",
            "Call it on all ranks, and wait for asynchronous operations: the next operation of "
            "this group would match the wrong one.",
            begins_with_ranks=False,
        )
    assigned = _assigned(cause, disagreement, reports)
    is_wrong = bool(disagreement.differences.hard)
    results, step = "may not be", "Check what came out."
    if is_wrong:
        results, step = "are not", "Do not trust what came out."
    results = f"the results {results} what was meant"
    calls = disagreement.operation_by_rank
    if received := message_result(calls):
        results, step = received
    return Words(
        f"{_calls(disagreement, reports)}; that does not hang, but {results}.",
        "the records of the ranks differ.",
        f"{_agree(disagreement, assigned)} {step}",
        code=differing_excerpt(
            [
                *_branches(cause, disagreement, reports),
                *_assigned_places(disagreement, assigned),
            ]
        ),
        ranks=_ranks_that_disagree(disagreement, reports),
    )


def desynchronized_loop(cause: Cause, reports: RankReports) -> Words:
    """Ranks called a collective in different iterations of a loop."""
    loop = cause.shifted
    assert loop is not None  # noqa: S101 - each cause of this kind has one
    since = "Since" if loop.lasts and loop.is_first else "In"
    since = since if loop.is_first or not loop.lasts else "At the latest since"
    there = f"{since} {name(cause, reports)}, {_iterations(loop)}"
    if not cause.is_consequence:
        there += ": if each rank has a share of the work, nothing is wrong"
    return Words(
        f"{there}.",
        "records cannot tell ranks that share the work from a rank that skipped an iteration.",
        "" if cause.is_consequence else _same_iteration(loop, reports),
        ranks=_ranks_that_called(
            loop.operation_by_rank,
            reports,
            lambda operation: (
                f"{operation.label(has_call=False)} at {iteration(operation, loop.names)}"
            ),
        ),
        begins_with_ranks=False,
    )


def _iterations(loop: ShiftedLoop) -> str:
    """``rank 2 was at it = 2, the others at it = 1``."""
    by_size = list(loop.clusters)
    if loop.has_majority:
        by_size = [*by_size[1:], by_size[0]]
    parts = [
        f"{ranks.describe()} {ranks.verb('was', 'were')} at "
        f"{iteration(loop.operation_by_rank[ranks.ranks[0]], loop.names)}"
        for ranks in by_size[:_MAX_CLUSTERS]
    ]
    if len(by_size) > _MAX_CLUSTERS:
        parts[-1] = "others at other iterations"
    elif len(by_size) == 2 and len(by_size[1]) > 1:
        other = loop.operation_by_rank[by_size[1].ranks[0]]
        parts[1] = f"the others at {iteration(other, loop.names)}"
    return ", ".join(parts)


def _same_iteration(loop: ShiftedLoop, reports: RankReports) -> str:
    """The next step where all ranks should be at the same iteration."""
    site = loop.operation.site
    reason = sole_reason(reports.sources(site) if site.line else None, site.line)
    around = (
        "`continue`, `break`, `if` and `except` around the call, and at the lengths of its loops"
    )
    reason = reason or around
    return f"If all ranks should be at the same iteration, look at {reason}."


def _shifted(disagreement: Disagreement, reports: RankReports) -> ShiftedLoop | None:
    """The loop in different iterations of which ranks made calls that do not match; None: none."""
    calls = disagreement.operation_by_rank
    for loop in find_shifted_loops(reports.graph, reports.run_id):
        place = loop.operation.pg_id, loop.operation.site.position
        are_there = all((call.pg_id, call.site.position) == place for call in calls.values())
        are_apart = len({call.iteration for call in calls.values()}) > 1
        if are_there and are_apart:
            return loop
    return None


def _branches(cause: Cause, disagreement: Disagreement, reports: RankReports) -> Places:
    """Ranks that made different calls at different lines, and why."""
    if was_interrupted(cause, reports):
        return []
    return differing_branches(disagreement, reports.graph, reports.sources)


def _called_places(disagreement: Disagreement, branches: Places, reports: RankReports) -> Places:
    """The lines of calls inside functions, where `branches` has those of their callers."""
    shown = {place.site.position for _, place in branches}
    return [
        (RankSet.of([rank]), Divergence(call.site, code))
        for rank, call in disagreement.operation_by_rank.items()
        if branches and call.site.position not in shown
        if (code := reports.sources(call.site)) is not None
    ]


def _left_out(
    cause: Cause, disagreement: Disagreement, reports: RankReports, *, is_open: bool
) -> tuple[Cause, Places]:
    """The call that ranks left out, as a cause, and the reason; the cause itself: none is known.

    Args:
        cause: calls that do not match.
        disagreement: the calls.
        reports: the ranks.
        is_open: no condition around the calls explains them.
    """
    graph, sources = reports.graph, reports.sources
    if was_interrupted(cause, reports):
        return cause, ()
    missed = missed_in_loop(cause, graph, reports.run_id)
    if missed is not None:
        places = with_loop_facts(missing_calls(missed, graph, sources), missed, reports)
        reasons = [one.branches or one.exits or one.left_out or one.unsettled for _, one in places]
        return missed, places if any(reasons) and len(places) == 1 else ()
    there = sole_call(disagreement, graph, sources) if is_open else None
    there = there or (call_in_try(disagreement, graph, sources) if is_open else None)
    behind = missed_behind_loop(cause, graph, sources) if is_open and there is None else None
    if behind is not None:
        places = with_loop_facts(missing_calls(behind, graph, sources), behind, reports)
        if len(places) == 1:
            return behind, places
    return (cause, ()) if there is None else (_without(disagreement, there, cause), [there])


def _extra_caller(
    cause: Cause, disagreement: Disagreement, skipped: Places, reports: RankReports
) -> tuple[Operation, Divergence] | None:
    """A call, and the line by which some ranks alone have made it, if nothing else is proven."""
    is_open = all(place.unsettled is not None for _, place in skipped)
    if "op" not in disagreement.differences.reported or not is_open:
        return None
    if was_interrupted(cause, reports):
        return None
    caller = extra_caller(disagreement, reports.graph, reports.sources)
    if caller is not None:
        return disagreement.operation_by_rank[caller[0].ranks[0]], caller[1]
    return extra_line(disagreement, reports.graph, reports.sources)


def _own_places(disagreement: Disagreement, reports: RankReports) -> Places:
    """The lines of the calls."""
    return [
        (RankSet.of([rank]), Divergence(call.site, code))
        for rank, call in disagreement.operation_by_rank.items()
        if (code := reports.sources(call.site)) is not None
    ]


def _has_condition(places: Places) -> bool:
    """Whether a condition is around a call that others made elsewhere; a loop explains nothing."""
    return any(branch.kind != "loop" for _, place in places for branch in place.branches)


def _without(disagreement: Disagreement, there: tuple[RankSet, Divergence], cause: Cause) -> Cause:
    """The cause by which only some ranks made a call: by a condition, or since others raised."""
    ranks, _ = there
    calls = disagreement.operation_by_rank
    return replace(cause, culprits=RankSet.of(calls) - ranks, operation=calls[ranks.ranks[0]])


def _missing_call(
    missed: Cause, places: Places, reports: RankReports
) -> tuple[str, CodeChange | None, Sequence[CodeLine]]:
    """The next step where only some ranks made a call.

    Args:
        missed: the call, and as culprits the ranks that have not made it.
        places: the ranks that made it, and its line.
        reports: the ranks.
    """
    call = missed.operation
    assert call is not None  # noqa: S101 - a collective
    group = reports.graph.group(call)
    is_of_all = group is not None and group.is_default
    return call_everywhere(places, call, missed.culprits, reports, is_of_all=is_of_all)


def _assigned(
    cause: Cause, disagreement: Disagreement, reports: RankReports
) -> Sequence[AssignedName]:
    """The assignments that only some ranks ran before they made different calls at one line."""
    if was_interrupted(cause, reports):
        return []
    assignments = assigned_names(disagreement, len(reports.graph.views), reports.sources)
    return assignments[:_MAX_ASSIGNED]


def _assigned_places(disagreement: Disagreement, assigned: Sequence[AssignedName]) -> Places:
    """The assignments, and the call below them."""
    if not assigned:
        return []
    call = next(iter(disagreement.operation_by_rank.values())).site
    places = [(each.ranks, each.place) for each in assigned]
    return [*places, (NO_RANKS, Divergence(call, assigned[0].place.code))]


def _ranks_that_disagree(
    disagreement: Disagreement, reports: RankReports
) -> Mapping[Rank, PerRank]:
    fields = disagreement.differences.reported
    return _ranks_that_called(
        disagreement.operation_by_rank,
        reports,
        lambda operation: describe_operation(operation, fields),
    )


def _ranks_that_called(
    operation_by_rank: Mapping[Rank, Operation],
    reports: RankReports,
    describe: Callable[[Operation], str],
) -> Mapping[Rank, PerRank]:
    """The calls of ranks: whether a rank waits in its call, or has raised, is luck."""
    return {
        rank: replace(
            reports.rank(rank),
            predicate=Predicate(RankVerb.CALLED, f" {describe(operation)}"),
            site=operation.site,
            since_s=None,
        )
        for rank, operation in operation_by_rank.items()
        if rank in reports.graph.views
    }


def _calls(disagreement: Disagreement, reports: RankReports) -> str:
    """``Rank 2 called broadcast, ranks 0-1 called all_reduce, as the 3rd collective (#9)``."""
    rank, some = next(iter(disagreement.operation_by_rank.items()))
    group = reports.graph.group(some)
    fields, culprits = disagreement.differences.reported, disagreement.culprits
    calls = describe_calls(disagreement.operation_by_rank, fields, culprits)
    sentence = f"{calls[0].upper()}{calls[1:]}"
    is_default = group is None or group.is_default
    of_group = "" if group is None or is_default else f" of {group.label}"
    if some.signature.kind != "collective":
        return f"{sentence}, as the two ends of one message{of_group}"
    ordinal = reports.graph.histories[rank].ordinal(some, of_any_kind=True)
    if ordinal is None:
        return f"{sentence}, as collective #{some.collective_seq_id}{of_group}"
    if not ordinal:
        return f"{sentence}, as a collective{of_group}" if of_group else sentence
    return f"{sentence}, as the {nth(ordinal)} collective (#{some.collective_seq_id}){of_group}"


def _agree(disagreement: Disagreement, assigned: Sequence[AssignedName]) -> str:
    """The next step after a mismatch."""
    fields = disagreement.differences.reported
    if "op" in fields:
        return "Call the same operations in the same order on all ranks of the group."
    operations = disagreement.operation_by_rank
    argument = root_argument(next(iter(operations.values())).signature)
    human = {**_HUMAN_FIELDS, "root": f"`{argument}`"}
    names = list(dict.fromkeys(human.get(name, name) for name in fields))
    if "split sizes" in names:
        return "A rank must expect from each other rank what that one sends: compare the splits."
    if names == ["strides"]:
        return contiguous_step(operations)
    is_message = next(iter(operations.values())).signature.kind in MESSAGES
    where = "at both ends of the message" if is_message else "on all ranks of the group"
    step = f"Use the same {' and '.join(names)} {where}"
    if fields == ("root",) and len(disagreement.culprits) < len(operations):
        (root,) = {
            operations[r].signature.root for r in operations if r not in disagreement.culprits
        }
        step += f", for example {argument}={root}"
    sites = (each.site for each in operations.values())
    lines = {site.position for site in sites if site.line}
    if len(lines) > 1:
        return f"{step}, or, if each line is right, call them in the same order."
    if assigned:
        step += f": {', '.join(map(describe_assigned, assigned))}"
    return f"{step}. {advice(disagreement)}".rstrip()


#: Fields in which calls differ for other reasons than the order of their tensors.
_NOT_BY_ORDER = frozenset(("op", "reduce_op", "root"))


def _in_one_order(disagreement: Disagreement, reports: RankReports) -> str:
    """A sentence on the loop that gives the calls their tensors; empty: there is none."""
    site = next(iter(disagreement.operation_by_rank.values())).site
    code = reports.sources(site) if site.line else None
    loop = None if code is None else loop_over_items(code, site.line)
    if loop is None or _NOT_BY_ORDER & {*disagreement.differences.reported}:
        return ""
    return (
        f" Perhaps the ranks go through `{loop}` in different orders: sort it, or make it in one "
        "order on all ranks."
    )


def _padded(disagreement: Disagreement, reports: RankReports) -> CodeChange | None:
    """Pad the tensors to the longest one."""
    site = next(iter(disagreement.operation_by_rank.values())).site
    code = reports.sources(site)
    return None if code is None else code_change(site, padded(disagreement, code))
