"""Finds the line that was the other end of a message before, and has left one out.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.control_flow import Branch
from nbddp.controller.diagnosis.message_calls import message_calls
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.rank_set import Rank


@dataclass(frozen=True)
class LeftOutEnd:
    """A call by which a rank was the other end of messages, once less than they were called."""

    newest: Operation  #: the newest such call
    called: int  #: the number of these calls
    needed: int  #: the number of messages, with the one that is waited for
    condition: Branch | None  #: around the line


def left_out_end(cause: Cause, reports: RankReports) -> LeftOutEnd | None:
    """Return the calls of the other end of a message; None: it has made none in this run.

    Args:
        cause: a message that a rank waits for.
        reports: the ranks.
    """
    message, owner = cause.operation, cause.owner
    if message is None or message.peer not in reports.graph.histories:
        return None
    graph, run_id = reports.graph, message.run_id
    if not all(graph.histories[rank].is_whole(run_id) for rank in (owner, message.peer)):
        return None
    made = _messages(message, message.peer, owner, reports)
    wanted = _messages(message, owner, message.peer, reports)
    if not made or len(made) >= len(wanted):
        return None
    newest = made[-1]
    code = reports.sources(newest.site) if newest.site.line else None
    branches = () if code is None else code.branches(newest.site.line)
    conditions = (branch for branch in branches if branch.kind == "condition")
    return LeftOutEnd(newest, len(made), len(wanted), next(conditions, None))


def goes_to_both(cause: Cause, other: Rank, reports: RankReports) -> bool:
    """Return whether a rank exchanges such messages with another rank, too, by calls of their own.

    Args:
        cause: a message that a rank waits for.
        other: the other rank.
        reports: the ranks.
    """
    message, owner = cause.operation, cause.owner
    if message is None:
        return False
    calls = message_calls(message.site, [owner], reports.graph, reports.run_id, reports.sources)
    is_in_code = any(
        call.kind == message.signature.kind and call.peer_by_rank.get(owner) == other
        for call in calls
    )
    return is_in_code or bool(_messages(message, owner, other, reports))


def _messages(
    message: Operation, rank: Rank, peer: Rank, reports: RankReports
) -> Sequence[Operation]:
    """The messages of a rank with another one, in the direction in which a message goes."""
    kind = message.signature.kind
    other: Literal["send", "recv"] = "recv" if kind == "send" else "send"
    wanted = other if rank == message.peer else kind
    return [
        each
        for each in reports.graph.histories[rank].operations.values()
        if each.signature.kind == wanted
        and (each.run_id, each.pg_id, each.peer) == (message.run_id, message.pg_id, peer)
    ]
