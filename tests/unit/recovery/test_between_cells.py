"""Ranks that die, or come back from an old cell, while no cell runs."""

from nbddp.controller.state.actions import NotifyUser
from nbddp.controller.state.stimuli import AbandonRequested, AgentExited, InterruptRequested
from nbddp.wire.message_types import AgentEnd
from nbddp.wire.messages import DescribeRank, RebuildGroups, RunFinished
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import (
    WORLD,
    Pool,
    kinds,
    of_type,
    outcome_of,
    requests,
    seen,
    statuses,
    world,
)
from tests.support.recovery_scenes import BROKEN, group

EXIT = "rank 1 exited (SIGKILL (signal 9))"


def test_a_rank_that_dies_between_cells_is_replaced_and_the_user_is_told():
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


def test_a_rank_that_went_with_its_agent_is_not_said_to_be_replaced():
    pool = Pool(1, nnodes=2)
    pool.exited(1, exit_code=0)
    pool.feed(AgentExited(1, AgentEnd("signal", 15)))
    actions = pool.tick(after_s=0.05)
    assert [ranks for ranks, _ in requests(actions, DescribeRank)] == [(0,)]
    pool.answer_looks(actions)
    assert not pool.is_rebuilding()
    assert of_type(pool.done, NotifyUser) == []


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
    """The rank was not asked, so it has nothing to answer."""
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
