"""Ranks get their GPU: forked, spawned, and where CUDA was used too early."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import BadOptionError
from nbddp.settings import Settings
from tests.gpu.places import FORCED, HEALTH_CELL, IS_DRY, PLACES, SHARED, Place
from tests.support.views import run_cell

Seen = Callable[[str, object], None]
places = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
on_a_gpu = pytest.mark.skipif(IS_DRY, reason="a dry run: it is about CUDA itself")


@places
def test_each_rank_has_its_device(pool: Pool, place: Place, seen: Seen):
    devices = pool.pull("str(device)")
    backends = pool.pull("dist.get_backend()")
    seen("devices", ", ".join(devices))
    seen("backends", ", ".join(backends))
    if not IS_DRY:
        assert set(backends) == {place.backend}
        assert all(device.startswith("cuda:") for device in devices)
    if place is FORCED:
        assert len(set(pool.pull("__import__('os').environ['NCCL_HOSTID']"))) == 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_start(method: str, seen: Seen):
    began = time.monotonic()
    pool = SHARED.start(settings=Settings(start_method=method))  # type: ignore[arg-type]
    try:
        seen("start", f"{time.monotonic() - began:.1f} s")
        is_touched = pool.pull("torch.cuda.is_initialized()")
        seen("CUDA in use after the start", is_touched)
        began = time.monotonic()
        run_cell(pool, HEALTH_CELL)
        seen("first operation", f"{time.monotonic() - began:.1f} s")
    finally:
        pool.stop()


@pytest.mark.parametrize("place", [SHARED], ids=lambda place: place.name)
def test_the_fork_server_uses_no_gpu(pool: Pool, place: Place, seen: Seen):
    """Otherwise its children could not use CUDA."""
    parents = set(pool.pull("__import__('os').getppid()"))
    assert len(parents) == 1
    process = Path("/proc") / str(parents.pop())
    opened = {str(each.readlink()) for each in (process / "fd").iterdir()}
    seen("descriptors of the fork server", len(opened))
    assert not [each for each in opened if "nvidia" in each]


@on_a_gpu
def test_cuda_that_was_touched_before_the_fork():
    place = Place("", 2, "gloo", options={"devices": [0]}, preload="tests.gpu.touches_cuda")
    with pytest.raises(BadOptionError, match="CUDA was used before this rank was forked"):
        place.start().stop()


@on_a_gpu
def test_spawned_ranks_work_after_cuda_was_touched():
    place = Place("", 2, "gloo", options={"devices": [0]}, preload="tests.gpu.touches_cuda")
    pool = place.start(settings=Settings(start_method="spawn"))
    try:
        run_cell(pool, HEALTH_CELL)
    finally:
        pool.stop()


@on_a_gpu
def test_random_numbers_of_the_device_differ():
    pool = SHARED.start()
    try:
        drawn = pool.pull("torch.rand(4, device=device).tolist()")
        assert drawn[0] != drawn[1]
    finally:
        pool.stop()
