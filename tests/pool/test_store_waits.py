"""Keys that are set during a diagnosis."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.actions import VerdictReached
from tests.support.views import run_cell

#: Rank 1 counts as quiet after 0.2 s; soon after that come the two rounds of looks. In each round
#: rank 0 sets the key a little later, and is blocked from then on as well.
_CELL = """\
import time
store = dist.distributed_c10d._get_default_store()
for step in range(24):
    ours, theirs = f"mine/{step}/{rank}", f"mine/{step}/{1 - rank}"
    if rank == 0:
        time.sleep(0.16 + 0.01 * step)
        store.set(ours, "1")
        store.wait([theirs])
    else:
        store.wait([theirs])
        store.set(ours, "1")
"""


@pytest.mark.full
def test_a_key_that_is_set_between_two_looks_disproves_a_deadlock(pool: Pool):
    view = run_cell(pool, _CELL, timeout=40)
    assert view.error is None
    assert not [event for event in view.events if isinstance(event, VerdictReached)]
