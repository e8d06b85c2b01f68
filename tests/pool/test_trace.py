"""What the records of real operations say afterwards."""

from typing import Any

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.wire.flight_recorder.schema import ThreadLook, ending_of
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell

_BACKWARD = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    dist.barrier()
"""


def test_what_ddp_sent_has_ended_when_it_ended(pool: Pool):
    """C++ waits for it and not Python, so nobody asks the work."""
    run_cell(pool, _BACKWARD)
    last: list[dict[str, Any]] = [each for each in pool.trace() if each["rank"] == 0][-4:]
    assert [each["op"] for each in last] == ["all_reduce", "barrier"] * 2
    first, between, second, _ = last
    assert first["completed_ns"] < between["completed_ns"] < second["created_ns"]
    assert second["completed_ns"] > second["created_ns"]


def test_a_wait_with_a_time_out_of_zero_has_none_of_its_own(pool: Pool):
    """C++ waits so, in DDP's backward for example."""
    work = "dist.all_reduce(torch.ones(2), async_op=True)"
    run_cell(pool, f"from datetime import timedelta\n{work}.wait()\n{work}.wait(timedelta(0))")
    first, second = pool.observe().looks[0].operations[-2:]
    assert second.timeout_ms == first.timeout_ms


#: What rank 0 does; rank 1 never comes.
_WAITS = {
    "call": "dist.all_reduce(x)",
    "handle": "dist.all_reduce(x, async_op=True).wait()",
    "message": "dist.recv(x, src=1)",
    "group": "dist.new_group([0, 1])",
    "monitored": "dist.monitored_barrier()",
}


@pytest.mark.parametrize("how", _WAITS)
def test_what_the_user_interrupts_is_recorded_as_interrupted(how: str, pool: Pool):
    code = f"import time\nx = torch.ones(2)\nif rank == 0: {_WAITS[how]}\nelse: time.sleep(600)"
    cell = begin_cell(pool, code)
    poll_until(lambda: _main_of(pool, 0).wait, timeout_s=30)
    pool.interrupt()
    cell.join()
    last = _last(pool, 0)
    assert ending_of(last["state"], last["error"]) == "interrupted", last
    assert _main_of(pool, 0).wait is None


def test_what_an_interrupted_cell_leaves_open_is_not_recorded_as_done(pool: Pool):
    code = (
        "x = torch.ones(2)\nif rank == 0: dist.all_reduce(x, async_op=True)\n"
        "import time; time.sleep(600)"
    )
    cell = begin_cell(pool, code)
    poll_until(lambda: _last(pool, 0)["state"] == "scheduled", timeout_s=30)
    pool.interrupt()
    cell.join()
    last = _last(pool, 0)
    # Freed with what is blocked, if ranks are slow to leave; else when its group is made again.
    assert ending_of(last["state"], last["error"]) in ("interrupted", "freed"), last


def test_what_nbddp_ends_is_recorded_as_freed(pool: Pool):
    for wait in ("dist.all_reduce(x)", "dist.all_reduce(x, async_op=True).wait()"):
        run_cell(pool, f"x = torch.ones(2)\nif rank == 0: {wait}", check=False)
        last = _last(pool, 0)
        assert ending_of(last["state"], last["error"]) == "freed", last


def test_what_goes_wrong_unwatched_is_recorded_as_failed(pool: Pool):
    """The connection is lost, nobody waits, and no cell is freed."""
    code = (
        "import os, time\nx = torch.ones(2)\n"
        "work = dist.all_reduce(x, async_op=True) if rank == 0 else None\n"
        "if rank == 1: os._exit(3)\n"
        "while work is not None and not work.is_completed(): time.sleep(0.01)\n"
    )
    run_cell(pool, code, check=False)
    last = _last(pool, 0)
    assert (last["op"], last["state"]) == ("all_reduce", "failed"), last


def _main_of(pool: Pool, rank: int) -> ThreadLook:
    look = pool.observe().looks[rank]
    return next(thread for thread in look.threads if thread.is_main)


def _last(pool: Pool, rank: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = [each for each in pool.trace() if each["rank"] == rank]
    return found[-1]
