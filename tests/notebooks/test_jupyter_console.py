"""A kernel that ``jupyter console`` started: it shows no pictures and no updates."""

from collections.abc import Iterator

import pytest

from tests.support.kernel import Kernel

#: A process whose command line is that of a console, in the place of the kernel's parent.
_PRETEND = (
    "import os, subprocess\n"
    "program = subprocess.Popen(['jupyter-console', '100'], executable='/bin/sleep')\n"
    "before = os.environ['JPY_PARENT_PID']\n"
    "os.environ['JPY_PARENT_PID'] = str(program.pid)"
)


@pytest.fixture
def in_console(kernel: Kernel) -> Iterator[Kernel]:
    kernel.ok(_PRETEND)
    yield kernel
    kernel.ok("os.environ['JPY_PARENT_PID'] = before\nprogram.kill()\nprogram.wait()")


def test_tensors_are_shown_as_text_once_they_are_complete(in_console: Kernel):
    cell = in_console.ok("%%ddp\nt = torch.full((2,), float(rank))\nnbddp.show(t)")
    [shown] = cell.of("display_data", "update_display_data")
    assert list(shown.content["data"]) == ["text/plain"]
    assert "rank 0" in shown.text
    assert "rank 1" in shown.text
    with_picture = "%%ddp\nwith nbddp.show(t):\n    dist.all_reduce(t)"
    [shown] = in_console.ok(with_picture).of("display_data", "update_display_data")
    assert "after" in shown.text
