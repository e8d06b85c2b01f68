"""The next step where ranks call one end of messages, and no rank, or too few, the other end.

Runs in: the notebook's process. Pure.
"""

import ast
from collections.abc import Mapping
from typing import Literal

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.left_out_messages import has_no_other_end
from nbddp.controller.diagnosis.message_calls import call_of
from nbddp.controller.diagnosis.message_simulation import simulate
from nbddp.controller.diagnosis.phrases import subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.suspicions import unmet_messages
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.flight_recorder.matching import other_kind
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

GIVE_EACH_ITS_RECV = "Give each send its recv: same two ranks, same group, same tag, same order."
GIVE_EACH_ITS_SEND = "Give each recv its send: same two ranks, same group, same tag, same order."
#: Messages in a sentence.
_MAX_NAMED = 4


def without_other_ends(cause: Cause, reports: RankReports) -> tuple[str, str]:
    """The problem and the next step where a cell has receives only, or sends only."""
    rank, waited, _ = cause.circle[0]
    is_send = waited.signature.kind == "send"
    does, other = ("send", "receives") if is_send else ("receive", "sends")
    are_two = len(cause.circle) == 2 and not cause.alike
    problem = f"{'both' if are_two else 'all'} {does}, and nobody {other}"
    line = f" (line {waited.site.line})" if waited.site.line else ""
    its_part = does_its_part(waited)
    if are_two:
        step = (
            f"let rank {rank} {its_part} rank {waited.peer} in place of its {waited.signature.op}"
            f"{line}, or rank {waited.peer} {its_part} rank {rank}"
        )
    elif len(cause.circle) == 2:
        step = (
            f"let one rank of each pair {its_part} the other one in place of its "
            f"{waited.signature.op}{line}"
        )
    else:
        step = _other_end_of_each(cause, len(reports.graph.views))
    return problem, f"No rank {other} in this cell: {step}."


def _other_end_of_each(cause: Cause, world_size: int) -> str:
    """``let each rank of a circle also call the other end, and begin it before it waits``."""
    waited = cause.circle[0][1]
    is_send = waited.signature.kind == "send"
    call, direction, does = (
        ("irecv", "from", "sends to") if is_send else ("isend", "to", "receives from")
    )
    line = f" (line {waited.site.line})" if waited.site.line else ""
    where = f"before it waits{line}"
    if "batch_isend_irecv" in waited.site.source:
        where = f"in the same batch_isend_irecv{line}"
    peers = {rank: each.peer for rank, each, _ in cause.circle}
    distances = {(peer - rank) % world_size for rank, peer in peers.items() if peer >= 0}
    named = ""
    if len(distances) == 1 and len(peers) == world_size:
        (ahead,) = distances
        back = world_size - ahead
        term = f"rank - {ahead}" if ahead <= back else f"rank + {back}"
        named = f", `({term}) % world_size`"
    elif not cause.alike and len(peers) <= _MAX_NAMED and min(peers.values()) >= 0:
        pairs = (f"rank {peer} {direction} rank {rank}" for rank, peer in peers.items())
        named = f" ({', '.join(pairs)})"
    who = f"the rank that {does} it"
    return f"let each rank also {call} {direction} {who}{named}, {where}"


def let_do_its_part(
    owner: Rank, message: Operation, partners: RankSet, reports: RankReports
) -> str:
    """A sentence: let a rank do its part, if no rank, or too few, do that; empty: it is unknown."""
    if not has_no_other_end([message], reports):
        return _too_few_sends(owner, message, reports)
    does = "receives" if message.signature.kind == "send" else "sends"
    who = partners.describe() if len(partners) == 1 else f"one of {partners.describe()}"
    return f"No rank {does} in this cell: let {who} {does_its_part(message)} rank {owner}."


def without_call(owner: Rank, message: Operation, reports: RankReports) -> str:
    """A sentence on a rank that has finished, and never called the other end of any such message.

    Empty: it has called one, or that is not known.
    """
    peer, run_id = message.peer, message.run_id
    view, history = reports.graph.views.get(peer), reports.graph.histories.get(peer)
    if view is None or history is None or view.state != "finished" or not history.is_whole(run_id):
        return ""
    is_send = message.signature.kind == "send"
    other, to = ("recv", "from") if is_send else ("send", "to")
    if any(
        (each.signature.kind, each.run_id) == (other, run_id) and each.peer in (owner, -1)
        for each in history.operations.values()
    ):
        return ""
    its = "send to" if is_send else "receive from"
    line = f" (line {message.site.line})" if message.site.line else ""
    return (
        f"Rank {peer} has called no {other} {to} rank {owner} in this cell: let it "
        f"{does_its_part(message)} rank {owner}, or let rank {owner} not {its} it{line}."
    )


def _too_few_sends(owner: Rank, message: Operation, reports: RankReports) -> str:
    """Sentences on a rank that receives from any rank, and more often than ranks send to it."""
    histories, run_id = reports.graph.histories, message.run_id
    if message.peer >= 0 or not all(each.is_whole(run_id) for each in histories.values()):
        return ""
    calls = [
        (rank, each)
        for rank, history in histories.items()
        for each in history.operations.values()
        if (each.run_id, each.pg_id) == (run_id, message.pg_id)
    ]
    receives = [each for rank, each in calls if rank == owner and each.signature.kind == "recv"]
    sends = [
        (rank, each) for rank, each in calls if (each.signature.kind, each.peer) == ("send", owner)
    ]
    tags = {each.tag for each in (*receives, *(send for _, send in sends))}
    if len(tags) != 1 or not 0 < len(sends) < len(receives):
        return ""
    senders = RankSet.of(rank for rank, _ in sends)
    line = f" (line {message.site.line})" if message.site.line else ""
    count = f"{len(sends)} {'send was' if len(sends) == 1 else 'sends were'}"
    return (
        f"Rank {owner} has called {message.signature.op}{line} {len(receives)} times, and {count} "
        f"called for it, by {senders.describe()}. Let it receive as often as others send to it, "
        "or let another rank send."
    )


def does_its_part(message: Operation) -> str:
    """``receive from``, or ``send to``: the part of the other end of a message."""
    return "receive from" if message.signature.kind == "send" else "send to"


def with_other_tag(cause: Cause, reports: RankReports) -> Operation | None:
    """Return the other end of a message, which differs from it in the tag only.

    Args:
        cause: a message that a rank waits for.
        reports: the ranks.

    Returns:
        The call of the rank at the other end; None: there is none, there are several, or ranks
        would wait forever with the right tag, too.
    """
    message, owner = cause.operation, cause.owner
    if message is None or message.peer < 0:
        return None
    wanted = other_kind(message.signature)
    unmet = [
        each
        for each in unmet_messages(reports.graph, message.peer, wanted)
        if (each.peer, each.pg_id) == (owner, message.pg_id)
    ]
    if len(unmet) != 1 or unmet[0].tag == message.tag:
        return None
    changed = simulate(reports).with_tag(message.peer, unmet[0], message.tag)
    return None if changed.ends() is False else unmet[0]


def give_tag(owner: Rank, message: Operation, other: Operation, reports: RankReports) -> str:
    """A sentence: let the other end of a message have its tag.

    A line that other ranks wait in, too, gets the tag of each of them.
    """
    tags = _tags_at_line(owner, message, other, reports)
    if len(tags) > 1 and other.site.line:
        return _give_each_tag(owner, message, other, tags)
    lines = [f" (line {each.site.line})" if each.site.line else "" for each in (other, message)]
    does = "sends" if message.signature.kind == "send" else "receives"
    return (
        f"Give {other.signature.op} `tag={message.tag}` on rank {message.peer}{lines[0]}, since "
        f"rank {owner} {does} with tag {message.tag}{lines[1]}."
    )


def _tags_at_line(
    owner: Rank, message: Operation, other: Operation, reports: RankReports
) -> dict[Rank, int | None]:
    """The right tag of the call at one end of a message, on each rank that waits in its line.

    None: it is not known. A rank that also waits for the owner gets the tag that the owner's line
    gives it, if the tag there is the rank at the other end: ``send(x, dst, tag=dst)``.
    """
    graph = reports.graph
    kind: Literal["send", "recv"] = "send" if message.signature.kind == "send" else "recv"
    tags: dict[Rank, int | None] = {message.peer: message.tag}
    for rank in graph.views:
        waits = graph.waits.get(rank, ())
        calls = [
            each
            for each in (waits[0].operations if waits else ())
            if each.state == "scheduled" and each.site.position == other.site.position
        ]
        if rank == message.peer or len(calls) != 1 or calls[0].pg_id != message.pg_id:
            continue
        ends = [
            each.tag
            for each in unmet_messages(graph, calls[0].peer, kind)
            if (each.peer, each.pg_id) == (rank, message.pg_id)
        ]
        is_peer = calls[0].peer == owner and _has_peer_as_tag(message, reports)
        tags[rank] = ends[0] if len(ends) == 1 else (rank if is_peer and not ends else None)
    return tags


def _has_peer_as_tag(message: Operation, reports: RankReports) -> bool:
    """Whether a line gives a message the rank at its other end as its tag."""
    code = reports.sources(message.site)
    call = None if code is None else call_of(message, code)
    if call is None or message.tag != message.peer:
        return False
    tag = next((each.value for each in call.node.keywords if each.arg == "tag"), None)
    is_same = isinstance(call.peer, ast.Name) and isinstance(tag, ast.Name)
    return is_same and tag is not None and ast.dump(call.peer) == ast.dump(tag)


def _give_each_tag(
    owner: Rank, message: Operation, other: Operation, tags: Mapping[Rank, int | None]
) -> str:
    known = {rank: tag for rank, tag in tags.items() if tag is not None}
    by_tag = ranks_by_value(known)
    unknown = RankSet.of(rank for rank in tags if rank not in known)
    if not unknown and all(rank == tag for rank, tag in known.items()):
        named = f"`tag=rank` on {RankSet.of(tags).describe()}"
    else:
        by_tag = by_tag if len(by_tag) <= _MAX_NAMED else {message.tag: RankSet.of([message.peer])}
        named = ", ".join(f"`tag={tag}` on {ranks.describe()}" for tag, ranks in by_tag.items())
    whose, does = (
        ("sender", "sends") if message.signature.kind == "send" else ("receiver", "receives")
    )
    at = f" (line {message.site.line})" if message.site.line else ""
    to = "to" if message.signature.kind == "send" else "from"
    wait = unknown.verb("waits", "wait")
    then = f" {subject(unknown)} {wait} in this line, too: perhaps with another tag." * bool(
        unknown
    )
    return (
        f"Give {other.signature.op} of line {other.site.line} the tag of its {whose}: {named}, "
        f"since rank {owner} {does} with tag {message.tag} {to} rank {message.peer}{at}.{then}"
    )
