"""The agents of several nodes end together, and are seen one after another."""

from nbddp.controller.state.stimuli import AbandonRequested, AgentExited
from nbddp.wire.message_types import AgentEnd
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import Pool, kinds, outcome_of

KILLED = AgentEnd("signal", 9)


def test_the_end_of_a_cell_waits_a_moment_for_the_ends_of_other_agents():
    pool = Pool(2, nnodes=2)
    run_id = pool.run()
    for rank in (2, 3):
        pool.finished(rank, run_id, "ZeroDivisionError")
    assert "EndRun" not in kinds(pool.feed(AgentExited(0, KILLED)))
    assert pool.active() == run_id
    pool.feed(AgentExited(1, KILLED), after_s=0.1)
    outcome = outcome_of(pool.tick(after_s=0.3))
    assert outcome.ranks("exited") == RankSet.all(4)
    assert outcome.dead == RankSet.all(4)
    assert {rank for rank, each in outcome.results.items() if each.error} == {2, 3}
    assert pool.active() is None


def test_a_cell_that_ends_long_after_an_agent_waits_for_no_other():
    pool = Pool(1, nnodes=2)
    run_id = pool.run()
    pool.feed(AgentExited(1, KILLED))
    pool.tick(after_s=1.0)
    look = pool.finished(0, run_id)
    assert kinds(pool.answer_looks(look))[-1] == "EndRun"


def test_a_user_who_does_not_wait_ends_it():
    pool = Pool(1, nnodes=2)
    run_id = pool.run()
    pool.finished(0, run_id, "E")
    assert "EndRun" not in kinds(pool.feed(AgentExited(1, KILLED)))
    assert pool.machine.next_deadline() == pool.now + 0.3
    ended = pool.machine.handle(AbandonRequested(run_id), pool.now)
    assert kinds(ended) == ["EndRun"]
    assert "EndRun" not in kinds(pool.tick(after_s=0.3))
