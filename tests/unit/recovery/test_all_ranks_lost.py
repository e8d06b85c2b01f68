"""No rank is left that knows the process groups: the pool, or its default group, starts again."""

import pytest

from nbddp.controller.state.actions import RanksRestarted
from nbddp.controller.state.stimuli import RestartRanksRequested
from nbddp.wire.messages import (
    AbortOperations,
    GroupsRebuilt,
    RanksStopped,
    RebuildGroups,
    StartFailed,
    StartRanks,
    StoreExited,
    StoreReady,
)
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import Pool, agent_requests, kinds, outcome_of, requests
from tests.support.recovery_scenes import start_error


def test_a_pool_without_survivors_starts_again():
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
    assert kinds(ended) == ["EndRun"]  # no caller waits for a start
    assert outcome_of(ended).fresh == RankSet.all(2)
    assert pool.machine.refusal(RankSet.all(2)) is None


@pytest.mark.parametrize("store_is_first", [True, False])
def test_a_pool_starts_again_if_the_ends_of_the_fork_server_are_seen_one_by_one(
    store_is_first: bool,
):
    """A fresh rank has nothing to keep, and cannot make groups without the store."""
    pool = Pool(2)
    pool.exited(1)
    assert kinds(pool.tick(after_s=0.05)) == ["StartRanks 1"]
    if store_is_first:
        pool.feed(StoreExited(pid=2, exit_code=255))
    pool.exited(0)
    if not store_is_first:
        pool.feed(StoreExited(pid=2, exit_code=255))
    assert kinds(pool.tick(after_s=0.05)) == ["StopRanks"]
    assert kinds(pool.feed(RanksStopped(node=0))) == ["StartStore"]


def test_a_rank_that_dies_in_the_new_start_causes_another_one():
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


def test_fresh_ranks_make_a_default_group_when_the_last_rank_that_knows_the_groups_dies():
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
    settle = pool.feed(
        GroupsRebuilt(number=request.number, rank=1, error=start_error("rank 0 exited"))
    )
    start = [*settle, *pool.tick(after_s=0.05)]
    assert kinds(start) == ["StartRanks 0"]
    reform = pool.start_fresh(start)
    [(ranks, request)] = requests(reform, RebuildGroups)
    assert ranks == (0, 1)
    assert request.initialises
    pool.answer_reform(reform)
    assert pool.machine.refusal(RankSet.all(2)) is None


def test_a_new_start_that_fails_is_reported():
    pool = Pool(1)
    pool.run()
    pool.exited(0)
    pool.feed(RanksStopped(node=0))
    ended = pool.feed(StartFailed(node=0, rank=None, error=start_error("port 1 is taken")))
    assert kinds(ended) == ["EndRun"]
    assert "port 1 is taken" in outcome_of(ended).rebuild_failure


def test_the_last_ranks_are_replaced_by_a_new_pool():
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
