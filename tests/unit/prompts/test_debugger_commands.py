"""The meaning of a line at a debugger's prompt."""

import pytest

from nbddp.controller.prompts.debugger_commands import Forward, ListRanks, ShowHelp, Switch, parse


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("rank 2", Switch(2)),
        ("  rank   12 ", Switch(12)),
        ("rank", ListRanks()),
        ("ranks", ListRanks()),
        ("all p x", Forward("p x", to_all=True)),
        ("all c", Forward("c", to_all=True)),
        ("all x", Forward("x", to_all=True)),
        ("all !x = 3", Forward("!x = 3", to_all=True)),
        ("all rank", Forward("rank", to_all=True)),
        ("all notes", Forward("notes", to_all=True)),
        ("all", ShowHelp()),
        ("help rank", ShowHelp()),
        ("h all", ShowHelp()),
        ("? ranks", ShowHelp()),
    ],
)
def test_a_line_for_nbddp(line: str, command: object):
    assert parse(line) == command


@pytest.mark.parametrize(
    "line",
    [
        "", "p rank", "n", "help", "help p", "rank + 1", "rank -1", "rank = 3", "rank == 2",
        "ranks[0]", "rank 2 3", "rank two", "ranks = 3", "all(x > 0 for x in y)", "all (y)",
        "all is None", "all = 3", "all != 3", "all.__name__", "all, any", "!rank", "allx p",
    ],
)  # fmt: skip
def test_a_line_for_the_debugger_of_one_rank(line: str):
    assert parse(line) == Forward(line)


@pytest.mark.parametrize("line", ["q", "quit", "exit", "exit()", "quit()"])
def test_lines_that_end_a_debugger(line: str):
    assert Forward(line).ends_debugger
    assert Forward(line).leaves == "left the debugger"


@pytest.mark.parametrize(
    ("line", "leaves"),
    [("c", "goes on"), ("all continue", "goes on"), (" q ", "left the debugger"), ("n", ""),
     ("", ""), ("until 5", "")],
)  # fmt: skip
def test_commands_after_which_a_rank_is_not_expected_back(line: str, leaves: str):
    command = parse(line)
    assert isinstance(command, Forward)
    assert command.leaves == leaves
