"""Information is missing: threads may still call, cells begin or end, records were overwritten."""

import pytest

from nbddp.controller.diagnosis.report import Report
from nbddp.wire.flight_recorder.schema import OperationState
from nbddp.wire.rank_set import RankSet
from tests.support.looks import RUN, Ranks, notices, site

# --- threads -------------------------------------------------------------------------------------


def test_a_thread_that_runs_may_still_call():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].runs(thread="trainer")
    pool[1].finished()
    assert notices(pool) == [("straggler", "1", "0")]
    pool[1].idle()
    assert notices(pool) == [("straggler", "1", "0")]


def test_a_dormant_thread_calls_nothing():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].sleeps_in_pool()
    pool[1].finished()
    assert pool.diagnose().stuck == RankSet.of([0])


def test_a_thread_that_waits_itself():
    """The thread of the finished rank waits for rank 0, which waits for it: no rank ever calls."""
    pool = Ranks(2)
    pool.group("a", 0, 1)
    pool[0].blocked()
    pool[1].blocked("barrier", group="a", thread="trainer")
    pool[1].finished()
    report = pool.diagnose()
    assert report.stuck == RankSet.of([0])
    assert report.involved == RankSet.of([0, 1])


def test_a_thread_that_waits_for_what_will_come():
    pool = Ranks(3)
    pool.group("a", 1, 2)
    pool[0].blocked()
    pool[1].blocked("barrier", group="a", thread="trainer")
    pool[1].finished()
    pool[2].runs()
    assert notices(pool)[0][0] == "straggler"


def test_one_running_thread_is_enough_to_continue():
    pool = Ranks(2)
    pool.group("a", 0, 1)
    pool[0].blocked()
    pool[0].blocked("barrier", group="a", thread="trainer")
    pool[1].issue("barrier", group="a")
    pool[1].finished()
    assert notices(pool) == []  # the trainer may do what the main thread waits for


def test_all_threads_are_blocked():
    pool = Ranks(2)
    pool.group("a", 0, 1)
    pool[0].blocked()
    pool[0].blocked("barrier", group="a", thread="trainer")
    pool[1].finished()
    report = pool.diagnose()
    assert report.stuck == RankSet.of([0])
    assert sorted(report.pg_ids) == ["a", "world"]


def test_a_main_thread_that_joins_another_is_not_known_to_wait():
    pool = Ranks(2)
    pool[0].blocked("all_reduce", thread="trainer")
    pool[0].runs("trainer.join()", innermost="_wait_for_tstate_lock")
    pool[1].finished()
    assert notices(pool) == []


def test_a_thread_waits_for_all_of_its_operations():
    pool = Ranks(3)
    first, second = pool[0].issue("recv", peer=1), pool[0].issue("recv", peer=2)
    pool[0].waits(first, second)
    pool[1].issue("send", peer=0)
    pool[1].finished()
    pool[2].finished()
    assert pool.diagnose().stuck == RankSet.of([0])


def test_inside_of_torch_one_operation_may_be_enough():
    """Only torch knows which of the open operations backward waits for."""
    pool = Ranks(3)
    first, second = pool[0].issue("recv", peer=1), pool[0].issue("all_reduce")
    pool[0].waits(first, second, kind="pending", stack=(site(8, "loss.backward()"),))
    pool[1].issue("all_reduce")
    pool[1].finished()
    pool[2].issue("all_reduce")
    pool[2].finished()
    assert notices(pool) == []
    pool[2].operations.clear()
    pool[2].seq.clear()
    report = pool.diagnose()
    assert report.stuck == RankSet.of([0])
    assert str(report.findings[0].ranks[0]) == (
        "rank 0 has waited inside torch for recv from rank 1, all_reduce #1"
        ", at cell [3], line 8: `loss.backward()`, for 0.0 s"
    )


# --- cells that begin and end --------------------------------------------------------------------


def test_a_cell_that_has_not_begun_on_a_rank():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].activity = "idle"
    assert notices(pool) == [("straggler", "1", "0")]


def test_a_look_from_before_the_end_of_the_cell():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].finished()
    pool[1].activity = "running"
    assert notices(pool) == [("straggler", "1", "0")]


def test_a_rank_that_is_still_in_an_old_cell():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].idle()
    pool[1].activity = "running"
    pool[1].runs("while True: pass")
    assert notices(pool) == [("straggler", "1", "0")]


def test_a_rank_whose_groups_are_made_again():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].activity = "reforming"
    assert notices(pool) == [("straggler", "1", "0")]


# --- keys and groups -----------------------------------------------------------------------------


def test_a_key_that_a_running_rank_may_set():
    pool = Ranks(2)
    pool[0].blocked("store.wait", keys=("ready",))
    assert notices(pool) == [("store-wait", "", "0")]
    assert pool.diagnose().findings[0].headline == (
        "Nobody has set the key 'ready' yet: rank 0 waits for it."
    )
    why = "Not proven: it may still be set by rank 1, which still runs."
    assert pool.diagnose().findings[0].explanation == why


def test_threads_and_processes_that_may_set_a_key_are_told():
    pool = Ranks(3)
    for each in pool:
        each.blocked("store.wait", keys=("ready",))
    assert not notices_of_threads(pool)
    for thread in ("pin", "feed"):
        pool[1].runs(thread=thread)
    told = "thread 'pin' of rank 1; thread 'feed' of rank 1"
    assert notices_of_threads(pool) == f"Not proven: it may still be set by {told}."
    for thread in ("one", "two"):
        pool[2].runs(thread=thread)
    told = "thread 'pin' of rank 1; thread 'feed' of rank 1; thread 'one' of rank 2 and 1 more"
    assert notices_of_threads(pool) == f"Not proven: it may still be set by {told}."


def test_processes_that_may_set_a_key_are_told():
    pool = Ranks(2)
    for each in pool:
        each.blocked("store.wait", keys=("ready",))
    pool[0].has_children = True
    told = "processes that rank 0 has started"
    assert notices_of_threads(pool) == f"Not proven: it may still be set by {told}."


def notices_of_threads(pool: Ranks) -> str:
    """The reason why missing keys are not proven; empty: they are proven."""
    [finding] = pool.diagnose().findings
    return "" if finding.proven else finding.explanation


def test_a_key_that_a_rank_may_set_which_is_waited_for():
    pool = Ranks(3)
    pool[0].blocked("store.wait", keys=("ready",))
    pool[1].blocked("recv", peer=2)
    assert notices(pool) == [("straggler", "2", "1"), ("store-wait", "", "0")]


def test_a_group_that_a_rank_may_still_make():
    pool = Ranks(3)
    pool[0].blocked("new_group", group="1@p@x", keys=("0", "1"))
    pool[2].finished()
    assert notices(pool) == [("straggler", "1", "0")]


@pytest.mark.parametrize("state", ["scheduled", "completed"])
def test_a_group_that_all_members_are_making(state: OperationState):
    pool = Ranks(3)
    pool[0].blocked("new_group", group="1@p@x", keys=("0", "1"))
    pool[1].issue("new_group", group="1@p@x", keys=("0", "1"), state=state)
    pool[1].finished()
    pool[2].finished()
    assert notices(pool) == []


# --- histories that are cut ----------------------------------------------------------------------


def long_ago(pool: Ranks, rank: int, op: str, **fields: int) -> None:
    """So many operations ago that only the count of its group shows it."""
    pool[rank].done(op, **fields)
    for _ in range(5):
        pool[rank].done("store.wait", keys=("x",))


def cut(pool: Ranks) -> Report:
    return pool.diagnose(last=3)


def test_a_collective_long_ago_is_counted():
    pool = Ranks(2)
    pool[0].blocked()
    long_ago(pool, 1, "all_reduce")
    pool[1].finished()
    assert not cut(pool).verdict
    pool[0].operations.clear()
    pool[0].done()
    pool[0].blocked()
    assert cut(pool).stuck == RankSet.of([0])


@pytest.mark.parametrize(("op", "other"), [("recv", "send"), ("send", "recv")])
def test_a_message_long_ago_may_have_been_the_one(op: str, other: str):
    pool = Ranks(2)
    pool[0].blocked(op, peer=1)
    long_ago(pool, 1, other, peer=0)
    pool[1].finished()
    assert not cut(pool).verdict


@pytest.mark.parametrize("op", ["send", "recv"])
def test_a_group_without_messages_leaves_none_out(op: str):
    pool = Ranks(2)
    pool[0].blocked(op, peer=1)
    long_ago(pool, 1, "all_reduce")
    pool[1].finished()
    assert cut(pool).stuck == RankSet.of([0])


def test_the_newest_message_tells_that_no_newer_one_is_left_out():
    pool = Ranks(2)
    for _ in range(3):
        long_ago(pool, 1, "send", peer=0)
        pool[0].done("recv", peer=1)
    pool[1].done("send", peer=0)
    pool[0].done("recv", peer=1)
    pool[0].blocked("recv", peer=1)
    pool[1].finished()
    assert cut(pool).stuck == RankSet.of([0])


def test_from_any_source_with_messages_left_out():
    pool = Ranks(2)
    pool[0].blocked("recv", peer=-1)
    long_ago(pool, 1, "send", peer=0)
    pool[1].finished()
    assert not cut(pool).verdict


def test_a_group_made_long_ago():
    pool = Ranks(2)
    members = ("0", "1")
    pool[0].blocked("new_group", group="1@p@x", keys=members)
    long_ago(pool, 1, "new_group", group="1@p@x", keys=members)  # type: ignore[arg-type]  # keys
    pool[1].finished()
    pool.group("1", 0, 1, run_id=RUN)
    assert not cut(pool).verdict
    pool.group("1", 0, 1, run_id="an earlier cell")
    assert cut(pool).stuck == RankSet.of([0])
