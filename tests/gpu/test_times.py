"""The times of a timeline, compared with CUDA events."""

from collections.abc import Callable

import pytest

from nbddp.controller.pool.pool import Pool
from tests.gpu.places import IS_DRY, PLACES, Place
from tests.support.views import run_cell

_CELL = """
import statistics, time

def now():
    if device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True); event.record(); return event
    return time.perf_counter()

def between(first, last):
    if device.type == "cuda":
        last.synchronize(); return first.elapsed_time(last)
    return (last - first) * 1e3

x = torch.ones(1 << 20, device=device)
for _ in range(3): dist.all_reduce(x)
times = []
for _ in range(20):
    began = now(); dist.all_reduce(x); times.append(between(began, now()))
median_ms = statistics.median(times)
"""


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_an_operation_of_4_mib(pool: Pool, place: Place, seen: Callable[[str, object], None]):
    run_cell(pool, _CELL, timeout=120.0)
    records = [each for each in pool.trace() if each["rank"] == 0][-20:]
    assert [each["op"] for each in records] == ["all_reduce"] * 20
    durations = sorted((each["completed_ns"] - each["created_ns"]) / 1e6 for each in records)
    measured = pool.pull("median_ms", ranks=0)
    seen("clock" if IS_DRY else "CUDA events", f"{measured:.3f} ms")
    seen("records", f"{durations[10]:.3f} ms")
    assert durations[0] > 0
