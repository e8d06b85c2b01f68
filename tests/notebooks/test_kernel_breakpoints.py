"""`breakpoint()` on four ranks: one prompt that stays on a rank, steps that stay in the cell."""

import re
from collections.abc import Iterator
from functools import partial

import pytest

from tests.notebooks.conftest import SharedKernel
from tests.support.kernel import Cell, Kernel

_PROMPT = re.compile(r"\[(\d)\]   ipdb> ")
_CURRENT_LINE = re.compile(r"-+> (\d+) ")


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[SharedKernel]:
    shared = SharedKernel(4)
    yield shared
    shared.close()


@pytest.fixture
def four(four_ranks: SharedKernel) -> Iterator[Kernel]:
    yield four_ranks.get()
    four_ranks.check_health()


def asked(cell: Cell) -> str:
    """The ranks that were asked, in this order; no other question was."""
    found = [_PROMPT.fullmatch(question) for question in cell.questions]
    assert None not in found, cell.questions
    return "".join(match[1] for match in found if match)


def stops(cell: Cell) -> list[int]:
    """The lines at which debuggers have stopped, each as often as it was shown."""
    return [int(number) for number in _CURRENT_LINE.findall(cell.text)]


def in_order(cell: Cell, *lines: str) -> bool:
    """Whether these lines were shown, in this order."""
    rest = iter(cell.lines)
    return all(line in rest for line in lines)


_CHIP = re.compile(r'title="([^"]+)"')


def chips(cell: Cell) -> list[str]:
    """What the row of chips says now."""
    shown = [
        message.content["data"].get("text/html", "")
        for message in cell.of("display_data", "update_display_data")
    ]
    rows = [_CHIP.findall(html) for html in shown if 'aria-label="ranks"' in html]
    return rows[-1] if rows else []


def has_chips(cell: Cell, row: list[str]) -> bool:
    """Whether the row begins with these."""
    return chips(cell)[: len(row)] == row


def test_the_chips_show_which_ranks_are_at_a_prompt_and_which_one_is_asked(four: Kernel):
    code = "import time; time.sleep(1.2)  # until there is a row\nif rank != 3:\n    breakpoint()\n"
    cell_id = four.execute(f"%%ddp\n{code}dist.barrier()", stdin=True)
    cell = four.cells[cell_id]
    for rank, line in ((0, "rank 2"), (2, "all p rank"), (2, "all c")):
        four.wait_for(lambda: four.question(cell_id), "the prompt")
        at_prompt = [f"rank {each}: at a prompt" for each in range(3)]
        at_prompt[rank] = f"rank {rank}: asks you now (the prompt below is its own)"
        four.wait_for(partial(has_chips, cell, at_prompt), f"the row for rank {rank}")
        assert chips(cell)[3].startswith(("rank 3: runs", "rank 3: waits"))
        four.client.input(line)
    assert four.finish(cell_id).status == "ok"


_STOPS = "%%ddp\nmine = 10 * rank\ndist.barrier()\nbreakpoint()\nthen = 1"


def test_the_prompt_stays_on_a_rank_until_the_user_chooses_another(four: Kernel):
    cell = four.run(_STOPS, "p mine + 1", "p mine + 2", "rank 2", "p mine + 1", "n", "all c")
    assert asked(cell) == "000222"
    assert cell.status == "ok"
    assert in_order(
        cell,
        "ranks 0-3 are at a prompt; this is rank 0. Also: `rank 3`, `ranks`, `all c`; see `help`",
        "[0]   1",
        "[0]   2",
        f"the prompt is on rank 2, at cell [{cell.number}], line 4: `breakpoint()`",
        "[2]   21",
        "[2]   ----> 5 then = 1",
    )


def test_an_answer_is_shown_before_the_next_prompt(four: Kernel):
    cell_id = four.execute(_STOPS, stdin=True)
    for command in ("p 40 + 2", "p 40 + 3"):
        four.wait_for(lambda: four.question(cell_id) == "[0]   ipdb> ", "the prompt")
        four.client.input(command)
        four.wait_text(cell_id, f"[0]   {eval(command[2:])}")
    assert four.finish(cell_id, ("all c",)).status == "ok"


def test_a_command_for_all_ranks_is_answered_in_their_order(four: Kernel):
    cell = four.run(_STOPS, "rank 3", "all p mine", "all p world_size", "", "all c")
    assert asked(cell) == "03333"
    answers = ["[0]   0", "[1]   10", "[2]   20", "[3]   30", "[0-3] 4", "[0-3] 4"]
    assert in_order(cell, *answers)


def test_ranks_are_listed(four: Kernel):
    cell = four.run(
        "%%ddp\nif rank != 1:\n    breakpoint()\ndist.barrier()",
        "ranks", "rank 1", "rank 7", "n", "rank", "all c",
    )  # fmt: skip
    assert asked(cell) == "000000"
    assert (
        f"ranks 0,2-3  are at a prompt, at cell [{cell.number}], line 3: `breakpoint()`"
        in cell.lines
    )
    assert re.search(r"^rank 1 +waits in barrier #\d+, at cell", cell.text, re.MULTILINE)
    assert "the prompt is on rank 0" in cell.lines
    for rank in (1, 7):
        assert f"rank {rank} is at no prompt; ranks 0,2-3 are" in cell.lines
    assert re.search(r"^rank 0 +is at a prompt, at cell \[\d+\], line 4", cell.text, re.MULTILINE)


def test_a_rank_goes_on_while_others_stay(four: Kernel):
    cell = four.run(_STOPS + "\nprint('went on')", "c", "p mine", "q", "all p mine", "all c")
    assert asked(cell) == "01122"
    place = f"at cell [{cell.number}], line 4: `breakpoint()`"
    assert in_order(
        cell,
        f"rank 0 goes on; the prompt is on rank 1, {place}",
        "[1]   10",
        f"rank 1 left the debugger; the prompt is on rank 2, {place}",
        "[2]   20",
        "[3]   30",
    )
    assert "rank 1 left the debugger" in cell.error


def test_a_rank_that_waits_for_the_others_gives_the_prompt_away(four: Kernel):
    cell = four.run(
        "%%ddp\nx = torch.ones(1)\nbreakpoint()\ndist.all_reduce(x)\npass",
        "n", "n", "all n", "all n", "p x.item()", "all c",
    )  # fmt: skip
    assert asked(cell) == "001111"
    assert re.search(
        r"^rank 0 waits in all_reduce #\d+; the prompt is on rank 1", cell.text, re.MULTILINE
    )
    assert "[1]   4.0" in cell.lines


def test_all_ranks_step_through_a_collective_together(four: Kernel):
    cell = four.run(
        "%%ddp\nx = torch.ones(1)\nbreakpoint()\ndist.all_reduce(x)\npass",
        "all n", "", "all p x.item()", "all c",
    )  # fmt: skip
    assert asked(cell) == "0000"
    assert stops(cell) == [3, 4, 5]
    assert "[0-3] 4.0" in cell.lines


def test_all_ranks_meet_at_the_next_breakpoint(four: Kernel):
    cell = four.run(
        "%%ddp\nfor turn in range(3):\n    dist.barrier()\n    breakpoint()\n    mine = turn",
        "all p turn", "all c", "all p turn", "all c", "all p turn", "all c",
    )  # fmt: skip
    assert asked(cell) == "000000"
    assert in_order(cell, "[0-3] 0", "[0-3] 1", "[0-3] 2")


def test_the_stop_button_and_the_prompt(four: Kernel):
    cell_id = four.execute(_STOPS, stdin=True)
    four.wait_for(lambda: four.question(cell_id) == "[0]   ipdb> ", "the prompt")
    four.client.input("rank 2")
    four.wait_for(lambda: four.question(cell_id) == "[2]   ipdb> ", "the prompt")
    four.interrupt()
    cell = four.finish(cell_id, ("p mine", "all q"))
    assert asked(cell) == "22"
    assert "[2]   20" in cell.lines
    assert "ranks 0-3 left the debugger" in cell.error


def test_the_stop_button_after_the_debugger(four: Kernel):
    cell_id = four.execute("%%ddp\nbreakpoint()\nprint('on')\nwhile True: pass", stdin=True)
    four.wait_for(lambda: four.question(cell_id) is not None, "the prompt")
    four.client.input("all c")
    four.wait_text(cell_id, "[0-3] on")
    four.interrupt()
    cell = four.finish(cell_id)
    assert cell.error.splitlines()[-3:] == [
        f"CellInterruptedError: cell [{cell.number}] was interrupted",
        "  kept      every variable is kept",
        "  next      run the next cell, or this one again",
    ]
    assert "Program interrupted" not in cell.text


def test_questions_of_the_program_come_in_between(four: Kernel):
    cell = four.run(
        "%%ddp\nname = input('name? ')\nbreakpoint()\nthen = 1",
        "a", "b", "c", "d", "p input('more? ')", "yes", "all p name", "all c",
    )  # fmt: skip
    names = [f"[{rank}]   name? " for rank in range(4)]
    prompts = ["[0]   ipdb> ", "[0]   more? ", "[0]   ipdb> ", "[0]   ipdb> "]
    assert cell.questions == names + prompts
    assert in_order(cell, "[0]   'yes'", "[0]   'a'", "[1]   'b'", "[2]   'c'", "[3]   'd'")


def test_the_debuggers_of_all_ranks_end_without_a_user(four: Kernel):
    cell = four.run("%%ddp\nbreakpoint()\nthen = 1")
    assert "ranks 0-3 left the debugger" in cell.error


def test_help_names_the_commands_for_ranks(four: Kernel):
    cell = four.run("%%ddp -r 1\nbreakpoint()\nthen = 1", "help", "c")
    assert "[1]   Documented commands (type help <topic>):" in cell.lines
    assert [line.split()[0] for line in cell.lines if line.startswith("  ")][-3:] == [
        "rank", "ranks", "all",
    ]  # fmt: skip


_STRAIGHT = "breakpoint()\na = 1\nb = 2"
_SIX_LINES = "breakpoint()\na = 1\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6"
_LOOP = "for i in range(2):\n    a = i\n    if i: breakpoint()\nb = 1"
_AWAITS = "import asyncio\nbreakpoint()\nawait asyncio.sleep(0.01)\na = 1"
_CALLS = "def f():\n    return 1\nbreakpoint()\na = f()\nb = 2"
_FUNCTION = """\
def half(number):
    doubled = 2 * number
    breakpoint()
    return doubled / 4
first = half(2)
second = first"""
_SCOPE = """\
import contextlib
@contextlib.contextmanager
def scope():
    yield 1
breakpoint()
with scope():
    a = 1"""


@pytest.mark.parametrize(
    ("code", "commands", "lines"),
    [
        (_SIX_LINES, "n n n n n n n", [2, 3, 4, 5, 6, 7, 8]),
        (_STRAIGHT, "s s s", [2, 3, 4]),
        (_STRAIGHT, "r", [2]),
        (_STRAIGHT, "n u n c", [2, 3, 4]),
        ("a = 1\nbreakpoint()", "n", [3]),
        ("a = 1\nif rank == 0:\n    breakpoint()", "n", [4]),
        (_LOOP, "n n n", [4, 2, 5]),
        (_FUNCTION, "n n n n", [4, 5, 5, 7]),
        (_FUNCTION, "r n n", [4, 5, 7]),
        (_FUNCTION, "u u d c", [4, 6, 4]),
        (_CALLS, "n s n n n n", [4, 5, 2, 3, 3, 6]),
        (_CALLS, "tbreak_3 c c", [4, 3]),
        (_AWAITS, "n n n", [3, 4, 5]),
        (_SCOPE, "n s n s s c", [6, 7, 3, 5, 5, 8]),
    ],
)
def test_steps_stay_in_the_code_of_the_user(
    four: Kernel, code: str, commands: str, lines: list[int]
):
    answers = [command.replace("_", " ") for command in commands.split()]
    cell = four.run(f"%%ddp -r 0\n{code}", *answers)
    assert cell.status == "ok", cell.error
    assert stops(cell) == lines, cell.text
    for word in ("IPython", "traitlets", "contextlib.py", "asyncio/", "nbddp/", "bdb.py"):
        assert word not in cell.text
    # Nothing is traced any longer.
    assert four.ok("%%ddp -r 0\nimport sys; print(sys.gettrace())").lines == ["[0]   None"]


def test_the_stack_is_that_of_the_user(four: Kernel):
    cell = four.run(f"%%ddp -r 0\n{_FUNCTION}", "w", "c")
    assert stops(cell) == [4, 6, 4]  # where it stopped, and the stack
    assert "IPython" not in cell.text


# --- a prompt on one rank, while the others wait -------------------------------------------------

_WAITING = "ranks 0,2-3 wait in {} for rank 1, at a prompt"


def waited(four: Kernel, code: str, operation: str, *answers: str) -> Cell:
    """Run a cell in which the others wait for rank 1, and answer when the live line has said so."""
    cell_id = four.execute(code, stdin=True)
    said = re.compile(_WAITING.format(operation))

    def is_told() -> bool:
        shown = four.cells[cell_id].of("display_data", "update_display_data")
        found = any(said.search(message.text) for message in shown)
        if not found and four.question(cell_id) is not None:
            four.client.input("p 0")  # the thread that asks shows the notice
        return found

    four.wait_for(is_told, "a notice that the others wait for the prompt")
    cell = four.finish(cell_id, answers)
    assert not [message for message in cell.of("display_data") if "eadlock" in message.text]
    return cell


_DIST_BREAKPOINT = """%%ddp
def work(secret):
    dist.breakpoint(rank=1)
    return secret
print("went on", work(41))
"""


def test_dist_breakpoint_opens_in_the_line_of_the_user(four: Kernel):
    cell = waited(four, _DIST_BREAKPOINT, "breakpoint", "p secret + 1", "up", "c")
    assert set(asked(cell)) == {"1"}
    assert "[1]   42" in cell.lines
    assert stops(cell)[-1] == 5  # `up` goes to the line that called it, and past no frame of torch
    assert "ATTENTION" not in cell.text
    assert cell.lines[-1].endswith("went on 41")


def test_leaving_dist_breakpoint_frees_the_others(four: Kernel):
    cell = waited(four, _DIST_BREAKPOINT, "breakpoint", "q")
    assert cell.error.startswith("CellInterruptedError: rank 1 left the debugger")


def test_ranks_in_a_collective_wait_for_a_rank_at_its_prompt(four: Kernel):
    code = "%%ddp\nx = torch.ones(1)\nif rank == 1:\n    breakpoint()\ndist.all_reduce(x)\nx.item()"
    cell = waited(four, code, "all_reduce", "p rank + 10", "c")
    assert "[1]   11" in cell.lines
    assert cell.lines[-1] == "[0-3] Out: 4.0"
