"""RPC in cells: the next cell works after one that failed, was freed, or lost a rank."""

from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError, DeadlockError, RankExitedError
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell

_INIT = """
import threading
import torch.distributed.rpc as rpc
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
"""
_CALL = """
answer = rpc.rpc_sync(f"worker{1 - rank}", torch.add, (torch.ones(2) * rank, 1)).tolist()
"""
_SHUTDOWN = "\nrpc.shutdown()\nanswer\n"
_LIMIT_S = 40.0


def works(pool: Pool, shutdown: str = _SHUTDOWN) -> None:
    """RPC from its start to its end, and the process group."""
    found = run_cell(pool, _INIT + _CALL + shutdown, timeout=_LIMIT_S)
    assert [found.result(rank) for rank in range(2)] == ["[1.0, 1.0]", "[2.0, 2.0]"]
    run_cell(pool, "t = torch.ones(1)\ndist.all_reduce(t)\nassert t.item() == 2", timeout=_LIMIT_S)


def test_rpc_stays_from_cell_to_cell_until_it_is_shut_down(pool: Pool):
    run_cell(pool, _INIT, timeout=_LIMIT_S)
    run_cell(pool, _CALL, timeout=_LIMIT_S)
    with pytest.raises(CellError):  # a cell that has not begun it
        run_cell(pool, "1 / 0", timeout=_LIMIT_S)
    run_cell(pool, _CALL + _SHUTDOWN, timeout=_LIMIT_S)
    works(pool)


@pytest.mark.parametrize("bad_ranks", ["(0, 1)", "(1,)"])
def test_the_next_cell_may_start_rpc_again_after_an_error(pool: Pool, bad_ranks: str):
    with pytest.raises(CellError, match="ValueError"):
        run_cell(pool, f"{_INIT}if rank in {bad_ranks}:\n    raise ValueError", timeout=_LIMIT_S)
    works(pool)


def test_the_next_cell_may_start_rpc_again_after_an_interrupted_shutdown(pool: Pool):
    code = f"""{_INIT}
if rank == 0:
    print("shuts down", flush=True)
    rpc.shutdown()
else:
    threading.Event().wait(600)
"""
    cell = begin_cell(pool, code)
    poll_until(lambda: "shuts down" in cell.view.text(0), _LIMIT_S)
    pool.interrupt()
    view = cell.join(_LIMIT_S)
    assert view.outcome is not None
    assert not view.outcome.ranks("unfinished")
    works(pool)


def test_a_rank_that_waits_for_a_missing_worker_is_freed(pool: Pool):
    with pytest.raises(DeadlockError, match="init_rpc"):
        run_cell(pool, f"if rank == 0:{_INIT}".replace("\n", "\n    "), timeout=_LIMIT_S)
    works(pool)


def test_an_interrupt_ends_the_wait_for_workers(pool: Pool):
    code = f"import threading\nif rank == 0:{_INIT}".replace("\n", "\n    ").replace(
        "    if rank", "if rank"
    )
    cell = begin_cell(pool, f"{code}\nelse:\n    threading.Event().wait(600)")
    pool.interrupt()
    view = cell.join(_LIMIT_S)
    assert view.outcome is not None
    assert not view.outcome.ranks("unfinished")
    works(pool)


@pytest.mark.breaks_pool
def test_a_fresh_rank_takes_part_in_the_next_one(pool: Pool):
    works(pool)
    run_cell(pool, _INIT, timeout=_LIMIT_S)
    with pytest.raises(RankExitedError):
        run_cell(pool, "import os\nif rank:\n    os._exit(1)", timeout=_LIMIT_S)
    # A graceful shutdown does not work here: torch counts them per process in C++, see decision 54.
    ungraceful = "\ndist.barrier()\nrpc.shutdown(graceful=False)\nanswer\n"
    found = run_cell(pool, _INIT + _CALL + ungraceful, timeout=_LIMIT_S)
    assert all("rpc.shutdown() may wait" in found.text(rank, "stderr") for rank in range(2))
    works(pool, ungraceful)


@pytest.mark.breaks_pool
def test_a_pool_with_rpc_ends_at_once(pool: Pool):
    run_cell(pool, _INIT, timeout=_LIMIT_S)
    pool.stop()
    assert pool.is_stopped


_MIXED = """
import torch.distributed.rpc as rpc
options = rpc.TensorPipeRpcBackendOptions(init_method={place!r})
told = ""
if rank == 0:
    rpc.init_rpc("fixed", rank=0, world_size=1, rpc_backend_options=options)
dist.barrier()
if rank == 1:
    try:
        rpc.init_rpc("goes", rank=1, rpc_backend_options=options)
    except RuntimeError as error:
        told = str(error)
dist.barrier()
if rank == 0:
    rpc.shutdown(graceful=False)
told
"""


def test_workers_that_come_and_go_are_not_mixed_with_others(pool: Pool, tmp_path: Path):
    """Both kinds look in the same place of the store, though each process counts its calls."""
    for number in range(2):
        code = _MIXED.format(place=f"file://{tmp_path / str(number)}")
        view = run_cell(pool, code, timeout=_LIMIT_S)
        assert "mixes statically and dynamically" in str(view.result(1))
