"""Values between the notebook and ranks on a GPU, and the memory that they take."""

import time
from collections.abc import Callable

import pytest
import torch

from nbddp.controller.pool.pool import Pool
from nbddp.notebook.render import status_table
from tests.gpu.places import IS_DRY, PLACES, TOGETHER, Place
from tests.support.views import run_cell

Seen = Callable[[str, object], None]
places = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
_MB = 64


@places
def test_pull(pool: Pool, place: Place, seen: Seen):
    """They arrive on the CPU: this process has not used CUDA."""
    code = f"big = torch.arange({_MB} * 2**18, device=device) + rank; view = big[3:6].float()"
    run_cell(pool, code)
    began = time.monotonic()
    found = pool.pull("big", ranks=0)
    seen(f"{_MB * 2} MiB", f"{time.monotonic() - began:.2f} s")
    assert found.device.type == "cpu"
    assert found[[0, -1]].tolist() == [0, _MB * 2**18 - 1]
    assert [each.tolist() for each in pool.pull("view")] == [
        [3.0 + rank, 4.0 + rank, 5.0 + rank] for rank in range(place.ranks)
    ]
    run_cell(pool, "del big, view")


@places
def test_push(pool: Pool, place: Place):
    pool.push(weights=torch.arange(5.0))
    run_cell(pool, "on_device = weights.to(device) * 2")
    assert pool.pull("on_device.tolist()") == [[0.0, 2.0, 4.0, 6.0, 8.0]] * place.ranks


@pytest.mark.parametrize("place", TOGETHER, ids=lambda place: place.name)
def test_diff(pool: Pool, place: Place):
    run_cell(pool, "same = torch.arange(100.0, device=device); other = same + (rank == 1)")
    assert [str(each) for each in pool.diff("same").groups] == ["0-1"]
    assert [str(each) for each in pool.diff("other").groups] == ["0", "1"]


@places
def test_memory_in_the_status(pool: Pool, place: Place, seen: Seen):
    before = [row.gpu_bytes for row in status_table.survey(pool).rows]
    run_cell(pool, f"held = torch.empty({_MB} * 2**20, dtype=torch.uint8, device=device)")
    after = [row.gpu_bytes for row in status_table.survey(pool).rows]
    seen("before, after", f"{before}, {after}")
    run_cell(pool, "del held")
    grown = 0 if IS_DRY else _MB << 20
    assert all(new - old >= grown for old, new in zip(before, after, strict=True))
