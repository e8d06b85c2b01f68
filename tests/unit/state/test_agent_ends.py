"""The words about the end of an agent, from facts."""

from typing import get_args

import pytest

from nbddp.controller.state import AgentExited, describe_agent_exit
from nbddp.wire.message_types import AgentEnd, AgentEndCause


@pytest.mark.parametrize("cause", get_args(AgentEndCause))
def test_each_cause_has_words(cause: AgentEndCause):
    end = AgentEnd(cause, 9, "text of its engine")
    assert len(describe_agent_exit(AgentExited(1, end))) > len("the agent of node 1 ended ()")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (AgentEnd("exited", 3), "exit code 3"),
        (AgentEnd("exited", -9), "SIGKILL"),
        (AgentEnd("signal", 15), "it was ended by SIGTERM"),
        (AgentEnd("silent", 60, "b"), "nothing was heard of b for 60 s"),
    ],
)
def test_numbers_have_names(end: AgentEnd, words: str):
    assert describe_agent_exit(AgentExited(1, end)) == f"the agent of node 1 ended ({words})"
