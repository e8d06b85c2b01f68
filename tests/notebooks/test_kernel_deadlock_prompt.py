"""``%ddp config on_deadlock=debug`` in a real kernel."""

from collections.abc import Iterator

import pytest

from tests.support.kernel import Kernel

MISSING = """\
%%ddp
x = torch.full((2,), float(rank + 1))
if rank == 0:
    dist.all_reduce(x)
"""


@pytest.fixture
def debugging(kernel: Kernel) -> Iterator[Kernel]:
    kernel.ok("%ddp config on_deadlock=debug")
    yield kernel
    kernel.ok("%ddp config on_deadlock=abort")


def test_an_engineer_looks_at_a_hang_and_goes_on(debugging: Kernel):
    cell = debugging.run(MISSING, "print x.shape, rank", "waits", "show x", "diff x", "free")
    assert cell.questions == ["(deadlock) "] * 5
    assert "Deadlock: rank 1 never called all_reduce" in cell.lines[0]
    assert cell.lines[1].startswith("rank 0  waits in all_reduce #")
    assert "rank 1  has finished the cell" in cell.text
    assert "[0]   (torch.Size([2]), 0)" in cell.lines
    assert "[1]   (torch.Size([2]), 1)" in cell.lines
    page = "".join(message.text for message in cell.page)
    assert "`free` frees rank 0" in page  # the card of `waits`
    assert "x\nfloat32 (2,)\nrank 0   rank 1\n" in page
    assert "x: ranks 0 and 1 differ" in page
    assert "DeadlockError" in cell.error
    after = debugging.run("%ddp debug -r 0", "p tensor.shape", "q")
    assert "[0]   torch.Size([2])" in after.lines
    again = debugging.run("%%ddp\ndist.all_reduce(x)\nprint(x.tolist())")
    assert again.lines == ["[0-1] [3.0, 3.0]"]


def test_equal_answers_are_one_line_also_of_a_rank_that_has_finished(debugging: Kernel):
    cell = debugging.run(MISSING, "print x.shape", "print rank", "where", "free")
    shown = cell.lines[cell.lines.index("[0-1] torch.Size([2])") :]
    after = "rank 1 has finished the cell: its value is from after it"
    assert shown[:5] == ["[0-1] torch.Size([2])", after, "[0]   0", "[1]   1", after]
    assert shown[6].startswith("[1]   no line of the user's code")


def test_a_notebook_without_a_user_frees_the_ranks_and_says_so(debugging: Kernel):
    cell = debugging.run(MISSING)
    assert cell.questions == []
    assert [line for line in cell.lines if "on_deadlock" in line] == [
        "input was asked for, and this notebook runs without a user (nbclient, papermill, "
        "nbconvert and background cells have no stdin): on_deadlock=debug opens no prompt, the "
        "ranks are freed"
    ]
    assert "DeadlockError" in cell.error


def test_a_background_cell_frees_the_ranks(debugging: Kernel):
    debugging.ok(MISSING.replace("%%ddp", "%%ddp --async"))
    cell = debugging.run("handle = _\nhandle.wait()")
    assert "DeadlockError" in cell.error
