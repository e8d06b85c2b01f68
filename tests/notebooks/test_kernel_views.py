"""Tables and pictures of the ranks in a real kernel."""

from tests.support.kernel import Kernel

LATE = """%%ddp
import time
x = torch.ones(100)
for step in range(4):
    if rank == 1: time.sleep(0.03)
    dist.all_reduce(x)
"""


def test_the_timeline_is_that_of_the_last_cell_with_operations(kernel: Kernel):
    number = kernel.ok(LATE).number
    kernel.ok("%%ddp\npass")
    [shown] = kernel.ok("%ddp timeline").page
    assert shown.text.startswith(f"timeline of cell [{number}]: 4 all_reduce on group 0; 1.6 kB in")
    assert "rank 1 always came last, in all 4 operations" in shown.text
    html = shown.content["data"]["text/html"]
    assert '<img src="data:image/png;base64,' in html
    assert "all_reduce #" in html
    assert f"cell [{number}], line 6" in html
    assert kernel.ok(f"%ddp timeline --cell {number} -r 0").page[0].text.count("rank 0 ") == 1
    assert "no operations of cell [9999] are known" in kernel.ok(
        "%ddp timeline --cell 9999"
    ).page[0].text  # fmt: skip
    assert "not a whole number above 0" in kernel.run("%ddp timeline --cell x").error


def test_status_between_cells_and_while_one_runs(kernel: Kernel):
    [idle] = kernel.ok("%ddp status").page
    assert idle.text.count("idle") == 2
    assert " MB" in idle.text
    assert "logs: " in idle.text
    handle = kernel.ok("%%ddp --async\nimport time\nif rank == 1: time.sleep(60)\ndist.barrier()")
    kernel.ok("handle = _")
    found = ""
    for _ in range(50):  # each takes a look
        found = kernel.ok("%ddp status").page[0].text
        if "waits" in found and "time.sleep(60)" in found:
            break
    assert "barrier #" in found, found
    assert "running" in handle.page[0].text
    kernel.ok("handle.interrupt()")
    assert "KeyboardInterrupt" in kernel.run("handle.wait()").error
