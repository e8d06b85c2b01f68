"""The records of real operations."""

from typing import Any

import pytest

from nbddp.controller.pool import CellOptions, Pool
from nbddp.wire.flight_recorder.schema import ThreadLook
from tests.support.polling import poll_until
from tests.support.views import RecordingView, begin_cell, run_cell

_BACKWARD = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    dist.barrier()
"""


def test_reductions_of_ddp_are_recorded_with_their_true_end(pool: Pool):
    """C++ waits for the operation, so Python never asks the work handle."""
    run_cell(pool, _BACKWARD)
    last: list[dict[str, Any]] = [each for each in pool.trace() if each["rank"] == 0][-4:]
    assert [each["op"] for each in last] == ["all_reduce", "barrier"] * 2
    first, between, second, _ = last
    assert first["completed_ns"] < between["completed_ns"] < second["created_ns"]
    assert second["completed_ns"] > second["created_ns"]


def test_a_wait_with_a_timeout_of_zero_has_no_timeout_of_its_own(pool: Pool):
    """C++ waits so, in DDP's backward for example."""
    work = "dist.all_reduce(torch.ones(2), async_op=True)"
    run_cell(pool, f"from datetime import timedelta\n{work}.wait()\n{work}.wait(timedelta(0))")
    first, second = pool.observe().looks[0].operations[-2:]
    assert second.timeout_ms == first.timeout_ms


#: The code of rank 0; rank 1 never calls it.
_WAITS = {
    "call": "dist.all_reduce(x)",
    "handle": "dist.all_reduce(x, async_op=True).wait()",
    "message": "dist.recv(x, src=1)",
    "group": "dist.new_group([0, 1])",
    "monitored": "dist.monitored_barrier()",
}


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, marks=[] if how in ("call", "message") else [pytest.mark.full])
        for how in _WAITS
    ],
)
def test_operations_that_the_user_interrupts_are_recorded_as_interrupted(how: str, pool: Pool):
    code = f"import time\nx = torch.ones(2)\nif rank == 0: {_WAITS[how]}\nelse: time.sleep(600)"
    cell = begin_cell(pool, code)
    poll_until(lambda: _main_of(pool, 0).wait, timeout_s=30)
    pool.interrupt()
    cell.join()
    last = _last(pool, 0)
    assert _ending(pool, 0) == "interrupted", last
    assert _main_of(pool, 0).wait is None


def test_operations_that_an_interrupted_cell_leaves_open_are_not_recorded_as_done(pool: Pool):
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
    assert _ending(pool, 0) in ("interrupted", "freed"), last


def test_operations_that_nbddp_ends_are_recorded_as_freed(pool: Pool):
    for wait in ("dist.all_reduce(x)", "dist.all_reduce(x, async_op=True).wait()"):
        run_cell(pool, f"x = torch.ones(2)\nif rank == 0: {wait}", check=False)
        last = _last(pool, 0)
        assert _ending(pool, 0) == "freed", last


def test_operations_that_fail_without_a_waiting_rank_are_recorded_as_failed(pool: Pool):
    """The connection is lost, no rank waits, and no cell is freed."""
    code = (
        "import os, time\nx = torch.ones(2)\n"
        "work = dist.all_reduce(x, async_op=True) if rank == 0 else None\n"
        "if rank == 1: os._exit(3)\n"
        "while work is not None and not work.is_completed(): time.sleep(0.01)\n"
    )
    run_cell(pool, code, check=False)
    last = _last(pool, 0)
    assert (last["op"], last["state"]) == ("all_reduce", "failed"), last


_ISSUED = """
import torch.distributed._functional_collectives as functional
x, y = torch.ones(2), torch.zeros(2)
dist.all_reduce(x)
dist.broadcast(x, 0)
dist.barrier()
dist.barrier(async_op=True).wait()
dist.all_gather_into_tensor(torch.zeros(4), x, async_op=True).wait()
works = [dist.all_reduce(x, async_op=True), dist.reduce(y, 0, async_op=True)]
works = [work.wait() for work in works]
functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
dist.send(x, 1) if rank == 0 else dist.recv(y, 0)
dist.recv(y, 1) if rank == 0 else dist.send(x, 0)
dist.recv(y) if rank else dist.send(x, 1)
(dist.isend(x, 1) if rank == 0 else dist.irecv(y, 0)).wait()
kind, peer = (dist.irecv, 1) if rank == 0 else (dist.isend, 0)
[work.wait() for work in dist.batch_isend_irecv([dist.P2POp(kind, y, peer)])]
dist.group.WORLD.barrier().wait()
dist.monitored_barrier()
dist.new_group([0, 1])
"""
_SYNCHRONOUS, _ASYNCHRONOUS = False, True


@pytest.mark.parametrize("check", [False, True])
def test_the_record_tells_whether_an_operation_went_on_after_its_call(pool: Pool, check: bool):
    cell = 70 + check
    options = CellOptions(pool.all_ranks, execution_count=cell, check=check)
    outcome = pool.wait(pool.submit(_ISSUED, options), RecordingView())
    assert pool.error_of(outcome) is None
    found = [
        (each["op"], each["async_op"])
        for each in pool.trace()
        if each["rank"] == 0 and each["cell"] == cell
    ]
    assert found == [
        ("all_reduce", _SYNCHRONOUS),
        ("broadcast", _SYNCHRONOUS),
        ("barrier", _SYNCHRONOUS),
        ("barrier", _ASYNCHRONOUS),
        ("all_gather_into_tensor", _ASYNCHRONOUS),
        ("all_reduce", _ASYNCHRONOUS),
        ("reduce", _ASYNCHRONOUS),
        ("all_reduce", _ASYNCHRONOUS),  # a functional collective
        ("send", _SYNCHRONOUS),
        ("recv", _SYNCHRONOUS),
        ("send", _SYNCHRONOUS),
        ("send", _ASYNCHRONOUS),
        ("recv", _ASYNCHRONOUS),
        ("barrier", _ASYNCHRONOUS),  # a call on the group itself returns a handle
        ("monitored_barrier", _SYNCHRONOUS),
        ("new_group", _SYNCHRONOUS),
    ]


def test_a_poll_of_a_handle_is_not_recorded_as_a_wait(pool: Pool):
    wait = "while not work.is_completed(): pass"
    run_cell(pool, f"work = dist.all_reduce(torch.ones(2), async_op=True)\n{wait}")
    last = _last(pool, 0)
    assert (last["state"], last["waited_ns"]) == ("completed", 0)


def test_reductions_of_ddp_overlap_its_backward(pool: Pool):
    run_cell(pool, _BACKWARD)
    last = [each for each in pool.trace() if each["rank"] == 0][-4:]
    assert [each["async_op"] for each in last] == [_ASYNCHRONOUS, _SYNCHRONOUS] * 2


def _main_of(pool: Pool, rank: int) -> ThreadLook:
    look = pool.observe().looks[rank]
    return next(thread for thread in look.threads if thread.is_main)


def _ending(pool: Pool, rank: int) -> str:
    return str(pool.observe().looks[rank].operations[-1].ending)


def _last(pool: Pool, rank: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = [each for each in pool.trace() if each["rank"] == rank]
    return found[-1]


_MANY_KINDS = """
import torch, torch.distributed as dist, torch.distributed._functional_collectives as functional
x = torch.ones(2)
dist.all_reduce(x)
dist.all_reduce(x, async_op=True).wait()
functional.all_reduce(x, "sum", dist.group.WORLD).sum().item()
dist.all_gather_object([None] * world_size, rank)
dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
messages = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, torch.ones(2), 1 - rank)]
for work in dist.batch_isend_irecv(messages): work.wait()
dist.destroy_process_group(dist.new_group([0, 1]))
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
net(x).sum().backward()
dist.barrier()
"""


def test_no_record_shows_a_line_of_nbddp(pool: Pool):
    run_cell(pool, _MANY_KINDS, execution_count=31)
    records = [each for each in pool.trace() if each["cell"] == 31]
    assert {each["kind"] for each in records} >= {"collective", "message", "creation"}
    assert {each["site_cell"] for each in records} == {31}
    assert not any("nbddp" in each["file"] for each in records)
