"""Hangs in messages, cycles, keys and new groups: the proof and the named ranks."""

from typing import Any

import pytest

from nbddp.wire.flight_recorder.schema import UNKNOWN_MEMBER
from nbddp.wire.rank_set import RankSet
from tests.support.looks import CELL, Ranks, only, told

# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "does"), [("recv", "sends"), ("send", "receives")])
def test_a_message_without_its_other_end(op: str, does: str):
    pool = Ranks(2)
    pool[0].blocked(op, peer=1, line=4)
    pool[1].finished()
    finding = only(pool)
    assert told(finding) == ("p2p-unmatched", "1", "0")
    way = "from" if op == "recv" else "to"
    assert finding.headline == (
        f"Rank 0 waits in {op} {way} rank 1, and rank 1 never {does} it: "
        "rank 1 has finished the cell and called no collective in it."
    )


def test_the_second_message_is_missing():
    pool = Ranks(2)
    pool[1].done("send", peer=0)
    pool[0].done("recv", peer=1)
    pool[0].blocked("recv", peer=1)
    pool[1].finished()
    assert told(only(pool)) == ("p2p-unmatched", "1", "0")


def test_tags_that_differ():
    pool = Ranks(2)
    pool[0].blocked("recv", peer=1, tag=2)
    pool[1].blocked("send", peer=0, tag=3)
    finding = only(pool)
    assert told(finding) == ("p2p-unmatched", "0-1", "0-1")
    assert finding.suspicions == ("rank 1 has called send to rank 0 with tag 3, rank 0 uses tag 2",)


def test_groups_of_a_message_that_differ():
    pool = Ranks(2)
    pool.group("other", 0, 1)
    pool[0].blocked("recv", peer=1)
    pool[1].blocked("send", peer=0, group="other")
    finding = only(pool)
    assert finding.kind == "p2p-unmatched"
    assert finding.suspicions == (
        "rank 1 has called send to rank 0 on group 'other' (ranks 0-1): is the group right?",
    )


def test_a_message_for_another_rank():
    for state in ("scheduled", "completed"):  # a handle that was dropped counts as complete
        pool = Ranks(3)
        pool[0].blocked("recv", peer=1)
        pool[1].issue("send", peer=2, state=state)
        pool[1].finished()
        pool[2].finished()
        finding = only(pool)
        assert told(finding) == ("p2p-unmatched", "1", "0")
        assert finding.suspicions == (
            "rank 1 has called send to rank 2, not to rank 0: is `dst` right?",
        )
        assert finding.next_step == (
            "Give send `dst=0` on rank 1 (line 1), since rank 0 receives from it."
        )


def test_a_message_that_was_received_is_not_suspected():
    pool = Ranks(3)
    pool[0].blocked("recv", peer=1)
    pool[1].issue("send", peer=2, state="completed")
    pool[1].finished()
    pool[2].issue("recv", peer=1, state="completed")
    pool[2].finished()
    finding = only(pool)
    assert finding.suspicions == ()
    assert finding.next_step.startswith("Rank 1 has called no send to rank 0 in this cell: let it")


@pytest.mark.parametrize(
    ("op", "other", "step"),
    [
        (
            "recv",
            "send",
            "Give recv `src=2` on rank 0 (line 1), since rank 2 sends to it, or let rank 1 send to "
            "rank 0.",
        ),
        (
            "send",
            "recv",
            "Give send `dst=2` on rank 0 (line 1), since rank 2 receives from it, or let rank 1 "
            "receive from rank 0.",
        ),
    ],
)
def test_a_message_with_the_wrong_partner(op: str, other: str, step: str):
    pool = Ranks(4)
    pool[0].blocked(op, peer=1)
    pool[1].finished()
    pool[2].blocked(other, peer=0)
    pool[3].finished()
    finding = only(pool)
    assert told(finding) == ("p2p-unmatched", "1", "0,2")
    assert finding.next_step == step


def test_a_receiver_whose_sender_is_in_a_collective():
    pool = Ranks(3)
    pool[0].blocked("recv", peer=1)
    pool[1].blocked("all_reduce")
    pool[2].blocked("all_reduce")
    finding = only(pool)
    assert told(finding) == ("p2p-unmatched", "0-1", "0-2")
    assert finding.op == "recv"
    assert finding.headline == (
        "Rank 0 waits in recv from rank 1, and rank 1 never sends it: "
        "rank 1 waits in all_reduce #1."
    )


def test_only_the_sender_of_a_message_is_said_not_to_send_it():
    pool = Ranks(4)
    pool.code[CELL] = "if rank < 2:\n    dist.all_reduce(x)\nelse:\n    dist.recv(x, rank - 2)"
    for rank in (0, 1):
        pool[rank].blocked("all_reduce", line=2)
    for rank in (2, 3):
        pool[rank].blocked("recv", peer=rank - 2, line=4)
    finding = only(pool)
    assert finding.headline == (
        "Rank 2 waits in recv from rank 0, and rank 0 never sends it: "
        "rank 0 waits in all_reduce #1."
    )
    assert finding.next_step == (
        "Let rank 0 send to rank 2 before all_reduce #1 (line 2), and let ranks 2-3 call "
        "all_reduce, too, after that; or let rank 2 call all_reduce in "
        "place of recv (line 4). Line 2 (ranks 0-1) is inside `if rank < 2:` (line 1), line 4 "
        "(ranks 2-3) is inside the `else` of `if rank < 2:` (line 1)."
    )
    assert [line.site.line for line in finding.code] == [1, 2, 3, 4]


def test_a_rank_that_waits_for_itself():
    pool = Ranks(2)
    pool[0].blocked("recv", peer=0)
    pool[1].finished()
    assert told(only(pool)) == ("p2p-unmatched", "0", "0")


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("send", "send first, and nobody receives"),
        ("recv", "receive first, and nobody sends"),
    ],
)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_ring_of_messages(op: str, words: str, count: int):
    pool = Ranks(count)
    for rank in range(count):
        pool[rank].blocked(op, peer=(rank + 1) % count)
    finding = only(pool)
    everyone = str(RankSet.all(count))
    assert told(finding) == ("p2p-cycle", everyone, everyone)
    where = ": both" if count == 2 else " in a circle: all"
    assert finding.headline == f"Ranks {everyone} wait for each other{where} {words}."
    assert finding.explanation.count("waits in") == count


def test_many_pairs_are_one_cause():
    pool = Ranks(65)
    for rank in range(64):
        pool[rank].blocked("recv", peer=rank ^ 1, line=3)
    pool[64].blocked("barrier", line=4)
    finding = only(pool)
    assert told(finding) == ("p2p-cycle", "0-63", "0-64")
    assert finding.headline == (
        "Ranks 0-63 wait for each other in 32 pairs: all receive first, and nobody sends."
    )
    assert finding.explanation.startswith(
        "Proven: rank 0 waits in recv from rank 1, rank 1 waits in recv from rank 0; so do each of "
        "even ranks 2-62 and the next rank. "
    )
    assert finding.explanation.endswith("Rank 64 waits for these in turn.")
    assert len(finding.ranks) == 65


def test_pairs_at_different_lines_are_told_apart():
    pool = Ranks(4)
    for rank in range(4):
        pool[rank].blocked("recv", peer=rank ^ 1, line=3 + rank // 2)
    assert [told(each)[1] for each in pool.diagnose().findings] == ["0-1", "2-3"]


def test_circles_of_several_ranks_are_one_cause_too():
    pool = Ranks(6)
    for rank in range(6):
        pool[rank].blocked("send", peer=rank // 3 * 3 + (rank + 1) % 3)
    assert only(pool).headline == (
        "Ranks 0-5 wait for each other in 2 circles: all send first, and nobody receives."
    )


def test_a_ring_that_one_rank_breaks():
    pool = Ranks(3)
    pool[0].blocked("recv", peer=2)
    pool[1].blocked("send", peer=2)
    pool[2].blocked("recv", peer=1)
    assert not pool.diagnose().verdict


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("dist.recv(x, 1 - rank)", "Let rank 0 send first, or use batch_isend_irecv."),
        ("dist.irecv(x, 1 - rank).wait()", "Issue every isend and irecv of a step before"),
        ("dist.batch_isend_irecv(ops)[0].wait()", "Issue every isend and irecv of a step before"),
    ],
)
def test_users_of_isend_are_not_told_to_use_it(source: str, advice: str):
    pool = Ranks(2)
    for rank in range(2):
        pool[rank].blocked("recv", peer=1 - rank, line=3, source=source)
    assert only(pool).next_step.startswith(advice)


def test_messages_that_have_other_ends_which_do_not_fit():
    """Every rank sends to the next one and receives from the same one."""
    pool = Ranks(3)
    for rank in range(3):
        sent = pool[rank].issue("send", peer=(rank + 1) % 3, source="dist.batch_isend_irecv(ops)")
        pool[rank].issue("recv", peer=(rank + 1) % 3, source="dist.batch_isend_irecv(ops)")
        pool[rank].waits(sent)
    finding = only(pool)
    assert told(finding) == ("p2p-cycle", "0-2", "0-2")
    assert finding.headline == (
        "Ranks 0-2 wait for each other in a circle: "
        "each has sends and receives, and they do not match each other."
    )
    assert finding.next_step.startswith("Give each send its recv: same two ranks")


def test_a_rank_that_waits_behind_a_ring():
    pool = Ranks(4)
    pool.group("a", 0, 2)
    pool[0].blocked("send", peer=1)
    pool[1].blocked("send", peer=0)
    pool[2].blocked(group="a")
    pool[3].blocked("recv", peer=2)
    finding = only(pool)
    assert told(finding) == ("p2p-cycle", "0-1", "0-3")
    assert "Ranks 2-3 wait for these in turn." in finding.explanation


def test_two_rings_of_which_one_waits_for_the_other():
    pool = Ranks(4)
    pool[0].blocked("send", peer=1)
    pool[1].blocked("send", peer=0)
    pool[2].waits(pool[2].issue("recv", peer=3), pool[2].issue("recv", peer=0))
    pool[3].blocked("recv", peer=2)
    report = pool.diagnose()
    assert [told(each) for each in report.findings] == [
        ("p2p-cycle", "0-1", "0-1"),
        ("p2p-cycle", "2-3", "2-3"),
    ]


def test_a_receive_from_any_rank_when_no_sender_is_left():
    pool = Ranks(3)
    pool[0].blocked("recv", peer=-1)
    pool[1].finished()
    pool[2].finished()
    finding = only(pool)
    assert told(finding) == ("p2p-unmatched", "1-2", "0")
    assert "recv from any rank" in finding.headline


# --- cycles across groups, keys ------------------------------------------------------------------


def test_groups_in_different_orders():
    pool = Ranks(3)
    pool.group("a", 0, 1)
    pool.group("b", 0, 1)
    pool[0].blocked(group="a", line=4)
    pool[1].blocked(group="b", line=7)
    pool[2].finished()
    finding = only(pool)
    assert told(finding) == ("group-cycle", "0-1", "0-1")
    assert finding.explanation == (
        "Proven: rank 0 waits in all_reduce of group 'a' (ranks 0-1) for rank 1, "
        "rank 1 waits in all_reduce of group 'b' (ranks 0-1) for rank 0."
    )
    assert pool.diagnose().pg_ids == ("a", "b")
    assert finding.suspicions == ()


@pytest.mark.parametrize(
    ("line", "is_asked"),
    [
        ("pass", True),
        ("dist.all_reduce(x, group=second)", False),  # it is the order that differs
    ],
)
def test_another_group_in_the_same_line_may_be_the_wrong_one(line: str, is_asked: bool):
    pool = Ranks(2)
    pool.code[CELL] = f"pass\npass\npass\ndist.all_reduce(x, group=first)\n{line}"
    for rank, name in enumerate("ab"):
        pool.group(name, 0, 1)
        pool[rank].blocked(group=name, line=4)
    asked = (
        "rank 1 calls the same all_reduce on group 'b' (ranks 0-1): "
        "is one of the two groups the wrong one?"
    )
    assert only(pool).suspicions == (asked,) * is_asked


def test_a_cycle_over_three_groups():
    pool = Ranks(3)
    for rank, name in enumerate("abc"):
        pool.group(name, rank, (rank + 1) % 3)
        pool[rank].blocked("barrier", group=name)
    assert told(only(pool)) == ("group-cycle", "0-2", "0-2")


def test_a_key_that_no_rank_sets():
    pool = Ranks(3)
    pool[0].blocked("store.wait", keys=("ready",), line=4)
    pool[1].blocked()
    pool[2].blocked()
    finding = only(pool)
    assert told(finding) == ("store-wait", "", "0-2")
    assert finding.headline == (
        "Nobody has set the key 'ready': rank 0 waits for it, and no rank is left "
        "that could set it."
    )
    assert finding.group is None
    assert pool.diagnose().waits_for_store == RankSet.of([0])


def test_a_key_beside_a_missing_rank():
    pool = Ranks(4)
    pool.group("a", 1, 2, 3)
    pool[0].blocked("store.wait", keys=("ready",))
    pool[1].blocked(group="a")
    pool[2].blocked(group="a")
    pool[3].finished()
    assert [told(each) for each in pool.diagnose().findings] == [
        ("store-wait", "", "0"),
        ("missing-rank", "3", "1-2"),
    ]


def test_a_group_that_not_all_make():
    pool = Ranks(3)
    pool[0].blocked("new_group", group="1@p@x", keys=("0", "2"))
    pool[1].finished()
    pool[2].finished()
    finding = only(pool)
    assert told(finding) == ("store-wait", "2", "0")
    assert finding.headline == (
        "new_group for ranks 0,2 was never called by rank 2; rank 0 waits for that."
    )
    assert pool.diagnose().pg_ids == ("1@p@x",)
    assert pool.diagnose().waits_for_store == RankSet.of([0])


@pytest.mark.parametrize("clock", ["", "of one machine"])
def test_a_group_after_one_of_the_same_name(clock: str):
    """Only comparable times show which of the two groups the other rank has made."""
    pool = Ranks(2)
    group: dict[str, Any] = {"group": "0@@x", "keys": ("0", "1")}
    pool[1].done("init_process_group", at_s=5.0, ended_s=4.0, **group)
    pool[1].finished()
    pool[0].blocked("init_process_group", at_s=3.0, **group)
    for rank in pool:
        rank.clock = clock
    assert pool.diagnose().verdict is bool(clock)
    pool[1].done("init_process_group", at_s=3.5, ended_s=2.9, **group)
    assert not pool.diagnose().verdict


def test_a_group_of_members_that_are_not_known():
    pool = Ranks(3)
    pool[0].blocked("init_process_group", group="0@@x", keys=(UNKNOWN_MEMBER,) * 2)
    pool[1].blocked(group=pool.group("a", 1, 2))
    assert not pool.diagnose().verdict  # rank 2 may come
    pool[2].finished()
    told_by_kind = {each.kind: each for each in pool.diagnose().findings}
    assert told(told_by_kind["missing-rank"]) == ("missing-rank", "2", "1")
    finding = told_by_kind["store-wait"]
    assert told(finding) == ("store-wait", "", "0")
    assert finding.headline == (
        "Rank 0 waits in init_process_group for 2 members: 1 has come, and no rank is left that "
        "could be another."
    )
    assert finding.next_step == "Call init_process_group on as many ranks as world_size says."


def test_a_group_of_more_members_than_the_pool_has_ranks():
    pool = Ranks(2)
    for rank in range(2):
        pool[rank].blocked("init_process_group", group="0@@x", keys=(UNKNOWN_MEMBER,) * 3)
    finding = only(pool)
    assert told(finding) == ("store-wait", "", "0-1")
    assert finding.headline == (
        "Ranks 0-1 wait in init_process_group for 3 members: 2 have come, and no rank is left that "
        "could be another."
    )
    assert finding.next_step == (
        "Give init_process_group `world_size=2`: this pool has 2 ranks, not 3."
    )


@pytest.mark.parametrize("op", ["init_process_group", "init_rpc"])
def test_as_many_ranks_as_a_group_has_members_are_not_accused(op: str):
    """The ranks may be its members, and torch may still be connecting them."""
    pool = Ranks(3)
    making: dict[str, Any] = {"group": "0@@x", "keys": (UNKNOWN_MEMBER,) * 3}
    for rank in range(3):
        pool[rank].blocked(op, **making)
    assert not pool.diagnose().verdict
    pool = Ranks(3)
    pool[0].blocked(op, **making)
    pool[1].blocked(op, **making)
    pool[2].done(op, **making)  # connected before the others
    pool[2].blocked(group=pool.group("a", 0, 1, 2))
    assert not pool.diagnose().verdict
    pool = Ranks(3)
    pool[0].blocked(op, **making)
    pool[1].blocked(op, **making)
    pool[2].finished()
    assert list(pool.diagnose().stuck) == [0, 1]


def test_a_process_that_a_rank_has_started_may_help():
    """The process may set keys, and join groups in a store of the user."""
    pool = Ranks(3)
    pool[0].blocked("store.wait", keys=("ready",))
    pool[1].blocked("init_process_group", group="0@@x", keys=("0", "1", "2"))
    pool[2].finished()
    assert pool.diagnose().stuck == RankSet.of([0, 1])
    pool[0].has_children = True
    assert not pool.diagnose().verdict
    pool[1].blocked("init_process_group", group="0@nbddp@x", keys=("0", "1", "2"))
    assert pool.diagnose().stuck == RankSet.of([1])


def test_a_group_while_another_rank_is_in_a_collective():
    pool = Ranks(2)
    pool[0].blocked("new_group", group="1@p@x", keys=("0", "1"))
    pool[1].blocked("barrier")
    finding = only(pool)
    assert told(finding) == ("store-wait", "1", "0-1")
    assert finding.op == "new_group"


def test_groups_that_are_made_in_another_order():
    pool = Ranks(3)
    pool[0].blocked("new_group", group="1@p@x", keys=("0", "1"))
    pool[1].blocked("new_group", group="1@p@y", keys=("1", "2"))
    pool[2].finished()
    finding = only(pool)
    assert told(finding) == ("store-wait", "2", "0-1")
    pool[2].blocked("new_group", group="2@p@z", keys=("0", "2"))
    pool[2].state, pool[2].activity = "running", "running"
    finding = only(pool)
    assert finding.kind == "store-wait"
    assert "makes another group meanwhile" in finding.suspicions[0]
