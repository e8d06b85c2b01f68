"""A transfer whose rank is lost with its node."""

import pytest

from nbddp.controller.hub.transfer import Transfer
from nbddp.errors import PoolBrokenError
from nbddp.wire.message_types import AgentEnd, ExitCause, LostAgent
from nbddp.wire.messages import RankExited
from nbddp.wire.rank_set import RankSet


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (LostAgent(1, AgentEnd("silent", 60, "n2")), "rank 2 was lost with its node before"),
        (None, "rank 2 exited before"),
    ],
)
def test_a_rank_behind_a_cut_line_is_not_said_to_have_exited(cause: ExitCause | None, words: str):
    transfer = Transfer("t", RankSet.of([2]), lambda: True)
    transfer.rank_exited(
        RankExited(rank=2, pid=7, exit_code=-9, out_of_memory=False, last_output="", cause=cause)
    )
    with pytest.raises(PoolBrokenError, match=words):
        transfer.next({2})
