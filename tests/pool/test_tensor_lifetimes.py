"""Tensors are released with their operation, without the garbage collector, as on stock groups."""

import os

import pytest

from nbddp.controller.pool.pool import Pool
from tests.cases.tensor_lifetimes import PIPELINE, PRELUDE
from tests.conftest import make_pool
from tests.support.views import run_cell

#: ``make growth`` asks for more.
_TIMES = int(os.environ.get("NBDDP_TIMES", "100"))


def _left(pool: Pool, times: int) -> list[dict[str, int]]:
    run_cell(pool, f"{PRELUDE}\nfound = {{}}")
    for name in pool.pull("list(kinds)", ranks=0):
        run_cell(pool, f"found[{name!r}] = left(kinds[{name!r}], {times})", timeout=60.0)
    run_cell(pool, "if recorder is not None: del recorder.sweep")
    run_cell(pool, "found = {name: count for name, count in found.items() if count}")
    counted: list[dict[str, int]] = pool.pull("found")
    return counted


@pytest.mark.full
@pytest.mark.timeout(600)
def test_no_tensor_outlives_its_operation(pool: Pool):
    assert _left(pool, _TIMES) == [{}, {}]


@pytest.mark.full
def test_no_tensor_outlives_its_operation_on_stock_groups(
    no_leaks: None, own_temporary_folder: object
):
    """Traced groups must do the same as stock groups."""
    pool = make_pool(2, plain=True)
    try:
        assert _left(pool, 25) == [{}, {}]
    finally:
        pool.stop()


def test_a_step_of_a_pipeline_leaves_nothing_to_the_collector(pool: Pool):
    run_cell(pool, PRELUDE)
    run_cell(pool, PIPELINE)
    view = run_cell(pool, "step(), tensors_in_cycles(), left(step, 100)", timeout=60.0)
    assert view.result(0) == view.result(1) == "(None, 0, 0)"
    run_cell(pool, "del recorder.sweep, schedule, stage, model")


def test_an_operation_that_was_freed_leaves_nothing_to_the_collector(pool: Pool):
    """An error holds the frames of its traceback; a frame that holds the error is a cycle."""
    run_cell(pool, PRELUDE)
    for name in ("all_reduce", "all_reduce, waited", "send_and_recv"):
        run_cell(pool, f"refs.clear(); gc.disable()\nif rank == 0: fails(kinds[{name!r}])")
        report = pool.last_report
        assert report is not None
        assert report.proven
        view = run_cell(pool, "sum(ref() is not None for ref in refs), gc.enable()")
        assert (name, view.result(0)) == (name, "(0, None)")
    run_cell(pool, "del recorder.sweep, model")
