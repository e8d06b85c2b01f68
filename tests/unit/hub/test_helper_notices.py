"""The notices about agents that have ended, or were given up."""

from nbddp.controller.hub.helper_notices import notices
from nbddp.controller.state import AgentExited
from nbddp.wire.message_types import AgentEnd
from tests.support.machines import Pool


def test_a_node_that_was_given_up_is_told_with_the_next_step():
    pool = Pool(2, 2).start().machine
    [notice] = notices(AgentExited(1, AgentEnd("silent", 60, "n2")), pool)
    assert notice.text == (
        "node 1 was given up (nothing was heard of n2 for 60 s): ranks 2-3 are gone with all "
        "variables; ranks 0-1 can still be used with -r 0-1. Next: %ddp restart -r 2-3 asks for "
        "another agent"
    )


def test_a_node_that_a_restart_gives_up_is_not_told_beside_the_restart():
    pool = Pool(2, 2).start().machine
    assert notices(AgentExited(1, AgentEnd("no-answer")), pool, frozenset({1})) == []


def test_the_loss_of_node_0_says_to_save_first_what_a_restart_would_end():
    pool = Pool(2, 2).start().machine
    [notice] = notices(AgentExited(0, AgentEnd("silent", 60, "n1")), pool)
    assert notice.text.endswith(
        "ranks 2-3 can still be used with -r 2-3. Next: pull what you need (x = %ddp pull x -r "
        "2-3), then %ddp restart, which ends ranks 2-3, too"
    )
