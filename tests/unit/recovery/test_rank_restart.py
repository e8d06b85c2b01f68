"""``%ddp restart -r``: chosen ranks are replaced by fresh processes."""

from nbddp.controller.pool.refusals import not_replaced_text
from nbddp.controller.state import Action
from nbddp.controller.state.actions import Diagnosed, RanksRestarted
from nbddp.controller.state.stimuli import (
    AgentExited,
    DiagnoseRequested,
    RestartRanksRequested,
    RestartRequested,
)
from nbddp.wire.message_types import AgentEnd
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AgentHello,
    RanksStopped,
    StartFailed,
    StoreExited,
    StoreReady,
)
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import Pool, kinds, of_type, outcome_of
from tests.support.recovery_scenes import start_error


def restart(pool: Pool, *ranks: int, number: int = 5) -> list[object]:
    return [*pool.feed(RestartRanksRequested(number, RankSet.of(ranks)))]


def test_a_rank_is_replaced_on_request():
    pool = Pool(3)
    assert kinds(pool.feed(RestartRanksRequested(5, RankSet.of([1])))) == ["KillRanks 1"]
    assert pool.is_rebuilding()
    assert kinds(pool.exited(1)) == ["AnnounceExit"]
    start = pool.tick(after_s=0.05)
    reform = pool.answer_looks(pool.start_fresh(start))
    assert pool.answer_reform(reform) == [RanksRestarted(5, RankSet.of([1]))]
    assert pool.machine.refusal(RankSet.all(3)) is None
    assert replaced(pool) == {1: "restarted"}


def test_the_snapshot_names_the_step_of_a_replacement():
    pool = Pool(3)
    steps = [pool.machine.snapshot().repair]

    def then(actions: list[Action]) -> list[Action]:
        steps.append(pool.machine.snapshot().repair)
        return actions

    then(pool.feed(RestartRanksRequested(5, RankSet.of([1]))))
    pool.exited(1)
    look = pool.start_fresh(then(pool.tick(after_s=0.05)))
    then(pool.answer_reform(then(pool.answer_looks(then(look)))))
    assert steps == ["", "ends", "starts", "looks", "forms", ""]


def test_a_fresh_rank_has_not_finished_the_cell_of_its_predecessor():
    pool = Pool(2)
    run_id = pool.run()
    for rank in (0, 1):
        pool.finished(rank, run_id)
    pool.feed(RestartRanksRequested(5, RankSet.of([1])))
    pool.exited(1)
    pool.answer_reform(pool.answer_looks(pool.start_fresh(pool.tick(after_s=0.05))))
    [answer] = of_type(pool.answer_looks(pool.feed(DiagnoseRequested(1))), Diagnosed)
    assert [view.state for view in answer.views.values()] == ["finished", "idle"]
    assert answer.views[1].is_fresh


def replaced(pool: Pool) -> dict[int, str]:
    return {rank: info.replaced for rank, info in pool.machine.pool.ranks.items() if info.replaced}


def test_a_rank_is_known_as_replaced_by_the_end_of_its_last_predecessor():
    pool = Pool(2)
    pool.feed(RestartRanksRequested(5, RankSet.of([1])))
    pool.exited(1)
    pool.answer_reform(pool.answer_looks(pool.start_fresh(pool.tick(after_s=0.05))))
    run_id = pool.run()
    pool.finished(0, run_id)
    pool.finished(1, run_id)
    assert replaced(pool) == {1: "restarted"}  # whether it is fresh depends on what it has run
    pool.exited(1)  # by itself
    pool.answer_reform(pool.answer_looks(pool.start_fresh(pool.tick(after_s=0.05))))
    assert replaced(pool) == {1: "exited"}
    processes = [info.process for info in pool.machine.pool.ranks.values()]
    assert processes == [(0, 0), (1, 2)]  # whatever ids their processes have


def test_several_ranks_are_replaced_together():
    pool = Pool(2, nnodes=2)
    kill = pool.answer_peeks(pool.feed(RestartRanksRequested(5, RankSet.of([0, 1, 3]))))
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


def test_a_rank_that_is_kept_dead_is_replaced_on_request():
    pool = Pool(2)
    pool.configure(on_death="keep")
    pool.exited(1)
    assert pool.tick(after_s=10.0) == []
    assert restart(pool, 1) == []
    start = pool.tick(after_s=0.05)
    assert kinds(start) == ["StartRanks 1"]
    done = pool.answer_reform(pool.answer_looks(pool.start_fresh(start)))
    assert done == [RanksRestarted(5, RankSet.of([1]))]
    # Only this time: the configuration still holds.
    pool.exited(1)
    assert pool.tick(after_s=10.0) == []


def test_a_rank_that_does_not_end_is_reported():
    pool = Pool(2)
    pool.feed(RestartRanksRequested(5, RankSet.of([1])))
    done = pool.tick(after_s=20.0)
    assert done == [RanksRestarted(5, RankSet(), "rank 1 did not end within 20 s")]
    assert not pool.is_rebuilding()
    assert pool.machine.next_deadline() is None


def test_a_failed_replacement_on_request_is_reported():
    pool = Pool(2)
    pool.feed(RestartRanksRequested(5, RankSet.of([1])))
    pool.exited(1)
    for _ in range(3):
        pool.tick(after_s=0.05)
        pool.feed(StartFailed(node=0, rank=1, error=start_error("no memory")))
    [answer] = of_type(pool.done, RanksRestarted)
    assert "no memory" in answer.failure
    assert answer.fresh == RankSet()


def test_ranks_that_cannot_be_replaced_on_request():
    plain = Pool(2, plain=True)
    [answer] = of_type(plain.feed(RestartRanksRequested(1, RankSet.of([1]))), RanksRestarted)
    assert "plain" in answer.failure
    lost = Pool(1, nnodes=2)
    lost.feed(AgentExited(1, AgentEnd("exited", -9), ""))
    [answer] = of_type(lost.feed(RestartRanksRequested(1, RankSet.of([1]))), RanksRestarted)
    assert answer.failure == "node 1 is lost"
    stopping = Pool(2)
    stopping.feed(RestartRequested())
    [answer] = of_type(stopping.feed(RestartRanksRequested(1, RankSet.of([1]))), RanksRestarted)
    assert answer.failure == "the pool is not up (it is stopping)"


def test_the_step_after_a_failed_replacement_is_one_that_works_now():
    def step(pool: Pool, *ranks: int, is_plain: bool = False) -> str:
        snapshot = pool.machine.snapshot()
        text = not_replaced_text(RankSet.of(ranks), "it failed", snapshot, is_plain=is_plain)
        assert text.startswith(f"{RankSet.of(ranks).describe()} could not be replaced: it failed.")
        return text.partition(" Next: ")[2]

    keeps = "and keeps the variables of the other ranks; %ddp restart gives a fresh pool"
    pool = Pool(2, nnodes=2)
    assert step(pool, 0) == (
        f"%ddp log 0 shows the end of its output; the same command tries again, {keeps}"
    )
    assert step(pool, 0, is_plain=True) == "%ddp restart gives a fresh pool"
    pool.feed(AgentExited(1, AgentEnd("exited", -9), ""))
    assert step(pool, 2, 3) == f"the same command asks for another agent, {keeps}"
    pool = Pool(2, nnodes=2)
    pool.feed(AgentExited(0, AgentEnd("exited", -9), ""))
    assert step(pool, 0) == (
        "pull what you need (x = %ddp pull x -r 2-3), then %ddp restart, which puts other agents "
        "in the places of lost ones"
    )
    without_store = Pool(2)
    without_store.feed(StoreExited(pid=2, exit_code=255))
    assert (
        step(without_store, 1) == "pull what you need (x = %ddp pull x -r 0-1), then %ddp restart"
    )


def test_a_restart_of_the_pool_answers_waiting_requests():
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


def test_ranks_whose_groups_could_not_be_formed_again_are_not_ended():
    def refusal(pool: Pool, *ranks: int) -> RanksRestarted:
        [answer] = pool.feed(RestartRanksRequested(5, RankSet.of(ranks)))
        assert isinstance(answer, RanksRestarted)
        assert pool.machine.refusal(RankSet.of([ranks[-1]])) is None
        return answer

    of_node_1 = Pool(2, nnodes=2)
    of_node_1.feed(AgentExited(0, AgentEnd("exited", -9), ""))
    assert refusal(of_node_1, 2, 3).obstacle == refusal(of_node_1, 3).obstacle == "store-lost"
    without_store = Pool(3)
    without_store.feed(StoreExited(pid=2, exit_code=255))
    assert refusal(without_store, 1, 2).obstacle == "store-lost"
    of_node_0 = Pool(2, nnodes=2)
    of_node_0.feed(AgentExited(1, AgentEnd("exited", -9), ""))
    assert refusal(of_node_0, 0, 1).obstacle == "groups-unknown"
    # Without one of them the other one still knows the groups.
    assert kinds(of_node_0.feed(RestartRanksRequested(5, RankSet.of([0])))) == ["KillRanks 0"]


def test_the_last_ranks_are_replaced_without_the_store_by_a_new_pool():
    pool = Pool(2)
    pool.configure(on_death="keep")
    pool.exited(1)
    pool.feed(StoreExited(pid=2, exit_code=255))
    assert kinds(pool.feed(RestartRanksRequested(5, RankSet.of([0])))) == ["KillRanks 0"]
    pool.exited(0)
    assert kinds(pool.tick(after_s=0.05)) == ["StopRanks"]


def another_agent(pool: Pool) -> None:
    """Node 1 is lost, and another agent takes its place."""
    pool.feed(AgentExited(1, AgentEnd("exited", -9), ""))
    pool.feed(AgentHello(version=PROTOCOL_VERSION, token="t", node=1, pid=7, host="other"))


def test_ranks_of_an_agent_that_has_just_come_have_the_time_of_a_start():
    pool = Pool(1, nnodes=2)
    another_agent(pool)
    assert restart(pool, 1) == []
    start = pool.tick(after_s=0.05)
    assert kinds(start) == ["StartRanks 1"]
    assert pool.tick(after_s=59.0) == []  # it loads torch
    done = pool.answer_reform(pool.answer_looks(pool.start_fresh(start)))
    assert done == [RanksRestarted(5, RankSet.of([1]))]
    # The next process is forked from one that has torch.
    pool.answer_peeks(pool.feed(RestartRanksRequested(6, RankSet.of([1]))))
    pool.exited(1)
    assert kinds(pool.tick(after_s=0.05)) == ["StartRanks 1"]
    [late] = of_type(pool.tick(after_s=20.0), RanksRestarted)
    assert late.failure == "rank 1 was not ready within 20 s"


def test_the_same_request_may_succeed_after_ranks_were_not_ready_in_time():
    pool = Pool(1, nnodes=2)
    another_agent(pool)
    restart(pool, 1)
    pool.tick(after_s=0.05)
    [late] = of_type(pool.tick(after_s=60.0), RanksRestarted)
    assert late.failure == "rank 1 was not ready within 60 s"
    pool.exited(1)
    assert restart(pool, 1) == []
    start = pool.tick(after_s=0.05)
    done = pool.answer_reform(pool.answer_looks(pool.start_fresh(start)))
    assert done == [RanksRestarted(5, RankSet.of([1]))]
