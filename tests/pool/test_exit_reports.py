"""The report of a cell in which a rank died, with its last operation and the names it lacks."""

from collections.abc import Callable

from nbddp.controller.pool.pool import Pool
from tests.support.views import run_cell

_KILLED = """\
import os, signal
x = torch.ones(2)
for step in range(5):
    dist.all_reduce(x)
    if rank == 1 and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_is_killed_in_a_loop(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(3)
    run_cell(pool, "import torch\nmodel = 1\n", execution_count=2)
    outcome = run_cell(pool, _KILLED, check=False, execution_count=3).outcome
    assert outcome is not None
    assert outcome.report is not None
    assert outcome.report.explains_exits
    finding = outcome.report.findings[0]
    assert finding.headline.startswith("Rank 1 exited with SIGKILL (signal 9), ")
    what, site = finding.ranks[1].what, finding.ranks[1].site
    assert what.startswith("exited; its last operation was all_reduce #")
    assert what.endswith(" at step 2")
    assert site is not None
    assert (site.cell, site.line) == (3, 4)
    assert {finding.ranks[rank].what for rank in (0, 2)} == {"waited and was freed"}
    assert " GB of memory were free" in finding.suspicions[0]
    assert "It lacks model, torch of cell [2]; os, signal, step, x of cell [3]." in finding.now
    assert finding.next_step.startswith("`%ddp catchup` ")


def test_a_rank_that_ends_itself(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(2)
    outcome = run_cell(pool, "import os\nif rank: os._exit(3)", check=False).outcome
    assert outcome is not None
    assert outcome.report is not None
    finding = outcome.report.findings[0]
    assert [each.what for each in finding.ranks.values()] == [
        "has finished the cell",
        "exited; it called no operation in this cell",
    ]
