"""Keys that loops poll, names of keys that are mistyped, and stores that no process serves."""

import pytest

from nbddp.controller.diagnosis import Finding
from nbddp.wire.flight_recorder.schema import UNKNOWN_MEMBER
from tests.support.looks import Ranks, told


def the_one(pool: Ranks) -> Finding:
    """The one finding of a pool, proven or not."""
    (finding,) = pool.diagnose().findings
    return finding


def test_a_loop_that_polls_a_key():
    pool = Ranks(3)
    pool[0].issue(
        "store.check", keys=("go",), at_s=3.0, line=4, source="while not store.check(['go']): pass"
    )
    pool[0].runs("while not store.check(['go']): pass", line=4)
    pool[1].finished()
    pool[2].runs("work()")
    finding = the_one(pool)
    assert told(finding) == ("store-wait", "", "0")
    assert not finding.proven
    assert finding.headline == "Rank 0 asks for 'go' again and again, and no rank has set it."
    assert finding.reason == (
        "a loop with store.check, at cell [3], line 4: `while not store.check(['go']): pass`; "
        "it may still be changed by rank 2, which still runs."
    )
    assert finding.since_s == 3.0
    assert not pool.diagnose().verdict


def test_loops_of_several_ranks_that_poll_a_counter():
    pool = Ranks(2)
    for rank in range(2):
        pool[rank].issue("store.add", keys=("came",))
        pool[rank].runs()
    finding = the_one(pool)
    assert finding.headline == (
        "Ranks 0-1 ask for 'came' again and again, and its value does not change."
    )


def test_a_loop_that_polls_comes_before_ranks_that_wait_for_its_rank():
    pool = Ranks(2)
    pool[0].issue("store.get", keys=("n",))
    pool[0].runs()
    pool[1].blocked("barrier")
    assert [finding.kind for finding in pool.diagnose().findings] == ["store-wait", "straggler"]


@pytest.mark.parametrize(
    ("awaited", "suspicion"),
    [
        ("weight/ready", "rank 1 has set 'weights/ready', not 'weight/ready': is the name right?"),
        ("step/2/done", None),  # differs from a key in its numbers only
        ("something else", None),
    ],
)
def test_a_key_that_is_nearly_the_awaited_one(awaited: str, suspicion: str | None):
    pool = Ranks(2)
    pool[0].blocked("store.wait", keys=(awaited,))
    pool[1].finished()
    pool[1].set_keys = ("weights/ready", "step/1/done")
    finding = the_one(pool)
    assert finding.suspicions == (() if suspicion is None else (suspicion,))


def test_a_key_that_was_set_is_not_mistyped():
    pool = Ranks(2)
    pool[0].issue("store.get", keys=("ready",))
    pool[0].runs()
    pool[1].finished()
    pool[1].set_keys = ("ready", "readyy")
    assert the_one(pool).suspicions == ()


def test_a_group_whose_other_members_may_be_threads_or_processes():
    pool = Ranks(2)
    for rank in range(2):
        pool[rank].blocked("init_process_group", group="0@@x", keys=(UNKNOWN_MEMBER,) * 3, at_s=2.0)
    pool[1].runs("spin()", thread="spinner")
    finding = the_one(pool)
    assert (told(finding), finding.proven) == (("store-wait", "", "0-1"), False)
    assert finding.headline == "Ranks 0-1 wait in init_process_group for 3 members: 2 have come."
    assert finding.reason == "another one may still be thread 'spinner' of rank 1."
    assert finding.since_s == 2.0
    del pool[1].threads["spinner"]
    pool[0].has_children = True
    assert the_one(pool).reason == "another one may still be processes that rank 0 has started."


def test_a_group_whose_members_have_all_come_is_being_connected():
    pool = Ranks(2)
    for rank in range(2):
        pool[rank].blocked("init_process_group", group="0@@x", keys=(UNKNOWN_MEMBER,) * 2)
    pool[1].runs("spin()", thread="spinner")
    assert pool.diagnose().findings == ()


def test_a_store_that_no_process_serves_is_no_deadlock():
    pool = Ranks(2)
    pool[0].issue("TCPStore", keys=("tcp://here:1",))
    pool[0].waits(1)
    pool[1].finished()
    finding = the_one(pool)
    assert not finding.proven
    assert finding.headline == "Rank 0 waits in TCPStore: no process listens at tcp://here:1."
