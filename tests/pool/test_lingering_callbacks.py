"""Callbacks of widgets that are in a collective when their cell ends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellInterruptedError
from nbddp.wire.flight_recorder.schema import CALLBACK_THREAD
from tests.support.polling import poll_until
from tests.support.views import BackgroundCell, begin_cell, run_cell
from tests.support.widgets import Slider

LIMIT_S = 30.0
HEALTHY = "x = torch.ones(1)\ndist.all_reduce(x)\nprint(int(x))"


@pytest.fixture
def flag(tmp_path: Path) -> Callable[[str], str]:
    """Source of a cell that waits until a file is there."""

    def waits(name: str) -> str:
        path = str(tmp_path / name)
        return f"while not os.path.exists({path!r}): time.sleep(0.01)\n"

    return waits


def begin(pool: Pool, code: str) -> tuple[BackgroundCell, Slider]:
    """A cell beside which a callback on rank 0 calls a collective."""
    slider = Slider(pool, "dist.all_reduce(z)", before="import os\n")
    run_cell(pool, "z = torch.ones(1)")
    cell = begin_cell(pool, f"print('runs')\n{code}")
    poll_until(lambda: cell.view.text(0), LIMIT_S)
    slider.move(0)

    def is_waiting() -> bool:
        assert waits(pool, "callback"), cell.view.text(0, "stderr") + slider.text
        return True

    poll_until(is_waiting, LIMIT_S)
    return cell, slider


def waits(pool: Pool, who: str) -> bool:
    """Whether the callback of rank 0 waits in its collective, or the main thread for it."""
    look = pool.survey().looks.get(0)  # a rank of a busy machine may be late with its answer
    threads = look.threads if look is not None else ()
    chosen = [t for t in threads if (t.name == CALLBACK_THREAD if who == "callback" else t.is_main)]
    return any(thread.wait is not None for thread in chosen)


def test_a_callback_that_no_rank_joins_is_told_and_freed(
    pool: Pool, flag: Callable[[str], str], tmp_path: Path
):
    cell, slider = begin(pool, flag("end"))
    (tmp_path / "end").touch()
    outcome = cell.join(LIMIT_S).outcome
    assert outcome is not None
    assert outcome.report is not None
    assert outcome.report.findings[0].headline.startswith("Rank 1 never called all_reduce")
    words = ": Rank 1 never called all_reduce"
    poll_until(lambda: words in cell.view.text(0, "stderr") + slider.text, LIMIT_S)
    assert not pool._processes.in_callback()
    assert run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}


def test_a_callback_that_another_rank_joins_later_continues(
    pool: Pool, flag: Callable[[str], str], tmp_path: Path
):
    joins = flag("join").replace("\n", "\n    ")
    cell, _ = begin(pool, f"{flag('end')}if rank == 1:\n    {joins}dist.all_reduce(z)")
    (tmp_path / "end").touch()
    poll_until(lambda: waits(pool, "main"), LIMIT_S)
    (tmp_path / "join").touch()
    view = cell.join(LIMIT_S)
    assert view.error is None
    assert view.outcome is not None
    assert view.outcome.report is None
    assert pool.pull("int(z)") == [2, 2]
    assert run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}


def test_an_interrupt_frees_it_too(pool: Pool, flag: Callable[[str], str], tmp_path: Path):
    cell, _ = begin(pool, f"{flag('end')}while rank == 1: time.sleep(0.01)")
    (tmp_path / "end").touch()
    poll_until(lambda: waits(pool, "main"), LIMIT_S)
    pool.interrupt()
    assert isinstance(cell.join(LIMIT_S).error, CellInterruptedError)
    poll_until(lambda: not pool._processes.in_callback(), LIMIT_S)
    assert run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}
