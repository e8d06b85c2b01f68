"""Finds messages whose two ends have different partners: a wrong ``dst`` or ``src`` in a ring.

Runs in: the notebook's process. Pure.
"""

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.code_places import has_long_text
from nbddp.controller.diagnosis.control_flow import Code, Sources
from nbddp.controller.diagnosis.definitions import Scope
from nbddp.controller.diagnosis.message_calls import MessageCall, message_calls
from nbddp.controller.diagnosis.report import ChangedLine
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Site
from nbddp.wire.flight_recorder.matching import MESSAGES
from nbddp.wire.rank_set import Rank


@dataclass(frozen=True)
class Partners:
    """The sends and receives of ranks that wait for each other in a circle: one of each by rank."""

    site: Site
    code: Code
    ranks: Sequence[Rank]
    calls: Sequence[MessageCall]
    size: int  #: the number of ranks of the pool
    sources: Sources

    def call(self, kind: str, rank: Rank) -> MessageCall:
        """The call by which a rank sends, or receives."""
        (call,) = (each for each in self.calls if each.kind == kind and rank in each.peer_by_rank)
        return call

    def peer(self, kind: str, rank: Rank) -> Rank:
        """The rank to which a rank sends, or from which it receives."""
        return self.call(kind, rank).peer_by_rank[rank]

    @property
    def strays(self) -> list[Rank]:
        """The ranks that receive from a rank which sends to another one."""
        return [
            rank
            for rank in self.ranks
            if (source := self.peer("recv", rank)) not in self.ranks
            or self.peer("send", source) != rank
        ]

    @property
    def distance(self) -> int:
        """The way of every message, in ranks, if it is the same for all that are sent; else 0."""
        ways = {(self.peer("send", rank) - rank) % self.size for rank in self.ranks}
        back = {(self.peer("recv", rank) - rank) % self.size for rank in self.ranks}
        way = ways.pop() if len(ways) == 1 == len(back) else 0
        return way if 2 * way <= self.size else way - self.size

    @property
    def source(self) -> str:
        """The ``src`` that fits to all sends: ``(rank - 1) % world_size``; empty: none is known."""
        way = self.distance
        receives = {ast.unparse(call.peer): call.peer for call in self.calls if call.kind == "recv"}
        names = {self._names(peer) for peer in receives.values()}
        if not way or len(names) != 1:
            return ""
        rank, size = names.pop()
        return f"({rank} {'-' if way > 0 else '+'} {abs(way)}) % {size}" if rank else ""

    def _names(self, peer: ast.expr) -> tuple[str, str]:
        """The rank and the world size, as the argument of a message names them."""
        if isinstance(peer, ast.Name):
            definition = Scope(self.site, self.code, self.sources).definition(peer.id)
            peer = peer if definition is None else definition.value
        match peer:
            case ast.BinOp(
                left=ast.BinOp(left=rank, op=ast.Add() | ast.Sub(), right=ast.Constant()),
                op=ast.Mod(),
                right=size,
            ) if isinstance(rank, ast.Name | ast.Call):
                return ast.unparse(rank), ast.unparse(size)
            case _:
                is_cell = bool(self.site.cell) and self.site.function == "<module>"
                return ("rank", "world_size") if is_cell else ("", "")

    def corrected(self) -> Code | None:
        """The code with the right ``src`` in each receive; None: it is not known."""
        source, lines = self.source, self.code.text.splitlines()
        receives = [call for call in self.calls if call.kind == "recv"]
        if not source or len({call.line for call in receives}) < len(receives):
            return None
        for call in receives:
            peer = call.peer
            if peer.lineno != peer.end_lineno or has_long_text(call.node):
                return None
            text = lines[peer.lineno - 1].encode()
            before, behind = text[: peer.col_offset], text[peer.end_col_offset :]
            lines[peer.lineno - 1] = (before + source.encode() + behind).decode(errors="replace")
        code = Code("\n".join(lines))
        return code if code.statements else None


def partners(cause: Cause, graph: WaitForGraph, run_id: str, sources: Sources) -> Partners | None:
    """Return the partners of ranks that wait for each other in messages.

    Args:
        cause: a cycle of messages.
        graph: the ranks.
        run_id: of the cell.
        sources: the code.

    Returns:
        The partners; None: they are not known, or a rank sends or receives more than one message.
    """
    sites = [operation.site for _, operation, _ in cause.circle]
    ranks = sorted(
        rank
        for rank in {*cause.culprits, *cause.waiting}
        if rank in cause.culprits or _waits_in(graph, rank) == _function(sites[0])
    )
    code = sources(sites[0]) if len(set(map(_function, sites))) == 1 else None
    if code is None:
        return None
    calls = message_calls(sites[0], ranks, graph, run_id, sources)
    for kind in MESSAGES:
        made = [rank for call in calls if call.kind == kind for rank in call.peer_by_rank]
        if sorted(made) != ranks:
            return None
    return Partners(sites[0], code, ranks, calls, len(graph.views), sources)


def _function(site: Site) -> tuple[str, int, str]:
    return site.file, site.cell, site.function


def _waits_in(graph: WaitForGraph, rank: Rank) -> tuple[str, int, str] | None:
    """The function of the message in which a rank waits; None: it waits in another operation."""
    waits = graph.waits[rank]
    operations = waits[0].operations if waits else ()
    messages = [each for each in operations if each.signature.kind in MESSAGES]
    return _function(messages[0].site) if messages else None


def changed_lines(before: Code, after: Code) -> tuple[ChangedLine, ...]:
    """Return the lines that differ between two codes with equally many lines."""
    pairs = zip(before.text.splitlines(), after.text.splitlines(), strict=True)
    differ = [number for number, (old, new) in enumerate(pairs, 1) if old != new]
    return tuple(_pairs(differ, before, after))


def _pairs(lines: Collection[int], before: Code, after: Code) -> list[ChangedLine]:
    changes: list[ChangedLine] = []
    last = 0
    for number in sorted(lines):
        if last and number > last + 1:
            source = before.source(number)
            blank = source[: len(source) - len(source.lstrip())]
            changes.append(ChangedLine("same", 0, f"{blank}..."))
        changes.append(ChangedLine("removed", number, before.source(number)))
        changes.append(ChangedLine("added", 0, after.source(number)))
        last = number
    return changes
