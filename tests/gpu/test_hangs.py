"""Operations that can never complete on a GPU are found, explained and freed."""

import time
from collections.abc import Callable

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import (
    CellInterruptedError,
    CollectiveMismatchError,
    DeadlockError,
    RankExitedError,
)
from tests.gpu.places import BLOCKING, TOGETHER, Place
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell

Seen = Callable[[str, object], None]
places = pytest.mark.parametrize("place", [*TOGETHER, BLOCKING], ids=lambda place: place.name)
#: A guard against hanging: a cell that needs it has not been freed.
_LIMIT_S = 60.0
_BEFORE = "kept = torch.full((1000,), float(rank), device=device)"
_IS_KEPT = "kept.device == device and bool((kept == rank).all())"


@places
def test_a_call_that_one_rank_does_not_make(pool: Pool, place: Place, seen: Seen):
    run_cell(pool, _BEFORE)
    began = time.monotonic()
    code = """
x = torch.ones(4, device=device)
if rank == 0:
    dist.all_reduce(x)
    x.sum().item()
"""
    view = run_cell(pool, code, timeout=_LIMIT_S, check=False)
    seen("freed after", f"{time.monotonic() - began:.1f} s")
    assert type(view.error) is DeadlockError, view.error
    assert view.outcome is not None
    assert view.outcome.report is not None
    finding = view.outcome.report.proven[0]
    seen("told", finding.headline)
    assert (finding.kind, str(finding.culprits)) == ("missing-rank", "1")
    assert pool.pull(_IS_KEPT) == [True, True]


@places
def test_shapes_that_differ(pool: Pool, place: Place, seen: Seen):
    run_cell(pool, _BEFORE)
    code = "x = torch.ones(4 + rank, device=device)\ndist.all_reduce(x)\nx.sum().item()"
    view = run_cell(pool, code, timeout=_LIMIT_S, check=False)
    assert view.error is not None
    lines = [line for line in str(view.error).splitlines() if "Mismatch" in line]
    seen("told", lines[-1] if lines else str(view.error))
    assert CollectiveMismatchError.__name__ in str(view.error)
    assert pool.pull(_IS_KEPT) == [True, True]
    assert pool.pull("x.tolist()") == [[1.0] * 4, [1.0] * 5]  # nothing was sent


@places
def test_a_rank_that_is_killed(pool: Pool, place: Place, seen: Seen):
    run_cell(pool, _BEFORE)
    code = """
import os, signal
if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
x = torch.ones(4, device=device); dist.all_reduce(x); x.sum().item()
"""
    began = time.monotonic()
    view = run_cell(pool, code, timeout=_LIMIT_S, check=False)
    seen("over after", f"{time.monotonic() - began:.1f} s")
    assert type(view.error) is RankExitedError, view.error
    assert pool.pull(_IS_KEPT, ranks=0) is True
    sync = "if rank == 1: kept = torch.empty(1000, device=device)\nnbddp.sync(kept, src=0)"
    run_cell(pool, sync, timeout=_LIMIT_S)
    assert pool.pull("bool((kept == 0).all())") == [True, True]


@places
def test_an_error_on_one_rank(pool: Pool, place: Place, seen: Seen):
    run_cell(pool, _BEFORE)
    code = """
x = torch.ones(4, device=device)
if rank == 1: raise ValueError("on one rank")
dist.all_reduce(x); x.sum().item()
"""
    began = time.monotonic()
    view = run_cell(pool, code, timeout=_LIMIT_S, check=False)
    seen("over after", f"{time.monotonic() - began:.1f} s")
    assert view.error is not None
    assert "ValueError: on one rank" in str(view.error)
    assert pool.pull(_IS_KEPT) == [True, True]


@places
def test_an_interrupt(pool: Pool, place: Place, seen: Seen):
    """Rank 0 waits for rank 1, which runs Python code and gets the interrupt."""
    run_cell(pool, _BEFORE)
    code = """
import time
print("begun", flush=True)
while rank == 1: time.sleep(0.05)
x = torch.ones(4, device=device); dist.all_reduce(x); x.sum().item()
"""
    cell = begin_cell(pool, code)
    poll_until(lambda: len(cell.view.texts()) == 2)
    poll_until(lambda: pool.trace()[-1]["op"] == "all_reduce")
    began = time.monotonic()
    pool.interrupt()
    view = cell.join(_LIMIT_S)
    seen("over after", f"{time.monotonic() - began:.1f} s")
    assert type(view.error) is CellInterruptedError, view.error
    assert pool.pull(_IS_KEPT) == [True, True]


@places
def test_a_rank_that_computes_is_not_accused(pool: Pool, place: Place, seen: Seen):
    code = """
import time
if rank == 1:
    a = torch.rand(512, 512, device=device); end = time.monotonic() + 2.0
    while time.monotonic() < end:
        for _ in range(20): a = (a @ a).clamp(0, 1)
        a.sum().item()
x = torch.ones(4, device=device); dist.all_reduce(x)
assert x.sum().item() == 4 * world_size
"""
    view = run_cell(pool, code, timeout=_LIMIT_S)
    assert view.outcome is not None
    assert view.outcome.report is None or not view.outcome.report.verdict
