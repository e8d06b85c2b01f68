"""The error of a cell in which the user gave ranks fresh processes: the code is not to blame."""

import msgspec

from nbddp.controller.state.outcome import RankResult
from nbddp.wire.message_types import KillRequest
from nbddp.wire.rank_set import RankSet
from tests.support.cell_errors import cell_error, died, ok, text


def by_request(result: RankResult) -> RankResult:
    """As it ends by `%ddp restart -r`."""
    assert result.exited is not None
    exited = msgspec.structs.replace(result.exited, cause=KillRequest())
    return msgspec.structs.replace(result, exited=exited)


def test_the_step_after_a_restart_of_ranks_in_a_cell_does_not_blame_the_code():
    fresh = RankSet.of([2, 3])
    asked = [by_request(died(rank)) for rank in fresh]
    message = text(cell_error(ok(0), ok(1), *asked, fresh=fresh, is_plain=False))
    assert "Remove what" not in message
    assert "  next      Run %ddp catchup to give their new processes what they lack" in message
    message = text(cell_error(ok(0), ok(1), asked[0], died(3), fresh=fresh, is_plain=False))
    assert "  next      Remove what ended rank 3. Then run %ddp catchup" in message
