"""The answers of agents that are to go on without a hub."""

import threading

from nbddp.controller.hub.let_go import LetGo
from nbddp.wire.messages import AgentDetached


def test_only_agents_that_live_are_waited_for():
    let_go = LetGo()
    let_go.begin()
    let_go.put(AgentDetached(node=1))
    assert let_go.wait(lambda: {1}, 1000.0) == ""


def test_an_agent_that_ends_meanwhile_is_waited_for_no_longer():
    let_go, looks = LetGo(), iter([{0, 1}])
    threading.Thread(target=lambda: let_go.put(AgentDetached(node=1))).start()
    assert let_go.wait(lambda: next(looks, {1}), 1000.0) == ""


def test_the_others_follow_one_that_has_gone():
    let_go = LetGo()
    let_go.put(AgentDetached(node=1))
    assert let_go.wait(lambda: {0, 1}, 0.0) == ""
    let_go.put(AgentDetached(node=0, problem="its ranks are not ready"))
    assert let_go.wait(lambda: {0, 1}, 1000.0) == ""


def test_a_late_answer_counts_for_the_next_request_and_an_old_problem_does_not():
    let_go = LetGo()
    let_go.begin()
    assert "node 0, 1 does not answer in 0 s" in let_go.wait(lambda: {0, 1}, 0.0)
    let_go.put(AgentDetached(node=0, problem="its ranks are not ready"))
    assert "node 1" not in let_go.wait(lambda: {0, 1}, 0.0)
    let_go.begin()
    assert "node 0, 1 does not answer" in let_go.wait(lambda: {0, 1}, 0.0)
    let_go.put(AgentDetached(node=1))
    let_go.begin()
    assert let_go.wait(lambda: {0, 1}, 0.0) == ""


def test_a_pool_without_agents_cannot_go():
    assert (
        LetGo()
        .wait(set, 1000.0)
        .endswith("ended. Next: %ddp restart starts them again; or %ddp stop")
    )
