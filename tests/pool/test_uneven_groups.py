"""Groups that only some ranks make do not disturb later groups with local synchronization."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.actions import VerdictReached
from nbddp.errors import DeadlockError
from tests.support.views import run_cell

_LIMIT_S = 20.0

#: After each of them, ranks have made different numbers of groups. Torch names groups by number.
_UNEVEN = {
    "a group of one": "if rank == 0:\n    alone = dist.new_group([0])",
    "several of one": "for _ in range(rank):\n    alone = dist.new_group([rank])",
    "a local pair": (
        "if rank in (1, 3):\n    pair = dist.new_group([1, 3], use_local_synchronization=True)"
    ),
    "two local pairs": (
        "mine = [0, 1] if rank < 2 else [2, 3]\n"
        "for _ in range(1 + rank // 2):\n"
        "    pair = dist.new_group(mine, use_local_synchronization=True)"
    ),
    "one that was destroyed": (
        "if rank == 2:\n    alone = dist.new_group([2])\n    dist.destroy_process_group(alone)"
    ),
}

#: All ranks, some, in another order, and late.
_LOCAL = """\
import time
for members in ([0, 1, 2, 3], [1, 2, 3], [3, 0], [2, 1, 0, 3]):
    if rank in members:
        if rank == members[0]:
            time.sleep(0.4)  # longer than a stall
        group = dist.new_group(members, use_local_synchronization=True)
        dist.all_reduce(total := torch.ones(1), group=group)
        assert total.item() == len(members)
"""


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            name, marks=[] if name in ("a group of one", "a local pair") else [pytest.mark.full]
        )
        for name in _UNEVEN
    ],
)
@pytest.mark.fresh_ranks(4)
def test_a_correct_group_is_no_deadlock(cell: str, pool: Pool):
    run_cell(pool, _UNEVEN[cell], timeout=_LIMIT_S)
    view = run_cell(pool, _LOCAL, timeout=_LIMIT_S)
    assert not [event for event in view.events if isinstance(event, VerdictReached)]


@pytest.mark.fresh_ranks(4)
def test_nor_is_it_after_a_deadlock(pool: Pool):
    run_cell(pool, _UNEVEN["a group of one"], timeout=_LIMIT_S)
    with pytest.raises(DeadlockError, match="is group 1 on ranks 1-3 and group 2 on rank 0"):
        run_cell(pool, "dist.new_group()", timeout=_LIMIT_S)
    view = run_cell(pool, _LOCAL, timeout=_LIMIT_S)
    assert not [event for event in view.events if isinstance(event, VerdictReached)]
