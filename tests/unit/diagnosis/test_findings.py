"""Each kind of finding: its proof, the ranks that it names, its words."""

import pytest

from nbddp.controller.diagnosis.report import KINDS, TITLES
from nbddp.controller.diagnosis.words import WRITERS
from nbddp.wire.flight_recorder import Failure
from nbddp.wire.rank_set import RankSet
from tests.support.looks import Ranks, only, told

# --- missing-rank --------------------------------------------------------------------------------


def test_a_rank_that_has_finished_is_missing():
    pool = Ranks(4)
    for rank in (0, 1, 3):
        pool[rank].done(line=3)
        pool[rank].blocked(line=4, at_s=2.0)
    pool[2].done(line=3)
    pool[2].finished()
    finding = only(pool)
    assert told(finding) == ("missing-rank", "2", "0-1,3")
    assert (finding.op, finding.collective_seq_id) == ("all_reduce", 2)
    assert finding.group is not None
    assert finding.group.ranks == RankSet.all(4)
    assert finding.headline == (
        "Rank 2 never called the 2nd all_reduce (#2); ranks 0-1,3 wait for it."
    )
    assert finding.since_s == 2.0
    assert [str(each) for each in finding.ranks.values()] == [
        "rank 0 has waited in all_reduce #2, at cell [3], line 4: `dist.all_reduce(x)`, for 2.0 s",
        "rank 1 has waited in all_reduce #2, at cell [3], line 4: `dist.all_reduce(x)`, for 2.0 s",
        "rank 2 has finished the cell; its last operation was all_reduce #1"
        ", at cell [3], line 3: `dist.all_reduce(x)`",
        "rank 3 has waited in all_reduce #2, at cell [3], line 4: `dist.all_reduce(x)`, for 2.0 s",
    ]
    assert finding.suspicions == ()


def test_a_rank_that_takes_no_part_is_missing():
    pool = Ranks(2)
    pool[0].blocked("barrier")
    pool[1].idle()
    finding = only(pool)
    assert told(finding) == ("missing-rank", "1", "0")
    assert str(finding.ranks[1]) == "rank 1 takes no part in this cell"


def test_a_line_that_has_run_fewer_times_is_suspected():
    pool = Ranks(3)
    for state in pool:
        state.done(line=4)
    for rank in (0, 2):
        pool[rank].blocked(line=4)
    pool[1].finished()
    (suspicion,) = only(pool).suspicions
    assert suspicion.startswith("rank 1 has run this line, and fewer times: something has left")


def test_several_missing_ranks_of_a_sub_group():
    pool = Ranks(5)
    tensor_parallel = pool.group("tp", 1, 2, 4)
    pool[1].blocked("all_gather", group=tensor_parallel)
    for rank in (0, 2, 3, 4):
        pool[rank].finished()
    finding = only(pool)
    assert told(finding) == ("missing-rank", "2,4", "1")
    assert finding.headline == (
        "Ranks 2,4 never called all_gather of group 'tp' (ranks 1-2,4); rank 1 waits for them."
    )
    assert list(finding.ranks) == [1, 2, 4]


def test_a_rank_that_waits_for_waiting_ranks_is_named_as_waiting():
    pool = Ranks(4)
    pool.group("a", 0, 1, 3)
    pool[0].blocked(group="a")
    pool[1].blocked(group="a")
    pool[2].blocked("recv", peer=1)
    pool[3].finished()
    finding = only(pool)
    assert told(finding) == ("missing-rank", "3", "0-2")
    assert finding.headline == (
        "Rank 3 never called all_reduce of group 'a' (ranks 0-1,3); ranks 0-1 wait for it."
    )
    assert "Rank 2 waits for ranks 0-1 in turn." in finding.explanation


def test_two_hangs_at_once_are_two_findings():
    pool = Ranks(6)
    first, second = pool.group("a", 0, 1, 2), pool.group("b", 3, 4, 5)
    pool[0].blocked(group=first)
    pool[1].blocked(group=first)
    pool[3].blocked(group=second)
    for rank in (2, 4, 5):
        pool[rank].finished()
    report = pool.diagnose()
    assert [told(each) for each in report.findings] == [
        ("missing-rank", "2", "0-1"),
        ("missing-rank", "4-5", "3"),
    ]
    assert report.pg_ids == ("a", "b")
    assert report.stuck == RankSet.of([0, 1, 3])


def test_a_group_that_a_rank_has_destroyed():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].done("barrier")
    pool[1].operations.clear()
    pool[1].seq.clear()
    pool[1].finished()
    del pool.groups["world"]
    pool.group("world", 0, 1)
    assert told(only(pool)) == ("missing-rank", "1", "0")


# --- first-error, dead-rank ----------------------------------------------------------------------


def test_a_rank_that_raised_and_is_waited_for():
    pool = Ranks(3)
    for state in pool:
        state.done("barrier", line=3)
    pool[0].blocked()
    pool[1].blocked()
    pool[2].raised("ValueError: boom", line=5)
    finding = only(pool)
    assert told(finding) == ("first-error", "2", "0-1")
    assert finding.headline == (
        "Rank 2 raised ValueError: boom; ranks 0-1 wait for it in all_reduce."
    )
    assert str(finding.ranks[2]) == (
        "rank 2 raised ValueError: boom, after barrier #1"
        ", at cell [3], line 5: `raise ValueError('boom')`"
    )
    assert finding.next_step == "Fix the error on rank 2; the others only waited for it."


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 300ms for recv",
        "DistStoreError: wait timeout after 300ms, keys: /x",
    ],
)
def test_a_timeout_is_no_error_to_fix(error: str):
    """The timeout was too short for a proof: the rank waited as the others do."""
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].raised(error, line=5)
    step = "Look for what rank 1 waited for: its timeout expired first."
    assert only(pool).next_step == step


def test_a_rank_that_left_the_debugger_made_no_error():
    pool = Ranks(3)
    pool[0].blocked()
    pool[1].raised("BdbQuit")
    pool[2].blocked()
    finding = only(pool)
    assert told(finding) == ("left-debugger", "1", "0,2")
    assert finding.headline == ("Rank 1 left the debugger; ranks 0,2 wait for it in all_reduce.")
    assert finding.next_step == ""
    assert finding.ranks[1].what == "left the debugger, before any collective of this cell"


def test_an_error_tells_more_than_a_debugger_that_was_left():
    pool = Ranks(3)
    pool[0].blocked()
    pool[1].raised("BdbQuit")
    pool[2].raised("ValueError: boom")
    assert told(only(pool)) == ("first-error", "2", "0")


def test_a_rank_that_raised_before_anything():
    pool = Ranks(2)
    pool[0].blocked("recv", peer=1)
    pool[1].raised()
    finding = only(pool)
    assert told(finding) == ("first-error", "1", "0")
    assert finding.ranks[1].what == "raised ValueError: boom, before any collective of this cell"


def test_a_freed_rank_is_not_blamed_beside_one_that_raised():
    pool = Ranks(3)
    pool[0].blocked()
    pool[1].raised("CollectiveAbortedError: freed", was_freed=True)
    pool[2].raised("ValueError: boom")
    assert told(only(pool)) == ("first-error", "2", "0")


def test_a_failed_operation_of_a_rank_that_raised():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].issue(state="failed", failure=Failure("raised"), waited_ns=1)
    pool[1].raised("RuntimeError: Timed out")
    assert told(only(pool)) == ("first-error", "1", "0")


def test_errors_for_which_no_rank_waits_are_no_finding():
    pool = Ranks(2)
    pool[0].runs()
    pool[1].raised()
    assert pool.diagnose().findings == ()


def test_of_ranks_that_were_lost_with_their_node_no_end_is_claimed():
    pool = Ranks(4)
    for state in (pool[0], pool[1]):
        state.raised("KeyboardInterrupt")
    pool[2].lost()
    pool[3].lost()
    (finding,) = pool.diagnose().findings
    assert finding.headline == (
        "Ranks 2-3 were lost: node 1 was given up (nothing was heard of h12 for 60 s)."
    )
    assert finding.reason == "the connection to their agent was given up."
    assert finding.next_step == (
        "`%ddp restart -r 2-3` asks for another agent; the others keep their variables."
    )
    assert finding.ranks[2].what == (
        "was lost: node 1 was given up (nothing was heard of h12 for 60 s)"
    )


def test_lost_ranks_beside_one_that_exited():
    pool = Ranks(3)
    pool[0].lost()
    pool[1].dead()
    pool[2].finished()
    (finding,) = pool.diagnose().findings
    assert finding.reason == (
        "the process of rank 1 has ended, and the connection to the agent of rank 0 was given up."
    )
    assert finding.next_step == (
        "Pull what you need of the others, then `%ddp restart`, which asks for another agent "
        "and ends all ranks."
    )


def test_a_dead_rank():
    pool = Ranks(3)
    for state in pool:
        state.done("barrier", line=3)
    pool[0].blocked()
    pool[1].blocked("recv", peer=0)
    pool[2].dead()
    finding = only(pool)
    assert told(finding) == ("dead-rank", "2", "0-1")
    assert finding.headline == (
        "Rank 2 exited with SIGKILL (signal 9); rank 0 waits for it in all_reduce."
    )
    assert "Rank 1 waits for rank 0 in turn." in finding.explanation
    assert finding.ranks[2].what == (
        "exited with SIGKILL (signal 9); its last operation was barrier #1"
    )


def test_a_rank_that_died_inside_of_the_operation_cannot_complete_it():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].blocked()
    pool[1].dead()
    assert told(only(pool)) == ("dead-rank", "1", "0")


def test_a_rank_that_died_after_its_part():
    pool = Ranks(3)
    for rank in (0, 1):
        pool[rank].blocked("broadcast", root=2)
    pool[2].done("broadcast", root=2)
    pool[2].dead()
    report = pool.diagnose()
    assert not report.verdict
    assert [told(each) for each in report.findings] == [("dead-rank", "2", "")]


def test_a_rank_that_died_long_after_its_part():
    """Only its newest records are left, and everything that was open."""
    pool = Ranks(2)
    pool[0].blocked("broadcast", root=1)
    for _ in range(5):
        pool[1].done("broadcast", root=1)
    pool[1].dead()
    assert not pool.diagnose(last=2).verdict
    pool[1].done("store.wait", keys=("x",))
    assert not pool.diagnose(last=1).verdict  # nothing is known of what it did in this group


def test_a_group_that_a_dead_rank_has_made_long_ago():
    pool = Ranks(2)
    members = ("0", "1")
    pool[0].blocked("new_group", group="1@p@x", keys=members)
    pool[1].dead()
    assert pool.diagnose().stuck == RankSet.of([0])
    pool[1].done("new_group", group="1@p@x", keys=members)
    pool[1].done("store.wait", keys=("x",))
    assert not pool.diagnose(last=1).verdict


def test_a_message_that_a_dead_rank_did_not_get_out():
    pool = Ranks(2)
    pool[0].blocked("recv", peer=1)
    pool[1].blocked("send", peer=0)
    pool[1].dead()
    assert told(only(pool)) == ("dead-rank", "1", "0")


# --- priority ------------------------------------------------------------------------------------


def test_the_most_telling_cause_is_named():
    """All causes at once; then without the first, and so on."""
    pool = Ranks(8)
    pool[0].blocked()
    pool[1].dead()
    pool[2].raised()
    pool[3].blocked("send", peer=4)
    pool[4].blocked("send", peer=3)
    pool.group("a", 5, 6)
    pool[5].blocked("broadcast", group="a", root=5)
    pool[6].blocked("broadcast", group="a", root=6)
    pool[7].finished()
    kinds = []
    for rank in (1, 2, None):
        kinds.append([told(each) for each in pool.diagnose().findings])
        if rank is not None:
            pool[rank].state, pool[rank].answers = "finished", True
    assert kinds == [
        [
            ("dead-rank", "1", "0"),
            ("mismatched-collective", "5-6", "5-6"),
            ("p2p-cycle", "3-4", "3-4"),
        ],
        [
            ("first-error", "2", "0"),
            ("mismatched-collective", "5-6", "5-6"),
            ("p2p-cycle", "3-4", "3-4"),
        ],
        [("mismatched-collective", "5-6", "0,5-6"), ("p2p-cycle", "3-4", "3-4")],
    ]


def test_each_kind_has_a_title_and_a_writer():
    assert set(KINDS) == set(TITLES) == set(WRITERS)


def test_kinds_are_those_of_the_documents():
    assert sorted(KINDS) == [
        "buffer-in-use",
        "crossed-lines",
        "dead-rank",
        "desynchronized-loop",
        "first-error",
        "group-cycle",
        "left-debugger",
        "mismatched-collective",
        "missing-rank",
        "not-finite",
        "p2p-cycle",
        "p2p-unmatched",
        "parted-replicas",
        "same-order",
        "samples-twice",
        "samples-unread",
        "silent-mismatch",
        "store-wait",
        "straggler",
        "stuck-outside",
        "uneven-batches",
    ]


def test_the_last_operation_of_a_group_is_not_told_as_the_last_of_all():
    pool = Ranks(3)
    pool.group("sub", 1, 2)
    for rank in range(3):
        pool[rank].done(line=1)
    for rank in (1, 2):
        pool[rank].done("broadcast", group="sub", line=2)
        pool[rank].finished()
    pool[0].blocked(line=3)
    finding = only(pool)
    assert str(finding.ranks[1]).startswith(
        "rank 1 has finished the cell; its last operation in the default group was all_reduce #1, "
    )
    assert str(pool.diagnose().ranks[1]).startswith(
        "rank 1 has finished the cell; its last operation was broadcast #1 of group 'sub'"
    )
