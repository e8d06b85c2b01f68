"""Finds a message that needs another partner, so that all that wait can go on.

Runs in: the notebook's process. Pure. A change is shown to help if all messages meet when they
are played to their end with it.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nbddp.controller.diagnosis.callers import frames
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.code_places import names_in
from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.definitions import Scope, function_at, nodes_of
from nbddp.controller.diagnosis.iterations import loops_around
from nbddp.controller.diagnosis.left_out_messages import goes_to_both
from nbddp.controller.diagnosis.message_calls import MessageCall, expanded, message_calls, peer_of
from nbddp.controller.diagnosis.message_simulation import (
    Message,
    Simulation,
    may_communicate,
    simulate,
)
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.suggested_change import bound
from nbddp.controller.diagnosis.suspicions import unmet_messages
from nbddp.wire.flight_recorder import Operation, Site
from nbddp.wire.flight_recorder.matching import other_kind
from nbddp.wire.rank_set import Rank


@dataclass(frozen=True)
class OtherPartner:
    """A message that goes to another rank than the one that waits for it."""

    message: Operation
    owner: Rank
    right: Rank
    wrong: Rank
    is_shown: bool = True  #: with ``right`` as its other end all messages meet
    may_stay: bool = False  #: or the rank ``wrong`` may be its other end


def other_partner(cause: Cause, reports: RankReports) -> OtherPartner | None:
    """Return the message where the other end of a message, or this end, has another partner.

    Args:
        cause: a message that a rank waits for.
        reports: the ranks.
    """
    operation, owner = cause.operation, cause.owner
    if operation is None or operation.peer < 0:
        return None
    wanted = other_kind(operation.signature)
    ready = {rank for rank in _ready(operation, owner, reports) if rank != operation.peer}
    if len(ready) == 1:
        (rank,) = ready
        has_both = goes_to_both(cause, rank, reports)
        return _checked(operation, owner, rank, reports, has_both=has_both)
    astray = [
        message
        for message in unmet_messages(reports.graph, operation.peer, wanted)
        if message.peer not in (owner, -1) and message.pg_id == operation.pg_id
    ]
    if len(astray) != 1 or ready:
        return None
    return _checked(astray[0], operation.peer, owner, reports)


def partner_of_cycle(cause: Cause, reports: RankReports) -> OtherPartner | None:
    """Return the one message of a circle that needs another partner; None: none is shown to help.

    Args:
        cause: a cycle of messages.
        reports: the ranks.
    """
    shown = [
        other
        for owner, operation, _ in cause.circle
        for rank in _ready(operation, owner, reports)
        if rank != operation.peer
        if (other := _checked(operation, owner, rank, reports)).is_shown
    ]
    return replace(shown[0], may_stay=False) if len(shown) == 1 else None


def lacks_other_end(cause: Cause, reports: RankReports) -> bool:
    """Return whether a message of a circle has no other end in the code of the rank at that end.

    Args:
        cause: a cycle of messages.
        reports: the ranks.
    """
    site_by_rank = {rank: operation.site for rank, operation, _ in cause.circle}
    return any(
        operation.peer in site_by_rank
        and _calls_none(operation, owner, site_by_rank[operation.peer], reports)
        for owner, operation, _ in cause.circle
    )


def _calls_none(message: Operation, owner: Rank, site: Site, reports: RankReports) -> bool:
    """Whether no call of the function of a site is the other end of a message."""
    code, wanted = reports.sources(site) if site.line else None, other_kind(message.signature)
    calls = message_calls(site, [message.peer], reports.graph, reports.run_id, reports.sources)
    if code is None or not calls:
        return False
    function = function_at(code.statements, site.line)
    if function is not None and not any(call.kind == wanted for call in calls):
        return False  # another function calls the other ends
    known = {(call.node.lineno, call.node.col_offset) for call in calls}
    is_known = all(
        not isinstance(node, ast.Call)
        or (node.lineno, node.col_offset) in known
        or not may_communicate(node)
        for node in nodes_of(code.statements if function is None else function.body)
    )
    return is_known and not any(
        call.peer_by_rank.get(message.peer) == owner or _is_repeated(call, code)
        for call in calls
        if call.kind == wanted and message.peer in call.peer_by_rank
    )


def _is_repeated(call: MessageCall, code: Code) -> bool:
    """Whether a loop, or the caller, changes a name in the argument with the other end."""
    loops = [*loops_around(code, call.line), *_comprehensions(code, call.line)]
    changed = bound(loops) | _parameters(function_at(code.statements, call.line))
    return not names_in(call.peer).isdisjoint(changed)


def _ready(operation: Operation, owner: Rank, reports: RankReports) -> list[Rank]:
    """The ranks that have called the other end of such a message with a rank."""
    wanted = other_kind(operation.signature)
    return [
        rank
        for rank, history in reports.graph.histories.items()
        if any(
            (each.state, each.signature.kind) == ("scheduled", wanted)
            and (each.peer, each.pg_id) == (owner, operation.pg_id)
            for each in history.operations.values()
        )
    ]


def _checked(
    message: Operation, owner: Rank, right: Rank, reports: RankReports, *, has_both: bool = False
) -> OtherPartner:
    wrong, simulation = message.peer, simulate(reports)
    is_shown = (
        not has_both
        and not partner_changes(message, owner, reports)
        and simulation.with_peer(owner, message, right).ends() is True
    )
    # Else the rank that has called the other end needs another end for that.
    may_stay = _with_other_end(simulation, message, owner).ends() is not False and not any(
        _calls_none(each, right, message.site, reports)
        for each in reports.graph.histories[right].operations.values()
        if each.peer == owner and each.state == "scheduled"
        if each.signature.kind == other_kind(message.signature)
    )
    return OtherPartner(message, owner, right, wrong, is_shown, may_stay)


def _with_other_end(simulation: Simulation, message: Operation, owner: Rank) -> Simulation:
    """Let the rank at the other end of a message call it."""
    kind = other_kind(message.signature)
    return simulation.with_message(Message(kind, message.peer, owner, message.pg_id, message.tag))


def partner_changes(message: Operation, owner: Rank, reports: RankReports) -> bool:
    """Return whether the call of a message has another partner in each iteration of a loop.

    Args:
        message: a message that a rank has called.
        owner: the rank.
        reports: the ranks.
    """
    code = reports.sources(message.site) if message.site.line else None
    if code is None:
        return False
    peer = peer_of(message, code)
    if peer is None:
        return any(_loop_names(reports, owner, message))
    names = names_in(expanded(peer, Scope(message.site, code, reports.sources))) | names_in(peer)
    return any(not names.isdisjoint(bound_) for bound_ in _loop_names(reports, owner, message))


def _loop_names(reports: RankReports, owner: Rank, message: Operation) -> Iterator[set[str]]:
    """The names that loops around a call change, as its own function calls them."""
    parameters: set[str] | None = None
    for site in frames(reports.graph, owner, message):
        code = reports.sources(site) if site.line else None
        if code is None:
            continue
        for loop in [*loops_around(code, site.line), *_comprehensions(code, site.line)]:
            yield bound([loop]) if parameters is None else parameters
        function = function_at(code.statements, site.line)
        if parameters is None and function is not None:
            parameters = _parameters(function)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> set[str]:
    if function is None:
        return set()
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return {each.arg for each in every}


def _comprehensions(code: Code, line: int) -> list[ast.AST]:
    kinds = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
    return [
        node
        for statement in code.statements
        for node in ast.walk(statement)
        if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
