"""Calls of a group that a rank has passed for good, and messages beside one for another rank."""

import pytest

from tests.support.looks import CELL, Ranks, only

_SWAPPED = """\
if rank == 0:
    dist.all_reduce(x, group=g)
    dist.barrier()
else:
    dist.barrier()
    dist.all_reduce(x, group=g)"""


@pytest.mark.parametrize(
    ("source", "line", "barrier", "step"),
    [
        (
            "if rank == 0:\n    dist.all_reduce(x, group=g)\ndist.barrier()",
            2,
            3,
            "Line 2 is inside `if rank == 0:` (line 1): move it out, so that rank 1 runs it, too.",
        ),
        (_SWAPPED, 2, 5, "Call the groups in the same order on all ranks"),
        (
            "for i in range(2):\n    if rank == 0:\n        dist.all_reduce(x, group=g)\n"
            "    dist.barrier()",
            3,
            4,
            "Call the groups in the same order on all ranks",
        ),
        (
            "if rank == 0:\n    dist.all_reduce(x, group=g)\ndist.barrier()\n"
            "dist.broadcast(x, 0, group=g)",
            2,
            3,
            "Call the groups in the same order on all ranks",
        ),
    ],
)
def test_a_call_of_a_group_that_a_rank_has_passed_for_good(
    source: str, line: int, barrier: int, step: str
):
    pool = Ranks(2)
    pool.code[CELL] = source
    pool[0].blocked(group=pool.group("g", 0, 1), line=line)
    pool[1].blocked("barrier", line=barrier)
    finding = only(pool)
    assert finding.kind == "group-cycle"
    assert finding.next_step.startswith(step)


@pytest.mark.parametrize(("receives", "tags"), [(2, "0"), (1, "1")])
def test_a_message_for_another_rank_beside_one_for_this_rank(receives: int, tags: str):
    pool = Ranks(3)
    pool[1].issue("send", peer=0, tag=int(tags), state="completed")
    pool[1].issue("send", peer=2, state="completed")
    pool[1].finished()
    for _ in range(receives - 1):
        pool[0].done("recv", peer=1)
    pool[0].blocked("recv", peer=1)
    pool[2].finished()
    suspicions = [text for text in pool.diagnose().findings[0].suspicions if "`dst`" in text]
    assert suspicions == (receives - 1) * [
        "rank 1 has called send to rank 2, and to rank 0 fewer times than rank 0 expects: is `dst` "
        "right?"
    ]
