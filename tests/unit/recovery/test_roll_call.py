"""Before ``%ddp restart -r`` ends a process, each node gives a sign of life."""

from nbddp.controller.pool.refusals import unanswered_text
from nbddp.controller.state import NodesSilent, SilentNode
from nbddp.controller.state.actions import Action, RanksRestarted
from nbddp.controller.state.stimuli import (
    AgentExited,
    RestartRanksRequested,
    RestartRequested,
    RestartWithdrawn,
)
from nbddp.wire.message_types import AgentEnd
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.recovering import Pool, kinds, of_type


def ask(pool: Pool, *ranks: int) -> list[Action]:
    return pool.feed(RestartRanksRequested(5, RankSet.of(ranks)))


def only_node_0(called: list[Action]) -> list[Action]:
    return [each for each in called if kinds([each]) == ["DumpStack 0"]]


def test_one_rank_of_each_node_is_looked_at_and_then_ranks_are_ended():
    pool = Pool(2, nnodes=2)
    called = ask(pool, 1)
    assert kinds(called) == ["DumpStack 0", "DumpStack 2"]
    assert not pool.is_rebuilding()
    assert pool.answer_peeks(only_node_0(called)) == []
    assert kinds(pool.answer_peeks(called)) == ["KillRanks 1"]
    assert pool.is_rebuilding()


def test_a_node_that_becomes_silent_meanwhile_refuses_the_restart_of_ranks_of_another():
    pool = Pool(2, nnodes=2)
    pool.answer_peeks(only_node_0(ask(pool, 0, 1)))
    silent = NodesSilent((SilentNode(1, "hostb", pool.now - 5.0, 60.0),))
    [done] = of_type(pool.feed(silent), RanksRestarted)
    assert [each.node for each in done.silent] == [1]
    assert pool.tick(after_s=30.0) == []
    assert not any("KillRanks" in kind for kind in kinds(pool.done))


def test_a_node_that_is_lost_meanwhile_leaves_the_others_to_the_restart():
    pool = Pool(2, nnodes=2)
    pool.answer_peeks(only_node_0(ask(pool, 0)))
    ended = pool.feed(AgentExited(1, AgentEnd("exited", -9), ""))
    assert "KillRanks 0" in kinds(ended)
    lost = Pool(2, nnodes=2)
    lost.answer_peeks(only_node_0(ask(lost, 2)))
    [done] = of_type(lost.feed(AgentExited(1, AgentEnd("exited", -9), "")), RanksRestarted)
    assert done.failure == "node 1 is lost"
    both = Pool(2, nnodes=2)
    both.answer_peeks(only_node_0(ask(both, 0, 1)))
    [done] = of_type(both.feed(AgentExited(1, AgentEnd("exited", -9), "")), RanksRestarted)
    assert done.obstacle == "groups-unknown"
    assert not any("KillRanks" in kind for kind in kinds([*lost.done, *both.done]))


def test_a_rank_that_exits_meanwhile_need_not_answer():
    pool = Pool(2, nnodes=2)
    pool.configure(on_death="keep")
    called = ask(pool, 1)
    pool.answer_peeks(only_node_0(called))
    assert "KillRanks 1" in kinds(pool.exited(2))


def test_a_node_that_gives_no_answer_refuses_the_restart():
    pool = Pool(2, nnodes=2)
    pool.answer_peeks(only_node_0(ask(pool, 1)))
    assert pool.tick(after_s=19.9) == []
    assert pool.tick(after_s=0.1) == [RanksRestarted(5, NO_RANKS, unanswered=(1,))]
    assert not pool.is_rebuilding()
    text = unanswered_text(RankSet.of([1]), (1,), pool.machine.snapshot())
    assert text == (
        "rank 1 was not restarted, since fresh ranks form their groups with all others, and node 1 "
        "does not answer: no process was ended. Next: the same command tries again; %ddp restart "
        "ends all ranks"
    )


def test_a_request_is_withdrawn_until_processes_are_ended():
    pool = Pool(2, nnodes=2)
    called = ask(pool, 1)
    withdrawn = RanksRestarted(6, NO_RANKS, is_withdrawn=True)
    assert pool.feed(RestartWithdrawn(6, 5)) == [withdrawn]
    assert pool.answer_peeks(called) == []
    assert kinds(pool.answer_peeks(ask(pool, 1))) == ["KillRanks 1"]
    assert pool.feed(RestartWithdrawn(7, 5)) == [RanksRestarted(7, NO_RANKS)]


def test_a_restart_of_all_ranks_ends_the_wait_for_answers():
    pool = Pool(2, nnodes=2)
    called = ask(pool, 1)
    [done] = of_type(pool.feed(RestartRequested()), RanksRestarted)
    assert done.failure == "the pool was ended by %ddp restart"
    assert pool.answer_peeks(called) == []
