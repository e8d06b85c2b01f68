"""Finds the line that was the other end of a message before, or that no line of a cell is one.

Runs in: the notebook's process. Pure.
"""

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.code_places import called, is_communication
from nbddp.controller.diagnosis.control_flow import Branch
from nbddp.controller.diagnosis.message_calls import message_calls
from nbddp.controller.diagnosis.message_simulation import may_communicate
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.flight_recorder.matching import other_kind
from nbddp.wire.rank_set import Rank

#: Functions of torch.distributed on groups, and reads of their ranks: they exchange no message.
_OF_GROUPS = re.compile(
    "new_(group|subgroups(_by_enumeration)?)|init_device_mesh|destroy_process_group|"
    "get_(group(_rank)?|global_rank|local_rank|process_group_ranks|backend)"
)


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


def has_no_other_end(messages: Iterable[Operation], reports: RankReports) -> bool:
    """Return whether a cell has receives only, or sends only, so that none can meet its other end.

    Args:
        messages: messages in which ranks wait.
        reports: the ranks.

    Returns:
        False also if the cell calls functions that are not known.
    """
    waited = list(messages)
    kinds = {each.signature.kind for each in waited}
    places = {each.site.position[:2] for each in waited}
    site = waited[0].site if waited else None
    code = None if site is None or not site.cell else reports.sources(site)
    if code is None or not code.statements or len(kinds) != 1 or len(places) != 1:
        return False
    other = "send" if "recv" in kinds else "recv"
    made = (
        each.signature.kind == other and each.run_id == waited[0].run_id
        for history in reports.graph.histories.values()
        for each in history.operations.values()
    )
    nodes = [node for each in code.statements for node in ast.walk(each)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    calls = (node for node in nodes if isinstance(node, ast.Call) and may_communicate(node))
    return not any(made) and all(
        called(call) in own or _is_no_end(call, other, nodes) for call in calls
    )


def _is_no_end(call: ast.Call, other: str, nodes: Sequence[ast.AST]) -> bool:
    """Whether a call communicates, and surely is no such end of a message.

    Args:
        call: a call of a cell.
        other: ``send`` or ``recv``.
        nodes: all of the cell.
    """
    name = called(call)
    if name == "P2POp":
        kind = getattr(call.args[0], "attr", getattr(call.args[0], "id", "")) if call.args else ""
        return kind in ("isend", "irecv") and other not in kind
    if name != "batch_isend_irecv":
        return bool(_OF_GROUPS.fullmatch(name)) or (is_communication(call) and other not in name)
    match call.args:
        case [ast.Name(id=listed)]:
            named = sum(isinstance(node, ast.Name) and node.id == listed for node in nodes)
            added = sum(_adds_messages(node, listed) for node in nodes)
            return added > 0 and named == 1 + added
        case [listed]:
            return _has_messages(listed)
        case _:
            return False


def _adds_messages(node: ast.AST, listed: str) -> bool:
    """Whether a node makes a list of `P2POp`, or appends one."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name == listed and _has_messages(value)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]):
            return name == listed and called(value) == "P2POp"
        case _:
            return False


def _has_messages(value: ast.expr) -> bool:
    """Whether a list has nothing else than calls of `P2POp`."""
    match value:
        case ast.List(elts=items):
            return all(called(each) == "P2POp" for each in items)
        case ast.ListComp(elt=item):
            return called(item) == "P2POp"
        case _:
            return False


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
    is_other_end = rank == message.peer
    wanted = other_kind(message.signature) if is_other_end else message.signature.kind
    return [
        each
        for each in reports.graph.histories[rank].operations.values()
        if each.signature.kind == wanted
        and (each.run_id, each.pg_id, each.peer) == (message.run_id, message.pg_id, peer)
    ]
