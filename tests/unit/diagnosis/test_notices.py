"""Waits without a proof: ranks that still run, threads that may call, keys that may be set."""

import pytest

from nbddp.controller.diagnosis.analysis import diagnose
from nbddp.controller.diagnosis.notices import is_waiting_outside
from nbddp.wire.flight_recorder.schema import AT_BREAKPOINT, AT_PROMPT, ThreadLook
from nbddp.wire.rank_set import RankSet
from tests.support.looks import Ranks, notices

# --- ranks that still run ------------------------------------------------------------------------


def test_no_rank_waits():
    assert notices(Ranks(3)) == []


def test_a_straggler():
    pool = Ranks(3)
    pool[0].blocked(at_s=3.0)
    pool[1].blocked()
    pool[2].runs("loss = model(x)", innermost="forward")
    assert notices(pool) == [("straggler", "2", "0-1")]
    (finding,) = pool.diagnose().findings
    assert finding.headline == "Ranks 0-1 wait in all_reduce for rank 2, which still runs."
    assert finding.since_s == 3.0
    assert str(finding.ranks[2]) == (
        "rank 2 runs, now in forward(), at cell [3], line 2: `loss = model(x)`"
    )


@pytest.mark.parametrize(
    ("source", "innermost", "state"),
    [
        ("time.sleep(60)", "<module>", "is in time.sleep()"),
        ("if rank: time.sleep(delay(rank))", "", "is in time.sleep()"),
        ("lock.acquire()", "<module>", "is in lock.acquire()"),
        ("q.get()", "get", "is in q.get()"),
        ("use(q.get())", "get", "is in q.get()"),
        ("train(options.get('x'))", "wait", "waits for something else"),
        ("train(options)", "wait", "is in train()"),
        ("thread.join()", "_wait_for_tstate_lock", "is in thread.join()"),
        ("for batch in loader:", "_try_get_data", "waits for something else"),
        ("answer = input()", "<module>", "is in input()"),
    ],
)
def test_stuck_outside(source: str, innermost: str, state: str):
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].runs(source, innermost=innermost)
    assert notices(pool) == [("stuck-outside", "1", "0")]
    headline = pool.diagnose().findings[0].headline
    assert headline == f"Rank 0 waits in all_reduce for rank 1, which {state}."


def test_ranks_that_import_a_library():
    pool = Ranks(3)
    pool[0].blocked()
    for rank in (1, 2):
        # It opens a file just now, which is no wait outside.
        pool[rank].runs("model = DDP(net)", innermost="readinto", importing="torch._dynamo")
    (finding,) = pool.diagnose().findings
    assert finding.kind == "straggler"
    assert finding.headline.endswith("for ranks 1-2, which import torch._dynamo.")
    assert str(finding.ranks[1]) == (
        "rank 1 imports torch._dynamo, at cell [3], line 2: `model = DDP(net)`"
    )
    pool[2].runs("work()")
    assert pool.diagnose().findings[0].headline.endswith("for ranks 1-2, which still run.")


def test_a_notice_leaves_the_members_of_a_group_to_the_card():
    pool = Ranks(3)
    pool[0].blocked(group=pool.group("tp", 0, 2))
    pool[2].runs("time.sleep(60)")
    (finding,) = pool.diagnose().findings
    assert finding.headline == (
        "Rank 0 waits in all_reduce of group 'tp' for rank 2, which is in time.sleep()."
    )


def test_several_that_wait_in_different_calls():
    pool = Ranks(3)
    pool[0].blocked()
    pool[1].runs("time.sleep(60)")
    pool[2].runs("time.sleep(60)")
    assert pool.diagnose().findings[0].headline.endswith("ranks 1-2, which are in time.sleep().")
    pool[2].runs("lock.acquire()")
    assert pool.diagnose().findings[0].headline.endswith("which wait for something else.")


@pytest.mark.parametrize(("count", "who"), [(2, "rank 1"), (3, "ranks 1-2")])
def test_at_a_prompt(count: int, who: str):
    pool = Ranks(count)
    pool[0].blocked()
    for rank in range(1, count):
        pool[rank].runs("check(x)", innermost=AT_PROMPT)
    (finding,) = pool.diagnose().findings
    assert (finding.kind, finding.proven) == ("stuck-outside", False)
    assert finding.headline == f"Rank 0 waits in all_reduce for {who}, at a prompt."
    assert finding.next_step.startswith("Answer, ")
    assert "is at a prompt" in str(finding.ranks[1])


def test_at_a_breakpoint():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].runs("y = f(x)", innermost=AT_BREAKPOINT)
    (finding,) = pool.diagnose().findings
    assert finding.headline == "Rank 0 waits in all_reduce for rank 1, at a breakpoint."
    assert "is at a breakpoint" in str(finding.ranks[1])


@pytest.mark.parametrize(
    ("source", "innermost"),
    [
        ("x = x @ x", "<module>"),
        ("reader = Reader()", "<module>"),
        ("data = read(path)", "parse"),  # not in the call that the line names
        ("sleepy(3)", "<module>"),
    ],
)
def test_running_is_not_stuck_outside(source: str, innermost: str):
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].runs(source, innermost=innermost)
    assert notices(pool) == [("straggler", "1", "0")]


def test_the_function_alone_tells_where_there_is_no_line():
    assert not is_waiting_outside(ThreadLook(name="main", is_main=True, wait=None))
    asleep = ThreadLook(name="main", is_main=True, wait=None, innermost="select")
    assert is_waiting_outside(asleep)


def test_a_silent_rank_is_never_part_of_a_proof():
    pool = Ranks(3)
    pool[0].blocked()
    pool[1].silent()
    pool[2].blocked()
    assert notices(pool) == [("stuck-outside", "1", "0,2")]
    assert pool.diagnose().ranks[1].what == (
        "does not answer: it is stopped, or runs C code that holds the GIL"
    )
    assert pool.diagnose().findings[0].headline.endswith("rank 1, which does not answer.")


def test_a_silent_rank_that_has_issued_something_else():
    """Issued operations cannot be undone, and the agent has read them."""
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].issue("broadcast", root=1)
    pool[1].silent()
    report = pool.diagnose()
    assert report.stuck == RankSet.of([0])
    assert report.findings[0].kind == "mismatched-collective"


def test_a_rank_that_starts_may_come():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].starting()
    assert notices(pool) == [("straggler", "1", "0")]


def test_a_chain_of_waits_leads_to_the_running_rank():
    pool = Ranks(4)
    pool.group("a", 0, 1)
    pool[0].blocked(group="a", at_s=1)
    pool[1].blocked("recv", peer=2, at_s=2)
    pool[2].blocked("send", peer=3, at_s=3)
    assert notices(pool) == [("straggler", "3", "0-2")]
    (finding,) = pool.diagnose().findings
    assert finding.op == "send"


def test_separate_stragglers_give_two_notices_and_joined_ones_one():
    pool = Ranks(4)
    pool[0].blocked("recv", peer=1)
    pool[2].blocked("recv", peer=3)
    assert notices(pool) == [("straggler", "1", "0"), ("straggler", "3", "2")]
    pool.group("a", 1, 2, 3)
    pool[2].blocked("barrier", group="a")
    assert notices(pool) == [("straggler", "1,3", "0,2")]


def test_a_rank_that_waits_for_a_waiting_rank_is_named_apart():
    pool = Ranks(3)
    pool[0].runs("dist.send(x, 1)", innermost=AT_PROMPT)
    pool[1].blocked("recv", peer=0)
    pool[2].blocked("recv", peer=1)
    (finding,) = pool.diagnose().findings
    assert finding.headline == "Rank 1 waits in recv from rank 0, at a prompt."
    assert finding.explanation == (
        "Not proven: it goes on when you say so. Rank 2 waits for rank 1 in turn."
    )
    assert (str(finding.culprits), str(finding.waiting)) == ("0", "1-2")


def test_ranks_that_wait_for_one_in_several_operations():
    pool = Ranks(3)
    pool.group("pair", 0, 1)
    pool[0].blocked(group="pair")
    pool[1].runs("dist.all_reduce(x, group=pair)", innermost=AT_PROMPT)
    pool[2].blocked()
    (finding,) = pool.diagnose().findings
    assert finding.headline == "Rank 0 waits in all_reduce of group 'pair' for rank 1, at a prompt."
    assert finding.explanation.endswith("Rank 2 waits in another operation.")


def test_the_operation_of_most_ranks_and_the_ranks_that_it_misses_are_named():
    pool = Ranks(5)
    pool[0].blocked("recv", peer=1)
    pool.group("a", 1, 2, 3)
    pool[1].runs("work()")
    pool[2].blocked("barrier", group="a")
    pool[3].blocked("barrier", group="a")
    (finding,) = pool.diagnose().findings
    assert (
        finding.headline == "Ranks 2-3 wait in barrier of group 'a' for rank 1, which still runs."
    )
    pool = Ranks(3)
    pool[0].blocked("recv", peer=1)
    pool[1].runs("work()")
    pool[2].blocked("recv", peer=1)
    (finding,) = pool.diagnose().findings
    assert finding.headline == "Ranks 0,2 wait in recv from rank 1, which still runs."


def test_a_verdict_for_some_and_a_notice_for_others():
    pool = Ranks(5)
    pool.group("a", 0, 1)
    pool.group("b", 2, 3)
    pool[0].blocked(group="a")
    pool[1].finished()
    pool[2].blocked(group="b")
    report = pool.diagnose()
    assert report.stuck == RankSet.of([0])
    assert [(each.kind, each.proven) for each in report.findings] == [
        ("missing-rank", True),
        ("straggler", False),
    ]
    assert report.pg_ids == ("a",)


# --- operations that are under way ---------------------------------------------------------------


def test_all_have_come_and_it_is_in_progress():
    pool = Ranks(3)
    pool[0].blocked()
    pool[1].issue()
    pool[2].done()
    pool[2].finished()
    assert notices(pool) == []


def test_all_have_come_and_it_takes_long():
    pool = Ranks(2)
    for state in pool:
        state.blocked(at_s=6.0)
    assert notices(pool) == [("straggler", "", "0-1")]
    assert pool.diagnose().findings[0].headline == (
        "All ranks have come to all_reduce, and it is not over yet."
    )


def test_a_message_whose_handle_was_dropped():
    pool = Ranks(2)
    pool[0].issue("send", peer=1, state="completed")
    pool[0].finished()
    pool[1].blocked("recv", peer=0, at_s=6.0)
    assert notices(pool) == [("straggler", "", "1")]
    (finding,) = pool.diagnose().findings
    assert finding.headline == (
        "Rank 1 waits in recv from rank 0: was the handle of send at line 1 of rank 0 dropped?"
    )
    assert finding.next_step == "Keep what `send` returns at line 1, and call its `wait()`."


def test_a_message_that_takes_long():
    pool = Ranks(2)
    pool[0].blocked("send", peer=1, at_s=6.0)
    pool[1].blocked("recv", peer=0, at_s=6.0)
    assert [finding.headline for finding in pool.diagnose().findings] == [
        "Rank 0 waits in send to rank 1: both ends have come, and it is not over yet.",
        "Rank 1 waits in recv from rank 0: both ends have come, and it is not over yet.",
    ]


def test_asynchronous_operations_count_as_come():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].issue()
    pool[1].issue("broadcast", root=0)
    pool[1].finished()
    assert notices(pool) == []


def test_a_wait_that_has_ended():
    pool = Ranks(2)
    pool[0].waits(pool[0].done())
    pool[1].finished()
    assert notices(pool) == []


def test_a_wait_for_a_record_that_is_not_known():
    pool = Ranks(2)
    pool[0].waits(77)
    pool[1].finished()
    assert notices(pool) == []
    pool[0].waits()
    assert notices(pool) == []


def test_a_message_that_was_sent_long_ago():
    pool = Ranks(2)
    pool[1].done("send", peer=0)
    pool[1].finished()
    pool[0].blocked("recv", peer=1)
    assert notices(pool) == []


def test_uneven_messages_that_meet():
    pool = Ranks(3)
    pool[0].blocked("recv", peer=1)
    pool[1].issue("send", peer=0)
    pool[1].blocked("recv", peer=2, tag=5)
    pool[2].issue("send", peer=1, tag=5)
    pool[2].finished()
    assert notices(pool) == []


def test_a_receive_from_any_rank_may_take_any_message():
    pool = Ranks(3)
    pool[0].blocked("recv", peer=-1)
    pool[1].finished()
    pool[2].blocked("send", peer=0)
    assert notices(pool) == []


def test_a_message_that_has_come_and_is_not_yet_noticed():
    pool = Ranks(2)
    pool[0].blocked("recv", peer=-1)
    pool[1].done("send", peer=0)
    pool[1].finished()
    assert notices(pool) == []


def test_a_receive_from_any_rank_may_have_taken_the_message():
    pool = Ranks(2)
    for _ in range(2):
        pool[0].issue("send", peer=1)
    pool[0].waits(2)
    pool[1].done("recv", peer=-1)
    pool[1].done("recv", peer=0)
    pool[1].finished()
    assert notices(pool) == []


def test_one_sender_is_enough_for_a_receive_from_any_rank():
    pool = Ranks(3)
    pool[0].blocked("recv", peer=-1)
    pool[1].finished()
    assert notices(pool) == [("straggler", "2", "0")]


def test_a_message_that_was_taken_from_any_rank():
    pool = Ranks(2)
    pool[0].done("recv", peer=-1)
    pool[0].blocked("recv", peer=1)
    pool[1].done("send", peer=0)
    pool[1].blocked("send", peer=0)
    assert notices(pool) == []


def test_a_rank_of_which_nothing_is_known_may_come():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].finished()
    views = pool.views()
    del views[1]
    assert not diagnose(views, now_ns=0, run_id="run").verdict


def test_a_group_that_no_rank_describes():
    pool = Ranks(2)
    pool[0].blocked(group="unknown")
    assert notices(pool) == []  # it is not even known which rank is waited for
    pool[1].finished()
    report = pool.diagnose()
    assert report.stuck == RankSet.of([0])
    assert report.findings[0].kind == "missing-rank"
