"""A cell that hangs or mismatches runs on real ranks after the change that its card suggests."""

from dataclasses import dataclass

import pytest

from nbddp.controller.diagnosis import CodeChange
from nbddp.controller.pool.pool import Pool
from tests.support.changes import apply_change
from tests.support.views import RecordingView, run_cell

_LIMIT_S = 60.0


@dataclass(frozen=True)
class FaultyCell:
    """A cell with one fault."""

    name: str
    code: str
    marks: tuple[str, ...]  #: lines that the change adds
    printed: tuple[str, str] = ("", "")  #: by each rank, after the change
    before: str = ""  #: an earlier cell
    in_cell: int = 2  #: the cell that is changed


CELLS = [
    FaultyCell(
        name="a call in an if, with its comment",
        code="""\
x = torch.ones(1)
if rank == 0:
    # the sum of all
    dist.all_reduce(x)
    print(x.item())
""",
        marks=("# the sum of all", "dist.all_reduce(x)"),
        printed=("2.0\n", ""),
    ),
    FaultyCell(
        name="two calls in one if",
        code="""\
x, count = torch.ones(2)
if rank == 0:
    dist.all_reduce(x)
    # and the other one
    dist.all_reduce(count)
print(x + count)
""",
        marks=("dist.all_reduce(x)", "# and the other one", "dist.all_reduce(count)"),
        printed=("tensor(4.)\n", "tensor(4.)\n"),
    ),
    FaultyCell(
        name="a broadcast, after which the sender goes on alone",
        code="""\
x = torch.full((2,), 5.0 - rank)
if rank == 0:
    dist.broadcast(x, src=0)
    dist.barrier()
print(x.tolist())
""",
        marks=("dist.broadcast(x, src=0)", "dist.barrier()"),
        printed=("[5.0, 5.0]\n", "[5.0, 5.0]\n"),
    ),
    FaultyCell(
        name="all receive first",
        code="""\
got, mine = torch.zeros(1), torch.ones(1) * rank
dist.recv(got, src=1 - rank)
# mine
dist.send(mine, dst=1 - rank)
print(got.item())
""",
        marks=("if rank % 2 == 0:", "    # mine", "else:"),
        printed=("1.0\n", "0.0\n"),
    ),
]


def run(pool: Pool, code: str, number: int) -> RecordingView:
    return run_cell(pool, code, timeout=_LIMIT_S, check=False, execution_count=number)


def change_of(view: RecordingView) -> CodeChange:
    assert view.outcome is not None
    assert view.outcome.report is not None, view.error
    change = view.outcome.report.findings[0].change
    assert change is not None, view.outcome.report.findings[0]
    return change


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_changed_cell_runs(cell: FaultyCell, pool: Pool):
    texts = {1: cell.before, 2: cell.code}
    for number in filter(texts.get, texts):
        view = run(pool, texts[number], number)
    assert view.error is not None
    change = change_of(view)
    assert change.cell == cell.in_cell
    added = [line.source for line in change.lines if line.change == "added"]
    assert set(cell.marks) <= set(added), added

    texts[cell.in_cell] = apply_change(texts[cell.in_cell], change.lines)
    for number in filter(texts.get, texts):
        view = run(pool, texts[number], number)
        assert view.error is None, view.error
    assert (view.text(0), view.text(1)) == cell.printed
