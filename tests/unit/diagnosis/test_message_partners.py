"""Rings in which a rank receives from a rank that sends to another one, or in a group."""

import pytest

from nbddp.controller.diagnosis import Finding
from tests.support.changes import apply_change
from tests.support.looks import CELL, Ranks, only

SEND = "dist.send(x, dst=(rank + 1) % world_size)"
RECV = "dist.recv(y, src=(rank + 1) % world_size)"


def ring(code: str, *, first: str, line: int, size: int = 3) -> Finding:
    """Each rank waits in its first message, to or from the next rank."""
    pool = Ranks(size)
    pool.code[CELL] = code
    for rank in range(size):
        pool[rank].blocked(first, peer=(rank + 1) % size, line=line)
    return only(pool)


def changed(code: str, finding: Finding) -> str:
    assert finding.change is not None
    return apply_change(code, finding.change.lines)


def test_a_ring_that_sends_and_receives_in_the_same_direction():
    code = f"{SEND}\n{RECV}"
    finding = ring(code, first="send", line=1)
    assert finding.headline == (
        "Ranks 0-2 wait for each other in a circle: rank 0 receives from rank 1, which sends to "
        "rank 2."
    )
    assert finding.next_step == (
        "Rank 0 receives from rank 1 (line 2), but rank 1 sends to rank 2 (line 1): let each rank "
        "receive from the one that sends to it, `src=(rank - 1) % world_size`. Then let rank 0 "
        "receive first."
    )
    assert [line.site.line for line in finding.code] == [1, 2]
    assert changed(code, finding).splitlines() == [
        "if rank == 0:",
        "    dist.recv(y, src=(rank - 1) % world_size)",
        f"    {SEND}",
        "else:",
        f"    {SEND}",
        "    dist.recv(y, src=(rank - 1) % world_size)",
    ]


def test_one_name_for_both_partners():
    code = "right = (rank + 1) % dist.get_world_size()\ndist.recv(y, right)\ndist.send(x, right)"
    finding = ring(code, first="recv", line=2)
    assert "    dist.recv(y, (rank - 1) % dist.get_world_size())" in changed(code, finding)
    assert "    dist.send(x, right)" in changed(code, finding)


def test_a_receive_behind_an_isend_is_corrected_in_its_line():
    code = f"req = {SEND.replace('send', 'isend')}\n{RECV}\nreq.wait()"
    pool = Ranks(3)
    pool.code[CELL] = code
    for rank in range(3):
        pool[rank].issue("send", peer=(rank + 1) % 3, line=1)
        pool[rank].blocked("recv", peer=(rank + 1) % 3, line=2)
    finding = only(pool)
    assert changed(code, finding).splitlines()[1] == "dist.recv(y, src=(rank - 1) % world_size)"
    assert "first" not in finding.next_step


def test_partners_in_branches_for_even_and_odd_ranks():
    code = f"if rank % 2 == 0:\n    {SEND}\n    {RECV}\nelse:\n    {RECV}\n    {SEND}"
    pool = Ranks(3)
    pool.code[CELL] = code
    for rank, (op, line) in enumerate([("send", 2), ("recv", 5), ("send", 2)]):
        pool[rank].blocked(op, peer=(rank + 1) % 3, line=line)
    right = "dist.recv(y, src=(rank - 1) % world_size)"
    assert changed(code, only(pool)) == f"{code.replace(RECV, right)}\n"


def test_one_rank_with_another_partner():
    code = (
        "dst = 0 if rank == 1 else (rank + 1) % 3\ndist.send(x, dst)\ndist.recv(y, (rank - 1) % 3)"
    )
    pool = Ranks(3)
    pool.code[CELL] = code
    for rank, peer in enumerate((1, 0, 0)):
        pool[rank].blocked("send", peer=peer, line=2)
    finding = only(pool)
    assert finding.change is None
    assert finding.next_step == (
        "Rank 2 receives from rank 1 (line 3), but rank 1 sends to rank 0 (line 2): let rank 1 "
        "send to rank 2, which receives from it. Then let rank 0 receive first."
    )


@pytest.mark.parametrize(
    "code",
    [
        f"{SEND}\ndist.recv(y, src=left())",
        f"{SEND}\nif ready:\n    {RECV}",
        f"for peer in peers:\n    {SEND}\n    dist.recv(y, src=peer)",
        f"{SEND}\ndist.recv(y)",
        f"{SEND}\ndist.recv(y, group_src=0)",
    ],
)
def test_partners_that_are_not_known(code: str):
    line = code.splitlines().index(next(each for each in code.splitlines() if SEND in each)) + 1
    assert "all send first" in ring(code, first="send", line=line).headline


def test_a_receive_too_many():
    code = f"{SEND}\n{RECV}\ndist.recv(y, src=(rank - 1) % world_size)"
    finding = ring(code, first="send", line=1)
    assert finding.headline.endswith("their sends and receives do not match each other.")
    assert finding.next_step.startswith("Give each send its recv")


def test_the_assignment_that_gave_a_message_another_partner_is_named():
    pool = Ranks(3)
    pool.code[CELL] = (
        "dst = (rank + 1) % 3\nif rank == 1:\n    dst = 0\nr = dist.isend(x, dst)\n"
        "dist.recv(y, (rank - 1) % 3)\nr.wait()"
    )
    pool[0].done("send", peer=1, line=4)
    pool[0].done("recv", peer=2, line=5)
    pool[0].finished()
    pool[1].done("recv", peer=0, line=5)
    pool[2].done("send", peer=0, line=4)
    pool[1].blocked("send", peer=0, line=4)
    pool[2].blocked("recv", peer=1, line=5)
    (finding,) = pool.diagnose().proven
    assert finding.next_step == (
        "Give send `dst=2` on rank 1 (line 4), since rank 2 receives from it. Rank 1 "
        "changed `dst` in line 3, inside `if rank == 1:` (line 2)."
    )
    assert [line.site.line for line in finding.code] == [2, 3, 4]


@pytest.mark.parametrize(
    ("source", "group"),
    [
        ("dist.recv(x, 1 - rank, group=g)", "`group=g`"),
        ("dist.send(x, 1, group=g); dist.recv(x, 1 - rank, group=g)", "`group=g`"),
        ("dist.send(x, 1, group=h); dist.recv(x, 1 - rank, group=g)", "their group"),
        ("dist.recv(x, 1 - rank, pair)", "their group"),
        ("dist.recv(x, 1 - rank, group=groups[0])", "their group"),
    ],
)
def test_messages_of_a_group_keep_it_in_a_batch(source: str, group: str):
    pool = Ranks(2)
    pg_id = pool.group("pair", 0, 1)
    for rank in range(2):
        pool[rank].blocked("recv", peer=1 - rank, line=3, source=source, group=pg_id)
    step = f"Let rank 0 send first, or use batch_isend_irecv, with {group} in each P2POp."
    assert only(pool).next_step.startswith(step)
