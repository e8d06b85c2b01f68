"""Long lines of errors break at blanks: JupyterLab breaks them inside words."""

from nbddp.errors import CellError, DeadlockError, NoPoolError

WIDTH = 82
STEP = "  next      Call all_reduce before the `continue` in line 5, inside `if rank == 2:`, or not"
RED = "\x1b[31mDeadlockError\x1b[0m"
SAID = "ranks 0-3 wait for each other in 2 pairs: all receive first,"
HEAD = f"{RED}: {SAID} and nobody sends"


def shown(error: CellError) -> list[str]:
    return "\n".join(error._render_traceback_()).split("\n")


def test_own_lines_break_at_blanks():
    error = DeadlockError(f"{HEAD}\n{STEP}")
    assert shown(error) == [
        f"{RED}: {SAID} and",
        "    nobody sends",
        "  next      Call all_reduce before the `continue` in line 5, inside `if rank ==",
        "            2:`, or not",
    ]
    assert " ".join(str(error).split()) == " ".join(
        f"DeadlockError: {SAID} and nobody sends {STEP}".split()
    )
    assert STEP in str(error)  # a program reads whole lines


def test_lines_on_ranks_that_waited_break_at_blanks():
    waited = "odd ranks 1-63 waited in gradient averaging in loss.backward() (all_reduce #9)"
    assert shown(CellError(f"{waited} (cell [4], line 7) and were freed")) == [
        waited,
        "    (cell [4], line 7) and were freed",
    ]


def test_lines_of_the_user_stay():
    lines = [
        f"----> 4 {'dist.all_reduce(x); ' * 6}",
        f"      5 next      {'x ' * 60}",
        f"\x1b[31mValueError\x1b[39m: {'no ' * 60}",
        f"  printed   {'a b ' * 40}",
        f"  log       /{'a' * 120}/rank 1.log",
        f"ranks 1: {'they were ' * 20}",
    ]
    assert shown(CellError("\n".join(lines))) == lines


def test_a_line_that_was_broken_stays():
    once = shown(DeadlockError(f"{HEAD}\n{STEP}"))
    assert shown(DeadlockError("\n".join(once))) == once


def test_a_long_word_is_not_broken():
    [line] = shown(CellError(f"  kept      {'a' * 100}"))[1:]
    assert line.strip() == "a" * 100


def test_errors_without_a_cell_break_too():
    text = NoPoolError("no pool is running. Next: " + "%ddp start -n 2, or " * 6)
    [found] = text._render_traceback_()
    assert max(map(len, found.split("\n"))) <= WIDTH + len("\x1b[31m\x1b[39m")
    assert found.startswith("\x1b[31mNoPoolError\x1b[39m: no pool")


def test_a_command_stays_in_one_line():
    for more in range(20):
        told = f"  next      wait for ranks that are inside of {'x' * more} or %ddp restart -r 2"
        assert "%ddp restart" in "\n".join(shown(CellError(told)))
        assert "-r 2" in "\n".join(shown(CellError(told)))
