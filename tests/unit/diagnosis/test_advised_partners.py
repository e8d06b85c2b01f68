"""A message gets another partner, or another order, only where all messages then meet."""

import msgspec
import pytest

from tests.support.looks import CELL, Ranks, only, site

GATHER = """\
if rank == 0:
    for r in (1, 2):
        dist.recv(y, r)
elif rank != 1:
    dist.send(x, 0)
"""
CHAIN = """\
if rank == 0:
    dist.send(x, 1)
elif rank == 1:
    dist.recv(y, 2)
    dist.send(y, 2)
else:
    dist.recv(y, 1)
"""
STAGES = """\
if rank == 0:
    dist.send(x, 1); dist.recv(y, 3)
elif rank == 1:
    dist.recv(y, 0); dist.send(x, 2)
elif rank == 2:
    dist.recv(y, 3); dist.send(x, 3)
else:
    dist.recv(y, 2); dist.send(x, 0)
"""
SCATTER = """\
if rank == 0:
    for r in (1, 2):
        dist.send(x, r)
else:
    dist.recv(y, 0 if rank == 2 else 2)
"""
TO_ALL = """\
for r in range(world_size):
    if r != rank:
        dist.send(x, r)
for r in range(world_size):
    if r != rank:
        dist.recv(y, r)
"""


def in_loop(code: str) -> str:
    return "for i in range(3):\n" + "".join(f"    {line}\n" for line in code.splitlines())


def pool_of(code: str, size: int = 3) -> Ranks:
    pool = Ranks(size)
    pool.code[CELL] = code
    return pool


@pytest.mark.parametrize(
    "code",
    [
        GATHER,
        GATHER.replace("dist.recv(y, r)", "dist.recv(y, src=r)"),
        GATHER.replace("r in (1, 2)", "each in (1, 2)").replace("y, r)", "y, peers[each])"),
    ],
)
def test_the_next_iteration_of_a_loop_is_no_other_partner(code: str):
    pool = pool_of(code)
    pool[0].blocked("recv", peer=1, line=3)
    pool[1].finished()
    pool[2].blocked("send", peer=0, line=5)
    assert only(pool).next_step == "Let rank 1 send to rank 0."


def test_the_next_iteration_of_a_sender_is_no_other_partner():
    pool = pool_of(GATHER.replace("recv(y, r)", "send(y, r)").replace("send(x, 0)", "recv(x, 0)"))
    pool[0].blocked("send", peer=1, line=3)
    pool[1].finished()
    pool[2].blocked("recv", peer=0, line=5)
    assert only(pool).next_step == "Let rank 1 receive from rank 0."


def test_a_loop_around_a_helper():
    code = "def get(r):\n    dist.recv(y, r)\n[get(r) for r in (1, 2)] if rank == 0 else put()"
    pool = pool_of(code)
    record = pool[0].issue("recv", peer=1, line=2)
    inner = site(2, function="get")
    pool[0].operations[-1] = msgspec.structs.replace(pool[0].operations[-1], site=inner)
    pool[0].waits(record, stack=(inner, site(3)))
    pool[1].finished()
    pool[2].blocked("send", peer=0, line=3)
    assert only(pool).next_step == "Let rank 1 send to rank 0."


@pytest.mark.parametrize("loop", ["", "for i in range(3):\n    "])
def test_a_call_with_one_partner_may_have_another(loop: str):
    code = f"{loop}dist.recv(y, 1) if rank == 0 else dist.send(y, 0)"
    pool = pool_of(code)
    line = len(code.splitlines())
    pool[0].blocked("recv", peer=1, line=line)
    pool[1].finished()
    pool[2].blocked("send", peer=0, line=line)
    assert "Give recv `src=2` on rank 0" in only(pool).next_step


@pytest.mark.parametrize("is_in_loop", [False, True])
def test_the_other_end_that_leaves_a_sender_waiting_is_not_advised(is_in_loop: bool):
    code = "if rank == 0:\n    dist.recv(y, 1)\nelif rank == 2:\n    dist.send(x, 0)"
    pool = pool_of(in_loop(code) if is_in_loop else code)
    pool[0].blocked("recv", peer=1, line=2 + is_in_loop)
    pool[1].finished()
    pool[2].blocked("send", peer=0, line=4 + is_in_loop)
    assert only(pool).next_step.endswith("since rank 2 sends to it.")


def test_a_circle_because_of_a_wrong_source():
    pool = pool_of(CHAIN)
    pool[0].blocked("send", peer=1, line=2)
    pool[1].blocked("recv", peer=2, line=4)
    pool[2].blocked("recv", peer=1, line=7)
    finding = only(pool)
    assert finding.headline == (
        "Ranks 1-2 wait for each other: their sends and receives do not match each other."
    )
    assert finding.next_step == ("Give recv `src=0` on rank 1 (line 4), since rank 0 sends to it.")


def test_a_circle_of_stages_because_of_a_wrong_source():
    pool = pool_of(STAGES, 4)
    pool[0].done("send", peer=1, line=2)
    pool[1].done("recv", peer=0, line=4)
    pool[0].blocked("recv", peer=3, line=2)
    pool[1].blocked("send", peer=2, line=4)
    pool[2].blocked("recv", peer=3, line=6)
    pool[3].blocked("recv", peer=2, line=8)
    assert only(pool).next_step == (
        "Rank 2 receives from rank 3 (line 6), but rank 3 sends to rank 0 (line 8): let rank 2 "
        "receive from rank 1, which sends to it."
    )


def test_a_rank_without_a_receive_is_not_told_to_receive_first():
    pool = pool_of(SCATTER)
    pool[0].blocked("send", peer=1, line=3)
    pool[1].blocked("recv", peer=2, line=5)
    pool[2].blocked("recv", peer=0, line=5)
    finding = only(pool)
    assert finding.next_step.startswith("Give each send its recv")
    assert finding.suspicions == (
        "rank 1 has called recv from rank 2, not from rank 0: is `src` right?",
    )


def test_ranks_that_all_send_to_all_others_first():
    pool = pool_of(TO_ALL)
    pool[0].blocked("send", peer=1, line=3)
    pool[1].blocked("send", peer=0, line=3)
    pool[2].blocked("send", peer=0, line=3)
    assert only(pool).next_step == (
        "Use batch_isend_irecv: each rank waits when all have begun. A send without a recv waits "
        "there, too: add it."
    )


def test_ranks_that_receive_more_than_is_sent():
    code = (
        "if rank == 0:\n    dist.send(x, 1)\n    dist.recv(x, 1)\n"
        "else:\n    dist.recv(x, 0)\n    dist.recv(x, 0)"
    )
    pool = pool_of(code, 2)
    pool[0].done("send", peer=1, line=2)
    pool[1].done("recv", peer=0, line=5)
    pool[0].blocked("recv", peer=1, line=3)
    pool[1].blocked("recv", peer=0, line=6)
    assert only(pool).next_step.startswith("Give each recv its send: same two ranks")


def test_pairs_that_receive_first_need_another_order():
    pool = pool_of("dist.recv(x, rank ^ 1)\ndist.send(x, rank ^ 1)", 4)
    for rank in range(4):
        pool[rank].blocked("recv", peer=rank ^ 1, line=1)
    assert only(pool).next_step == "Let one side send first, or use batch_isend_irecv."


def test_a_circle_in_a_loop_because_of_a_wrong_source():
    pool = pool_of(in_loop(CHAIN))
    pool[0].blocked("send", peer=1, line=3)
    pool[1].blocked("recv", peer=2, line=5)
    pool[2].blocked("recv", peer=1, line=8)
    assert only(pool).next_step == (
        "Give recv `src=0` on rank 1 (line 5), since rank 0 sends to it."
    )


def test_an_order_in_a_loop():
    pool = pool_of(in_loop("dist.recv(x, 1 - rank)\ndist.send(y, 1 - rank)"), 2)
    for rank in range(2):
        pool[rank].done("recv", peer=1 - rank, line=2, run_id="before")
        pool[rank].blocked("recv", peer=1 - rank, line=2)
    finding = only(pool)
    assert finding.next_step.startswith("Let the even ranks send first")
    assert finding.change is not None


def test_a_helper_may_be_the_other_end():
    code = (
        "def put():\n    dist.send(y, 1 - rank)\nwhile True:\n    dist.recv(x, 1 - rank)\n    put()"
    )
    pool = pool_of(code, 2)
    for rank in range(2):
        pool[rank].blocked("recv", peer=1 - rank, line=4)
    assert "both receive first, and nobody sends" in only(pool).headline
    assert "batch_isend_irecv" in only(pool).next_step


def test_helpers_that_send_and_receive_need_another_order():
    code = (
        "def get(r):\n    dist.recv(x, r)\ndef put(r):\n    dist.send(y, r)\n"
        "get(1 - rank)\nput(1 - rank)"
    )
    pool = pool_of(code, 2)
    for rank in range(2):
        record = pool[rank].issue("recv", peer=1 - rank, line=2)
        inner = site(2, function="get")
        operations = pool[rank].operations
        operations[-1] = msgspec.structs.replace(operations[-1], site=inner)
        pool[rank].waits(record, stack=(inner, site(5)))
    finding = only(pool)
    assert finding.next_step.startswith("Let the even ranks send first")
    assert finding.change is not None


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (
            "dist.recv(x, 1 - rank)\ndist.barrier()",
            "No rank sends in this cell: let rank 0 send to rank 1 in place of its recv (line 1), "
            "or rank 1 send to rank 0.",
        ),
        (
            "for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1 - rank)]): w.wait()",
            "No rank sends in this cell: let rank 0 send to rank 1 in place of its recv (line 1), "
            "or rank 1 send to rank 0.",
        ),
        (
            "dist.recv(x, 1 - rank)\nops = [dist.P2POp(dist.irecv, x, 1 - rank)]\n"
            "dist.batch_isend_irecv(ops)",
            "No rank sends in this cell: let rank 0",
        ),
        (
            "dist.recv(x, 1 - rank)\nops += [dist.P2POp(dist.irecv, x, 1 - rank)]\n"
            "dist.batch_isend_irecv(ops)",
            "Use batch_isend_irecv",
        ),
        (
            "dist.recv(x, 1 - rank)\nops = [dist.P2POp(f, x, 1 - rank) for f in fs]\n"
            "dist.batch_isend_irecv(ops)",
            "Use batch_isend_irecv",
        ),
        (
            "dist.recv(x, 1 - rank)\ndist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - rank)])",
            "Use batch_isend_irecv",
        ),
        (
            "ops = []\nops.append(dist.P2POp(dist.irecv, x, 1 - rank))\n"
            "dist.batch_isend_irecv(ops)",
            "No rank sends in this cell: let rank 0",
        ),
        (
            "dist.recv(x, 1 - rank, group=dist.new_group([0, 1]))",
            "No rank sends in this cell: let rank 0 send to rank 1 in place of its recv (line 1), "
            "or rank 1 send to rank 0.",
        ),
        (
            "dist.recv(x, 1 - rank)\nmesh = init_device_mesh('cpu', (2,))\nmesh.get_group()",
            "No rank sends in this cell: let rank 0",
        ),
        (
            "ops = []\nops.append(older)\ndist.batch_isend_irecv(ops)",
            "Use batch_isend_irecv",
        ),
        ("dist.recv(x, 1 - rank)\nexchange(x)", "Use batch_isend_irecv"),
        ("dist.recv(x, 1 - rank)\ndist.batch_isend_irecv(ops)", "Use batch_isend_irecv"),
    ],
)
def test_a_cell_that_receives_only_needs_a_send(code: str, advice: str):
    pool = pool_of(code, 2)
    for rank in range(2):
        pool[rank].blocked("recv", peer=1 - rank, line=1)
    finding = only(pool)
    assert "receive" in finding.headline
    assert finding.next_step.startswith(advice)


def test_a_message_that_no_line_of_the_cell_receives():
    pool = pool_of("if rank == 0:\n    dist.send(x, 1)", 2)
    pool[0].blocked("send", peer=1, line=2)
    pool[1].finished()
    assert only(pool).next_step == (
        "No rank receives in this cell: let rank 1 receive from rank 0."
    )


@pytest.mark.parametrize(
    ("call", "kind", "ahead", "advice"),
    [
        (
            "dist.recv(x, (rank + 1) % 3)",
            "recv",
            1,
            "No rank sends in this cell: let each rank also isend to the rank that receives from "
            "it, `(rank - 1) % world_size`, before it waits (line 1).",
        ),
        (
            "dist.recv(x, (rank - 1) % 3)",
            "recv",
            2,
            "No rank sends in this cell: let each rank also isend to the rank that receives from "
            "it, `(rank + 1) % world_size`, before it waits (line 1).",
        ),
        (
            "dist.send(x, (rank + 1) % 3)",
            "send",
            1,
            "No rank receives in this cell: let each rank also irecv from the rank that sends to "
            "it, `(rank - 1) % world_size`, before it waits (line 1).",
        ),
        (
            "dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, (rank + 1) % 3)])",
            "recv",
            1,
            "No rank sends in this cell: let each rank also isend to the rank that receives from "
            "it, `(rank - 1) % world_size`, in the same batch_isend_irecv (line 1).",
        ),
    ],
)
def test_a_ring_with_one_end_of_each_message_only(call: str, kind: str, ahead: int, advice: str):
    pool = pool_of(call)
    for rank in range(3):
        record = pool[rank].issue(kind, peer=(rank + ahead) % 3, line=1)
        operations = pool[rank].operations
        place = msgspec.structs.replace(operations[-1].site, source=call)
        operations[-1] = msgspec.structs.replace(operations[-1], site=place)
        pool[rank].waits(record)
    assert only(pool).next_step == advice


def test_a_circle_of_some_ranks_names_the_ends():
    pool = pool_of("if rank: dist.recv(x, rank % 3 + 1)", 4)
    pool[0].finished()
    for rank in (1, 2, 3):
        pool[rank].blocked("recv", peer=rank % 3 + 1, line=1)
    assert only(pool).next_step == (
        "No rank sends in this cell: let each rank also isend to the rank that receives from it "
        "(rank 2 to rank 1, rank 3 to rank 2, rank 1 to rank 3), before it waits (line 1)."
    )


def test_pairs_that_only_receive():
    pool = pool_of("dist.recv(x, rank ^ 1)", 4)
    for rank in range(4):
        pool[rank].blocked("recv", peer=rank ^ 1, line=1)
    assert only(pool).next_step == (
        "No rank sends in this cell: let one rank of each pair send to the other one in place of "
        "its recv (line 1)."
    )


def test_a_rank_that_receives_more_often_than_others_send():
    code = "if rank == 0:\n    for _ in range(3): dist.recv(x)\nelse: dist.send(x, 0)"
    pool = pool_of(code, 3)
    for rank in (1, 2):
        pool[rank].done("send", peer=0, line=3)
        pool[rank].finished()
        pool[0].done("recv", peer=-1, line=2)
    pool[0].blocked("recv", peer=-1, line=2)
    assert only(pool).next_step == (
        "Rank 0 has called recv (line 2) 3 times, and 2 sends were called for it, by ranks 1-2. "
        "Let it receive as often as others send to it, or let another rank send."
    )
