"""The commands that ranks which have stopped before an operation cannot do, and why.

Runs in: the thread that waits for the cell. Pure.
"""

from collections.abc import Sequence

from nbddp.controller.diagnosis import RankVerb
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import RankSet, ranks_by
from nbddp.wire.step_replies import StepReply, StepVerb

#: Operations without which the tensors of the rank still hold values of its own.
_SKIPPABLE = (
    "all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "barrier", "monitored_barrier",
    "send",
)  # fmt: skip


def refusal(reply: StepReply, requests: Sequence[InputRequest]) -> str:
    """Say why ranks cannot do that; empty: they can.

    Args:
        reply: the command.
        requests: of the ranks that it is for.
    """
    for request in requests:
        stop = request.stop
        if stop is None:
            continue
        op, number = stop.signature.op, stop.collective_seq_id
        if reply.verb is StepVerb.SKIP and op not in _SKIPPABLE:
            return (
                f"{op} fills a tensor that would hold no values without it, so it cannot be "
                f"skipped. Legal: skip of {', '.join(_SKIPPABLE)}"
            )
        if reply.verb is StepVerb.SKIP and stop.is_needed:
            return (
                f"{stop.label(has_call=False)} cannot be skipped: torch goes on with the sizes "
                "or the order that it brings. Next: step, or quit"
            )
        if reply.verb is StepVerb.SKIP and request.is_final:
            return (
                f"{stop.label(has_call=False)} cannot be skipped on rank {request.rank}: "
                "other machines have compared it. Next: continue raises the mismatch; or quit"
            )
        if reply.verb is StepVerb.UNTIL and number >= reply.count:
            return _too_late(reply.count, requests)
    return ""


def absent_text(ranks: RankSet, present: RankSet, members: RankSet, *, are_stopped: bool) -> str:
    """Say that a command is for ranks that cannot do it.

    Args:
        ranks: that cannot.
        present: ranks that can.
        members: ranks that run the cell.
        are_stopped: the ranks that can have stopped before operations.
    """
    inside = RankSet.of(set(ranks) & set(members))
    can, cannot, what = "can", "cannot", "be asked"
    if are_stopped:
        can, cannot, what = present.verb("is", "are"), inside.verb("is not", "are not"), "stopped"
    has = f"{present.describe()} {can}"
    texts = outside_texts(ranks, members)
    if not inside:
        return "; ".join([*texts, f"{has} {what}"])
    return "; ".join([*texts, f"{inside.describe()} {cannot} {what}", has])


def outside_texts(ranks: RankSet, members: RankSet) -> tuple[str, ...]:
    """Say which ranks do not run the cell; empty: all do."""
    outside = RankSet.of(set(ranks) - set(members))
    no_part = RankVerb.TAKES_NO_PART.value[len(outside) != 1]
    return (f"{outside.describe()} {no_part}",) if outside else ()


def held_text(ranks: RankSet) -> str:
    """Say that all stopped ranks are held, so that a command without ``-r`` is for none."""
    held = f"{ranks.describe()} {ranks.verb('is', 'are')} held"
    return f"{held}, and no other rank has stopped. Next: release, or -r RANKS"


def mismatch_lines(requests: Sequence[InputRequest]) -> tuple[str, ...]:
    """Lines on ranks whose operation does not match: they do not go on when they are let go."""
    return tuple(
        f"rank {request.rank} has stopped before a mismatch: step or continue raises it there. "
        "Next: run and retry repair the call; or quit"
        for request in requests
        if request.mismatch is not None
    )


def _too_late(number: int, requests: Sequence[InputRequest]) -> str:
    """Say which ranks are at collectives with this number, or a later one."""
    past = [
        (stop, request.rank)
        for request in requests
        if (stop := request.stop) is not None and stop.collective_seq_id >= number
    ]
    by_label = ranks_by((stop.label(), rank) for stop, rank in past)
    there = (
        f"{each.describe()} {each.verb('is', 'are')} at {label}" for label, each in by_label.items()
    )
    most = max(stop.collective_seq_id for stop, _ in past)
    rest = RankSet.of({request.rank for request in requests} - {rank for _, rank in past})
    alone = f"until {number} -r {rest} for {rest.describe()} alone; or " if rest else ""
    return f"{', '.join(there)}. Next: {alone}until {most + 1}, or more"
