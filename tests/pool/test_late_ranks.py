"""A card names every rank that took part, also those that came after the others were freed."""

from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from tests.support.restarted_pool import restarted_pool
from tests.support.views import run_cell

shared_pool = restarted_pool(4)

#: Ranks 2 and 3 come when an operation of the others has been ended.
_LATE = """
import time
from contextlib import contextmanager
from pathlib import Path

@contextmanager
def late(is_late):
    flag = Path({flag!r})
    while is_late and not flag.exists():
        time.sleep(0.01)
    try:
        yield
    finally:
        flag.touch()

with late(rank > 1):
    {call}
"""


@pytest.mark.parametrize(
    ("call", "headline", "ranks"),
    [
        ("rank == 0 and dist.barrier()", "Ranks 1-3 never called", ("1-3", "0")),
        ("rank != 1 and dist.barrier()", "ranks 0,2-3 wait for it", ("1", "0,2-3")),
        ("dist.recv(torch.zeros(2), src=rank ^ 1)", "Ranks 0-3 wait", ("0-3", "0-3")),
        (
            "dist.all_reduce(torch.zeros(1 + rank % 2))",
            "Ranks 0,2 called all_reduce of float32[1]",
            ("0-3", None),  # whether a rank raised itself or waited is luck
        ),
        ("rank != 1 and dist.new_group([0, 1, 2, 3])", "ranks 0,2-3 wait", ("1", "0,2-3")),
    ],
)
def test_the_report_at_the_end_names_late_ranks(
    call: str, headline: str, ranks: tuple[str, str | None], pool: Pool, tmp_path: Path
):
    code = _LATE.format(flag=str(tmp_path / "flag"), call=call)
    view = run_cell(pool, code, check=False)
    report = pool.last_report
    assert report is not None
    finding = report.findings[0]
    assert headline in finding.headline
    assert headline in str(view.error)
    culprits, waiting = ranks
    assert str(finding.culprits) == culprits
    assert waiting in (None, str(finding.waiting))
