"""A rank dies during a large transfer: Gloo does not wake all waiting ranks, see `gloo.waits`."""

import textwrap

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError
from tests.support.views import run_cell

_LIMIT_S = 120.0
#: 100 MB each: at nearly any moment, a part is on its way.
_BEGIN = "import os, threading\nx = torch.ones(25_000_000)\nkept = rank\ndist.barrier()"
_DIE = "if rank == 1: threading.Timer(0.3, lambda: os._exit(3)).start()"
_CALLS = {
    "broadcast to it": "dist.broadcast(x, 0)",
    "broadcast from it": "dist.broadcast(x, 1)",
    "message to it": "dist.recv(x, 0) if rank else dist.send(x, 1)",
    "message from it": "dist.send(x, 0) if rank else dist.recv(x, 1)",
    "any message from it": "dist.send(x, 0) if rank else dist.recv(x)",
    "handle": "(dist.isend(x, 0) if rank else dist.irecv(x, 1)).wait()",
    "gather": "dist.all_gather([torch.empty_like(x) for _ in range(2)], x)",
}


#: What differs from another call only in the end that waits, or in the kind of receive, is left to
#: `make test-slow`.
_SLOW = ("broadcast from it", "message to it", "any message from it")
_CASES = [pytest.param(call, marks=[pytest.mark.slow] if call in _SLOW else []) for call in _CALLS]


@pytest.mark.parametrize("call", _CASES)
def test_ranks_that_waited_for_the_dead_rank_keep_all_variables(pool: Pool, call: str):
    code = f"{_BEGIN}\n{_DIE}\nwhile True:\n    {_CALLS[call]}"
    view = run_cell(pool, code, check=False, timeout=_LIMIT_S)
    assert "rank 1 was replaced" in str(view.error)
    check = "total = torch.ones(1)\ndist.all_reduce(total)\nif rank == 0: print(kept, total.item())"
    assert run_cell(pool, check, timeout=_LIMIT_S).texts() == {0: "0 2.0\n"}


def test_a_partly_received_tensor_is_named(pool: Pool):
    """The received part depends on the moment: an error that names no tensor is right, too."""
    code = f"{_BEGIN}\n{_DIE}\nwhile True:\n    dist.send(x, 0) if rank else dist.recv(x, 1)"
    for _ in range(5):
        text = str(run_cell(pool, code, check=False, timeout=_LIMIT_S).error)
        if "the tensors of recv from" in text:
            break
    assert "on rank 0: no copy of them was kept" in text


@pytest.mark.breaks_pool
def test_a_receive_whose_handle_is_lost_in_a_cell_that_fails_blocks_no_later_cell(pool: Pool):
    """An interrupt between the call and its wait leaves the same: the connection of Gloo stalls."""
    code = """
    store = dist.distributed_c10d._get_default_store()
    t = torch.ones(1000)
    if rank == 1:
        dist.irecv(t, 0)
        store.set("lost", "")
        raise ValueError("between the call and its wait")
    store.wait(["lost"])
    dist.send(t, 1)
    """
    view = run_cell(pool, textwrap.dedent(code), check=False)
    assert isinstance(view.error, CellError)
    check = "x = torch.full((100_000,), float(rank))\ndist.all_reduce(x)\nprint(int(x[-1]))"
    assert run_cell(pool, check, timeout=20).texts() == {0: "1\n", 1: "1\n"}
