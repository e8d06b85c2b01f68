"""The help of %ddp and the words that Tab offers, from the parsers of the verbs."""

import argparse
import inspect

import pytest

from nbddp.controller.options import LINE_OPTIONS
from nbddp.notebook.magics.cell_line import CELL
from nbddp.notebook.magics.verb import Verb
from nbddp.notebook.magics.verbs import VERBS
from tests.support.command_lines import HELP


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_an_action_takes_what_the_parser_gives(verb: Verb):
    shell, *parameters = inspect.signature(verb.action).parameters.values()
    assert shell.name == "shell"
    if verb.name == "listen":
        assert {action.dest for action in verb.parser.arguments()} < set(LINE_OPTIONS)
    if verb.name == "start":
        *options, last = [action.dest for action in verb.parser.arguments()]
        assert options.count("hosts") == 2  # --hosts and --hostfile
        assert list(dict.fromkeys(options)) == list(LINE_OPTIONS)
        own = parameters.pop(0)
        assert (own.name, own.kind) == (last, inspect.Parameter.KEYWORD_ONLY)
    if verb.name in ("start", "listen"):
        assert [parameter.kind for parameter in parameters] == [inspect.Parameter.VAR_KEYWORD]
        return
    text = {"push": "x", "pull": "x", "diff": "x"}.get(verb.name, "")
    assert sorted(vars(verb.parser.read(text))) == sorted(each.name for each in parameters)
    assert {parameter.kind for parameter in parameters} <= {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("line", [CELL, *VERBS.values()], ids=lambda line: line.parser.prog)
def test_the_help_and_completion_know_each_option_with_its_explanation(line: Verb):
    lines = HELP.splitlines()
    at = next(n for n, each in enumerate(lines) if f"{line.parser.prog} " in f"{each} ")
    headline, block = lines[at], " ".join(" ".join(lines[at:]).split())
    assert line.summary.split(";")[0] in block
    for action in line.parser.arguments():
        for option in action.option_strings:
            assert option in line.parser.completions([])
        if action.help == argparse.SUPPRESS:  # it goes with every `-r`, and is explained once
            assert action.option_strings == ["--mesh"]
            assert "--mesh NAME" in HELP[HELP.index("RANKS, behind -r") :]
        elif action.option_strings and action.help:
            flags = ", ".join(action.option_strings)
            assert any(each.startswith(f"    {flags}") for each in lines[at:])
            assert action.help in block
        else:
            assert str(action.metavar or action.dest.upper()) in headline


def test_the_help_is_narrow_and_in_two_columns():
    lines = HELP.splitlines()
    assert max(map(len, lines)) <= 100
    table = lines[: lines.index(next(each for each in lines if each.startswith("RANKS")))]
    assert {each[35:37] for each in table if each} == {"  "}
    assert all(each[37:38].strip() for each in table if each)


def test_the_help_begins_with_what_is_needed_first():
    assert [each.split()[-1] for each in HELP.splitlines() if each.startswith("%ddp help")] == [
        "text"
    ]
    assert list(VERBS)[:4] == ["start", "status", "push", "pull"]
    assert HELP.startswith("%%ddp [-r RANKS] [options]           run the cell on all ranks")


@pytest.mark.parametrize(
    ("verb", "before", "words"),
    [
        ("start", ["-n", "2"], {"--backend", "--plain", "--env"}),
        ("start", ["--backend"], {"auto", "gloo", "nccl"}),
        ("start", ["--env", "A=1"], {"--env", "--nproc-per-node"}),
        ("status", ["--live"], {"on", "off"}),
        ("stacks", [], {"-r", "--ranks", "--mesh"}),
        ("config", ["on_death=keep"], {"on_deadlock=report", "on_mismatch=off"}),
        ("auto", [], {"on", "off"}),
        ("auto", ["on"], {"-r", "--timeout", "--out"}),
        ("auto", ["on", "--out"], {"folded", "merged", "ranks", "quiet"}),
        ("trace", ["--cell", "3"], {"--last", "--save"}),
    ],
)
def test_words_that_are_offered(verb: str, before: list[str], words: set[str]):
    assert words <= set(VERBS[verb].parser.completions(before))


@pytest.mark.parametrize(
    ("verb", "before", "word"),
    [
        ("start", ["-n", "2"], "--nproc-per-node"),
        ("stacks", ["-r"], "--ranks"),
        ("stacks", ["-r", "0"], "--ranks"),
        ("start", ["--cwd"], "--plain"),
        ("config", ["on_death=keep"], "on_death=keep"),
        ("auto", ["off"], "on"),
        ("stop", [], "-r"),
    ],
)
def test_words_that_are_not_offered(verb: str, before: list[str], word: str):
    assert word not in VERBS[verb].parser.completions(before)
