"""``%ddp break``, ``breaks`` and ``clear`` in a real kernel."""

import re

from tests.support.kernel import Kernel

SUM = "%%ddp\nx = torch.full((2,), float(rank + 1))\ndist.all_reduce(x)\nprint(x.tolist())"


def test_a_break_point_stops_cells_until_it_is_cleared(kernel: Kernel):
    answer = kernel.run("%ddp break all_reduce -r 1 --if 'x.sum() > 2'  # why").text
    number = int(answer.split()[2].rstrip(":"))  # they count on in a kernel
    kernel.ok("%ddp break #9999 --group nobody")
    kernel.ok("%%ddp\ndist.barrier()")
    passed = kernel.run("%ddp break barrier #1").text
    assert "#1 has passed already: the default group is at #" in passed
    assert "numbers only grow" in passed
    assert "Next: %ddp break barrier #" in passed
    kernel.ok(f"%ddp clear {number + 2}")
    cell = kernel.run(SUM, "print x", "show x", "trace", "continue")
    assert cell.questions == ["(step) "] * 4
    assert "rank 0  waits in all_reduce #" in cell.text
    assert f"(break point {number})" in cell.text
    assert "[1]   tensor([2., 2.])" in cell.lines
    shown = "".join(message.text for message in cell.page)
    assert "trace: " in shown
    assert "x\nfloat32 (2,)\nnot shown by rank 0" in shown
    assert "[0-1] [3.0, 3.0]" in cell.lines
    listed = kernel.run("%ddp breaks").lines
    assert [line.split("  ")[-1] for line in listed] == ["hits", "1 on rank 1", "none"]
    refusal = kernel.run("%ddp clear 999").error
    assert f"no break point 999; legal: {number}, {number + 1}" in refusal
    kernel.ok("%ddp clear")
    assert kernel.run(SUM).questions == []
    assert "no break points are set" in kernel.run("%ddp breaks").text


def test_a_call_is_repaired_and_made_anew(kernel: Kernel):
    code = """%%ddp --step
def total(x):
    dist.all_reduce(x)
    return x
x = torch.full((2 + rank,), rank + 1.0)
print(total(x[:3]).tolist())
dist.barrier()"""
    lines = ["up", "p len(x)", "down", "run x = x[:2] -r 1", "retry nonsense", "retry", "step",
             "show before", "p (after - before).tolist()", "c"]  # fmt: skip
    cell = kernel.run(code, *lines)
    assert cell.questions == ["(step) "] * len(lines)
    text = cell.text
    assert "> cell [" in text
    assert "[0-1] no retry: `nonsense` is no call. Next: type the call behind retry" in text
    assert "[0-1] [3.0, 3.0]" in cell.lines
    assert "ranks 0-1  before all_reduce #" in text.partition("no retry: ")[2]
    pictures = [m.text for m in cell.page if m.text.startswith("before\nfloat32 (2,)")]
    assert "1 1      2 2" in pictures[0]
    assert {"[0]   [2.0, 2.0]", "[1]   [1.0, 1.0]"} <= set(cell.lines)


def test_no_rank_is_said_to_wait_when_it_has_stopped(kernel: Kernel):
    code = "%%ddp --step\nfor i in range(2): dist.all_reduce(torch.ones(1))"
    msg_id = kernel.execute(code, stdin=True)
    cell = kernel.cells[msg_id]

    def answer(line: str) -> None:
        kernel.wait_for(lambda: kernel.question(msg_id), "a question")
        kernel.client.input(line)

    def live() -> str:
        return "".join(m.text for m in cell.page if "ranks done" in m.text)

    answer("step -r 0")
    while "rank 0 waits in" not in live():  # it is shown between two prompts
        answer("p 1")
    answer("step")
    kernel.wait_for(lambda: kernel.question(msg_id), "the prompt before the second operation")
    # Messages of the two channels come in any order.
    kernel.wait_for(lambda: "waits in" not in live(), "a live line without the notice")
    kernel.client.input("c")
    kernel.finish(msg_id)


def test_a_picture_has_the_ranks_that_were_asked(kernel: Kernel):
    cell = kernel.run(
        SUM.replace("%%ddp", "%%ddp --step"), "show x -r 1", "show x", "show x", "continue"
    )
    pictures = [m.text.splitlines()[2:4] for m in cell.page if m.text.startswith("x\nfloat32")]
    assert pictures == [["not shown by rank 0", "rank 0   rank 1"]] + 2 * [
        ["rank 0   rank 1", "1 1      2 2"]
    ]


def test_a_group_that_is_not_there_yet_is_named(kernel: Kernel):
    cell = kernel.run("%ddp break all_reduce --group later")
    assert "no group is called 'later' so far; groups now: default" in cell.text
    kernel.ok("%ddp clear")


def test_a_cell_that_has_not_run_yet_is_named(kernel: Kernel):
    text = kernel.run("%ddp break line 5 --cell 999").text
    assert re.search(
        r"no cell \[999\] has run so far in this notebook; the newest one is \[\d+\]", text
    )
    assert "so far" not in kernel.run("%ddp break line 5 --cell 1").text
    text = kernel.run("%ddp break line 999").text
    assert "no cell so far has a line 999; the longest one has" in text
    text = " ".join(kernel.run("%ddp break line 1").text.split())
    assert "line 1 of a cell with %%ddp is the line of %%ddp: no rank stops there" in text
    kernel.ok("%ddp clear")


def test_a_cell_that_ends_before_until_says_so(kernel: Kernel):
    cell = kernel.run(SUM.replace("%%ddp", "%%ddp --step"), "until 9999")
    assert re.search(
        r"until 9999: ranks 0-1 ended the cell before it; the last collective of the group was "
        r"#\d+",
        cell.text.replace("\n", " ").replace("  ", " "),
    )


def test_later_pools_have_the_break_points(kernel: Kernel):
    kernel.ok("%ddp stop")
    kernel.ok("%ddp break all_reduce")
    assert "ranks 0 to 1" in kernel.run("%ddp break send -r 7").error
    kernel.ok("%ddp start")
    assert kernel.run(SUM, "continue").questions == ["(step) "]
    kernel.ok("%ddp clear")


def test_bad_lines_say_what_is_legal(kernel: Kernel):
    assert "Did you mean all_reduce; legal" in kernel.run("%ddp break all_redcue").error
    assert "%ddp break needs a place" in kernel.run("%ddp break -r 0").error
    assert "is not an expression" in kernel.run("%ddp break send --if 'x ='").error
    assert "ranks 0 to 1" in kernel.run("%ddp break send -r 7").error


def test_a_background_cell_does_not_stop(kernel: Kernel):
    kernel.ok("%ddp break all_reduce")
    cell = kernel.run(SUM.replace("%%ddp", "%%ddp --async"))
    assert "break points do not stop it" in cell.text
    kernel.ok("handle = _\nhandle.wait()")
    kernel.ok("%ddp clear")
