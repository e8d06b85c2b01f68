"""The words about the ends of agents and of the store, from facts."""

from typing import get_args

import pytest

from nbddp.controller.diagnosis import Predicate
from nbddp.controller.state import (
    AgentExited,
    describe_agent_exit,
    describe_store_exit,
    exit_phrase,
)
from nbddp.wire.message_types import (
    AgentEnd,
    AgentEndCause,
    ForkServerEnd,
    LostAgent,
    UnknownStatus,
)
from nbddp.wire.messages import RankExited, StoreExited


@pytest.mark.parametrize("cause", get_args(AgentEndCause))
def test_each_cause_has_words(cause: AgentEndCause):
    end = AgentEnd(cause, 9, "text of its engine")
    assert len(describe_agent_exit(AgentExited(1, end))) > len("node 1 was given up ()")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (AgentEnd("exited", 3), "exit code 3"),
        (AgentEnd("exited", -9), "SIGKILL"),
        (AgentEnd("signal", 15), "it was ended by SIGTERM"),
        (
            AgentEnd("taken-away", 15, "4711"),
            "SIGTERM: Slurm takes the node away, since job 4711 was cancelled (scancel) or "
            "preempted",
        ),
        (AgentEnd("time-limit", 15, "4711"), "Slurm job 4711 has reached its time limit"),
        (
            AgentEnd("job-over", 15, "4711"),
            "SIGTERM: Slurm takes the node away, since job 4711 has reached its time limit, or was "
            "cancelled (scancel) or preempted",
        ),
    ],
)
def test_numbers_have_names(end: AgentEnd, words: str):
    assert describe_agent_exit(AgentExited(1, end)) == f"the agent of node 1 ended ({words})"


def test_a_node_that_was_given_up_may_still_run():
    for end, words in (
        (AgentEnd("silent", 60, "b"), "node 1 was given up (nothing was heard of b for 60 s)"),
        (AgentEnd("no-answer"), "node 1 was given up (it did not answer)"),
        (
            AgentEnd("engine", text="ssh ended with exit code 255.", advice="try `ssh b`"),
            "node 1 was lost (ssh ended with exit code 255)",
        ),
    ):
        assert describe_agent_exit(AgentExited(1, end)) == words
        exited = RankExited(
            rank=2,
            pid=7,
            exit_code=-9,
            out_of_memory=False,
            last_output="",
            cause=LostAgent(1, end),
        )
        assert str(exit_phrase(exited)) == f"was lost: {words}"
        assert Predicate.of_end(exit_phrase(exited)).describe(2) == f"were lost: {words}"


def lost(rank: int, agent: LostAgent) -> RankExited:
    return RankExited(
        rank=rank, pid=7, exit_code=-9, out_of_memory=False, last_output="", cause=agent
    )


def test_the_agents_of_several_nodes_ended_alike():
    end = AgentEnd("exited", -9)
    ends = [lost(node, LostAgent(node, end)) for node in (2, 1)]
    assert str(exit_phrase(ends[0], ends)) == "exited, the agents of nodes 1 and 2 ended (SIGKILL)"
    never = lost(3, LostAgent(3, end, never_came="c"))
    assert exit_phrase(ends[0], [*ends, never]) == exit_phrase(ends[0], ends)


def test_agents_that_never_came_have_not_ended():
    end = AgentEnd("engine", text="ssh said no")
    ends = [lost(node, LostAgent(node, end, never_came="host")) for node in (1, 2)]
    phrase = exit_phrase(ends[0], ends)
    assert str(phrase) == "exited, the agent on host never came: ssh said no"
    assert phrase == exit_phrase(ends[0])


def test_the_end_of_a_job_is_the_end_of_all_of_its_agents():
    for cause in get_args(AgentEndCause):
        is_of_job = AgentEnd(cause, 15, "4711").is_of_job("4711")
        assert is_of_job == (cause in ("taken-away", "time-limit", "job-over"))
    assert not AgentEnd("taken-away", 15, "4711").is_of_job("4712")


@pytest.mark.parametrize(
    ("cause", "how"),
    [
        (None, "SIGSEGV"),
        (UnknownStatus(), "its exit status is not known"),
        (ForkServerEnd(-9), "the fork server ended (SIGKILL)"),
    ],
)
def test_the_end_of_the_store_has_its_cause(cause: UnknownStatus | ForkServerEnd | None, how: str):
    exited = StoreExited(pid=3, exit_code=-11, cause=cause)
    assert describe_store_exit(exited) == f"the process of the store ended ({how})"
