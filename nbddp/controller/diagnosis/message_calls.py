"""Finds the sends and receives of a function, and the rank at the other end of each, by rank.

Runs in: the notebook's process. Pure. Records tell the other end of a call that a rank has made;
of a call that is still to come, its argument does, if it depends on the rank only.
"""

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nbddp.controller.diagnosis.code_places import called
from nbddp.controller.diagnosis.control_flow import Code, Sources
from nbddp.controller.diagnosis.definitions import Scope, function_at, nodes_of
from nbddp.controller.diagnosis.rank_conditions import holds, number
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Operation, OperationKind, Site
from nbddp.wire.rank_set import Rank

#: The kind of each function of torch.distributed, and the position of its peer.
_FUNCTIONS: Mapping[str, tuple[OperationKind, str]] = {
    "send": ("send", "dst"),
    "isend": ("send", "dst"),
    "send_object_list": ("send", "dst"),
    "recv": ("recv", "src"),
    "irecv": ("recv", "src"),
    "recv_object_list": ("recv", "src"),
}
#: Definitions that are followed from a name.
_MAX_DEPTH = 4


@dataclass(frozen=True)
class MessageCall:
    """A call in the source that sends or receives."""

    kind: OperationKind
    node: ast.Call
    peer: ast.expr  #: the argument with the other end
    peer_by_rank: Mapping[Rank, Rank]  #: of the ranks that make this call

    @property
    def argument(self) -> str:
        """``dst`` or ``src``; of a ``P2POp``, ``peer``."""
        if called(self.node) not in _FUNCTIONS:
            return "peer"
        return "dst" if self.kind == "send" else "src"

    @property
    def line(self) -> int:
        """Its line."""
        return self.node.lineno


def message_calls(
    site: Site, ranks: Iterable[Rank], graph: WaitForGraph, run_id: str, sources: Sources
) -> list[MessageCall]:
    """Return the messages of a function, with the other end on each rank that runs them.

    Args:
        site: a line of the function.
        ranks: the ranks that run the function.
        graph: the ranks.
        run_id: of the cell.
        sources: the code.

    Returns:
        The calls in the order of their lines; none if it is not known which ranks make one of
        them, or where a message goes.
    """
    code = sources(site) if site.line else None
    if code is None:
        return []
    function = function_at(code.statements, site.line)
    body = code.statements if function is None else function.body
    calls = []
    for node in nodes_of(body):
        kind, peer = kind_and_peer(node)
        if kind is None or not isinstance(node, ast.Call):
            continue
        if peer is None:
            return []
        peers = _peers(_Call(kind, node, peer, site, code), set(ranks), graph, run_id, sources)
        if peers is None:
            return []
        calls.append(MessageCall(kind, node, peer, peers))
    return sorted(calls, key=lambda call: (call.node.lineno, call.node.col_offset))


def peer_of(message: Operation, code: Code) -> ast.expr | None:
    """Return the argument with the other end of a message; None: the line shows not one of them.

    Args:
        message: an operation that was called by this code.
        code: the text of its cell or file.
    """
    call = call_of(message, code)
    return None if call is None else call.peer


def call_of(message: Operation, code: Code) -> MessageCall | None:
    """Return the call of a message; None: its line shows not one such call.

    Args:
        message: an operation that was called by this code.
        code: the text of its cell or file.
    """
    calls = [
        MessageCall(message.signature.kind, node, peer, {})
        for statement in code.statements
        for node in ast.walk(statement)
        if getattr(node, "lineno", 0) <= message.site.line <= getattr(node, "end_lineno", 0)
        if (pair := kind_and_peer(node))[0] == message.signature.kind
        if (peer := pair[1]) is not None and isinstance(node, ast.Call)
    ]
    return calls[0] if len(calls) == 1 else None


def kind_and_peer(node: ast.AST) -> tuple[OperationKind | None, ast.expr | None]:
    """Return the kind of a message, and the argument with its other end.

    None: it is no message, or the argument is not known.
    """
    match node:
        case ast.Call(args=[function, *_]) if called(node) == "P2POp":
            kind = _FUNCTIONS.get(getattr(function, "attr", getattr(function, "id", "")))
            return (kind[0], _argument(node, 2, "peer")) if kind else (None, None)
        case ast.Call() if called(node) in _FUNCTIONS:
            kind_, name = _FUNCTIONS[called(node)]
            return kind_, _argument(node, 1, name)
        case _:
            return None, None


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if not {None, "group_dst", "group_src", "group_peer"}.isdisjoint(named):
        return None
    if name in named:
        return named[name]
    is_plain = not any(isinstance(each, ast.Starred) for each in call.args)
    return call.args[position] if is_plain and len(call.args) > position else None


@dataclass(frozen=True)
class _Call:
    kind: OperationKind
    node: ast.Call
    peer: ast.expr
    site: Site
    code: Code

    @property
    def lines(self) -> range:
        return range(self.node.lineno, (self.node.end_lineno or self.node.lineno) + 1)


def _peers(
    call: _Call, ranks: set[Rank], graph: WaitForGraph, run_id: str, sources: Sources
) -> dict[Rank, Rank] | None:
    """The other end of a call on each rank that makes it; None: it is not known of all of them."""
    size, peers = len(graph.views), {}
    here = call.site, call.code, sources
    value = expanded(call.peer, Scope(Site(*_at(call)), *here[1:]))
    for rank in ranks:
        is_made = runs(call.node, call.code, rank, size)
        if is_made is False:
            continue
        peer = _recorded(call, rank, graph, run_id)
        if is_made is None and peer is None:
            return None
        peers[rank] = number(value, rank, size) if peer is None else peer
    known = {rank: peer for rank, peer in peers.items() if peer is not None}
    return known if len(known) == len(peers) else None


def runs(call: ast.Call, code: Code, rank: Rank, size: int) -> bool | None:
    """Return whether a rank makes a call, by the conditions around it; None: that is not known.

    Args:
        call: a node of the code.
        code: the text of a cell or file.
        rank: the rank.
        size: the number of ranks.
    """
    branches = (each for each in code.branches(call.lineno) if each.kind == "condition")
    is_unknown = any(each.test is None and each.other is None for each in branches)
    met: set[bool | None] = {None} if is_unknown else set()
    for test, wanted in _conditions(call, code.statements):
        value = holds(test, rank, size)
        met.add(None if value is None else value is wanted)
    return False if False in met else (None if None in met else True)


def _conditions(node: ast.AST, statements: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, bool]]:
    """The conditions around a node, and whether it runs where each holds, or where it does not."""
    for choice in (inner for statement in statements for inner in ast.walk(statement)):
        if isinstance(choice, ast.If | ast.IfExp):
            for part, wanted in ((choice.body, True), (choice.orelse, False)):
                nodes = part if isinstance(part, list) else [part]
                if any(node is inner for one in nodes for inner in ast.walk(one)):
                    yield choice.test, wanted


def _at(call: _Call) -> tuple[str, int, str, str, int]:
    site = call.site
    return site.file, call.node.lineno, site.function, "", site.cell


def _recorded(call: _Call, rank: Rank, graph: WaitForGraph, run_id: str) -> Rank | None:
    """The other end of the newest message that a rank has issued by a call.

    In a loop an earlier iteration may have had another one.
    """
    is_in_loop = any(branch.kind == "loop" for branch in call.code.branches(call.node.lineno))
    for operation in reversed(graph.histories[rank].operations.values()):
        site = operation.site
        is_here = site.position[:2] == call.site.position[:2] and site.line in call.lines
        if is_here and (operation.run_id, operation.signature.kind) == (run_id, call.kind):
            is_known = operation.peer >= 0 and (operation.state == "scheduled" or not is_in_loop)
            return operation.peer if is_known else None
    return None


def expanded(value: ast.expr, scope: Scope, depth: int = _MAX_DEPTH) -> ast.expr:
    """Return an expression with the definitions of its names in their places."""
    definition = scope.definition(value.id) if isinstance(value, ast.Name) and depth else None
    if definition is not None:
        return expanded(definition.value, definition.scope, depth - 1)

    class _Names(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return expanded(node, scope, depth - 1) if depth else node

    if isinstance(value, ast.Name):
        return value
    changed = _Names().visit(copy.deepcopy(value))
    return changed if isinstance(changed, ast.expr) else value
