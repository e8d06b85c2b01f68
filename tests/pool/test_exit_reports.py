"""The report of a cell in which a rank died, with its last operation and the names it lacks."""

import re

import pytest

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


@pytest.mark.fresh_ranks(3)
def test_a_rank_that_is_killed_in_a_loop(pool: Pool):
    run_cell(pool, "import torch\nmodel = 1\n", execution_count=2)
    outcome = run_cell(pool, _KILLED, check=False, execution_count=3).outcome
    assert outcome is not None
    assert outcome.report is not None
    assert outcome.report.explains_exits
    finding = outcome.report.findings[0]
    assert finding.headline.startswith("Rank 1 exited with SIGKILL (signal 9), ")
    what, site = finding.ranks[1].what, finding.ranks[1].site
    assert what.startswith("exited; its last operation was all_reduce #")
    # Its line may have been noted after its last operation.
    assert re.fullmatch(r".* at step 2(, last seen \d+\.\d s before its end)?", what)
    assert site is not None
    assert site.cell == 3
    assert site.line in {4, 5, 6}
    assert {finding.ranks[rank].what for rank in (0, 2)} == {"waited and was freed"}
    assert finding.suspicions == (
        "line 6: `os.kill(os.getpid(), signal.SIGKILL)`, inside `if rank == 1 and step == 2:` "
        "(line 5)",
    )
    assert "It lacks model of cell [2]; os, signal, step, x of cell [3]." in finding.now
    assert "Then run `%ddp catchup` to give its new process" in finding.next_step


@pytest.mark.fresh_ranks
def test_a_rank_that_ends_itself(pool: Pool):
    outcome = run_cell(pool, "import os\nif rank: os._exit(3)", check=False).outcome
    assert outcome is not None
    assert outcome.report is not None
    finding = outcome.report.findings[0]
    assert finding.ranks[0].what == "has finished the cell"
    assert finding.ranks[1].what.startswith("exited; it called no operation in this cell")


_NOTED = """\
import os, time
def work():
    reader = dist.group.WORLD.recorder._reader
    while reader.last_line is None or reader.last_line[0].function != "work":
        time.sleep(0.01)
    getattr(os, "_exit")(3)  # the call is not found in the text
if rank:
    work()
"""


@pytest.mark.fresh_ranks
def test_the_line_that_a_rank_was_at_is_told(pool: Pool):
    run_cell(pool, "dist.barrier()")
    view = run_cell(pool, _NOTED, check=False, execution_count=7)
    assert view.outcome is not None
    assert view.outcome.report is not None
    end = view.outcome.report.findings[0].ranks[1]
    assert re.fullmatch(
        r"exited; it called no operation in this cell, last seen \d+\.\d s before its end", end.what
    )
    assert end.site is not None
    assert (end.site.cell, end.site.function) == (7, "work")
    assert end.site.line in {4, 5}
    seen = r"^  seen      \d+\.\d s before at cell \[7\], line [45]"
    assert re.search(seen, str(view.error), re.MULTILINE)
