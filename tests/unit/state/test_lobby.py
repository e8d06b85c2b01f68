"""Agents of other machines get their nodes, or are refused with all the facts."""

from typing import Any

import pytest

from nbddp.controller.state import Lobby, SilentNode
from nbddp.wire.message_types import NodeFacts
from nbddp.wire.messages import PROTOCOL_VERSION, AgentJoined
from nbddp.wire.rank_set import NO_RANKS


def agent(host: str, version: int = PROTOCOL_VERSION, **facts: Any) -> AgentJoined:
    known: dict[str, Any] = {"python": "3.11", "torch": "2.13.0", "nbddp": "1", "gpus": 0}
    return AgentJoined(
        version=version,
        token="t",
        pid=1,
        facts=NodeFacts(host=host, address="10.0.0.1", cpus=2, machine_cpus=2, **(known | facts)),
    )


def joined(*agents: AgentJoined) -> tuple[Lobby, Any]:
    lobby, decision = Lobby(len(agents), "3.11"), None
    for number, each in enumerate(agents, 1):
        decision = lobby.join(-number, each)
    return lobby, decision


def test_nothing_is_decided_before_all_have_come():
    lobby = Lobby(2, "3.11")
    assert lobby.joined == 0
    decision = lobby.join(-1, agent("n1"))
    assert (decision.admitted, decision.refused, decision.failure) == ({}, {}, "")
    assert decision.missing == 1
    assert lobby.joined == 1


def test_nodes_are_in_the_order_of_host_names_as_people_count():
    lobby, decision = joined(agent("n10"), agent("n2"), agent("n1"))
    assert decision.admitted == {-3: 0, -2: 1, -1: 2}
    assert [lobby.nodes[node].host for node in range(3)] == ["n1", "n2", "n10"]


def test_agents_of_one_host_are_in_the_order_of_their_coming():
    assert joined(agent("n1"), agent("n1"))[1].admitted == {-1: 0, -2: 1}


def test_the_numbers_of_an_engine_count_if_all_differ():
    _, decision = joined(agent("a", engine_node=5), agent("b", engine_node=0))
    assert decision.admitted == {-2: 0, -1: 1}


def test_two_jobs_that_are_both_node_0_are_in_the_order_of_hosts():
    _, decision = joined(agent("b", engine_node=0), agent("a", engine_node=0))
    assert decision.admitted == {-2: 0, -1: 1}


@pytest.mark.parametrize(
    "facts", [{"torch": "2.12.0"}, {"nbddp": "2"}, {"python": "3.12"}, {"torch": ""}]
)
def test_unequal_nodes_are_refused_and_named(facts: dict[str, Any]):
    _, decision = joined(agent("n1"), agent("n2", **facts))
    assert not decision.admitted
    assert set(decision.refused) == {-1, -2}
    rows = "n1: Python 3.11, torch 2.13.0, nbddp 1; n2: Python "
    assert rows in decision.failure
    assert "torch not installed" in decision.failure or "".join(facts.values()) in decision.failure


def test_the_python_of_the_notebook_counts_since_values_are_pickled():
    _, decision = joined(agent("n1", python="3.12"))
    assert "the Python of the notebook (3.11)" in decision.failure


def test_another_version_of_the_protocol_ends_the_start():
    _, decision = joined(agent("n1", version=99))
    assert decision.failure.startswith("the nbddp of n1 speaks version 99 of the protocol")
    lobby, _ = joined(agent("n1"))
    late = lobby.join(-2, agent("n2", version=99))
    assert (set(late.refused), late.failure) == ({-2}, "")  # the running pool goes on


def test_a_late_agent_is_refused_or_takes_the_place_of_a_lost_one():
    lobby, _ = joined(agent("n1"), agent("n2"))
    late = lobby.join(-3, agent("n3")).refused[-3]
    assert late == (
        "the pool has all of its 2 nodes. Next: for a larger pool, another start with --nnodes 3"
    )
    assert lobby.join(-4, agent("n3"), vacant=[1]).admitted == {-4: 1}
    assert lobby.nodes[1].host == "n3"
    assert -5 in lobby.join(-5, agent("n4", torch="9"), vacant=[1]).refused


def test_an_agent_that_goes_before_it_has_a_node_is_forgotten():
    lobby = Lobby(2, "3.11")
    lobby.join(-1, agent("n1"))
    lobby.leave(-1)
    assert lobby.joined == 0


def test_an_agent_that_was_started_for_a_lost_node_gets_that_one():
    lobby, _ = joined(agent("n1"), agent("n2"), agent("n3"))
    assert lobby.join(-4, agent("n5", engine_node=2), vacant=[1, 2]).admitted == {-4: 2}
    assert lobby.join(-5, agent("n6", engine_node=0), vacant=[1]).admitted == {-5: 1}


def test_an_agent_that_only_asks_is_told_what_the_pool_needs():
    lobby, asks = Lobby(2, "3.11"), agent("n3")
    assert lobby.needs(asks).reason == "waits for 2 of its 2 nodes"
    lobby.join(-1, agent("n1"))
    assert lobby.needs(asks).reason == "waits for 1 of its 2 nodes"
    lobby.join(-2, agent("n2"))
    assert lobby.needs(asks).reason == "has all of its 2 nodes, and takes no further agent"
    assert lobby.needs(asks, [1]).reason == "has lost node 1 of 2, and takes another agent"
    assert lobby.needs(asks, [1, 0]).reason == "has lost nodes 0, 1 of 2, and takes another agent"
    one = Lobby(1, "3.11")
    assert one.needs(asks).reason == "waits for 1 of its 1 node"
    one.join(-1, agent("n1"))
    assert one.needs(asks).reason == "has its node, and takes no further agent"


def test_an_agent_that_only_asks_is_told_that_it_would_be_refused():
    lobby = Lobby(2, "3.11")
    other_python = lobby.needs(agent("n1", python="3.12")).reason
    assert other_python.startswith("the pool would refuse this machine: all nodes need torch")
    lobby.join(-1, agent("n1"))
    assert "n2: Python 3.11, torch 2.12.0" in lobby.needs(agent("n2", torch="2.12.0")).reason
    old = "the pool would refuse this machine: the nbddp of n2 speaks version 99 of the protocol"
    assert lobby.needs(agent("n2", version=99)).reason.startswith(old)
    lobby.join(-2, agent("n2"))
    assert "would refuse" in lobby.needs(agent("n3", torch="9"), [1]).reason
    assert "would refuse" not in lobby.needs(agent("n3", torch="9")).reason  # it needs none


def test_only_an_agent_that_fits_is_told_to_join():
    lobby = Lobby(1, "3.11")
    answers = [lobby.needs(agent("n1")), lobby.needs(agent("n1", python="3.12"))]
    lobby.join(-1, agent("n1"))
    answers += [lobby.needs(agent("n2")), lobby.needs(agent("n2"), [0])]
    assert [each.answer for each in answers] == ["place", "misfit", "no-place", "place"]


def test_an_agent_that_comes_for_a_silent_node_is_told_when_to_come_again():
    lobby, _ = joined(agent("n1"), agent("n2"))
    silent = [SilentNode(1, "n2", 100.0, 60.0).at(112.0, NO_RANKS)]
    says = (
        "has all of its 2 nodes, and node 1 (n2) is silent for 12 s. Next: try again when it is "
        "given up, at 60 s, or after %ddp restart in the notebook, which gives it up now and ends "
        "all ranks"
    )
    assert lobby.join(-3, agent("n3"), silent=silent).refused == {-3: f"the pool {says}"}
    assert lobby.needs(agent("n3"), silent=silent).reason == says
    assert "lost node 1" in lobby.needs(agent("n3"), [1], silent).reason


def test_builds_of_one_torch_differ_only_where_there_are_gpus():
    """Each torch says which GPUs there are; pip's ``torch==2.13.0`` has no ``+cpu``."""
    _, decision = joined(agent("n1", torch="2.13.0+cpu"), agent("n2"))
    assert decision.admitted == {-1: 0, -2: 1}
    _, decision = joined(agent("n1", torch="2.13.0+cpu"), agent("n2", gpus=1))
    assert "since there are GPUs, the same build" in decision.failure
    assert "n1: Python 3.11, torch 2.13.0+cpu, nbddp 1" in decision.failure


def test_all_hosts_that_cannot_enter_the_folder_are_named_before_a_rank_starts():
    gone = "/data/none: No such file or directory"
    agents = [agent("n1", cwd_problem=gone), agent("n2"), agent("n3", cwd_problem=gone)]
    _, decision = joined(*agents)
    assert decision.admitted == {}
    assert decision.failure == (
        f"--cwd cannot be entered on n1: {gone}; n3: {gone}. Next: a folder that exists on each "
        "host"
    )
    _, many = joined(*(agent(f"n{number}", cwd_problem=gone) for number in range(10)))
    assert f"n7: {gone} and 2 more. Next" in many.failure


@pytest.mark.parametrize(
    ("numbers", "missing"),
    [((), ()), ((1,), (0, 2)), ((1, 1), ()), ((1, -1), ()), ((1, 0), (2,)), ((1, 0, 2), ())],
)
def test_the_nodes_that_have_not_come_are_known_where_an_engine_counts(
    numbers: tuple[int, ...], missing: tuple[int, ...]
):
    lobby = Lobby(3, "3.11")
    for guest, number in enumerate(numbers, 1):
        lobby.join(-guest, agent("a", engine_node=number))
    assert lobby.missing == missing
