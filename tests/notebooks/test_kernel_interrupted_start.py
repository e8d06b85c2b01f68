"""The stop button while a pool starts or restarts."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.kernel import Kernel, running_kernel
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(300)  # several starts in one test


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nbk-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def own_kernel(folder: Path) -> Iterator[Kernel]:
    with running_kernel(TMPDIR=str(folder)) as kernel:
        kernel.ok("%load_ext nbddp")
        yield kernel


def _interrupt_when_it_starts(kernel: Kernel, line: str) -> str:
    """The error of a cell that is interrupted as soon as it has begun a process."""
    before = {process.pid for process in kernel.process.children(recursive=True)}
    cell_id = kernel.execute(line)

    def begun() -> bool:
        return any(c.pid not in before for c in kernel.process.children(recursive=True))

    poll_until(begun, 60.0)
    kernel.interrupt()
    return kernel.finish(cell_id, limit_s=60.0).error


def _nothing_is_left(kernel: Kernel, folder: Path) -> bool:
    return not kernel.process.children(recursive=True) and not list(folder.glob("nbddp-*"))


@pytest.mark.parametrize(
    "line", [pytest.param("%ddp start -n 3", marks=pytest.mark.full), "%%ddp\nprint('ran')"]
)
def test_an_interrupted_start_is_one_line_and_leaves_nothing(
    own_kernel: Kernel, folder: Path, line: str
):
    error = _interrupt_when_it_starts(own_kernel, line)
    ranks = "ranks 0-2" if "-n 3" in line else "ranks 0-1"
    assert error == (
        f"PoolInterruptedError: the start of {ranks} was interrupted, and all processes were "
        "ended: no pool is running. Next: run the cell again"
    )
    poll_until(lambda: _nothing_is_left(own_kernel, folder), 60.0)
    assert "no pool is running" in own_kernel.run("%ddp status").error
    assert "processes" in own_kernel.run(line, limit_s=120.0).text


@pytest.mark.full
def test_an_interrupted_restart_of_a_rank_is_one_line_and_continues(own_kernel: Kernel):
    # Each process loads torch by itself: none is there before the interrupt.
    own_kernel.ok("import os; os.environ['NBDDP_START_METHOD'] = 'spawn'")
    assert "3 processes" in own_kernel.run("%ddp start -n 3", limit_s=120.0).text
    own_kernel.ok("%%ddp\nkept, pid = rank, __import__('os').getpid()")
    own_kernel.ok("pid = %ddp pull pid -r 1")
    before = psutil.Process(int(own_kernel.value("pid")))
    cell_id = own_kernel.execute("%ddp restart -r 1")
    poll_until(lambda: not before.is_running(), 60.0)
    own_kernel.interrupt()
    error = own_kernel.finish(cell_id, limit_s=60.0).error
    assert error == (
        "PoolInterruptedError: the wait for rank 1 was interrupted, the restart goes on: a fresh "
        "process takes its place, its variables are gone, those of ranks 0,2 are kept. Next: run a "
        "cell, which waits for it"
    )
    again = own_kernel.run("%%ddp\ndist.barrier(); print('kept' in globals())", limit_s=120.0)
    # A notice may stand above: the cell waits until the groups are formed.
    assert again.lines[-2:] == ["[0,2] True", "[1]   False"]


@pytest.mark.full
def test_an_interrupted_restart_of_all_ranks_is_one_line_and_leaves_nothing(
    own_kernel: Kernel, folder: Path
):
    assert "3 processes" in own_kernel.run("%ddp start -n 3", limit_s=120.0).text
    error = _interrupt_when_it_starts(own_kernel, "%ddp restart")
    assert error == (
        "PoolInterruptedError: the restart of ranks 0-2 was interrupted, and all processes were "
        "ended: no pool is running. All variables are gone; the next cell starts a pool with the "
        "same options"
    )
    poll_until(lambda: _nothing_is_left(own_kernel, folder), 60.0)
    started = own_kernel.run("%%ddp\n1", limit_s=120.0).text
    assert "so one was started: 3 processes" in started
