"""``%ddp status --live`` in a real kernel."""

import re
from collections.abc import Iterator

import pytest

from tests.support.kernel import Cell, Kernel, running_kernel


@pytest.fixture(scope="module")
def shared() -> Iterator[Kernel]:
    with running_kernel() as kernel:
        kernel.ok("%load_ext nbddp")
        yield kernel


@pytest.fixture
def own_kernel(shared: Kernel) -> Kernel:
    shared.ok("%ddp start -n 2")
    return shared


def table_of(cell: Cell) -> str:
    """The current output of the cell: one table, however often it has changed."""
    [shown] = cell.page
    assert shown.content["data"]["text/html"].startswith("<div>")
    return shown.text


@pytest.mark.full
def test_the_table_changes_while_a_cell_runs_and_stays_when_the_pool_stops(own_kernel: Kernel):
    panel_id = own_kernel.execute("%ddp status --live")
    panel = own_kernel.finish(panel_id)
    assert "live, last change" in table_of(panel)
    running = own_kernel.execute(
        "%%ddp\nimport time\nif rank == 1:\n    time.sleep(60)\ndist.barrier()"
    )
    own_kernel.wait_for(lambda: "time.sleep(60)" in table_of(panel), "the line of rank 1")
    own_kernel.wait_for(lambda: "barrier #1 for" in table_of(panel), "the wait of rank 0")
    own_kernel.interrupt()
    assert own_kernel.finish(running).status == "error"
    own_kernel.wait_for(lambda: table_of(panel).count("idle") == 2, "idle ranks")
    assert own_kernel.ok("%ddp stop").page[0].text == "stopped: 2 ranks\n"
    own_kernel.wait_for(lambda: "the pool was stopped" in table_of(panel), "its end")
    assert "live" not in table_of(panel)
    assert own_kernel.value("[t.name for t in __import__('threading').enumerate()]").count(
        "nbddp-panel"
    ) == 0  # fmt: skip


@pytest.mark.full
def test_status_of_a_plain_pool_comes_from_outside_of_the_ranks(shared: Kernel):
    shared.ok("%ddp start -n 2 --plain")
    status = shared.ok("%ddp status").page[0].text
    assert re.findall(r"^[01] +idle +\d+ MB +\d+$", status, re.MULTILINE) != []
    assert "does not answer" not in status
    assert "plain ranks do not report their state: this is how they look from outside" in status
    shared.ok("%%ddp --async\nimport time\nif rank:\n    while True: pass\nelse: time.sleep(600)")
    shared.ok("handle = _")

    def seen() -> str:
        return str(shared.ok("%ddp status").page[0].text)

    def is_told(pattern: str) -> bool:
        return re.search(pattern, seen(), re.MULTILINE) is not None

    shared.wait_for(lambda: is_told("^1 +in a cell, computes"), "rank 1")
    shared.wait_for(lambda: is_told(r"^0 +in a cell, sleeps .* line 5$"), "rank 0")
    shared.ok("handle.interrupt()")
    shared.run("handle.wait()")
    shared.ok("%ddp stop")


def test_a_later_panel_takes_over_and_off_ends_it(own_kernel: Kernel):
    first = own_kernel.ok("%ddp status --live")
    second = own_kernel.ok("%ddp status --live")
    own_kernel.wait_for(lambda: "it continues in a later cell" in table_of(first), "its end")
    own_kernel.ok("%ddp restart")
    pid = own_kernel.ok("%%ddp -r 0\nimport os\nprint(os.getpid())").text.split()[-1]
    own_kernel.wait_for(lambda: pid in table_of(second), "the fresh ranks")
    assert own_kernel.ok("%ddp status --live off").text == "the live table stays as it is now\n"
    own_kernel.wait_for(lambda: "switched off" in table_of(second), "its end")
    assert own_kernel.ok("%ddp status --live off").text == "no live table is shown\n"
    assert own_kernel.ok("%%ddp\nprint('healthy')").text == "[0-1] healthy\n"
