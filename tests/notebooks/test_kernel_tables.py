"""Tables and pictures of the ranks in a real kernel."""

import re

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


def test_the_timeline_of_a_cell_that_hangs_reaches_until_now(kernel: Kernel):
    kernel.ok("%%ddp --async\nimport time\nif rank == 1: time.sleep(600)\ndist.barrier()")
    kernel.ok("handle = _")
    kernel.wait_for(lambda: "so far" in timeline(kernel), "the wait", limit_s=60)
    lines = timeline(kernel).splitlines()
    assert lines[0].endswith(" so far")
    assert re.fullmatch(r"rank 0  /{80,}", lines[1])
    assert lines[3].endswith(" s, now") or lines[3].endswith(" ms, now")
    assert re.fullmatch(r"rank 0 waits in barrier #\d+ for rank 1, .* so far", lines[5])
    kernel.ok("handle.interrupt()")
    assert "KeyboardInterrupt" in kernel.run("handle.wait()").error
    assert "!: interrupted" in timeline(kernel)
    [status] = kernel.ok("%ddp status").page
    assert re.search(r"^0 +idle +barrier #\d+ interrupted ", status.text, re.MULTILINE)


def timeline(kernel: Kernel) -> str:
    return kernel.ok("%ddp timeline").page[0].text


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


def test_long_output_is_folded_and_rank_by_rank_is_one_click_away(kernel: Kernel):
    cell = kernel.ok("%%ddp\nfor n in range(300): print(n, rank)")
    stream, folded = cell.page
    by_rank = cell.of("display_data")[-1].content["data"]
    head = len(stream.text.splitlines())
    assert 79 <= head <= 80  # equal shares of what had not come before
    note, *tail = folded.text.split("\n")
    assert note.startswith(f"... {600 - head - 20} more lines, ")
    assert re.search(r" of each of ranks 0-1\)$", note)
    assert tail == [f"[{rank}]   {n} {rank}" for n in range(290, 300) for rank in range(2)]
    assert folded.content["data"]["text/html"].startswith("<details>")
    assert "rank by rank: 0; 1 (300 lines of each)</summary>" in by_rank["text/html"]
    captured = kernel.value(
        "from IPython.utils.capture import capture_output\n"
        "with capture_output() as captured:\n"
        "    get_ipython().run_cell_magic('ddp', '', 'for n in range(300): print(n)')\n"
        "len(captured.stdout.splitlines()), len(captured.outputs)"
    )
    assert captured == "(300, 0)"  # captured output is text


def test_the_option_out(kernel: Kernel):
    ranks = kernel.ok("%%ddp --out ranks\nprint('x', rank)\nrank + 1").page
    assert [each.text for each in ranks] == ["--- rank 0\nx 0\nOut: 1\n--- rank 1\nx 1\nOut: 2"]
    quiet = kernel.ok("%%ddp --out quiet\nprint('x', rank)\nrank + 1").page
    assert quiet[0].text == "[0]   Out: 1\n[1]   Out: 2\n"
    assert quiet[1].text.startswith("not shown (--out quiet): 8 B of text, which is in /")
    failed = kernel.run("%%ddp --out quiet\nprint('x')\n1/0")
    assert "ZeroDivisionError" in failed.error
    assert "invalid choice: 'loud'" in kernel.run("%%ddp --out loud\npass").error


def test_the_end_of_a_log_is_below_its_place(kernel: Kernel):
    kernel.ok("%%ddp\nfor number in range(5): print('line', number, 'of', rank)")
    kernel.wait_for(lambda: "line 4 of 1" in log(kernel, "1 --last 2"), "the log")
    place, *lines = log(kernel, "1 --last 2").splitlines()
    assert re.fullmatch(r"rank 1: /.*/rank1\.log \(.*\), the last 2 lines", place)
    assert lines == ["line 3 of 1", "line 4 of 1"]
    assert log(kernel, "").count("rank1.log") == 1
    assert "rank 0: /" in log(kernel, "")
    assert log(kernel, "-r 1 --last 2") == log(kernel, "1 --last 2")
    assert "given twice" in kernel.run("%ddp log 1 -r 0").error
    assert "rank 7" in kernel.run("%ddp log 7").error


def log(kernel: Kernel, words: str) -> str:
    return "".join(message.text for message in kernel.ok(f"%ddp log {words}").messages)
