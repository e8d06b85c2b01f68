"""The words about messages that never meet their other end.

Runs in: the notebook's process. Pure.
"""

from typing import Literal

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import CodeChange
from nbddp.controller.diagnosis.suggested_change import in_two_orders
from nbddp.controller.diagnosis.suspicions import unmet_messages
from nbddp.controller.diagnosis.words.shared import Words, code_change, cycle, in_turn, name
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.rank_set import Rank, RankSet

_GIVE_EACH_ITS_RECV = "Give each send its recv: same two ranks, same group, same tag, same order."


def p2p_cycle(cause: Cause, reports: RankReports) -> Words:
    """Ranks wait for each other in messages."""
    operations = [operation for _, operation, _ in cause.circle]
    if _has_other_ends(cause, reports):
        problem = "each has sends and receives, and they do not match each other"
        return cycle(cause, reports, problem, _GIVE_EACH_ITS_RECV)
    kinds = {operation.signature.kind for operation in operations}
    problem = "each would do its part for another one only afterwards"
    if len(kinds) == 1:
        does, other = ("send", "receives") if "send" in kinds else ("receive", "sends")
        all_of_them = "all" if len(operations) > 2 or cause.alike else "both"
        problem = f"{all_of_them} {does} first, and nobody {other}"
    first = "send" if kinds == {"recv"} else "receive"
    change = _other_order(cause, reports)
    who = "one side" if change is None else _first_ranks(change)
    step = f"Let {who} {first} first, or use batch_isend_irecv."
    sources = [operation.site.source for operation in operations]
    if any("isend" in source or "irecv" in source for source in sources):
        step = "Issue every isend and irecv of a step before the first wait()."
    return cycle(cause, reports, problem, step, change)


def p2p_unmatched(cause: Cause, reports: RankReports) -> Words:
    """A rank waits for a message whose other end no rank can call."""
    operation = cause.operation
    is_send = operation is not None and operation.signature.kind == "send"
    partners = cause.culprits - RankSet.of([cause.owner]) or cause.culprits
    does = partners.verb("receives", "receive") if is_send else partners.verb("sends", "send")
    now = ""
    if len(partners) == 1:
        now = f": rank {partners} {reports.rank(partners.ranks[0]).predicate.main_clause()}"
    return Words(
        f"Rank {cause.owner} waits in {name(cause, reports)}, and {partners.describe()} never "
        f"{does} it{now}.",
        "no rank has called the other end of this message, and none can call it now."
        f"{in_turn(cause)}",
        _other_partner(cause, reports) or _GIVE_EACH_ITS_RECV,
    )


def _other_partner(cause: Cause, reports: RankReports) -> str:
    """The next step where the other end of a message, or this end, has another partner."""
    operation, owner = cause.operation, cause.owner
    if operation is None or operation.peer < 0:
        return ""
    is_send = operation.signature.kind == "send"
    wanted: Literal["send", "recv"] = "recv" if is_send else "send"
    ready = {
        rank
        for rank, history in reports.graph.histories.items()
        for other in history.operations.values()
        if (other.state, other.signature.kind) == ("scheduled", wanted)
        if (other.peer, other.pg_id) == (owner, operation.pg_id) and rank != operation.peer
    }
    if len(ready) == 1:
        (rank,) = ready
        return _give_partner(operation, owner, rank, operation.peer)
    astray = [
        message
        for message in unmet_messages(reports.graph, operation.peer, wanted)
        if message.peer not in (owner, -1) and message.pg_id == operation.pg_id
    ]
    if len(astray) != 1 or ready:
        return ""
    return _give_partner(astray[0], operation.peer, owner, astray[0].peer)


def _give_partner(message: Operation, owner: Rank, right: Rank, wrong: Rank) -> str:
    """A sentence: let a message of ``owner`` go to the rank that waits for it."""
    is_send = message.signature.kind == "send"
    argument, does = ("dst", "receives from") if is_send else ("src", "sends to")
    other_way = "receive from" if is_send else "send to"
    return (
        f"Give {message.signature.op} `{argument}={right}` on rank {owner}, since rank {right} "
        f"{does} it, or let rank {wrong} {other_way} rank {owner}."
    )


def _has_other_ends(cause: Cause, reports: RankReports) -> bool:
    """Whether each rank of the circle has open sends and receives, which do not match."""
    for rank, waited, _ in cause.circle:
        wanted = "recv" if waited.signature.kind == "send" else "send"
        operations = reports.graph.histories[rank].operations.values()
        if not any(o.signature.kind == wanted and o.state == "scheduled" for o in operations):
            return False
    return True


def _first_ranks(change: CodeChange) -> str:
    """The ranks that begin with the other call after a change."""
    (condition,) = (line.source for line in change.lines if line.source.lstrip()[:3] == "if ")
    is_even = condition.rstrip().endswith("% 2 == 0:")
    return "the even ranks" if is_even else f"rank {condition.rstrip(': ').rpartition(' ')[2]}"


def _other_order(cause: Cause, reports: RankReports) -> CodeChange | None:
    """Let every second rank of a circle send first, where all receive first."""
    circle, alike = cause.circle, cause.alike
    sites = {operation.site for _, operation, _ in circle}
    site = next(iter(sites))
    code = reports.sources(site)
    if len(sites) > 1 or code is None:
        return None
    is_even = all((rank + operation.peer) % 2 for rank, operation, _ in circle) and all(
        sum(ranks) % 2 for ranks in alike if len(ranks) == 2
    )
    rank_name = "rank" if site.cell and site.function == "<module>" else "dist.get_rank()"
    if is_even:
        condition = f"{rank_name} % 2 == 0"
    elif not alike:
        condition = f"{rank_name} == {min(rank for rank, *_ in circle)}"
    else:
        return None
    return code_change(site, in_two_orders(code, site.line, condition))
