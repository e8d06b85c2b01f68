"""Suspicions: possible reasons of a proven finding, which are marked as guesses.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.code_places import called
from nbddp.controller.diagnosis.definitions import function_at, nodes_of
from nbddp.controller.diagnosis.disagreement import Disagreement
from nbddp.controller.diagnosis.divergence_phrases import Places, sole_reason
from nbddp.controller.diagnosis.divergence_phrases import suspicions as in_the_code
from nbddp.controller.diagnosis.iterations import loops_around
from nbddp.controller.diagnosis.phrases import Forms, describe_handled, place
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.shifted_loops import find_shifted_loops
from nbddp.controller.diagnosis.similar_keys import similar_keys
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import ExceptionLine, Operation
from nbddp.wire.flight_recorder.matching import other_kind
from nbddp.wire.rank_set import Rank, RankSet

#: More hints than these are noise.
_MAX_HINTS = 3
_CAME_HERE: Forms = (", and came here while handling it",) * 2


def suspicions(cause: Cause, reports: RankReports, places: Places = ()) -> tuple[str, ...]:
    """The suspicions about a cause, as sentences; the most telling one is the first.

    Args:
        cause: the cause.
        reports: the ranks.
        places: the parts of the code that culprits did not run, if they are known.

    Returns:
        At most three sentences without a period; none for a cause that is not proven, except
        about keys.
    """
    if cause.operation is None:
        return ()
    if not cause.proven and cause.operation.signature.kind != "store":
        return ()
    hints: Iterable[str] = ()
    match cause.operation.signature.kind:
        case "collective":
            hints = _of_collective(cause, cause.operation, reports, places)
        case "send" | "recv":
            hints = _of_message(cause, cause.operation, reports)
        case "creation":
            hints = _of_creation(cause, cause.operation, reports)
        case "store":
            similar = similar_keys(cause.operation, reports.graph)
            hints = (f"{text}: is the name right?" for text in similar)
    if was_interrupted(cause, reports):
        hints = ()  # the interrupt has caused the order of the calls
    return tuple(dict.fromkeys([*_handled(cause, reports), *hints]))[:_MAX_HINTS]


def was_interrupted(cause: Cause, reports: RankReports) -> bool:
    """Whether some of the ranks made their calls while they handled an interrupt.

    The interrupt has found them at other lines than the rest, on whichever side the culprits are.
    """
    return any(handled.is_interrupt for handled in _handled_by_rank(cause, reports).values())


def _handled_by_rank(cause: Cause, reports: RankReports) -> dict[Rank, ExceptionLine]:
    """The exceptions that the ranks of a cause handled."""
    views = reports.graph.views
    return {
        rank: handled
        for rank in _concerned(cause)
        if rank in views and (handled := views[rank].handling) is not None
    }


def _concerned(cause: Cause) -> RankSet:
    """The culprits, the ranks that wait for them, and those that called something else."""
    calls = () if cause.disagreement is None else cause.disagreement.operation_by_rank
    return RankSet.of({*cause.culprits, *cause.waiting, *calls})


def error_first(cause: Cause, reports: RankReports) -> str:
    """The next step where an exception, perhaps, led some ranks to another call; else empty."""
    handled_by_rank = _handled_by_rank(cause, reports)
    if not handled_by_rank or len(handled_by_rank) == len(_concerned(cause)):
        return ""
    if len({str(handled) for handled in handled_by_rank.values()}) > 1:
        return ""
    handled = next(iter(handled_by_rank.values()))
    place = f" ({handled.place})" if handled.place else ""
    return (
        f"First look at the {handled.name} of {RankSet.of(handled_by_rank).describe()}{place}. If "
        "it may come, let all ranks leave the `try` together: a collective in `finally` or "
        "`except` meets those that the other ranks call meanwhile."
    )


def _handled(cause: Cause, reports: RankReports) -> Iterator[str]:
    """An exception sent a rank to another call than the others: in ``except`` or ``finally``."""
    yield from describe_handled(_handled_by_rank(cause, reports), _CAME_HERE)


# --- collectives ---------------------------------------------------------------------------------


def _of_collective(
    cause: Cause, operation: Operation, reports: RankReports, places: Places
) -> Iterator[str]:
    graph = reports.graph
    if cause.disagreement is not None and not places:
        yield from _swapped(cause, operation, reports)
    if cause.kind in ("missing-rank", "group-cycle", "mismatched-collective"):
        yield from _wrong_group(cause, operation, reports)
    if places:
        ranks = cause.culprits
        if cause.disagreement is not None:
            by_rank = cause.disagreement.operation_by_rank
            ranks = RankSet.of(by_rank) - places[0][0]
            operation = next((by_rank[each] for each in places[0][0] if each in by_rank), operation)
        yield from in_the_code(places, operation, ranks)
    elif cause.kind == "missing-rank" and not find_shifted_loops(graph, operation.run_id):
        yield from _fewer_iterations(cause, operation, graph)


def _swapped(cause: Cause, operation: Operation, reports: RankReports) -> Iterator[str]:
    """Another order, or one call too many or too few: the next operations show it, if any."""
    assert cause.disagreement is not None  # noqa: S101 - the caller has looked
    by_rank = cause.disagreement.operation_by_rank
    ranks_by_forms: dict[Forms, list[Rank]] = {}
    for culprit in filter(by_rank.__contains__, cause.culprits):
        op = by_rank[culprit].signature.op
        other = next((rank for rank in by_rank if by_rank[rank].signature.op != op), None)
        if other is not None:
            forms = _order(culprit, other, cause.disagreement, reports)
            ranks_by_forms.setdefault(forms, []).append(culprit)
    has_majority = len(cause.culprits) < len(by_rank)
    for forms, ranks in list(ranks_by_forms.items())[: None if has_majority else 1]:
        yield f"{RankSet.of(ranks).describe()} {forms[len(ranks) > 1]}"


def _reason(operation: Operation, reports: RankReports) -> str:
    """The one statement that may keep a rank from a call; empty: several, or none is known."""
    site = operation.site
    return sole_reason(reports.sources(site) if site.line else None, site.line)


def _order(culprit: Rank, other: Rank, disagreement: Disagreement, reports: RankReports) -> Forms:
    """The phrases about a rank, and about several, that called another operation than a rank."""
    graph = reports.graph
    mine, theirs = (disagreement.operation_by_rank[rank] for rank in (culprit, other))
    pg_id, seq = disagreement.point
    mine_next = graph.histories[culprit].collective(pg_id, seq + 1)
    theirs_next = graph.histories[other].collective(pg_id, seq + 1)
    my_op, their_op = mine.signature.op, theirs.signature.op
    if mine_next is None or mine_next.signature != theirs.signature:
        line = place(theirs.site)
        leaves = f"out {their_op}{' at ' if line else ''}{line}"
        is_elsewhere = mine.site.function != theirs.site.function
        if is_elsewhere and (reason := _reason(theirs, reports)):
            leaves += f", perhaps because of {reason}"
        return (
            f"has one {my_op} too many, leaves {leaves}, or calls them in another order",
            f"have one {my_op} too many, leave {leaves}, or call them in another order",
        )
    if theirs_next is not None and theirs_next.signature == mine.signature:
        swapped = f"{my_op} and {their_op} in the other order than rank {other}"
        return f"calls {swapped}", f"call {swapped}"
    too_many = f"one {my_op} too many, or the others have one too few"
    return (
        f"calls {their_op} right after: it has {too_many}",
        f"call {their_op} right after: each has {too_many}",
    )


def _wrong_group(cause: Cause, operation: Operation, reports: RankReports) -> Iterator[str]:
    """The same operation, issued on another group that also has the waiting rank as a member."""
    for rank in cause.culprits:
        for other in _open_collectives(reports.graph, rank):
            same = other.signature == operation.signature
            if cause.kind == "group-cycle" and not _is_one_call(operation, other, reports):
                continue  # each has a line of its own, in another order
            if same and other.pg_id != operation.pg_id and rank != cause.owner:
                there, here = reports.graph.group(other), reports.graph.group(operation)
                if there is not None and here is not None:
                    yield (
                        f"rank {rank} calls the same {other.signature.op} on {there.label}: is one "
                        f"of the two groups the wrong one?"
                    )
                    if cause.kind == "group-cycle":
                        return  # the other culprits would give the same hint


def _is_one_call(one: Operation, other: Operation, reports: RankReports) -> bool:
    """Whether two operations are of the one such call in the code, which no loop repeats."""
    if one.site.position != other.site.position:
        return False
    code = reports.sources(one.site) if one.site.line else None
    if code is None:
        return True
    function = function_at(code.statements, one.site.line)
    nodes = nodes_of(code.statements if function is None else function.body)
    calls = [node for node in nodes if called(node) == one.signature.op]
    return len(calls) < 2 and not loops_around(code, one.site.line)


def _fewer_iterations(cause: Cause, operation: Operation, graph: WaitForGraph) -> Iterator[str]:
    """The last call of a rank that has finished is at the line where the others wait."""
    ranks = RankSet.of(
        rank
        for rank in cause.culprits
        if (newest := graph.histories[rank].newest(operation.pg_id, operation.run_id)) is not None
        and newest.site.line
        and newest.site == operation.site
        and graph.views[rank].state == "finished"
        and _count(graph, rank, operation) < _count(graph, cause.owner, operation)
    )
    if ranks:
        yield (
            f"{ranks.describe()} {ranks.verb('has', 'have')} run this line, and fewer times: "
            f"something has left it out, or a loop had fewer iterations"
        )


def _count(graph: WaitForGraph, rank: Rank, operation: Operation) -> int:
    """The number of calls of a rank at the line of an operation, in its run."""
    return sum(
        (each.run_id, each.site) == (operation.run_id, operation.site)
        for each in graph.histories[rank].operations.values()
    )


def _open_collectives(graph: WaitForGraph, rank: Rank) -> Iterator[Operation]:
    for operation in graph.histories[rank].operations.values():
        if operation.signature.kind == "collective" and operation.state == "scheduled":
            yield operation


# --- messages ------------------------------------------------------------------------------------


def _of_message(cause: Cause, operation: Operation, reports: RankReports) -> Iterator[str]:
    """A message of the other end that nearly matches, and met no other end."""
    owner, kind = cause.owner, operation.signature.kind
    wanted = other_kind(operation.signature)
    ranks = [operation.peer] if operation.peer >= 0 else list(cause.culprits)
    for rank in ranks:
        for other in unmet_messages(reports.graph, rank, wanted):
            text = f"rank {rank} has called {other.label(has_tag=False)}"
            if other.peer not in (owner, -1):
                argument, way = ("dst", "to") if wanted == "send" else ("src", "from")
                made = _calls(reports.graph, rank, owner, wanted, operation)
                if not made:
                    yield f"{text}, not {way} rank {owner}: is `{argument}` right?"
                elif made < _calls(reports.graph, owner, rank, kind, operation):
                    less = f"{way} rank {owner} fewer times than rank {owner} expects"
                    yield f"{text}, and {less}: is `{argument}` right?"
            elif other.pg_id != operation.pg_id:
                group = reports.graph.group(other)
                label = group.label if group else "another group"
                yield f"{text} on {label}: is the group right?"
            elif other.tag != operation.tag:
                yield f"{text} with tag {other.tag}, rank {owner} uses tag {operation.tag}"


def _calls(graph: WaitForGraph, rank: Rank, peer: Rank, kind: str, message: Operation) -> int:
    """The number of messages of a rank with another one, in the run and the group of a message."""
    return sum(
        (each.signature.kind, each.peer) == (kind, peer)
        and (each.run_id, each.pg_id) == (message.run_id, message.pg_id)
        for each in graph.histories[rank].operations.values()
    )


def unmet_messages(
    graph: WaitForGraph, rank: Rank, kind: Literal["send", "recv"]
) -> Iterator[Operation]:
    """Messages of a rank that are open, or were sent and dropped, and met no other end.

    Args:
        graph: the ranks at one moment.
        rank: the rank that has called them; one that the graph does not have has none.
        kind: their direction.
    """
    history = graph.histories.get(rank)
    for message in () if history is None else history.operations.values():
        if message.signature.kind == kind and message.state != "failed":
            receiver = graph.histories.get(message.peer)
            sent = message.pg_id, rank, message.tag, message.p2p_seq_id
            if message.state == "scheduled" or (
                kind == "send" and receiver is not None and not receiver.has_received(*sent)
            ):
                yield message


# --- groups --------------------------------------------------------------------------------------


def _of_creation(cause: Cause, operation: Operation, reports: RankReports) -> Iterator[str]:
    for rank in cause.culprits:
        for other in reports.graph.histories[rank].operations.values():
            is_other = other.signature.kind == "creation" and other.pg_id != operation.pg_id
            is_other = is_other and other.signature != operation.signature  # else: renumbered
            if is_other and other.state == "scheduled":
                members = RankSet.of(map(int, filter(str.isdecimal, other.signature.keys)))
                yield (
                    f"rank {rank} makes another group meanwhile, of {members.describe()}: all "
                    f"ranks must make the same groups in the same order"
                )
