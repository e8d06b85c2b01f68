"""The next step where a message has no other end: its tag, or the rank that never calls it."""

import pytest

from tests.support.looks import CELL, Ranks, only


def pool_of(code: str, size: int = 3) -> Ranks:
    pool = Ranks(size)
    pool.code[CELL] = code
    return pool


@pytest.mark.parametrize("has_received", [False, True])
def test_the_rank_without_a_receive_is_named_for_the_last_send_of_a_pipeline(has_received: bool):
    pool = pool_of(
        "if rank > 0:\n    dist.recv(h, rank - 1)\ndist.send(h, (rank + 1) % world_size)", 3
    )
    if has_received:
        pool[2].done("send", peer=0, line=3)
        pool[0].done("recv", peer=2, line=2)
    for rank in (0, 1):
        pool[rank].done("send", peer=rank + 1, line=3)
        pool[rank].finished()
        pool[rank + 1].done("recv", peer=rank, line=2)
    pool[2].blocked("send", peer=0, line=3)
    step = only(pool).next_step
    if has_received:
        assert step.startswith("Let rank 0 call recv from rank 2 in line 2")
    else:
        assert step == (
            "Rank 0 has called no recv from rank 2 in this cell: let it receive from rank 2, or "
            "let rank 2 not send to it (line 3)."
        )


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("tag", ["", ", tag=0"])
def test_a_call_that_differs_in_the_tag_only_gets_the_tag_of_the_other_end(tag: str, others: int):
    code = (
        "if rank == 0:\n    for dst in range(1, world_size): dist.send(x, dst, tag=dst)\n"
        f"else:\n    dist.recv(y, 0{tag})"
    )
    pool = pool_of(code, 1 + others)
    pool[0].blocked("send", peer=1, tag=1, line=2)
    for rank in range(1, 1 + others):
        pool[rank].blocked("recv", peer=0, line=4)
    finding = only(pool)
    assert finding.next_step == (
        "Give recv `tag=1` on rank 1 (line 4), since rank 0 sends with tag 1 (line 2)."
        if others == 1
        else "Give recv of line 4 the tag of its sender: `tag=rank` on ranks 1-2, since rank 0 "
        "sends with tag 1 to rank 1 (line 2)."
    )


@pytest.mark.parametrize(
    ("has_sent", "ending"),
    [
        (True, ", `tag=7` on rank 2, since rank 0 sends with tag 5 to rank 1 (line 2)."),
        (
            False,
            ", since rank 0 sends with tag 5 to rank 1 (line 2). Rank 2 waits in this line, too: "
            "perhaps with another tag.",
        ),
    ],
)
def test_ranks_that_wait_in_one_line_get_the_tag_of_their_own_sender(has_sent: bool, ending: str):
    pool = pool_of(
        "if rank == 0:\n    for dst in (1, 2): dist.isend(x, dst, tag=3 + 2 * dst)\n"
        "else:\n    dist.recv(y, 0)",
        3,
    )
    if has_sent:
        pool[0].issue("send", peer=2, tag=7, line=2)
    pool[0].blocked("send", peer=1, tag=5, line=2)
    for rank in (1, 2):
        pool[rank].blocked("recv", peer=0, line=4)
    start = "Give recv of line 4 the tag of its sender: `tag=5` on rank 1"
    assert only(pool).next_step == start + ending


def test_a_send_that_has_ended_with_another_tag_gets_that_of_its_receiver():
    pool = pool_of("if rank == 0:\n    dist.send(x, 1)\nelse:\n    dist.recv(y, 0, tag=5)", 2)
    pool[0].done("send", peer=1, line=2)
    pool[0].finished()
    pool[1].blocked("recv", peer=0, tag=5, line=4)
    assert only(pool).next_step == (
        "Give send `tag=5` on rank 0 (line 2), since rank 1 receives with tag 5 (line 4)."
    )
