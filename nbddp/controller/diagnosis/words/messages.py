"""The words about messages that never meet their other end, or one that does not match.

Runs in: the notebook's process. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from nbddp.controller.diagnosis.assigned_names import AssignedName, names_assigned_on
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.divergence import Divergence, branches_apart, is_met
from nbddp.controller.diagnosis.divergence_phrases import (
    Places,
    describe_assigned,
    differing_excerpt,
    differing_lines,
)
from nbddp.controller.diagnosis.left_out_messages import (
    LeftOutEnd,
    has_no_other_end,
    left_out_end,
)
from nbddp.controller.diagnosis.message_orders import other_order
from nbddp.controller.diagnosis.message_partners import Partners, changed_lines, partners
from nbddp.controller.diagnosis.message_simulation import Simulation, simulate
from nbddp.controller.diagnosis.other_partners import (
    OtherPartner,
    lacks_other_end,
    other_partner,
    partner_changes,
    partner_of_cycle,
)
from nbddp.controller.diagnosis.pairs_in_loops import lower_first
from nbddp.controller.diagnosis.phrases import capitalized, describe_branch, quote_branch
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import CodeLine
from nbddp.controller.diagnosis.suspicions import unmet_messages
from nbddp.controller.diagnosis.words.one_sided_messages import (
    GIVE_EACH_ITS_RECV,
    GIVE_EACH_ITS_SEND,
    does_its_part,
    give_tag,
    let_do_its_part,
    with_other_tag,
    without_call,
    without_other_ends,
)
from nbddp.controller.diagnosis.words.shared import Words, code_change, cycle, in_turn, name
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.flight_recorder.matching import MESSAGES, other_kind
from nbddp.wire.rank_set import Rank, RankSet

#: The group that a line names.
_GROUP = re.compile(r"\bgroup\s*=\s*([\w.]+)(?=\s*[,)])")


def p2p_cycle(  # noqa: PLR0911 - one for each problem
    cause: Cause, reports: RankReports
) -> Words:
    """Ranks wait for each other in messages."""
    operations = [operation for _, operation, _ in cause.circle]
    known = partners(cause, reports.graph, reports.run_id, reports.sources)
    if known is not None and known.strays:
        return _wrong_partners(cause, known, reports)
    if has_no_other_end(operations, reports):
        return cycle(cause, reports, *without_other_ends(cause, reports))
    if _has_other_ends(cause, reports):
        problem = "each has sends and receives, and they do not match each other"
        return cycle(cause, reports, problem, GIVE_EACH_ITS_RECV)
    kinds = {operation.signature.kind for operation in operations}
    problem = "each would do its part for another one only afterwards"
    if len(kinds) == 1:
        does, other = ("send", "receives") if "send" in kinds else ("receive", "sends")
        all_of_them = "all" if len(operations) > 2 or cause.alike else "both"
        problem = f"{all_of_them} {does} first, and nobody {other}"
    first = "send" if kinds == {"recv"} else "receive"
    simulation = simulate(reports)
    if simulation.at_once().ends() is False:
        problem = "their sends and receives do not match each other"
        return _other_ends(cause, reports, problem)
    if lacks_other_end(cause, reports):
        return _other_ends(cause, reports, problem)
    batch = _batch(operations, reports)
    is_varied = any(partner_changes(each, rank, reports) for rank, each, _ in cause.circle)
    lower = lower_first(cause, reports.sources, len(reports.graph.views)) if is_varied else None
    if lower is not None:
        step = f"Let the lower rank of each pair {first} first, or use {batch}."
        return cycle(cause, reports, problem, step, lower)
    change = None if is_varied else other_order(cause, reports.graph, reports.sources)
    first_ranks = _first_of_each(cause) if change is None else change.ranks
    ends = simulation.with_other_order(first_ranks).ends()
    who = f"rank {cause.circle[0][0]}" if not cause.alike else "one side"
    who = who if change is None else change.first
    step = f"Let {who} {first} first, or use {batch}."
    sources = [operation.site.source for operation in operations]
    has_source = all(reports.sources(each.site) is not None for each in operations)
    is_later = change is None or not change.first
    if is_later and any("isend" in source or "irecv" in source for source in sources):
        step = "Issue every isend and irecv of a step before the first wait()."
    elif is_varied or ends is False or (ends is None and change is None and has_source):
        change, step = None, f"Use {batch}: each rank waits when all have begun."
    if change is None and ends is None and len(kinds) == 1 and has_source:
        does, other = ("send", "recv") if "send" in kinds else ("recv", "send")
        step += f" A {does} without a {other} waits there, too: add it."  # it may be there, or not
    return cycle(cause, reports, problem, step, None if change is None else change.code_change)


def _batch(operations: Sequence[Operation], reports: RankReports) -> str:
    """``batch_isend_irecv``, with the group of the messages if it is not the default one."""
    groups = [reports.graph.group(each) for each in operations]
    if any(group is None or group.is_default for group in groups):
        return "batch_isend_irecv"
    written = {name for each in operations for name in _GROUP.findall(each.site.source)}
    argument = f"`group={written.pop()}`" if len(written) == 1 else "their group"
    return f"batch_isend_irecv, with {argument} in each P2POp"


def _first_of_each(cause: Cause) -> list[Rank]:
    """The lowest rank of each circle."""
    return [cause.circle[0][0], *(ranks.ranks[0] for ranks in cause.alike)]


def _other_ends(cause: Cause, reports: RankReports, problem: str) -> Words:
    """Ranks wait for messages that have no other end, in whatever order they are called."""
    other = partner_of_cycle(cause, reports)
    if other is None:
        only_receive = all(each.signature.kind == "recv" for _, each, _ in cause.circle)
        step = GIVE_EACH_ITS_SEND if only_receive else GIVE_EACH_ITS_RECV
        return cycle(cause, reports, problem, step)
    size = len(reports.graph.views)
    assigned = names_assigned_on(other.message.site, other.owner, size, reports.sources)
    words = cycle(cause, reports, problem, _give_partner(other, assigned))
    return replace(words, code=_lines_of(other, assigned, reports))


def _wrong_partners(cause: Cause, known: Partners, reports: RankReports) -> Words:
    """Ranks receive from ranks that send to other ones: a ``dst`` or ``src`` is wrong."""
    stray = known.strays[0]
    sender, receive = known.peer("recv", stray), known.call("recv", stray)
    receives = f"rank {stray} receives from rank {sender} (line {receive.line})"
    nobody = f"{receives}, which sends to none of these ranks"
    problem = f"rank {stray} receives from rank {sender}, which sends to none of them"
    send = known.call("send", sender) if sender in known.ranks else None
    if send is not None:
        to = send.peer_by_rank[sender]
        nobody = f"{receives}, but rank {sender} sends to rank {to} (line {send.line})"
        problem = f"rank {stray} receives from rank {sender}, which sends to rank {to}"
    wanted = [rank for rank in known.ranks if known.peer("send", rank) == stray]
    fix = f"is `src` or `dst` right? Rank {stray} must receive from the rank that sends to it"
    if known.source:
        right = f"`{receive.argument}={known.source}`"
        fix = f"let each rank receive from the one that sends to it, {right}"
    then = ""
    if not known.source:
        fix, then = _shown_fix(known, stray, wanted, reports) or (fix, "")
    step, change = f"{nobody[0].upper()}{nobody[1:]}: {fix}.{then}", None
    corrected = known.corrected()
    if corrected is not None:
        change = code_change(known.site, changed_lines(known.code, corrected))
        order = other_order(cause, reports.graph, lambda _: corrected)
        if order is not None and order.first:
            first = "send" if cause.circle[0][1].signature.kind == "recv" else "receive"
            step += f" Then let {order.first} {first} first."
            lines = tuple(
                replace(each, source=known.code.source(each.line)) if each.line else each
                for each in order.code_change.lines
            )
            change = code_change(known.site, lines)
    words = cycle(cause, reports, problem, step, change)
    shown = sorted({call.line for call in known.calls})
    places: Places = [
        (
            RankSet.of(r for call in known.calls if call.line == line for r in call.peer_by_rank),
            Divergence(msgspec.structs.replace(known.site, line=line), known.code),
        )
        for line in shown
    ]
    return replace(words, code=differing_excerpt(places))


def _shown_fix(
    known: Partners, stray: Rank, wanted: Sequence[Rank], reports: RankReports
) -> tuple[str, str] | None:
    """Other partners with which all messages meet, and a sentence on their order; None: none is."""
    simulation, sender = simulate(reports), known.peer("recv", stray)
    fixes: list[tuple[str, Simulation]] = []
    if len(wanted) == 1:
        changed = simulation.with_partner("recv", stray, sender, wanted[0])
        fix = f"rank {stray} receive from rank {wanted[0]}, which sends to it"
        fixes.append((fix, changed))
    if sender in known.ranks:
        to = known.peer("send", sender)
        changed = simulation.with_partner("send", sender, to, stray)
        which = "" if wanted else ", which receives from it"
        fixes.append((f"rank {sender} send to rank {stray}{which}", changed))
    shown = [fix for fix, changed in fixes if changed.ends() is True]
    if shown:
        return f"let {', or '.join(shown)}", ""
    for fix, changed in fixes:
        if changed.at_once().ends() is True:
            first = min(known.ranks)
            is_enough = changed.with_other_order([first]).ends()
            calls = (known.call(kind, first).node for kind in MESSAGES)
            sends, receives = ((call.lineno, call.col_offset) for call in calls)
            does = "receive" if sends < receives else "send"
            order = f"let rank {first} {does} first" if is_enough else "use batch_isend_irecv"
            return f"let {fix}", f" Then {order}."
    return None


def p2p_unmatched(cause: Cause, reports: RankReports) -> Words:
    """A rank waits for a message whose other end no rank can call."""
    operation = cause.operation
    is_send = operation is not None and operation.signature.kind == "send"
    partners = cause.culprits - RankSet.of([cause.owner]) or cause.culprits
    if operation is not None and operation.peer in cause.culprits:
        partners = RankSet.of([operation.peer])  # others of a circle have no part in this message
    does = partners.verb("receives", "receive") if is_send else partners.verb("sends", "send")
    now = ""
    if len(partners) == 1:
        now = f": rank {partners} {reports.rank(partners.ranks[0]).predicate.main_clause()}"
    tagged = with_other_tag(cause, reports)
    other = None if tagged is not None else other_partner(cause, reports)
    step = GIVE_EACH_ITS_RECV
    if other is not None and not other.is_shown:
        if other.may_stay:
            step = f"Let rank {other.wrong} {does_its_part(other.message)} rank {other.owner}."
        other = None
    left_out = None if other is not None or tagged else left_out_end(cause, reports)
    assigned: Sequence[AssignedName] = ()
    if other is not None:
        size = len(reports.graph.views)
        assigned = names_assigned_on(other.message.site, other.owner, size, reports.sources)
    is_known = other is not None or left_out is not None or tagged is not None
    elsewhere = None if is_known else _in_collective(cause, reports)
    places: Places = ()
    if operation is not None and tagged is not None:
        step = give_tag(cause.owner, operation, tagged, reports)
    elif other is not None:
        step = _give_partner(other, assigned)
    elif operation is not None and left_out is not None:
        step = _call_as_often(cause.owner, operation, left_out)
        places = _both_ends(cause.owner, operation, left_out, reports)
    elif operation is not None and elsewhere is not None:
        places = branches_apart(
            {rank: waited.site for rank, waited, _ in cause.circle}, reports.sources
        )
        kept_away = _kept_away(elsewhere, reports)
        meet = _meet_before(cause.owner, operation, elsewhere, kept_away)
        step = f"{meet} {differing_lines(places)}"
    elif operation is not None and step == GIVE_EACH_ITS_RECV:
        step = (
            let_do_its_part(cause.owner, operation, partners, reports)
            or without_call(cause.owner, operation, reports)
            or step
        )
    return Words(
        f"Rank {cause.owner} waits in {name(cause, reports)}, and {partners.describe()} never "
        f"{does} it{now}.",
        "no rank has called the other end of this message, and none can call it now."
        f"{in_turn(cause)}",
        step.rstrip(),
        code=differing_excerpt(places) if other is None else _lines_of(other, assigned, reports),
    )


def _call_as_often(owner: Rank, message: Operation, left_out: LeftOutEnd) -> str:
    """A sentence: let a rank do its part in each message, as it has done before."""
    peer, newest, branch = message.peer, left_out.newest, left_out.condition
    ends = [f" (line {each.site.line})" if each.site.line else "" for each in (message, newest)]
    if branch is not None and branch.line == newest.site.line:
        ends[1] = f" (line {branch.line}, {quote_branch(branch)})"
    elif branch is not None:
        ends[1] = f" in line {newest.site.line}, inside {describe_branch(branch)},"
    return (
        f"Let rank {peer} call {newest.label(has_tag=False)}{ends[1]} as often as rank {owner} "
        f"calls {message.signature.op}{ends[0]}: it has called it {_times(left_out.called)}, "
        f"rank {owner} {_times(left_out.needed)}."
    )


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _both_ends(
    owner: Rank, message: Operation, left_out: LeftOutEnd, reports: RankReports
) -> Places:
    """The lines of a message, and the condition around the one that left it out."""
    newest, branch = left_out.newest, left_out.condition
    ends = (
        (owner, message.site, ()),
        (message.peer, newest.site, () if branch is None else (branch,)),
    )
    return [
        (RankSet.of([rank]), Divergence(site, code, branches))
        for rank, site, branches in ends
        if site.line and (code := reports.sources(site)) is not None
    ]


def _in_collective(cause: Cause, reports: RankReports) -> Operation | None:
    """The collective in which the other end of a message waits; None: it has messages, too."""
    message = cause.operation
    if message is None:
        return None
    wanted = other_kind(message.signature)
    meant = unmet_messages(reports.graph, message.peer, wanted)
    if any(each.peer in (cause.owner, -1) for each in meant):
        return None
    waited = (each for rank, each, _ in cause.circle if rank == message.peer)
    return next((each for each in waited if each.signature.kind == "collective"), None)


def _kept_away(collective: Operation, reports: RankReports) -> RankSet:
    """The ranks that a condition surely keeps from the line of a collective of their group."""
    group = reports.graph.group(collective)
    code = reports.sources(collective.site) if collective.site.line else None
    if code is None or group is None:
        return RankSet()
    size = len(reports.graph.views)
    branches = code.branches(collective.site.line)
    return RankSet.of(
        rank
        for rank in group.ranks
        if any(is_met(branch, rank, size) is False for branch in branches)
    )


def _meet_before(owner: Rank, message: Operation, collective: Operation, kept_away: RankSet) -> str:
    """A sentence: let a rank do its part in a message before the collective in which it waits."""
    name = collective.label(has_call=False)
    lines = [
        f" (line {each.site.line})" if each.site.line else "" for each in (message, collective)
    ]
    op, too = collective.signature.op, ""
    if kept_away:  # the others would wait for them in the collective
        too = f"and let {kept_away.describe()} call {op}, too, after that; "
    return (
        f"Let rank {message.peer} {does_its_part(message)} rank {owner} before {name}{lines[1]}, "
        f"{too}or let rank {owner} call {op} in place of {message.signature.op}{lines[0]}."
    )


def _give_partner(other: OtherPartner, assigned: Sequence[AssignedName]) -> str:
    """Sentences: let a message go to the rank that waits for it."""
    message, owner, right = other.message, other.owner, other.right
    is_send = message.signature.kind == "send"
    argument, does = ("dst", "receives from") if is_send else ("src", "sends to")
    other_way = "receive from" if is_send else "send to"
    or_other = f", or let rank {other.wrong} {other_way} rank {owner}" if other.may_stay else ""
    line = f" (line {message.site.line})" if message.site.line else ""
    changed = "".join(f" {capitalized(describe_assigned(each))}." for each in assigned[:1])
    return (
        f"Give {message.signature.op} `{argument}={right}` on rank {owner}{line}, since rank "
        f"{right} {does} it{or_other}.{changed}"
    )


def _lines_of(
    other: OtherPartner, assigned: Sequence[AssignedName], reports: RankReports
) -> Sequence[CodeLine]:
    """The line of the message, and those that gave it another partner."""
    site = other.message.site
    code = reports.sources(site)
    if code is None:
        return ()
    places = [(each.ranks, each.place) for each in assigned[:1]]
    return differing_excerpt([*places, (RankSet.of([other.owner]), Divergence(site, code))])


def _has_other_ends(cause: Cause, reports: RankReports) -> bool:
    """Whether each rank of the circle has open sends and receives, which do not match."""
    for rank, waited, _ in cause.circle:
        wanted = other_kind(waited.signature)
        operations = reports.graph.histories[rank].operations.values()
        if not any(o.signature.kind == wanted and o.state == "scheduled" for o in operations):
            return False
    return True


def completes_wrongly(calls: Mapping[Rank, Operation]) -> bool:
    """Whether the calls are the two ends of a message that would end, with other values."""
    nbytes = {call.signature.kind: call.signature.nbytes for call in calls.values()}
    return nbytes.keys() == {"send", "recv"} and nbytes["send"] <= nbytes["recv"]


def message_result(calls: Mapping[Rank, Operation]) -> tuple[str, str] | None:
    """Describe the tensor of the receiver, and the next step; None: the calls are no message.

    A program may mean such a message: it reads bytes, or a short message into a long buffer.
    """
    ends = {call.signature.kind: (rank, call.signature) for rank, call in calls.items()}
    if ends.keys() != {"send", "recv"}:
        return None
    (_, sent), (rank, received) = ends["send"], ends["recv"]
    is_known = sent.places == received.places and len(sent.input_dtypes) == 1
    dtypes = (*sent.input_dtypes, *received.input_dtypes)
    if is_known and sent.nbytes < received.nbytes:
        other = f", and they are of {dtypes[0]}" if len({*dtypes}) > 1 else ""
        return (
            f"only the first {sent.nbytes} of the {received.nbytes} bytes of the tensor of rank "
            f"{rank} were written{other}",
            "Do not trust the other bytes.",
        )
    if is_known and sent.nbytes == received.nbytes and len({*dtypes}) > 1:
        return (
            f"the tensor of rank {rank} holds the bytes of {dtypes[0]} as {dtypes[-1]}",
            "Check what came out.",
        )
    return f"the tensor of rank {rank} does not hold what was sent", "Do not trust what came out."
