"""Processes that cells start: those that cannot have a function of a cell say what works."""

from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError
from tests.support.views import run_cell

WORKER = """
import multiprocessing
import torch.multiprocessing as mp

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index

def worker(index):
    pass
"""
LOADER = "torch.utils.data.DataLoader(Numbers(), num_workers=1, multiprocessing_context='spawn')"


@pytest.mark.parametrize(
    "start",
    [
        "mp.spawn(worker, nprocs=1)",
        "mp.start_processes(worker, nprocs=1, start_method='spawn')",
        "mp.get_context('spawn').Process(target=worker, args=(0,)).start()",
        "multiprocessing.get_context('forkserver').Process(target=worker).start()",
    ],
)
def test_a_process_that_cannot_have_a_function_of_a_cell_is_refused(pool: Pool, start: str):
    run_cell(pool, WORKER)
    with pytest.raises(CellError) as caught:
        run_cell(pool, start)
    kind, text = caught.value.by_rank[0]
    assert kind == "BadOptionError"
    assert text.startswith("worker is defined in a cell, and a process of start_method=")
    assert "next: call worker in the cell: the ranks are processes already" in text


def test_a_worker_of_a_loader_that_cannot_have_a_class_of_a_cell_is_refused(pool: Pool):
    """Caught in the cell: the frames of an error keep the queues of the loader."""
    run_cell(pool, WORKER)
    code = f"try: next(iter({LOADER}))\nexcept Exception as error: told = str(error)\ntold"
    assert "Numbers is defined in a cell" in str(run_cell(pool, code).result(0))


@pytest.mark.full
def test_the_processes_that_the_error_proposes_run(pool: Pool, tmp_path: Path):
    (tmp_path / "own_worker.py").write_text(
        "from pathlib import Path\n"
        "def worker(index, folder, rank):\n"
        "    (Path(folder) / f'{rank}-{index}').touch()\n"
    )
    run_cell(
        pool,
        f"{WORKER}\nimport sys; sys.path.insert(0, {str(tmp_path)!r})\nimport own_worker\n"
        "def forked(index, folder, rank): own_worker.worker(index, folder, rank)\n"
        f"mp.spawn(own_worker.worker, ({str(tmp_path)!r}, rank), nprocs=1)\n"
        f"arguments = {str(tmp_path)!r}, f'fork{{rank}}'\n"
        "mp.start_processes(forked, arguments, 1, start_method='fork')\n"
        "sys.path.pop(0)",
    )
    made = {path.name for path in tmp_path.iterdir() if "-" in path.name}
    assert made == {"0-0", "1-0", "fork0-0", "fork1-0"}


def test_an_object_that_is_pickled_without_its_class_is_not_refused(pool: Pool):
    code = """
import multiprocessing
class Number:
    def __reduce__(self): return int, (5,)
process = multiprocessing.get_context("spawn").Process(target=divmod, args=(Number(), 2))
process.start()
process.join()
process.exitcode"""
    assert run_cell(pool, code, ranks=[0]).result(0) == "0"
