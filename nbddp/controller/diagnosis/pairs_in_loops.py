"""Gives the two ranks of each pair another order, where a loop exchanges messages with many ranks.

Runs in: the notebook's process. Pure. An order that helps the pair which waits now may leave others
waiting later: even ranks first is of no use to ranks 0 and 2. In each pair the lower rank begins
with the other call; this is suggested only where the code shows the partners of all ranks, and
where all messages meet when they are played.
"""

import ast
import builtins
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.code_places import called, communicates, find_place
from nbddp.controller.diagnosis.control_flow import Sources
from nbddp.controller.diagnosis.definitions import Scope
from nbddp.controller.diagnosis.iterations import loops_around
from nbddp.controller.diagnosis.message_calls import expanded, kind_and_peer
from nbddp.controller.diagnosis.message_simulation import Message, Script, Simulation, Step
from nbddp.controller.diagnosis.message_swaps import in_two_orders
from nbddp.controller.diagnosis.rank_conditions import value_of
from nbddp.controller.diagnosis.report import CodeChange
from nbddp.wire.flight_recorder.matching import MESSAGES
from nbddp.wire.rank_set import Rank

#: Iterations and messages of all ranks that are played: the notebook waits meanwhile.
_MAX_STEPS = 6144
#: Expressions in front of which ``rank < `` needs no parentheses.
_PLAIN = ast.Name | ast.BinOp | ast.Attribute | ast.Subscript


@dataclass(frozen=True)
class _Call:
    """A message that a rank calls in a loop."""

    statement: ast.stmt
    message: Message


class _UnknownError(Exception):
    """The code does not show what a rank calls."""


def lower_first(cause: Cause, sources: Sources, world_size: int) -> CodeChange | None:
    """Return the change by which the lower rank of each pair begins with the second call.

    Args:
        cause: a cycle of messages, whose partners a loop changes.
        sources: the code.
        world_size: the number of ranks of the pool.

    Returns:
        The change; None: it is not shown to help.
    """
    sites = {operation.site for _, operation, _ in cause.circle}
    site = sites.pop()
    code = sources(site) if site.line and not sites else None
    place = None if code is None else find_place(code, site.line)
    second = None if place is None else place.next
    loops = [] if code is None else loops_around(code, site.line)
    if code is None or place is None or second is None or not loops:
        return None
    peers = [_peer(each.statement) for each in (place, second)]
    loop, (peer, other) = loops[0], peers
    if peer is None or other is None or not isinstance(peer, _PLAIN):
        return None
    if ast.dump(peer) != ast.dump(other) or not isinstance(loop, ast.For):
        return None
    try:
        runs = _LoopRuns(loop, world_size, Scope(site, code, sources))
        calls_by_rank = {rank: runs.calls(rank) for rank in range(world_size)}
    except _UnknownError:
        return None
    pair = place.statement, second.statement
    if not _ends(calls_by_rank, pair):
        return None
    is_cell = bool(site.cell) and site.function == "<module>"
    rank_name = "rank" if is_cell else "dist.get_rank()"
    lines = in_two_orders(code, site.line, f"{rank_name} < {ast.unparse(peer)}")
    return CodeChange(site.cell, site.file, lines) if lines else None


def _ends(calls_by_rank: Mapping[Rank, Sequence[_Call]], pair: tuple[ast.stmt, ast.stmt]) -> bool:
    """Whether all messages meet if the lower rank of each pair does its second call first."""
    scripts = {}
    for rank, calls in calls_by_rank.items():
        order = [*calls]
        for index, (one, two) in enumerate(itertools.pairwise(calls)):
            if (one.statement, two.statement) == pair and rank < one.message.peer:
                order[index : index + 2] = two, one
        steps = tuple(Step((call.message,)) for call in order)
        scripts[rank] = Script(steps, is_whole=True)
    return Simulation(scripts).ends() is True


def _peer(statement: ast.stmt) -> ast.expr | None:
    """The other end of a statement that is one blocking message; None: it is another one."""
    if not isinstance(statement, ast.Expr | ast.Assign):
        return None
    return kind_and_peer(statement.value)[1] if called(statement.value) in MESSAGES else None


class _LoopRuns:
    """A loop that is run for one rank after another, as far as its messages go.

    Args:
        loop: the loop.
        size: the number of ranks.
        scope: the place from which its names are looked for.
    """

    def __init__(self, loop: ast.For, size: int, scope: Scope) -> None:
        self._loop = loop
        self._size = size
        self._scope = scope
        self._steps = 0  #: of all ranks until now
        # What the code says is the same on all ranks and in all iterations.
        self._expanded: dict[ast.expr, ast.expr] = {}
        self._matters: dict[ast.stmt, bool] = {}

    def calls(self, rank: Rank) -> list[_Call]:
        """The messages of a rank in the loop, in their order.

        Raises:
            _UnknownError: the code does not show them, or there are too many.
        """
        loop, names = self._loop, {"rank": rank, "world_size": self._size}
        items = self._value(loop.iter, names)
        if not isinstance(loop.target, ast.Name) or loop.orelse:
            raise _UnknownError
        if not isinstance(items, range | list):
            raise _UnknownError
        calls: list[_Call] = []
        for item in items:
            self._count()
            calls += self._run(loop.body, names | {loop.target.id: item})[0]
        return calls

    def _run(self, body: Sequence[ast.stmt], names: Mapping[str, int]) -> tuple[list[_Call], bool]:
        """The messages of some statements, and whether ``continue`` ended them."""
        calls: list[_Call] = []
        for statement in body:
            match statement:
                case ast.Continue():
                    return calls, True
                case ast.If(test=test, body=then, orelse=other) if self._may_matter(statement):
                    value = self._value(test, names)
                    if value is None:
                        raise _UnknownError
                    inner, is_over = self._run(then if value else other, names)
                    calls += inner
                    if is_over:
                        return calls, True
                case ast.Expr() | ast.Assign() if (peer := _peer(statement)) is not None:
                    self._count()
                    calls.append(_Call(statement, self._message(statement, peer, names)))
                case _ if self._may_matter(statement):
                    raise _UnknownError
                case _:
                    pass
        return calls, False

    def _message(
        self, statement: ast.Expr | ast.Assign, peer: ast.expr, names: Mapping[str, int]
    ) -> Message:
        """One message with two arguments: no tag and no group."""
        call = statement.value
        there = self._value(peer, names)
        named = {each.arg for each in call.keywords} if isinstance(call, ast.Call) else {None}
        is_plain = named <= {"tensor", "dst", "src"} and isinstance(call, ast.Call)
        is_plain = is_plain and len(getattr(call, "args", ())) + len(named) == 2
        kind = kind_and_peer(call)[0]
        if not is_plain or kind is None or not isinstance(there, int):
            raise _UnknownError
        return Message(kind, names["rank"], there, "")

    def _count(self) -> None:
        """Count an iteration or a message."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _UnknownError

    def _value(self, node: ast.expr, names: Mapping[str, int]) -> Any:
        if node not in self._expanded:
            self._expanded[node] = expanded(node, self._scope)
        return value_of(self._expanded[node], names)

    def _may_matter(self, statement: ast.stmt) -> bool:
        if statement not in self._matters:
            self._matters[statement] = _matters(statement)
        return self._matters[statement]


def _matters(statement: ast.stmt) -> bool:
    """Whether a statement may communicate, or leave the loop."""
    jumps = ast.Continue | ast.Break | ast.Return | ast.Raise | ast.Await | ast.Yield
    nodes = list(ast.walk(statement))
    functions = (node.func for node in nodes if isinstance(node, ast.Call))
    return (
        communicates(statement)
        or any(isinstance(node, jumps) for node in nodes)
        or any(isinstance(each, ast.Name) and not hasattr(builtins, each.id) for each in functions)
    )
