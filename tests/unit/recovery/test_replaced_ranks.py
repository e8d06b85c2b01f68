"""Ranks that die in a cell are replaced by fresh processes before the outcome is told."""

import msgspec

from nbddp.controller.state.actions import NotifyUser
from nbddp.controller.state.rank_state import RankState
from nbddp.controller.state.stimuli import AgentExited, DiagnoseRequested, InterruptRequested
from nbddp.wire.flight_recorder.schema import Operation
from nbddp.wire.message_types import AgentEnd
from nbddp.wire.messages import (
    AbortOperations,
    DescribeRank,
    RebuildGroups,
    StartFailed,
    StartRanks,
)
from nbddp.wire.rank_set import RankSet
from tests.support.examples import plain_example
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
from tests.support.recovery_scenes import BROKEN, dead_in_cell, group, start_error

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


def test_the_last_call_of_a_dead_rank_counts_while_another_process_takes_its_place():
    pool = Pool(3)
    run_id = pool.run()
    last = msgspec.structs.replace(plain_example(Operation), run_id=run_id)
    pool.answer_free(pool.exited(1, -6, last_operation=last), pg_ids=(WORLD,))
    for rank in (0, 2):
        pool.finished(rank, run_id, "E", was_freed=True, marks=(BROKEN,))
    assert pool.machine.pool.ranks[1].state is RankState.STARTING
    pool.answer_looks(pool.feed(DiagnoseRequested(1)))
    view = pool.views[-1][1]
    assert (view.operations, view.exit_text) == ((last,), "SIGABRT (signal 6)")
    assert not view.is_fresh


def test_a_fresh_process_is_no_rank_that_takes_no_part():
    pool, _ = dead_in_cell()
    pool.start_fresh(pool.done)
    pool.looks = {rank: pool.idle(rank) for rank in range(3)}
    pool.answer_looks(pool.feed(DiagnoseRequested(1)))
    views = pool.views[-1]
    assert [views[rank].is_fresh for rank in range(3)] == [False, True, False]
    assert views[1].state == "idle"


def test_all_groups_are_formed_when_a_rank_is_fresh():
    pool, _ = dead_in_cell()
    look = pool.start_fresh(pool.done)
    pair = group("pair", 0, 2, seq=9)
    for rank in (0, 2):
        pool.looks[rank] = seen(rank, is_running=False, groups=(world(3, seq=1), pair))
    [(_, request)] = requests(pool.answer_looks(look), RebuildGroups)
    assert request.groups == (world(3, seq=1), pair)


def test_a_dead_rank_is_kept_dead_on_request():
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
    # The next cell of the others does not begin the replacement again.
    run_id = pool.run("0")
    assert kinds(pool.finished(0, run_id)) == ["EndRun"]


def test_a_fresh_rank_that_cannot_start_is_named_with_the_reason():
    pool, _ = dead_in_cell()
    for _ in range(3):
        pool.feed(StartFailed(node=0, rank=1, error=start_error("no memory")))
        pool.tick(after_s=0.05)
    assert outcome_of(pool.done).rebuild_failure == (
        "rank 1 could not start (OSError: no memory) while the pool was being rebuilt; "
        "tried 3 times"
    )
    assert pool.machine.pool.ranks[1].state is RankState.EXITED


def test_a_fresh_rank_that_fails_in_its_own_process_exits_afterwards():
    pool, _ = dead_in_cell()
    pool.spawned(1)
    assert pool.feed(StartFailed(node=0, rank=1, error=start_error("no port"))) == []
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


def test_ranks_of_a_node_whose_agent_is_gone_are_not_replaced():
    pool = Pool(1, nnodes=2)
    run_id = pool.run()
    pool.feed(AgentExited(1, AgentEnd("exited", -9), ""))
    pool.tick(after_s=1.0)
    look = pool.finished(0, run_id, "E", marks=(BROKEN,))
    assert kinds(look) == ["DescribeRank 0"]
    outcome = outcome_of(pool.answer_looks(look))
    assert outcome.fresh == RankSet()
    assert "agent of node 1" in str(pool.machine.refusal(RankSet.all(2)))


def test_fresh_ranks_that_start_are_waited_for_when_another_rank_is_lost_for_good():
    pool = Pool(1, 3)
    pool.exited(0)
    assert kinds(pool.tick(after_s=0.05)) == ["StartRanks 0"]
    pool.feed(AgentExited(2, AgentEnd("exited", -9)))
    assert kinds(pool.tick(after_s=0.05)) == []
    pool.spawned(0)
    assert requests(pool.ready(0), DescribeRank)[0][0] == (1,)


# --- while an outcome is held back ---------------------------------------------------------------


def test_a_rank_that_dies_while_the_outcome_is_held_is_named_in_it():
    pool, _ = dead_in_cell(4)
    pool.exited(2)
    pool.tick(after_s=0.05)
    held = pool.machine._held.outcome
    assert held is not None
    assert held.ranks("exited") == RankSet.of([1, 2])
    assert held.results[2].exited is not None
    before = held.results[2]
    pool.spawned(2)
    pool.exited(2, exit_code=1)  # the process that took its place
    assert pool.machine._held.outcome is not None
    assert pool.machine._held.outcome.results[2] == before


def test_a_rank_that_dies_after_it_has_left_a_running_cell_is_named():
    pool = Pool(3)
    run_id = pool.run()
    pool.finished(2, run_id)
    actions = pool.exited(2)
    assert not requests(actions, AbortOperations)  # no rank has to be freed because of it
    pool.finished(0, run_id)
    pool.finished(1, run_id)
    held = pool.machine._held.outcome
    assert held is not None
    assert held.ranks("exited") == RankSet.of([2])
    assert held.ranks("ok") == RankSet.of([0, 1])


def test_a_cell_is_refused_and_an_interrupt_does_nothing_while_the_outcome_is_held():
    pool, run_id = dead_in_cell()
    assert pool.machine.refusal(RankSet.of([0])) == "a cell is running"
    assert pool.machine.transfer_refusal(RankSet.of([0])) == "a cell is running"
    assert not pool.is_rebuilding()
    assert pool.feed(InterruptRequested(run_id)) == []
