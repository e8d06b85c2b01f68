"""Code that is typed at prompts: its errors end no cell, and no card blames the cell for it."""

import re

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import MismatchError
from tests.support.views import run_cell

SUM = "x = torch.full((2,), float(rank + 1))\ndist.all_reduce(x)\nprint(x.tolist())"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["debug 1+1"], "this debugger steps through no code. Next: p EXPR, or breakpoint() in"),
        (["!import sys; sys.exit(3)"], "*** SystemExit: 3\n"),
        (["p exit(4)"], "*** SystemExit: 4\n"),
        (["!raise GeneratorExit"], "*** GeneratorExit\n"),
        (["interact", "print(x.tolist())", "exit()"], "[2.0, 2.0]\n"),
    ],
)
def test_the_debugger_of_one_rank_ends_no_cell(pool: Pool, lines: list[str], text: str):
    code = f"{SUM}\nprint('end')"
    view = run_cell(pool, code, step=True, answers=["rank 1", *lines, "q", "c"])
    assert text in view.text(1)
    assert view.text(1).endswith("\n[3.0, 3.0]\nend\n")


@pytest.mark.parametrize("line", ["run raise KeyboardInterrupt", "p stop()"])
def test_an_interrupt_that_is_typed_ends_no_cell(pool: Pool, line: str):
    code = f"def stop():\n    raise KeyboardInterrupt\n{SUM}"
    view = run_cell(pool, code, step=True, answers=[line, "c"])
    assert view.error is None
    assert view.text(1) == "KeyboardInterrupt\n[3.0, 3.0]\n"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("debug len([1, 2])", "LEAVING RECURSIVE DEBUGGER\n"),
        ("debug 1 / 0", "*** ZeroDivisionError: division by zero\n"),
        ("debug (_ for _ in ()).throw(GeneratorExit)", "*** GeneratorExit\n"),
        ("!raise SystemExit(3)", "*** SystemExit: 3\n"),
        ("run", "does not start the cell again. Next: q, and run the cell again\n"),
    ],
)
def test_a_line_at_a_breakpoint_ends_no_cell(pool: Pool, line: str, text: str):
    answers = [line, *["c"] * (1 + line.startswith("debug"))]
    view = run_cell(pool, "if rank == 1:\n    breakpoint()\nprint('end')", answers=answers)
    assert text in view.text(1)
    assert view.text(1).endswith("end\n")


def test_what_is_assigned_at_a_prompt_stays(pool: Pool):
    lines = ["!z = 5", "!z += 1", "interact", "a = z + 1", "new = 9", "exit()", "c"]
    code = "def f(a):\n    z, h = 1, lambda: a\n    breakpoint()\n    return z, a, h()\n"
    view = run_cell(pool, f"{code}if rank == 1:\n    print(f(0))", answers=lines)
    assert view.text(1).endswith("(6, 7, 7)\n")
    lines = ["!z = 5", "interact", "a = z + 1", "del gone", "exit()", "c"]
    run_cell(pool, "a = z = gone = 0\nif rank == 1:\n    breakpoint()\n", answers=lines)
    assert pool.pull("(a, z, 'gone' in globals())") == [(0, 0, True), (6, 5, False)]


@pytest.mark.parametrize("opening", [["rank 1"], []], ids=["rank 1", "breakpoint()"])
def test_interact_shows_an_error_at_once_and_forgets_it(pool: Pool, opening: list[str]):
    # The last line shows what ``%debug`` would open.
    lines = ["1 / 0", "x y", "unknown", "exit()", "!import sys; vars(sys).get('last_value')"]
    code = SUM if opening else "if rank == 1:\n    breakpoint()"
    answers = [*opening, "interact", *lines, *["q"] * len(opening), "c"]
    run_cell(pool, "import sys\nsys.last_value = ValueError('of the user')")
    view = run_cell(pool, f"{code}\nprint('end')", step=bool(opening), answers=answers)
    errors = re.findall(r"^\w+Error: .*$", view.text(1, "stderr"), re.MULTILINE)
    assert errors == [
        "ZeroDivisionError: division by zero",
        "SyntaxError: invalid syntax",
        "NameError: name 'unknown' is not defined",
    ]
    assert "ValueError('of the user')" in view.text(1)
    assert view.text(1).endswith("end\n")


def test_an_exit_that_the_user_types_ends_no_cell(pool: Pool):
    leaving = "(_ for _ in ()).throw(GeneratorExit)"
    lines = ["print exit(3)", f"run {leaving}", "show exit(4)", "retry dist.all_reduce(exit(5))"]
    view = run_cell(pool, SUM, step=True, answers=[*lines, "diff exit(6)", "c"])
    shown = "SystemExit: 3\nGeneratorExit\nSystemExit: 4\nno retry: SystemExit: 5\n[3.0, 3.0]\n"
    assert view.texts() == {0: shown, 1: shown}
    assert "could not compare 'exit(6)' (ranks 0-1: SystemExit: 6)" in view.told


@pytest.mark.parametrize(
    "answers",
    [
        ["retry dist.broadcast(x, 1) -r 0", "c"],
        ["run x = torch.ones(5) -r 0", "retry", "c"],
        ["rank 0", "x = torch.ones(5)", "q", "retry", "c"],
    ],
    ids=["retry", "run", "debugger"],
)
def test_a_card_names_what_was_typed_and_does_not_blame_the_code(pool: Pool, answers: list[str]):
    code = "x = torch.ones(2)\ndist.all_reduce(x)"
    view = run_cell(pool, code, step=True, answers=answers, check=False)
    assert isinstance(view.error, MismatchError)
    assert view.outcome is not None
    command = next(line for line in answers if "(" in line).removesuffix(" -r 0")
    (text,) = view.outcome.typed
    assert text == f"rank 0 got `{command}` at the prompt, cell [1], line 2"
    report = view.outcome.report
    assert report is not None
    assert report.typed == (text,)
    assert report.findings[0].suspicions == ()
    assert report.findings[0].next_step.startswith("Nothing, if what was typed at the prompt")
    assert "next      Nothing, if what was typed" in str(view.error)
    run_cell(pool, SUM)
