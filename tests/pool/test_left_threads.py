"""Threads of ended cells that still run are named, in ``%ddp status`` and when a cell begins."""

from nbddp.controller.pool.pool import Pool
from nbddp.notebook.render import status_table
from tests.support.polling import poll_until
from tests.support.views import run_cell

_SPIN = """\
import threading
stops = threading.Event()
def spin():
    while not stops.is_set():
        pass
if rank == 1:
    threading.Thread(target=spin, name="spinner").start()
"""
_NAMED = "thread 'spinner' of an earlier cell still runs, at cell [1], line"


def test_a_thread_that_computes_between_cells(pool: Pool):
    run_cell(pool, _SPIN)
    try:

        def busy() -> status_table.Survey:
            survey = status_table.survey(pool)
            assert survey.rows[0].state == "idle"
            assert survey.rows[1].state.endswith(" % CPU between cells")
            return survey

        survey = poll_until(busy)
        assert survey.rows[1].is_odd
        [note] = survey.notes
        assert note.startswith(f"rank 1: {_NAMED}")
        assert note.endswith(" % CPU)")
        first = run_cell(pool, "pass").texts("stderr")
        assert list(first) == [1]
        assert first[1].startswith(f"nbddp: {_NAMED}")
        assert run_cell(pool, "pass").texts("stderr") == {}  # it is told once
    finally:
        run_cell(pool, "stops.set()")
    poll_until(lambda: not status_table.survey(pool).notes)
    poll_until(lambda: {row.state for row in status_table.survey(pool).rows} == {"idle"})


def test_a_task_that_computes_between_cells(pool: Pool):
    run_cell(
        pool,
        "import asyncio\n"
        "async def forever():\n"
        "    while True:\n"
        "        await asyncio.sleep(0)\n"
        "task = asyncio.ensure_future(forever()) if rank == 0 else None",
    )
    try:

        def busy() -> bool:
            first, second = status_table.survey(pool).rows
            return first.state.endswith(" % CPU between cells") and second.state == "idle"

        poll_until(busy)
    finally:
        run_cell(pool, "task and task.cancel()\nawait asyncio.sleep(0)")
