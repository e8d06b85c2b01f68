"""Ranks that raise together are one group, however late they format their tracebacks."""

import pytest

from nbddp.controller.pool.pool import Pool
from tests.support.views import run_cell

#: Rank 2 has raised, and formats its error until operations are ended on it, too.
_CODE = """
import contextlib, threading

freed = threading.Event()

def wait():
    with contextlib.suppress(Exception):
        dist.barrier()
    freed.set()

class Late(RuntimeError):
    def __str__(self):
        if rank == 2:
            freed.wait()
        return f"bad batch {rank}"

if rank == 2:
    threading.Thread(target=wait).start()
if rank > 0:
    raise Late
dist.barrier()
"""


@pytest.mark.fresh_ranks(3)
def test_a_rank_that_formats_its_error_while_others_are_freed(pool: Pool):
    view = run_cell(pool, _CODE, check=False)
    assert "CellError: ranks 1-2 raised Late" in str(view.error)
    assert "rank 2 waited" not in str(view.error)
