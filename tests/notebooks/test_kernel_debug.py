"""The debugger of a rank: after an error, and in a cell while other ranks wait."""

import re

import pytest

from tests.support.kernel import Kernel

_FAILS = """%%ddp
def divide(number):
    doubled = 2 * number
    return doubled / (rank - 1)
dist.barrier()
if rank == 1:
    divide(21)
dist.barrier()
"""


def test_post_mortem_on_the_rank_that_failed(kernel: Kernel):
    failed = kernel.run(_FAILS)
    assert "rank 1 raised ZeroDivisionError" in failed.error
    cell = kernel.run("%ddp debug", "p doubled", "up", "p rank", "q")
    assert cell.questions == ["[1]   ipdb> "] * 4
    assert "[1]   ----> 4     return doubled / (rank - 1)" in cell.lines
    assert {"[1]   42", "[1]   1"} <= set(cell.lines)
    assert cell.status == "ok"


def test_the_stack_of_a_post_mortem_is_that_of_the_user(kernel: Kernel):
    kernel.run(_FAILS)
    cell = kernel.run("%ddp debug", "up", "up", "w", "q")
    assert "Oldest frame" in cell.text
    assert "IPython" not in cell.text


def test_post_mortem_on_a_chosen_rank(kernel: Kernel):
    kernel.run("%%ddp\nmine = [rank]\nmine[5]")
    for rank in (0, 1):
        cell = kernel.run(f"%ddp debug -r {rank}", "p mine", "c")
        assert f"[{rank}]   [{rank}]" in cell.lines
    # Still there after cells that went well.
    kernel.ok("%%ddp\nprint('well')")
    assert "[1]   [1]" in kernel.run("%ddp debug -r 1", "p mine", "q").lines


def test_the_rank_has_to_be_known(kernel: Kernel):
    kernel.run("1 / 0")
    assert "Next: %ddp debug -r RANK" in kernel.run("%ddp debug").error
    assert "a debugger works on one rank" in kernel.run("%ddp debug -r 0-1").error
    assert "out of range" in kernel.run("%ddp debug -r 2").error


def test_a_rank_without_an_error_says_so(kernel: Kernel):
    kernel.ok("%ddp restart -r 1")
    said = "rank 1 has raised no exception: there is nothing to debug"
    for line in ("%ddp debug -r 1", "%ddp debug -r 1", "%%ddp -r 1\n%debug", "%ddp debug -r 1"):
        if line.startswith("%%"):
            (shown,) = kernel.ok("%ddp status").of("display_data")
            assert "rank 1 is fresh" in shown.text
        cell = kernel.run(line, stdin=True)
        assert said in cell.error
        assert cell.questions == []


def test_debug_on_all_ranks_opens_where_the_last_cell_failed(kernel: Kernel):
    kernel.run("%%ddp\nold = rank\n1 / 0")  # of long ago, on both
    kernel.run("%%ddp\nif rank == 1: raise ValueError('new')")
    kernel.ok("%%ddp\nprint('well')")
    cell = kernel.run("%%ddp\n%debug\ndist.barrier()\nprint('both')", "p rank + 40", "q")
    assert cell.status == "ok"
    assert cell.questions == ["[1]   ipdb> "] * 2
    assert "[1]   41" in cell.lines
    assert cell.lines[-1] == "[0-1] both"
    assert "[0]   %debug opens on rank 1, which failed last; " in cell.text
    # One rank that is named is meant.
    assert kernel.run("%%ddp -r 0\n%debug", "p old", "q").questions == ["[0]   ipdb> "] * 2


def test_a_debugger_without_stdin_ends_at_once(kernel: Kernel):
    kernel.run("%%ddp -r 0\n1 / 0")
    cell = kernel.run("%ddp debug -r 0")
    assert "----> " in cell.text
    assert cell.questions == []


_WAITS = """%%ddp
x = torch.ones(1)
def look():
    if rank == 1:
        breakpoint()
    return x
look()
dist.all_reduce(x)
print("sum", x.item())
"""


def test_ranks_that_wait_for_a_rank_at_its_prompt_give_a_short_notice(kernel: Kernel):
    cell_id = kernel.execute(_WAITS, stdin=True)
    # A question is asked by the thread that shows the notice: it comes between two of them. Between
    # an answer and the next question the rank is at no prompt.
    said = re.compile(r"rank 0 waits in all_reduce for rank 1, at a prompt")
    kernel.wait_for(
        lambda: _answered(kernel, cell_id, bool(said.search(_live(kernel, cell_id)))), "a notice"
    )
    cell = kernel.finish(cell_id, ("c",))
    assert cell.lines[-1] == "[0-1] sum 2.0"
    assert not [m for m in cell.of("display_data") if "Deadlock" in m.text]
    assert [message.text for message in cell.page if "prompt" in message.text] == []


def test_leaving_the_debugger_on_all_ranks_is_no_error_to_fix(kernel: Kernel):
    cell = kernel.run("%%ddp\nlook = 1\nbreakpoint()\nlook = 2", "q", "q")
    assert cell.error.splitlines() == [
        "CellInterruptedError: ranks 0-1 left the debugger",
        "  kept      every variable is kept",
        "  next      run the next cell, or this one again",
    ]
    assert kernel.ok("%%ddp\nprint(look)").lines == ["[0-1] 1"]


def test_a_second_interrupt_ends_the_debuggers_of_all_ranks(kernel: Kernel):
    cell_id = kernel.execute("%%ddp\nbreakpoint()\nlook = 3", stdin=True)
    for _ in range(2):
        kernel.wait_for(lambda: kernel.question(cell_id) is not None, "the question")
        kernel.interrupt()
    cell = kernel.finish(cell_id)
    assert cell.questions == []
    assert "still inside the cell (last seen at a prompt, which now ends); if" in cell.error
    assert cell.error.splitlines()[-1].startswith("CellInterruptedError: ")
    # The ranks leave by themselves: no `%ddp restart`, and no second question.
    assert kernel.ok("%%ddp\nprint('again')").lines == ["[0-1] again"]
    assert kernel.ok("%ddp interrupt").lines == ["no cell is running"]


def test_a_debugger_can_be_used_after_one_interrupt(kernel: Kernel):
    cell_id = kernel.execute("%%ddp -r 1\nlook = 5\nbreakpoint()\npass", stdin=True)
    kernel.wait_for(lambda: kernel.question(cell_id) is not None, "the question")
    kernel.interrupt()
    cell = kernel.finish(cell_id, ("p look + 1", "q"))
    assert "[1]   6" in cell.lines
    assert "still inside" not in cell.error
    assert kernel.ok("%%ddp -r 1\nprint(look)").lines == ["[1]   5"]


@pytest.mark.parametrize("opens", ["%ddp debug -r 1", "%%ddp -r 1\n%debug"])
def test_an_interrupted_debugger_opens_on_the_same_error_again(kernel: Kernel, opens: str):
    kernel.run("%%ddp -r 1\ndef fail(y):\n    return 1 / y\nfail(0)")
    cell_id = kernel.execute(opens, stdin=True)
    kernel.wait_for(lambda: kernel.question(cell_id) is not None, "the question")
    kernel.interrupt()
    kernel.finish(cell_id)
    cell = kernel.run("%ddp debug -r 1", "p y + 40", "q")
    assert "[1]   ----> 3     return 1 / y" in cell.lines
    assert "[1]   40" in cell.lines
    assert "_handle" not in cell.text


def test_a_collective_at_the_prompt_is_explained_without_the_debugger(kernel: Kernel):
    kernel.run("%%ddp -r 1\n1 / 0")
    cell = kernel.run("%ddp debug -r 1", "dist.barrier()", "q")
    (card,) = cell.of("display_data")
    assert "rank 0 never called barrier" in card.text
    assert "Perhaps" not in card.text
    said = " ".join(card.text.split())
    assert "No cell runs on rank 0: call it in a cell of all ranks of the group" in said


def test_leaving_the_debugger_frees_waiting_ranks(kernel: Kernel):
    cell_id = kernel.execute(_WAITS, stdin=True)
    cell = kernel.finish(cell_id, ("p 6 * 7", "q"))
    assert "[1]   42" in cell.lines
    [line] = [message.text for message in cell.page if message.kind == "display_data"]
    assert line == "rank 1 left the debugger; rank 0, which waited for it in all_reduce, was freed"
    assert cell.error.splitlines() == [
        "CellInterruptedError: rank 1 left the debugger",
        "  kept      every variable is kept; the process groups are ready again",
        "  next      run the next cell, or this one again",
    ]
    assert kernel.ok("%%ddp\ndist.all_reduce(x); print(x.item())").lines == ["[0-1] 2.0"]


def _live(kernel: Kernel, cell_id: str) -> str:
    return "\n".join(
        message.text for message in kernel.cells[cell_id].of("display_data", "update_display_data")
    )


def _answered(kernel: Kernel, cell_id: str, is_enough: bool) -> bool:
    """Answers with ``p x``, until it is enough; then leaves the question to the caller."""
    if not is_enough and kernel.question(cell_id) is not None:
        kernel.client.input("p x")
    return is_enough
