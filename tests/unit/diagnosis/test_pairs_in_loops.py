"""Ranks that exchange messages with many others in a loop get an order that fits all pairs."""

import ast
from collections.abc import Mapping
from typing import Any

import pytest

from nbddp.controller.diagnosis import Finding, pairs_in_loops
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.definitions import Definition, Scope
from nbddp.controller.diagnosis.rank_conditions import value_of
from nbddp.wire.rank_set import RankSet
from tests.support.changes import apply_change
from tests.support.looks import CELL, Ranks, only

SENDS = "dist.send(w, peer)"
RECEIVES = "dist.recv(v, peer)"


def deadlock(code: str, line: int, op: str = "send", size: int = 3) -> Finding:
    """What is found when ranks 0 and 1 wait for each other in a line, and others for rank 0."""
    pool = Ranks(size)
    pool.code[CELL] = code
    for rank in range(size):
        pool[rank].blocked(op, peer=0 if rank else 1, line=line)
    return only(pool)


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(
    "head",
    [
        "for peer in range(world_size):\n    if peer != rank:\n",
        "for epoch in range(2):\n  for peer in range(dist.get_world_size()):\n"
        "    if peer != rank:\n",
        "size = 3\nfor other in range(world_size):\n    peer = other\n    if peer == rank:\n"
        "        continue\n    if True:\n",
    ],
    ids=["all others", "again and again", "continue"],
)
def test_the_lower_rank_of_each_pair_begins_with_the_other_call(head: str, size: int):
    code = f"{head}        {SENDS}\n        {RECEIVES}"
    finding = deadlock(code, head.count("\n") + 1, size=size)
    assert finding.next_step == (
        "Let the lower rank of each pair receive first, or use batch_isend_irecv."
    )
    assert finding.change is not None
    changed = apply_change(code, finding.change.lines)
    assert changed.endswith(
        f"        if rank < peer:\n            {RECEIVES}\n            {SENDS}\n"
        f"        else:\n            {SENDS}\n            {RECEIVES}\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        f"for step in range(1, world_size):\n    peer = (rank + step) % world_size\n"
        f"    {SENDS}\n    {RECEIVES}",
        f"for peer in others:\n    if peer != rank:\n        {SENDS}\n        {RECEIVES}",
        f"for peer in range(world_size):\n    if peer != rank and ready:\n        {SENDS}\n"
        f"        {RECEIVES}",
        f"for peer in range(world_size):\n    if peer != rank:\n        {SENDS}\n"
        f"        {RECEIVES}\n        exchange(peer)",
        "for peer in range(world_size):\n    if peer != rank:\n"
        f"        dist.send(w, peer, tag=peer)\n        {RECEIVES}",
        f"for peer in range(world_size):\n    if peer != rank:\n        {SENDS}\n"
        "        dist.recv(v, 0 + peer)",
        f"for peer in range(5000):\n    if peer != rank and peer < world_size:\n        {SENDS}\n"
        f"        {RECEIVES}",
    ],
    ids=[
        "other pairs",
        "unknown items",
        "unknown condition",
        "function",
        "tag",
        "two names",
        "many iterations",
    ],
)
def test_no_order_is_suggested_where_it_is_not_shown_to_help(code: str):
    lines = code.splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "dist.send" in text)
    finding = deadlock(code, line)
    assert finding.change is None
    assert finding.next_step.startswith(
        "Use batch_isend_irecv: each rank waits when all have begun."
    )


def test_the_even_ranks_come_first_only_where_the_partner_stays():
    code = f"for step in range(3):\n    {SENDS}\n    {RECEIVES}".replace("peer", "1 - rank")
    finding = deadlock(code, 2, size=2)
    assert finding.next_step.startswith("Let the even ranks receive first")


@pytest.mark.parametrize("condition", ["peer == rank", "peer >= 0"], ids=["messages", "none"])
def test_the_search_ends_soon_with_many_ranks(condition: str, monkeypatch: pytest.MonkeyPatch):
    """The notebook waits for it: all pairs of 1,024 ranks are a million iterations."""
    values: list[object] = []
    definitions: list[str] = []
    look_up = Scope.definition

    def counted(node: ast.expr, names: Mapping[str, int]) -> Any:
        values.append(node)
        return value_of(node, names)

    def noted(scope: Scope, name: str) -> Definition | None:
        definitions.append(name)
        return look_up(scope, name)

    monkeypatch.setattr(pairs_in_loops, "value_of", counted)
    monkeypatch.setattr(Scope, "definition", noted)
    text = (
        f"for peer in range(world_size):\n    if {condition}:\n        continue\n"
        f"    {SENDS}\n    {RECEIVES}"
    )
    pool = Ranks(2)
    for rank in (0, 1):
        pool[rank].blocked("send", peer=1 - rank, line=4)
    circle = tuple((rank, pool[rank].operations[-1], RankSet((1 - rank,))) for rank in (0, 1))
    cause = Cause("p2p-cycle", RankSet((0, 1)), RankSet((0, 1)), circle=circle)
    assert pairs_in_loops.lower_first(cause, lambda _: Code(text), 1024) is None
    assert values
    assert len(values) < 20_000
    assert len(definitions) < 20  # each name once, and not in each iteration
