"""What may lie behind a proven finding: suspicions, told as such.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable, Iterator

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.phrases import came_by, place
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.wait_graph import WaitFor
from nbddp.wire.flight_recorder.schema import Operation
from nbddp.wire.rank_set import Rank, RankSet

#: A hint is enough; the fourth is noise.
_MAX_HINTS = 3
#: What to do about a mismatch of ranks that an interrupt has sent another way.
AFTER_INTERRUPT = (
    "Nothing, if the interrupt was meant. It finds ranks at different lines, so a collective in "
    "`finally` or `except` may then meet another one."
)


def suspicions(cause: Cause, reports: RankReports) -> tuple[str, ...]:
    """Sentences, the most telling first."""
    if cause.operation is None or not cause.proven:
        return ()
    found: Iterable[str] = ()
    match cause.operation.signature.kind:
        case "collective":
            found = _of_collective(cause, cause.operation, reports)
        case "send" | "recv":
            found = _of_message(cause, cause.operation, reports)
        case "creation":
            found = _of_creation(cause, cause.operation, reports)
        case _:
            pass
    if was_interrupted(cause, reports):
        found = ()  # the order of its calls is the interrupt's doing
    return tuple(dict.fromkeys([*_handled(cause, reports), *found]))[:_MAX_HINTS]


def was_interrupted(cause: Cause, reports: RankReports) -> bool:
    """Whether an interrupt has sent culprits into what they called."""
    views = reports.graph.views
    found = (views[rank].handling for rank in cause.culprits if rank in views)
    return any(handled is not None and handled.is_interrupt for handled in found)


def _handled(cause: Cause, reports: RankReports) -> Iterator[str]:
    """An exception sent a rank another way than the others: into ``except`` or ``finally``."""
    views = reports.graph.views
    handled_by_rank = {
        rank: handled
        for rank in sorted({*cause.culprits, *cause.waiting})
        if rank in views and (handled := views[rank].handling) is not None
    }
    for text in came_by(handled_by_rank):
        yield f"{text}, and came here while handling it"


# --- collectives ---------------------------------------------------------------------------------


def _of_collective(cause: Cause, operation: Operation, reports: RankReports) -> Iterator[str]:
    graph = reports.graph
    if cause.disagreement is not None:
        yield from _swapped(cause, operation, reports)
    if cause.kind in ("missing-rank", "group-cycle", "mismatched-collective"):
        yield from _wrong_group(cause, operation, reports)
    if cause.kind == "missing-rank":
        yield from _fewer_turns(cause, operation, graph)


def _swapped(cause: Cause, operation: Operation, reports: RankReports) -> Iterator[str]:
    """Another order, or one call too many or too few: what was issued next tells, if it was."""
    assert cause.disagreement is not None  # noqa: S101 - the caller has looked
    by_rank = cause.disagreement.operation_by_rank
    pg_id, seq = cause.disagreement.point
    for culprit, other in (
        (culprit, other)
        for culprit in cause.culprits
        for other in by_rank
        if culprit in by_rank and by_rank[culprit].signature.op != by_rank[other].signature.op
    ):
        mine, theirs = by_rank[culprit], by_rank[other]
        mine_next = reports.graph.histories[culprit].collective(pg_id, seq + 1)
        theirs_next = reports.graph.histories[other].collective(pg_id, seq + 1)
        names = f"{mine.signature.op} and {theirs.signature.op}"
        if mine_next is not None and mine_next.signature == theirs.signature:
            if theirs_next is not None and theirs_next.signature == mine.signature:
                yield f"rank {culprit} calls {names} in the other order than rank {other}"
            else:
                yield (
                    f"rank {culprit} calls {theirs.signature.op} right after: it has one "
                    f"{mine.signature.op} too many, or rank {other} has one too few"
                )
        else:
            line = place(theirs.site)
            yield (
                f"rank {culprit} leaves out {theirs.signature.op}{' at ' if line else ''}{line}, "
                f"or calls {names} in another order"
            )
        return


def _wrong_group(cause: Cause, operation: Operation, reports: RankReports) -> Iterator[str]:
    """The same operation, issued on another group that has the waiting rank as a member, too."""
    for rank in cause.culprits:
        for other in _open_collectives(reports.graph, rank):
            same = other.signature == operation.signature
            if same and other.pg_id != operation.pg_id and rank != cause.owner:
                there, here = reports.group(other), reports.group(operation)
                if there is not None and here is not None:
                    yield (
                        f"rank {rank} calls the same {other.signature.op} on {there.label}: is one "
                        f"of the two groups the wrong one?"
                    )
                    if cause.kind == "group-cycle":
                        return  # it is the same with each of the others


def _fewer_turns(cause: Cause, operation: Operation, graph: WaitFor) -> Iterator[str]:
    """The last call of a rank that has finished is at the line where the others wait."""
    turns = RankSet.of(
        rank
        for rank in cause.culprits
        if (newest := graph.histories[rank].newest(operation.pg_id, operation.run_id)) is not None
        and newest.site.line
        and newest.site == operation.site
        and graph.views[rank].state == "finished"
    )
    if turns:
        yield (
            f"{turns.describe()} {turns.verb('has', 'have')} run this line, and fewer times: a "
            f"loop with fewer turns, perhaps since the data is shared out unevenly, or turns that "
            f"an exception has left"
        )


def _open_collectives(graph: WaitFor, rank: Rank) -> Iterator[Operation]:
    for operation in graph.histories[rank].operations.values():
        if operation.signature.kind == "collective" and operation.state == "scheduled":
            yield operation


# --- messages ------------------------------------------------------------------------------------


def _of_message(cause: Cause, operation: Operation, reports: RankReports) -> Iterator[str]:
    """A message of the other end that nearly fits, and is not taken."""
    owner, kind = cause.owner, operation.signature.kind
    wanted = "send" if kind == "recv" else "recv"
    ranks = [operation.peer] if operation.peer >= 0 else list(cause.culprits)
    for rank in ranks:
        if rank not in reports.graph.histories:
            continue
        for other in reports.graph.histories[rank].operations.values():
            if other.state != "scheduled":
                continue
            text = f"rank {rank} has called {other.label(has_tag=False)}"
            if other.signature.kind == wanted and other.peer in (owner, -1):
                if other.pg_id != operation.pg_id:
                    group = reports.group(other)
                    label = group.label if group else "another group"
                    yield f"{text} on {label}: is the group right?"
                elif other.tag != operation.tag:
                    yield f"{text} with tag {other.tag}, rank {owner} uses tag {operation.tag}"
            elif other.signature.kind == wanted:
                yield f"{text}, not {'to' if wanted == 'send' else 'from'} rank {owner}"


# --- groups --------------------------------------------------------------------------------------


def _of_creation(cause: Cause, operation: Operation, reports: RankReports) -> Iterator[str]:
    for rank in cause.culprits:
        for other in reports.graph.histories[rank].operations.values():
            is_other = other.signature.kind == "creation" and other.pg_id != operation.pg_id
            if is_other and other.state == "scheduled":
                members = RankSet.of(map(int, filter(str.isdecimal, other.signature.keys)))
                yield (
                    f"rank {rank} makes another group meanwhile, of {members.describe()}: all "
                    f"ranks must make the same groups in the same order"
                )
