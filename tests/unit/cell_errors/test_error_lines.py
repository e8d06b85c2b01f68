"""Long lines of errors break at blanks: JupyterLab breaks them inside words."""

from nbddp.controller.cell_errors.lines import Line, displayed_text, labelled, plain_text, quoted
from nbddp.errors import NoPoolError

WIDTH = 84
STEP = labelled(
    "next", "Call all_reduce before the `continue` in line 5, inside `if rank == 2:`, or not"
)
SAID = "ranks 0-3 wait for each other in 2 pairs: all receive first,"
HEAD = Line(f"{SAID} and nobody sends", name="DeadlockError")
RED = "\x1b[31mDeadlockError\x1b[0m"


def shown(*lines: Line) -> list[str]:
    return displayed_text(lines).split("\n")


def test_own_lines_break_at_blanks():
    assert shown(HEAD, STEP) == [
        f"{RED}: {SAID} and",
        "    nobody sends",
        "  next      Call all_reduce before the `continue` in line 5, inside `if rank == 2:`,",
        "            or not",
    ]
    # A program reads whole lines.
    assert plain_text([HEAD, STEP]) == f"DeadlockError: {SAID} and nobody sends\n{STEP.text}"


def test_lines_on_ranks_that_waited_break_at_blanks():
    waited = "odd ranks 1-63 waited in gradient averaging in loss.backward() (all_reduce #123)"
    assert shown(Line(f"{waited} (cell [4], line 7) and were freed")) == [
        waited,
        "    (cell [4], line 7) and were freed",
    ]


def test_lines_of_the_user_stay_even_if_they_look_like_those_of_nbddp():
    lines = [
        f"----> 4 {'dist.all_reduce(x); ' * 6}",
        f"  next      {'x ' * 60}",
        f"\x1b[31mValueError\x1b[39m: {'no ' * 60}",
        f"ranks 1 {'were ' * 30}",
    ]
    assert shown(*map(quoted, lines)) == [line.rstrip("\n") for line in lines]
    assert shown(quoted("a b " * 40, "printed")) == [f"  printed   {'a b ' * 40}"]


def test_colours_of_a_rank_do_not_count_in_a_line_of_nbddp():
    assert shown(Line("rank 1 raised \x1b[31mred\x1b[0m")) == ["rank 1 raised red"]


def test_a_long_word_is_not_broken():
    [_, line] = shown(labelled("kept", "a" * 100))
    assert line.strip() == "a" * 100


def test_errors_without_a_cell_break_too():
    text = NoPoolError("no pool is running. Next: " + "%ddp start -n 2, or " * 6)
    [found] = text._render_traceback_()
    assert max(map(len, found.split("\n"))) <= WIDTH + len("\x1b[31m\x1b[39m")
    assert found.startswith("\x1b[31mNoPoolError\x1b[39m: no pool")


def test_code_below_the_sentence_of_an_error_stays():
    text = NoPoolError(f"run this cell instead:\n{'x = 1; ' * 30}")
    assert text._render_traceback_()[0].endswith(f"\n{'x = 1; ' * 30}")


def test_a_command_stays_in_one_line():
    for more in range(20):
        told = f"wait for ranks that are inside of {'x' * more} or %ddp restart -r 2"
        lines = shown(labelled("next", told))
        assert any("%ddp restart" in line for line in lines)
        assert any("-r 2" in line for line in lines)
