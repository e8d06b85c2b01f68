"""After a freeing or a death the pool is made whole: fresh ranks, groups formed again in place."""

import pytest

from nbddp.controller.recovery.group_plan import groups_to_form
from nbddp.controller.state.actions import NotifyUser, RanksRestarted
from nbddp.controller.state.rank_state import RankState
from nbddp.controller.state.stimuli import (
    AbandonRequested,
    AgentExited,
    InterruptRequested,
    RebuildRequested,
    RestartRanksRequested,
    RestartRequested,
)
from nbddp.settings import Settings
from nbddp.wire.flight_recorder.schema import GroupInfo, GroupMark
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import (
    AbortOperations,
    DescribeRank,
    GroupsRebuilt,
    RanksStopped,
    RebuildGroups,
    RunFinished,
    StartFailed,
    StartRanks,
    StoreExited,
    StoreReady,
)
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import (
    WORLD,
    Pool,
    agent_requests,
    kinds,
    of_type,
    outcome_of,
    requests,
    seen,
    statuses,
    world,
)

BROKEN = GroupMark(pg_id=WORLD, collective_seq_id=1, digest=1, is_broken=True)
EXIT = "rank 1 exited (SIGKILL (signal 9))"


def group(pg_id: str, *ranks: int, seq: int = 0) -> GroupInfo:
    return GroupInfo(pg_id=pg_id, name=pg_id, ranks=ranks, collective_seq_id=seq)


def error(text: str = "no") -> ErrorInfo:
    return ErrorInfo(ename="OSError", evalue=text, traceback=[])


def dead_in_cell(n: int = 3) -> tuple[Pool, str]:
    """Rank 1 has died in a cell; the others have come out."""
    pool = Pool(n)
    run_id = pool.run()
    pool.answer_free(pool.exited(1), pg_ids=(WORLD,))
    for rank in range(n):
        if rank != 1:
            pool.finished(rank, run_id, "E", was_freed=True, marks=(BROKEN,))
    return pool, run_id


# --- which groups --------------------------------------------------------------------------------


def test_broken_groups_are_formed_in_the_order_in_which_ranks_know_them():
    a, b, c = group("a", 0, 1, seq=1), group("b", 1), group("c", 0, 1, seq=3)
    looks = {
        1: seen(1, groups=(a, b, c)),
        0: seen(0, groups=(a, group("c", 0, 1, seq=3))),
    }
    now, later = groups_to_form(looks, RankSet.all(2), {"c", "a", "gone"}, forms_all=False)
    assert now == (a, c)
    assert later == set()


def test_groups_whose_members_disagree_are_formed_and_the_highest_number_counts():
    looks = {
        0: seen(0, groups=(group("a", 0, 1, seq=4), group("b", 0, 1, seq=2))),
        1: seen(1, groups=(group("a", 0, 1, seq=5), group("b", 0, 1, seq=2))),
    }
    now, later = groups_to_form(looks, RankSet.all(2), set(), forms_all=False)
    assert now == (group("a", 0, 1, seq=5),)
    assert later == set()


def test_groups_with_members_that_cannot_take_part_wait():
    looks = {0: seen(0, groups=(group("a", 0, 1), group("b", 0), group("c", 0, 1)))}
    assert groups_to_form(looks, RankSet.of([0]), {"a", "b"}, forms_all=False) == (
        (group("b", 0),),
        {"a"},
    )
    assert groups_to_form(looks, RankSet.of([0]), (), forms_all=True) == (
        (group("b", 0),),
        {"a", "c"},
    )


# --- when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "marks",
    [
        [(BROKEN,), ()],
        [
            (GroupMark(pg_id=WORLD, collective_seq_id=2, digest=1),),
            (GroupMark(pg_id=WORLD, collective_seq_id=1, digest=0),),
        ],
        [(GroupMark(pg_id=WORLD, collective_seq_id=2, digest=1),), ()],
        [
            (GroupMark(pg_id=WORLD, collective_seq_id=2, digest=1, open=1),),
            (GroupMark(pg_id=WORLD, collective_seq_id=2, digest=1, open=1),),
        ],
    ],
    ids=["broken", "out of step", "used on one rank only", "open"],
)
def test_after_a_cell_that_failed_groups_in_doubt_are_looked_at(marks: list[tuple[GroupMark, ...]]):
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, "ValueError", marks=marks[0])
    assert kinds(pool.finished(1, run_id, "ValueError", marks=marks[1])) == ["DescribeRank 0-1"]


def test_ranks_that_turn_out_to_be_in_step_need_nothing():
    pool = Pool(2)
    run_id = pool.run()
    mark = GroupMark(pg_id="pair", collective_seq_id=2, digest=1)
    pool.finished(0, run_id, "ValueError", marks=(mark,))
    ended = pool.answer_looks(pool.finished(1, run_id, "ValueError"))
    assert kinds(ended) == ["EndRun"]


def test_a_rank_that_does_not_answer_then_holds_up_nothing():
    pool = Pool(2)
    run_id = pool.run()
    mark = GroupMark(pg_id="pair", collective_seq_id=2, digest=1)
    pool.finished(0, run_id, "ValueError", marks=(mark,))
    look = pool.finished(1, run_id, "ValueError")
    pool.answer_looks(look, ranks=(0,))
    assert kinds(pool.tick(after_s=0.4)) == ["EndRun"]


def test_a_broken_group_is_formed_again_even_after_a_good_end():
    """The cell has caught the error."""
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    reform = pool.answer_looks(pool.finished(1, run_id, marks=(BROKEN,)))
    assert kinds(reform) == ["RebuildGroups 0-1"]
    assert statuses(outcome_of(pool.answer_reform(reform))) == {0: "ok", 1: "ok"}


def test_a_rank_that_is_silent_is_asked_again_when_a_group_is_broken():
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    look = pool.finished(1, run_id, marks=(BROKEN,))
    pool.answer_looks(look, ranks=(0,))
    again = pool.tick(after_s=0.4)
    assert kinds(again) == ["DescribeRank 0-1"]
    assert kinds(pool.answer_looks(again)) == ["RebuildGroups 0-1"]


def test_a_rank_that_stays_silent_fails_the_mend():
    pool = Pool(2, settings=Settings(rebuild_timeout_s=1.0))
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    pool.finished(1, run_id, marks=(BROKEN,))
    for _ in range(3):
        pool.tick(after_s=0.4)
    outcome = outcome_of(pool.done)
    assert outcome.rebuild_failure == "ranks 0-1 did not report the process groups"
    refusal = pool.machine.refusal(RankSet.all(2))
    assert refusal == (
        "the process groups could not be formed again (ranks 0-1 did not report the process groups)"
    )
    assert pool.machine.refusal(RankSet.of([0])) is None
    assert pool.machine.transfer_refusal(RankSet.all(2)) is None


def test_a_reform_that_fails_is_tried_again_with_the_others_freed():
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    reform = pool.answer_looks(pool.finished(1, run_id, marks=(BROKEN,)))
    frees = pool.answer_reform(reform, errors={0: "connection refused"})
    assert kinds(frees) == ["AbortOperations arm 0-1", "AbortOperations fire 0-1"]
    assert {free.reason for _, free in requests(frees, AbortOperations)} == {"error"}
    assert {free.pg_ids for _, free in requests(frees, AbortOperations)} == {(WORLD,)}
    ended = {free.reform for _, free in requests(frees, AbortOperations)}
    assert ended == {request.number for _, request in requests(reform, RebuildGroups)}
    look = pool.tick(after_s=0.05)
    again = pool.answer_looks(look)
    numbers = [request.number for _, request in requests([*reform, *again], RebuildGroups)]
    assert numbers[0] != numbers[1]
    assert outcome_of(pool.answer_reform(again)).rebuild_failure == ""


def test_a_reform_that_fails_three_times_is_said():
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    look = pool.finished(1, run_id, marks=(BROKEN,))
    for _ in range(3):
        pool.answer_reform(pool.answer_looks(look), errors={0: "connection refused"})
        look = pool.tick(after_s=0.05)
    outcome = outcome_of(pool.done)
    assert outcome.rebuild_failure == "rank 0: RuntimeError: connection refused; tried 3 times"
    # Next time, the groups are still to be formed.
    run_id = pool.run("0")
    assert kinds(pool.finished(0, run_id)) == ["EndRun"]


def test_groups_that_could_not_be_formed_are_tried_again_on_request():
    pool, _ = dead_in_cell()
    pool.start_fresh(pool.done)
    reform = pool.answer_looks([pool.done[-1]])
    ended = pool.tick(after_s=20.0)
    assert outcome_of(ended).rebuild_failure == "ranks 0-2 did not form their groups in 20 s"
    assert "could not be formed again" in str(pool.machine.refusal(RankSet.all(3)))
    assert pool.machine.may_rebuild_again
    pool.feed(RebuildRequested())
    assert pool.is_rebuilding()
    reform = pool.answer_looks(pool.tick(after_s=0.05))
    assert requests(reform, RebuildGroups)[0][1].fresh == (1,)
    pool.answer_reform(reform)
    assert not pool.is_rebuilding()
    assert pool.machine.refusal(RankSet.all(3)) is None
    pool.feed(RebuildRequested())
    assert not pool.is_rebuilding()  # nothing is broken


def test_a_reform_that_does_not_end_is_said():
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    pool.answer_looks(pool.finished(1, run_id, marks=(BROKEN,)))
    ended = pool.tick(after_s=20.0)
    assert outcome_of(ended).rebuild_failure == "ranks 0-1 did not form their groups in 20 s"


# --- a death in a cell ---------------------------------------------------------------------------


def test_a_dead_rank_is_replaced_before_the_outcome_is_told():
    pool, run_id = dead_in_cell()
    [(node, start)] = agent_requests(pool.done, StartRanks)
    assert (node, start.ranks, start.joins) == (0, (1,), True)
    assert (start.master_addr, start.master_port) == ("127.0.0.1", 29500)
    assert pool.machine.pool.ranks[1].state is RankState.STARTING
    assert pool.active() == run_id
    look = pool.start_fresh(pool.done)
    assert kinds(look) == ["DescribeRank 0,2"]
    pool.looks = {rank: pool.idle(rank) for rank in (0, 2)}
    reform = pool.answer_looks(look)
    [(ranks, request)] = requests(reform, RebuildGroups)
    assert (ranks, request.fresh, request.groups) == ((0, 1, 2), (1,), (world(3),))
    outcome = outcome_of(pool.answer_reform(reform))
    assert statuses(outcome) == {0: "error", 1: "exited", 2: "error"}
    assert outcome.fresh == RankSet.of([1])
    assert outcome.rebuild_failure == ""
    assert of_type(pool.done, NotifyUser) == []  # the outcome tells it
    assert pool.machine.refusal(RankSet.all(3)) is None
    assert pool.machine.next_deadline() is None


def test_all_groups_are_formed_when_a_rank_is_fresh():
    pool, _ = dead_in_cell()
    look = pool.start_fresh(pool.done)
    pair = group("pair", 0, 2, seq=9)
    for rank in (0, 2):
        pool.looks[rank] = seen(rank, is_running=False, groups=(world(3, seq=1), pair))
    [(_, request)] = requests(pool.answer_looks(look), RebuildGroups)
    assert request.groups == (world(3, seq=1), pair)


def test_on_request_a_dead_rank_is_not_replaced():
    pool = Pool(3)
    pool.configure(on_death="keep")
    run_id = pool.run()
    pool.answer_free(pool.exited(1), pg_ids=(WORLD, "pair"))
    pool.finished(0, run_id, "E", was_freed=True)
    look = pool.finished(2, run_id, "E", was_freed=True)
    pair = group("pair", 0, 2)
    for rank in (0, 2):
        pool.looks[rank] = seen(rank, is_running=False, groups=(world(3), pair))
    reform = pool.answer_looks(look)
    [(ranks, request)] = requests(reform, RebuildGroups)
    assert (ranks, request.groups, request.fresh) == ((0, 2), (pair,), ())
    outcome = outcome_of(pool.answer_reform(reform))
    assert outcome.fresh == RankSet()
    assert pool.machine.refusal(RankSet.all(3)) == "rank 1 has exited"
    # The group that has lost a member is not tried again after each cell.
    run_id = pool.run("0,2")
    pool.finished(0, run_id)
    assert kinds(pool.finished(2, run_id)) == ["EndRun"]


def test_a_fresh_rank_that_exits_is_replaced_again():
    pool, _ = dead_in_cell()
    pool.spawned(1)
    pool.exited(1)
    start = pool.tick(after_s=0.05)
    assert kinds(start) == ["StartRanks 1"]
    reform = pool.answer_looks(pool.start_fresh(start))
    assert requests(reform, RebuildGroups)[0][1].fresh == (1,)
    assert outcome_of(pool.answer_reform(reform)).fresh == RankSet.of([1])


def test_a_fresh_rank_that_always_exits_is_given_up():
    pool, _ = dead_in_cell()
    for _ in range(3):
        pool.spawned(1)
        pool.exited(1, exit_code=1)
        pool.tick(after_s=0.05)
    outcome = outcome_of(pool.done)
    assert outcome.rebuild_failure == (
        "rank 1 exited (exit code 1) while the pool was being rebuilt; tried 3 times"
    )
    assert outcome.fresh == RankSet()
    refusal = pool.machine.refusal(RankSet.all(3))
    assert refusal == f"rank 1 has exited ({outcome.rebuild_failure})"
    # The next cell of the others does not begin this anew.
    run_id = pool.run("0")
    assert kinds(pool.finished(0, run_id)) == ["EndRun"]


def test_a_fresh_rank_that_cannot_start_is_named_with_the_reason():
    pool, _ = dead_in_cell()
    for _ in range(3):
        pool.feed(StartFailed(node=0, rank=1, error=error("no memory")))
        pool.tick(after_s=0.05)
    assert outcome_of(pool.done).rebuild_failure == (
        "rank 1 could not start (OSError: no memory) while the pool was being rebuilt; "
        "tried 3 times"
    )
    assert pool.machine.pool.ranks[1].state is RankState.EXITED


def test_a_fresh_rank_that_fails_in_its_own_process_exits_afterwards():
    pool, _ = dead_in_cell()
    pool.spawned(1)
    assert pool.feed(StartFailed(node=0, rank=1, error=error("no port"))) == []
    assert kinds(pool.exited(1, exit_code=1)) == ["AnnounceExit"]
    assert kinds(pool.tick(after_s=0.05)) == ["StartRanks 1"]


def test_a_fresh_rank_that_does_not_come_up_is_ended():
    pool, _ = dead_in_cell()
    ended = pool.tick(after_s=20.0)
    assert kinds(ended) == ["KillRanks 1", "EndRun"]
    assert outcome_of(ended).rebuild_failure == "rank 1 was not ready within 20 s"
    assert "takes the place of rank 1" in str(pool.machine.refusal(RankSet.all(3)))
    assert kinds(pool.exited(1)) == ["AnnounceExit"]
    assert str(pool.machine.refusal(RankSet.all(3))).startswith("rank 1 has exited (rank 1 was not")


def test_a_survivor_that_dies_while_groups_are_formed_is_replaced_too():
    pool, _ = dead_in_cell()
    pool.looks = {rank: pool.idle(rank) for rank in (0, 2)}
    reform = pool.answer_looks(pool.start_fresh(pool.done))
    frees = pool.exited(2)
    # The others may wait for it.
    assert kinds(frees) == ["AnnounceExit", "AbortOperations arm 0-1", "AbortOperations fire 0-1"]
    assert {free.ranks for _, free in requests(frees, AbortOperations)} == {(2,)}
    pool.answer_reform(reform, errors={0: "freed", 1: "freed"})
    start = pool.tick(after_s=0.05)
    assert kinds(start) == ["StartRanks 2"]
    again = pool.answer_looks(pool.start_fresh(start))
    [(ranks, request)] = requests(again, RebuildGroups)
    assert (ranks, request.fresh) == ((0, 1, 2), (1, 2))
    outcome = outcome_of(pool.answer_reform(again))
    assert outcome.fresh == RankSet.of([1, 2])


def test_a_survivor_that_dies_while_it_is_asked_for_its_groups():
    pool, _ = dead_in_cell()
    pool.looks = {rank: pool.idle(rank) for rank in (0, 2)}
    pool.start_fresh(pool.done)
    pool.exited(2)
    start = pool.tick(after_s=0.05)
    assert kinds(start) == ["StartRanks 2"]
    assert kinds(pool.start_fresh(start)) == ["DescribeRank 0"]


def test_without_the_store_groups_cannot_be_formed():
    pool = Pool(2)
    pool.feed(StoreExited(pid=2, exit_code=-9))
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    ended = pool.finished(1, run_id, marks=(BROKEN,))
    assert "the process of the store has ended" in outcome_of(ended).rebuild_failure


def test_ranks_of_a_node_whose_agent_is_gone_are_not_replaced():
    pool = Pool(1, nnodes=2)
    run_id = pool.run()
    pool.feed(AgentExited(1, -9, ""))
    look = pool.finished(0, run_id, "E", marks=(BROKEN,))
    assert kinds(look) == ["DescribeRank 0"]
    outcome = outcome_of(pool.answer_looks(look))
    assert outcome.fresh == RankSet()
    assert "agent of node 1" in str(pool.machine.refusal(RankSet.all(2)))


def test_where_nobody_survives_the_pool_starts_anew():
    pool = Pool(2)
    run_id = pool.run()
    pool.exited(0)
    stop = pool.exited(1)
    assert kinds(stop) == ["AnnounceExit", "StopRanks"]
    assert pool.active() == run_id
    store = pool.feed(RanksStopped(node=0))
    assert kinds(store) == ["StartStore"]
    start = pool.feed(StoreReady(host="127.0.0.1", port=1, pid=9))
    assert [request.joins for _, request in agent_requests(start, StartRanks)] == [False]
    pool.spawned(0)
    pool.spawned(1)
    pool.ready(0)
    ended = pool.ready(1)
    assert kinds(ended) == ["EndRun"]  # nobody waits for a start
    assert outcome_of(ended).fresh == RankSet.all(2)
    assert pool.machine.refusal(RankSet.all(2)) is None


def test_a_rank_that_dies_while_the_pool_starts_anew_has_it_start_again():
    pool = Pool(2)
    pool.run()
    pool.exited(0)
    pool.exited(1)
    for _ in range(2):
        pool.feed(RanksStopped(node=0))
        pool.feed(StoreReady(host="127.0.0.1", port=1, pid=9))
        pool.spawned(0)
        pool.ready(0)
        assert kinds(pool.exited(0)) == ["AnnounceExit", "StopRanks"]  # ready, and rank 1 is not
    pool.feed(RanksStopped(node=0))
    pool.feed(StoreReady(host="127.0.0.1", port=1, pid=9))
    pool.spawned(0)
    failure = outcome_of(pool.exited(0)).rebuild_failure
    assert failure.startswith("rank 0 ended while it started")
    assert failure.endswith("tried 3 times")


def test_when_the_last_rank_that_knows_the_groups_dies_the_fresh_ones_make_a_default_group():
    pool = Pool(3)
    pool.exited(0)
    pool.exited(1)
    start = pool.tick(after_s=0.05)
    assert kinds(start) == ["StartRanks 0-1"]
    pool.spawned(0)
    pool.ready(0)
    pool.exited(2)
    again = pool.tick(after_s=0.05)
    assert kinds(again) == ["StartRanks 2"]
    pool.spawned(1)
    assert pool.ready(1) == []
    reform = pool.start_fresh(again)
    [(ranks, request)] = requests(reform, RebuildGroups)
    assert ranks == request.fresh == (0, 1, 2)
    assert request.initialises
    assert request.groups == ()
    pool.answer_reform(reform)
    assert not pool.is_rebuilding()
    assert not pool.machine.snapshot().joining
    assert pool.machine.refusal(RankSet.all(3)) is None


def test_fresh_ranks_that_could_not_make_a_default_group_try_again():
    pool = Pool(2)
    pool.exited(0)
    start = pool.tick(after_s=0.05)
    pool.exited(1)
    reform = pool.start_fresh([*pool.tick(after_s=0.05), *start])
    assert requests(reform, RebuildGroups)[0][1].initialises
    frees = pool.exited(0)
    assert [free.ranks for _, free in requests(frees, AbortOperations)] == [(0,), (0,)]
    [(_, request)] = requests(reform, RebuildGroups)
    settle = pool.feed(GroupsRebuilt(number=request.number, rank=1, error=error("rank 0 exited")))
    start = [*settle, *pool.tick(after_s=0.05)]
    assert kinds(start) == ["StartRanks 0"]
    reform = pool.start_fresh(start)
    [(ranks, request)] = requests(reform, RebuildGroups)
    assert ranks == (0, 1)
    assert request.initialises
    pool.answer_reform(reform)
    assert pool.machine.refusal(RankSet.all(2)) is None


def test_fresh_ranks_that_start_are_waited_for_when_another_rank_is_lost_for_good():
    pool = Pool(1, 3)
    pool.exited(0)
    assert kinds(pool.tick(after_s=0.05)) == ["StartRanks 0"]
    pool.feed(AgentExited(node=2, exit_code=-9, last_output=""))
    assert kinds(pool.tick(after_s=0.05)) == []
    pool.spawned(0)
    assert requests(pool.ready(0), DescribeRank)[0][0] == (1,)


def test_a_new_start_that_fails_is_said():
    pool = Pool(1)
    pool.run()
    pool.exited(0)
    pool.feed(RanksStopped(node=0))
    ended = pool.feed(StartFailed(node=0, rank=None, error=error("port 1 is taken")))
    assert kinds(ended) == ["EndRun"]
    assert "port 1 is taken" in outcome_of(ended).rebuild_failure


# --- while an outcome is held back ---------------------------------------------------------------


def test_a_cell_is_refused_and_an_interrupt_does_nothing_while_the_outcome_is_held():
    pool, run_id = dead_in_cell()
    assert pool.machine.refusal(RankSet.of([0])) == "a cell is running"
    assert pool.machine.transfer_refusal(RankSet.of([0])) == "a cell is running"
    assert not pool.is_rebuilding()
    assert pool.feed(InterruptRequested(run_id)) == []


# --- between cells -------------------------------------------------------------------------------


def test_a_rank_that_dies_between_cells_is_replaced_and_the_user_hears_of_it():
    pool = Pool(3)
    assert kinds(pool.exited(1)) == ["AnnounceExit"]
    assert pool.is_rebuilding()
    start = pool.tick(after_s=0.05)
    assert kinds(start) == ["StartRanks 1"]
    reform = pool.answer_looks(pool.start_fresh(start))
    done = pool.answer_reform(reform)
    assert [news.text for news in of_type(done, NotifyUser)] == [
        f"{EXIT} and was replaced by a fresh process: its variables are gone, "
        "those of ranks 0,2 are kept"
    ]
    assert not pool.is_rebuilding()
    assert pool.machine.refusal(RankSet.all(3)) is None


def test_ranks_that_die_together_are_replaced_together():
    pool = Pool(4)
    pool.exited(1)
    pool.tick(after_s=0.03)
    pool.exited(3)
    assert pool.tick(after_s=0.03) == []
    start = pool.tick(after_s=0.03)
    assert kinds(start) == ["StartRanks 1,3"]
    done = pool.answer_reform(pool.answer_looks(pool.start_fresh(start)))
    assert [news.rank for news in of_type(done, NotifyUser)] == [1, 3]


def test_ranks_that_die_again_and_again_between_cells_are_given_up():
    pool = Pool(2)
    for _ in range(3):
        pool.exited(1)
        pool.answer_reform(pool.answer_looks(pool.start_fresh(pool.tick(after_s=0.05))))
    gone = pool.exited(1)
    assert [news.text for news in of_type(gone, NotifyUser)] == [
        f"{EXIT} and could not be replaced: ranks exit repeatedly between cells"
    ]
    assert pool.tick(after_s=10.0) == []
    assert "exit repeatedly" in str(pool.machine.refusal(RankSet.all(2)))


def test_a_cell_in_between_counts_as_success():
    pool = Pool(2)
    for _ in range(8):
        pool.exited(1)
        pool.answer_reform(pool.answer_looks(pool.start_fresh(pool.tick(after_s=0.05))))
        run_id = pool.run()
        pool.finished(0, run_id)
        pool.finished(1, run_id)
    assert pool.machine.refusal(RankSet.all(2)) is None


def test_a_rank_that_comes_back_from_an_old_cell_gets_its_groups():
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, "E", marks=(BROKEN,))
    pool.looks[1] = seen(1, groups=(world(2),))
    pool.feed(InterruptRequested(run_id))
    pool.answer_free(pool.answer_free(pool.tick(after_s=0.1), pg_ids=(WORLD,)))
    pool.tick(after_s=1.0)
    pool.answer_looks([pool.tick(after_s=2.0)[-1]])
    assert statuses(outcome_of(pool.done)) == {0: "error", 1: "unfinished"}
    assert pool.machine.refusal(RankSet.all(2)) == "rank 1 is still in an old cell"
    back = pool.feed(RunFinished(run_id=run_id, rank=1, elapsed_s=9.0, error=None))
    assert back == []
    assert pool.is_rebuilding()
    look = pool.tick(after_s=0.05)
    pool.looks[1] = pool.idle(1)
    reform = pool.answer_looks(look)
    assert requests(reform, RebuildGroups)[0][1].groups == (world(2),)
    pool.answer_reform(reform)
    assert pool.machine.refusal(RankSet.all(2)) is None


def test_a_rank_that_comes_back_while_groups_are_formed_is_not_waited_for_and_gets_its_own():
    """Nobody has asked it, so it has nothing to answer."""
    pool = Pool(3)
    run_id = pool.run()
    pool.looks[2] = seen(2, groups=(world(3), group("pair", 0, 1)))
    pool.feed(InterruptRequested(run_id))
    pool.answer_free(pool.tick(after_s=0.1), pg_ids=(WORLD, "pair"))
    for rank in (0, 1):
        pool.looks[rank] = seen(
            rank, is_running=False, waits=False, groups=(world(3), group("pair", 0, 1))
        )
        pool.finished(rank, run_id, "KeyboardInterrupt", marks=(BROKEN,))
    look = pool.feed(AbandonRequested(run_id))
    assert statuses(outcome_of(look))[2] == "unfinished"
    reform = pool.answer_looks(look if requests(look, DescribeRank) else pool.tick(after_s=0.05))
    assert [ranks for ranks, _ in requests(reform, RebuildGroups)] == [(0, 1)]
    pool.feed(RunFinished(run_id=run_id, rank=2, elapsed_s=9.0, error=None))
    pool.looks[2] = pool.idle(2)
    again = pool.answer_reform(reform)
    assert pool.machine.refusal(RankSet.all(3)) is None
    assert pool.is_rebuilding()
    look = again if requests(again, DescribeRank) else pool.tick(after_s=0.05)
    reform = pool.answer_looks(look)
    assert requests(reform, RebuildGroups)[0][1].groups[0] == world(3)
    pool.answer_reform(reform)
    assert not pool.is_rebuilding()
    assert pool.machine.refusal(RankSet.all(3)) is None


# --- %ddp restart -r -----------------------------------------------------------------------------


def restart(pool: Pool, *ranks: int, number: int = 5) -> list[object]:
    return [*pool.feed(RestartRanksRequested(number, RankSet.of(ranks)))]


def test_a_rank_is_replaced_by_hand():
    pool = Pool(3)
    assert kinds(pool.feed(RestartRanksRequested(5, RankSet.of([1])))) == ["KillRanks 1"]
    assert pool.is_rebuilding()
    assert kinds(pool.exited(1)) == ["AnnounceExit"]
    start = pool.tick(after_s=0.05)
    reform = pool.answer_looks(pool.start_fresh(start))
    assert pool.answer_reform(reform) == [RanksRestarted(5, RankSet.of([1]))]
    assert pool.machine.refusal(RankSet.all(3)) is None
    assert replaced(pool) == {1: "restarted"}


def replaced(pool: Pool) -> dict[int, str]:
    return {rank: info.replaced for rank, info in pool.machine.pool.ranks.items() if info.replaced}


def test_a_rank_is_fresh_until_its_first_cell_is_over():
    pool = Pool(2)
    pool.feed(RestartRanksRequested(5, RankSet.of([1])))
    pool.exited(1)
    pool.answer_reform(pool.answer_looks(pool.start_fresh(pool.tick(after_s=0.05))))
    run_id = pool.run()
    pool.finished(0, run_id)
    assert replaced(pool) == {1: "restarted"}
    pool.finished(1, run_id)
    assert replaced(pool) == {}
    pool.exited(1)  # by itself
    pool.answer_reform(pool.answer_looks(pool.start_fresh(pool.tick(after_s=0.05))))
    assert replaced(pool) == {1: "exited"}


def test_several_ranks_are_replaced_together():
    pool = Pool(2, nnodes=2)
    kill = pool.feed(RestartRanksRequested(5, RankSet.of([0, 1, 3])))
    assert kinds(kill) == ["KillRanks 0-1", "KillRanks 3"]
    pool.exited(0)
    pool.exited(3)
    assert pool.tick(after_s=1.0) == []
    pool.exited(1)
    start = pool.tick(after_s=0.05)
    assert kinds(start) == ["StartRanks 0-1", "StartRanks 3"]
    done = pool.answer_reform(pool.answer_looks(pool.start_fresh(start)))
    assert done == [RanksRestarted(5, RankSet.of([0, 1, 3]))]


def test_a_rank_that_is_stuck_in_a_cell_is_replaced_and_the_cell_ends():
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id)
    assert kinds(pool.feed(RestartRanksRequested(5, RankSet.of([1])))) == ["KillRanks 1"]
    start = pool.exited(1)
    assert kinds(start) == ["AnnounceExit", "StartRanks 1"]
    done = pool.answer_reform(pool.answer_looks(pool.start_fresh(start)))
    assert kinds(done) == ["RanksRestarted", "EndRun"]
    assert outcome_of(done).fresh == RankSet.of([1])


def test_a_rank_beside_a_cell_is_replaced_when_the_cell_has_ended():
    pool = Pool(3)
    run_id = pool.run("0")
    pool.feed(RestartRanksRequested(5, RankSet.of([2])))
    assert kinds(pool.exited(2)) == ["AnnounceExit"]
    assert pool.tick(after_s=10.0) == []
    assert kinds(pool.finished(0, run_id)) == ["StartRanks 2"]


def test_a_cell_that_ends_while_a_rank_is_killed_waits_for_that():
    pool = Pool(3)
    run_id = pool.run("0")
    pool.feed(RestartRanksRequested(5, RankSet.of([2])))
    assert pool.finished(0, run_id) == []
    assert pool.active() == run_id
    start = pool.exited(2)
    assert kinds(start) == ["AnnounceExit", "StartRanks 2"]
    done = pool.answer_reform(pool.answer_looks(pool.start_fresh(start)))
    assert kinds(done) == ["RanksRestarted", "EndRun"]


def test_a_rank_that_could_not_be_replaced_is_by_hand():
    pool = Pool(2)
    pool.configure(on_death="keep")
    pool.exited(1)
    assert pool.tick(after_s=10.0) == []
    assert restart(pool, 1) == []
    start = pool.tick(after_s=0.05)
    assert kinds(start) == ["StartRanks 1"]
    done = pool.answer_reform(pool.answer_looks(pool.start_fresh(start)))
    assert done == [RanksRestarted(5, RankSet.of([1]))]
    # And only this time: the configuration still holds.
    pool.exited(1)
    assert pool.tick(after_s=10.0) == []


def test_a_rank_that_does_not_end_is_said():
    pool = Pool(2)
    pool.feed(RestartRanksRequested(5, RankSet.of([1])))
    done = pool.tick(after_s=20.0)
    assert done == [RanksRestarted(5, RankSet(), "rank 1 did not end within 20 s")]
    assert not pool.is_rebuilding()
    assert pool.machine.next_deadline() is None


def test_a_failed_replacement_by_hand_is_said():
    pool = Pool(2)
    pool.feed(RestartRanksRequested(5, RankSet.of([1])))
    pool.exited(1)
    for _ in range(3):
        pool.tick(after_s=0.05)
        pool.feed(StartFailed(node=0, rank=1, error=error("no memory")))
    [answer] = of_type(pool.done, RanksRestarted)
    assert "no memory" in answer.failure
    assert answer.fresh == RankSet()


def test_what_cannot_be_replaced_by_hand():
    plain = Pool(2, plain=True)
    [answer] = of_type(plain.feed(RestartRanksRequested(1, RankSet.of([1]))), RanksRestarted)
    assert "plain" in answer.failure
    lost = Pool(1, nnodes=2)
    lost.feed(AgentExited(1, -9, ""))
    [answer] = of_type(lost.feed(RestartRanksRequested(1, RankSet.of([1]))), RanksRestarted)
    assert answer.failure == "the agent of node 1 has ended"
    stopping = Pool(2)
    stopping.feed(RestartRequested())
    [answer] = of_type(stopping.feed(RestartRanksRequested(1, RankSet.of([1]))), RanksRestarted)
    assert answer.failure == "the pool is not up (it is stopping)"


def test_a_restart_of_the_pool_answers_those_who_wait():
    pool = Pool(2)
    pool.feed(RestartRanksRequested(5, RankSet.of([1])))
    done = pool.feed(RestartRequested())
    assert of_type(done, RanksRestarted)[0].failure == "the pool was ended by %ddp restart"
    pool.exited(0)
    pool.exited(1)
    pool.feed(RanksStopped(node=0))
    pool.feed(StoreReady(host="127.0.0.1", port=1, pid=9))
    pool.ready(0)
    assert kinds(pool.ready(1)) == ["AnnounceUp"]
    assert pool.machine.refusal(RankSet.all(2)) is None


def test_the_last_ranks_are_replaced_by_a_whole_new_pool():
    pool = Pool(2)
    pool.configure(on_death="keep")
    pool.exited(1)
    pool.feed(RestartRanksRequested(5, RankSet.of([0])))
    pool.exited(0)
    assert kinds(pool.tick(after_s=0.05)) == ["StopRanks"]
    pool.feed(RanksStopped(node=0))
    pool.feed(StoreReady(host="127.0.0.1", port=1, pid=9))
    pool.ready(0)
    assert pool.ready(1) == [RanksRestarted(5, RankSet.all(2))]
