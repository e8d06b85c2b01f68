"""A timeout of the user ends a proven deadlock: the error of the cell tells both."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError, DeadlockError
from tests.support.views import run_cell

_CIRCLE = """
from datetime import timedelta
group = dist.new_group(timeout=timedelta(seconds={seconds}))
calls = [lambda: dist.all_reduce(torch.ones(2), group=group), dist.barrier]
for call in calls if rank == 0 else calls[::-1]:
    call()
"""
_RECEIVE = """
from datetime import timedelta
group = dist.new_group(timeout=timedelta(seconds=1.5))
dist.recv(torch.ones(2), 1 - rank, group=group)
"""


@pytest.mark.parametrize(
    "seconds",
    [1.5, pytest.param(3.2, marks=pytest.mark.full)],  # the card is held back, or shown
)
def test_the_cause_is_told_and_not_the_rank_that_timed_out(pool: Pool, seconds: float):
    view = run_cell(pool, _CIRCLE.format(seconds=seconds), timeout=30, check=False)
    assert isinstance(view.error, DeadlockError)
    text = str(view.error)
    assert "DeadlockError: Ranks 0-1 wait for each other: each is in a collective" in text
    assert "Timed out waiting" in text  # the traceback of rank 0
    assert "rank 1 waited in barrier" in text
    assert view.outcome is not None
    assert view.outcome.report is not None
    [finding] = view.outcome.report.proven
    assert finding.kind == "group-cycle"
    run_cell(pool, "dist.barrier()", timeout=20)


def test_timeouts_on_all_ranks_are_told_with_their_cause(pool: Pool):
    view = run_cell(pool, _RECEIVE, timeout=30, check=False)
    assert type(view.error) is CellError
    text = str(view.error)
    # The rank whose timeout is over first closes the connection: that may end the other's wait.
    assert "ranks 0-1 raised RuntimeError at " in text or "CollectiveFailedError: " in text
    assert "  proven    Ranks 0-1 wait for each other: both receive first" in text
    run_cell(pool, "dist.barrier()", timeout=20)


_WAIT = """
from datetime import timedelta
if rank:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait(timedelta(seconds=1.5))
"""


def test_a_wait_on_another_line_than_the_call(pool: Pool):
    view = run_cell(pool, _WAIT, timeout=30, check=False)
    assert type(view.error) is CellError
    assert "  proven    Rank 0 never called all_reduce" in str(view.error)
    run_cell(pool, "dist.barrier()", timeout=20)


_RETRY = """
from datetime import timedelta
tries = []
if rank == 0:
    for seconds in (1, 1.2):
        try:
            store.wait([f'never {seconds if several else 0}'], timedelta(seconds=seconds))
        except dist.DistStoreError:
            tries.append(seconds)
dist.barrier()
tries
"""


@pytest.mark.parametrize("several", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_program_that_tries_again_continues(pool: Pool, several: bool):
    """Each wait has a timeout of its own, also for the same key."""
    run_cell(pool, "from torch.distributed import distributed_c10d as c10d\n")
    code = f"several = {several}\nstore = c10d._get_default_store()\n{_RETRY}"
    view = run_cell(pool, code, timeout=30, check=False)
    assert view.error is None, view.error
    assert view.result(0) == "[1, 1.2]"


def test_an_error_after_a_timeout_is_that_of_the_rank(pool: Pool):
    guarded = (
        "try:\n        call()\n    except RuntimeError:\n        raise ValueError('mine') from None"
    )
    code = _CIRCLE.format(seconds=1.5).replace("call()", guarded)
    view = run_cell(pool, code, timeout=30, check=False)
    assert type(view.error) is CellError
    assert "ranks 0-1 raised ValueError" in str(view.error)  # rank 1 when it was freed
    assert "proven" not in str(view.error)
