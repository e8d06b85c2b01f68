"""Thirty mixed deadlocks in a row on four ranks: all are freed, and no memory accumulates."""

import itertools
from dataclasses import dataclass

import psutil
import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import DeadlockError, MismatchError
from tests.cases.hung_cells import HungCell
from tests.cases.hung_collectives import MISSING
from tests.cases.hung_cycles import CYCLES
from tests.cases.hung_messages import UNMATCHED
from tests.cases.hung_mismatched_messages import MESSAGES
from tests.cases.hung_mismatches import MISMATCHED
from tests.cases.hung_modules import MODULES
from tests.support.lasting_pool import LastingPool, choose_lasting_pool, make_lasting_pools
from tests.support.polling import poll_until
from tests.support.views import run_cell

lasting_pools = pytest.fixture(scope="module")(make_lasting_pools)
shared_pool = pytest.fixture(choose_lasting_pool)

_LIMIT_S = 20.0
_COUNT = 30
#: Bytes that the allocator may keep above the start, over thirty deadlocks.
_MEMORY_TOLERANCE = 8 << 20

#: Cells that leave no group behind: a group would be kept on purpose.
CELLS = [
    cell
    for cell in (*MISSING, *MODULES, *MISMATCHED, *MESSAGES, *UNMATCHED, *CYCLES)
    if cell.n == 4
    and cell.error in (DeadlockError, MismatchError)
    and not any(word in cell.code + cell.before for word in ("new_group", "mesh"))
]


@dataclass(frozen=True)
class Held:
    """The objects that the process of a rank holds."""

    threads: int
    fds: int
    sockets: int
    memory: int  #: bytes of its own


def _held(pool: Pool) -> list[Held]:
    found = []
    for info in pool.ranks():
        process = psutil.Process(info.pid)
        with process.oneshot():
            found.append(
                Held(
                    threads=process.num_threads(),
                    fds=process.num_fds(),
                    sockets=len(process.net_connections("all")),
                    memory=process.memory_full_info().uss,
                )
            )
    return found


def _deadlock(pool: Pool, cell: HungCell) -> None:
    view = run_cell(pool, cell.code, timeout=_LIMIT_S, check=False)
    assert type(view.error) is cell.error, f"{cell.name}: {view.error}"
    assert view.outcome is not None
    assert view.outcome.rebuild_failure == ""
    run_cell(pool, "dist.all_reduce(x := torch.ones(1))\nassert x.item() == 4", timeout=_LIMIT_S)


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize("shared_pool", [4], indirect=True)
def test_thirty_deadlocks_in_a_row(pool: Pool, shared_pool: LastingPool):
    kinds = {cell.kind for cell in CELLS}
    assert kinds >= {"missing-rank", "mismatched-collective", "p2p-cycle", "group-cycle"}
    pids = [info.pid for info in pool.ranks()]
    for cell in CELLS:  # modules and files that are loaded or opened once
        _deadlock(pool, cell)
    before = _held(pool)

    for cell in itertools.islice(itertools.cycle(CELLS), _COUNT):
        _deadlock(pool, cell)
    shared_pool.check_health()

    assert [info.pid for info in pool.ranks()] == pids

    def nothing_has_piled_up() -> bool:
        for rank, (was, now) in enumerate(zip(before, _held(pool), strict=True)):
            assert now.threads <= was.threads, f"rank {rank}: {was} -> {now}"
            assert now.fds <= was.fds, f"rank {rank}: {was} -> {now}"
            assert now.sockets <= was.sockets, f"rank {rank}: {was} -> {now}"
            assert now.memory <= was.memory + _MEMORY_TOLERANCE, f"rank {rank}: {was} -> {now}"
        return True

    poll_until(nothing_has_piled_up)
