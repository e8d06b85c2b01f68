"""The lines of %ddp and %%ddp."""

from collections.abc import Callable

import pytest

from nbddp.controller.pool.options import LINE_OPTIONS
from nbddp.controller.state.config import LEGAL_CONFIG, Config
from nbddp.errors import BadOptionError
from nbddp.notebook.magics import command_line
from nbddp.notebook.magics.command_line import (
    CellCommand,
    ConfigCommand,
    RestartCommand,
    StacksCommand,
    TraceCommand,
)
from nbddp.notebook.magics.help_text import HELP

# --- %%ddp ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", CellCommand(None, None, False)),
        ("-r 0,2-3", CellCommand("0,2-3", None, False)),
        ("--ranks all", CellCommand("all", None, False)),
        ("-r0", CellCommand("0", None, False)),
        ("-r '0, 2'", CellCommand("0, 2", None, False)),
        ("--timeout 1.5", CellCommand(None, 1.5, False)),
        ("--timeout=3", CellCommand(None, 3.0, False)),
        ("--async", CellCommand(None, None, True)),
        ("  --async -r 1 --timeout 2 ", CellCommand("1", 2.0, True)),
        ("--trace", CellCommand(None, None, False, trace=True)),
        ("--check", CellCommand(None, None, False, check=True)),
        ("--trace --check -r 0", CellCommand("0", None, False, trace=True, check=True)),
    ],
)
def test_cell(line: str, found: CellCommand):
    assert command_line.parse_cell(line) == found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-r", "%%ddp: argument -r/--ranks: expected one argument"),
        ("--timeout", "%%ddp: argument --timeout: expected one argument"),
        ("--timeout soon", "argument --timeout: 'soon' is not a positive number of seconds"),
        ("--timeout 0", "argument --timeout: '0' is not a positive number of seconds"),
        ("--timeout nan", "argument --timeout: 'nan' is not a positive number of seconds"),
        ("--timeout inf", "argument --timeout: 'inf' is not a positive number of seconds"),
        ("--asyn", "%%ddp: unknown: --asyn"),
        ("print(1)", "%%ddp: unknown: print(1)"),
        ("-r 0 extra", "%%ddp: unknown: extra"),
        ("'open", "%%ddp: No closing quotation"),
    ],
)
def test_bad_cell_line(line: str, words: str):
    with pytest.raises(BadOptionError) as caught:
        command_line.parse_cell(line)
    assert words in str(caught.value)


def test_a_bad_option_is_told_with_the_legal_ones():
    with pytest.raises(BadOptionError) as caught:
        command_line.parse_cell("--no-such-option")
    assert str(caught.value) == (
        "%%ddp: unknown: --no-such-option; legal: -r RANKS, --timeout SECONDS, --async, --trace, "
        "--check, --out merged|ranks|quiet. Next: %ddp help"
    )
    with pytest.raises(BadOptionError, match=r"'maybe'.*; legal: --live \[on\|off\]\. Next"):
        command_line.parse_status(["--live", "maybe"])
    with pytest.raises(BadOptionError, match=r"; legal: --cell N, -r RANKS, --last N, --save FILE"):
        command_line.parse_trace(["everything"])


# --- %ddp start ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", {}),  # the defaults are those of nbddp.start
        ("-n 4", {"nproc_per_node": 4}),
        ("-n4", {"nproc_per_node": 4}),
        ("--nproc-per-node 4", {"nproc_per_node": 4}),
        ("--nnodes 2", {"nnodes": 2}),
        ("--backend gloo", {"backend": "gloo"}),
        ("--device cpu", {"device": "cpu"}),
        ("--devices 0,1", {"devices": (0, 1)}),
        ("--init none", {"init": "none"}),
        ("--threads 3", {"threads": 3}),
        ("--env A=1 B=x=y", {"env": {"A": "1", "B": "x=y"}}),
        ("--env A=1 --env B=", {"env": {"A": "1", "B": ""}}),
        ("--cwd '/a b'", {"cwd": "/a b"}),
        ("--timeout 30", {"timeout": 30.0}),
        ("--plain", {"plain": True}),
        ("-n 0", {"nproc_per_node": 0}),  # judged by PoolOptions, in one place
    ],
)
def test_start(line: str, found: dict[str, object]):
    verb, words = command_line.split_verb(f"start {line}")
    assert verb == "start"
    assert command_line.parse_start(words) == found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-n", "argument -n/--nproc-per-node: expected one argument"),
        ("-n four", "argument -n/--nproc-per-node: 'four' is not a whole number"),
        ("-n 1.5", "argument -n/--nproc-per-node: '1.5' is not a whole number"),
        ("--nnodes x", "argument --nnodes: 'x' is not a whole number"),
        ("--threads x", "argument --threads: 'x' is not a whole number"),
        ("--devices a", "argument --devices: 'a' is not a list of devices such as 0,1"),
        ("--devices 0,", "argument --devices: '0,' is not a list of devices such as 0,1"),
        ("--env A", "argument --env: 'A' is not of the form NAME=VALUE"),
        ("--env 1=2", "argument --env: '1=2' is not of the form NAME=VALUE"),
        ("--env", "argument --env: expected at least one argument"),
        ("--timeout -1", "--timeout"),
        ("4", "%ddp start: unknown: 4"),
        ("--nproc 4", "%ddp start: unknown: --nproc 4"),  # no abbreviations
    ],
)
def test_bad_start(line: str, words: str):
    with pytest.raises(BadOptionError) as caught:
        command_line.parse_start(command_line.split_verb(f"start {line}")[1])
    assert words in str(caught.value)


# --- the other verbs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("2", "-n 2"),
        ("2 --backend gloo", "-n 2 --backend gloo"),
        ("n=4", "-n 4"),
        ("n 4", "-n 4"),
        ("--nproc 4", "--nproc-per-node 4"),
        ("nproc_per_node=4", "--nproc-per-node 4"),
        ("--num-nodes 2", "--nnodes 2"),
    ],
)
def test_what_a_newcomer_means(line: str, meant: str):
    with pytest.raises(BadOptionError) as caught:
        command_line.parse_start(line.split())
    assert str(caught.value).endswith(f". Did you mean %ddp start {meant}?")
    command_line.parse_start(meant.split())


@pytest.mark.parametrize("line", ["two", "4 gloo", "-n 2 4", "2 2", "--gpus 2"])
def test_what_cannot_be_guessed_is_not(line: str):
    with pytest.raises(BadOptionError, match=r"unknown: [^.]+; legal: -n N, .*\. Next: %ddp help$"):
        command_line.parse_start(line.split())


@pytest.mark.parametrize(
    ("line", "meant"), [("0", "-r 0"), ("0-1 --async", "-r 0-1 --async"), ("--rank 0", "--ranks 0")]
)
def test_ranks_without_their_option(line: str, meant: str):
    with pytest.raises(BadOptionError) as caught:
        command_line.parse_cell(line)
    assert str(caught.value).endswith(f". Did you mean %%ddp {meant}?")


@pytest.mark.parametrize(("verb", "meant"), [("Start", "start"), ("intrupt", "interrupt")])
def test_a_verb_with_a_slip(verb: str, meant: str):
    with pytest.raises(
        BadOptionError, match=f"unknown; did you mean %ddp {meant}\\? Legal: start, "
    ):
        command_line.split_verb(verb)


@pytest.mark.parametrize("verb", command_line.VERBS)
def test_every_verb_is_known_and_in_the_help(verb: str):
    assert command_line.split_verb(f" {verb} a 'b c' ") == (verb, ["a", "b c"])
    assert f"%ddp {verb}" in HELP


def test_no_verb_means_help():
    assert command_line.split_verb("  ") == ("help", [])


def test_an_unknown_verb_lists_the_legal_ones():
    with pytest.raises(BadOptionError) as caught:
        command_line.split_verb("begin -n 4")
    assert str(caught.value) == "%ddp begin: unknown; legal: " + ", ".join(command_line.VERBS)


def test_names():
    assert command_line.parse_names("push", ["x", "y"]) == (["x", "y"], None)
    assert command_line.parse_names("pull", ["x", "-r", "0,1"]) == (["x"], "0,1")
    with pytest.raises(BadOptionError, match=r"%ddp push: what\? Next: %ddp push NAME"):
        command_line.parse_names("push", [])
    with pytest.raises(BadOptionError, match="%ddp pull: unknown: --rank"):
        command_line.parse_names("pull", ["x", "--rank", "1"])


@pytest.mark.parametrize(
    ("line", "what", "ranks"),
    [
        ("pull x", "x", None),
        ("pull d['a  b'] + \"it's\" -r 0,1", "d['a  b'] + \"it's\"", "0,1"),
        ("pull --ranks=0 model.state_dict()", "model.state_dict()", "0"),
        (" pull x - r ", "x - r", None),
    ],
)
def test_an_expression_to_pull_keeps_its_quotes(line: str, what: str, ranks: str | None):
    assert command_line.parse_pull(line) == (what, ranks)


@pytest.mark.parametrize("line", ["pull", "pull -r 0", "pull -r 0 x -r 1", "pull x -r"])
def test_pull_says_what_it_wants(line: str):
    with pytest.raises(BadOptionError, match="%ddp pull EXPRESSION"):
        command_line.parse_pull(line)


@pytest.mark.parametrize(("line", "ranks"), [("", None), ("-r 2", "2"), ("--ranks=0,2-3", "0,2-3")])
def test_stacks_and_restart_take_ranks(line: str, ranks: str | None):
    assert command_line.parse_stacks(line.split()) == StacksCommand(ranks)
    assert command_line.parse_restart(line.split()) == RestartCommand(ranks)


@pytest.mark.parametrize("parse", [command_line.parse_stacks, command_line.parse_restart])
def test_a_rank_needs_its_option(parse: Callable[[list[str]], object]):
    with pytest.raises(BadOptionError, match=r"unknown: 2\. Did you mean %ddp \w+ -r 2\?"):
        parse(["2"])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", TraceCommand(None, None, 20, None)),
        ("--cell 4", TraceCommand(cell=4)),
        ("-r 0,2 --last 5", TraceCommand(ranks="0,2", last=5)),
        ("--save 'my trace.json'", TraceCommand(save="my trace.json")),
        ("--cell=4 --save t.json -r1", TraceCommand(cell=4, ranks="1", save="t.json")),
    ],
)
def test_trace(line: str, found: TraceCommand):
    verb, words = command_line.split_verb(f"trace {line}")
    assert verb == "trace"
    assert command_line.parse_trace(words) == found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--cell", "%ddp trace: argument --cell: expected one argument"),
        ("--cell [4]", "argument --cell: '[4]' is not a whole number above 0"),
        ("--cell 0", "argument --cell: '0' is not a whole number above 0"),
        ("--last -3", "--last"),
        ("--last many", "argument --last: 'many' is not a whole number above 0"),
        ("--save", "argument --save: expected one argument"),
        ("--save ''", "argument --save: a file needs a name"),
        ("4", "%ddp trace: unknown: 4"),
    ],
)
def test_bad_trace(line: str, words: str):
    with pytest.raises(BadOptionError) as caught:
        command_line.parse_trace(command_line.split_verb(f"trace {line}")[1])
    assert words in str(caught.value)


def test_config():
    assert command_line.parse_config([]) == ConfigCommand()
    assert command_line.parse_config([]).changes == {}
    found = command_line.parse_config(["on_deadlock=report", "on_death=keep"])
    assert found == ConfigCommand(on_deadlock="report", on_death="keep")
    assert found.changes == {"on_deadlock": "report", "on_death": "keep"}
    assert command_line.parse_config(["on_death=keep", "on_death=keep"]).changes == {
        "on_death": "keep"
    }


@pytest.mark.parametrize("name", LEGAL_CONFIG)
def test_every_value_of_config_is_read_and_in_the_help(name: str):
    for value in LEGAL_CONFIG[name]:
        assert command_line.parse_config([f"{name}={value}"]).changes == {name: value}
    assert f"{name}={LEGAL_CONFIG[name][0]}" in HELP  # the default
    assert [value for value in LEGAL_CONFIG[name] if value not in HELP] == []


def test_the_default_of_config_comes_first():
    config = Config()
    for name, legal in LEGAL_CONFIG.items():
        assert getattr(config, name) == legal[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "on_deadlok=abort",
            "%ddp config: 'on_deadlok' is unknown; legal: on_deadlock=abort|report, "
            "on_mismatch=raise|warn|off, on_death=respawn|keep",
        ),
        (
            "on_mismatch=ignore",
            "%ddp config: on_mismatch=ignore is unknown; legal: on_mismatch=raise or "
            "on_mismatch=warn or on_mismatch=off",
        ),
        (
            "on_death",
            "%ddp config: on_death has no value; legal: on_death=respawn or on_death=keep",
        ),
        ("on_death = keep", "%ddp config: on_death has no value"),
        ("on_death=keep on_death=respawn", "%ddp config: on_death has two values"),
        ("--on-death keep", "%ddp config: '--on-death' is unknown; legal:"),
    ],
)
def test_bad_config(line: str, words: str):
    with pytest.raises(BadOptionError) as caught:
        command_line.parse_config(command_line.split_verb(f"config {line}")[1])
    assert words in str(caught.value)


def test_verbs_without_options():
    command_line.expect_nothing("stop", [])
    with pytest.raises(BadOptionError, match="%ddp stop takes no options, and got '-f now'"):
        command_line.expect_nothing("stop", ["-f", "now"])


def test_the_help_names_every_option():
    options = ["-r", "--timeout", "--async", "-n", "--trace", "--check", "--plain"]
    options += ["--cell", "--last", "--save"]
    options += [f"--{name.replace('_', '-')}" for name in LINE_OPTIONS]
    assert [option for option in options if option not in HELP] == []


def test_a_comment_behind_the_words_is_left_out():
    assert command_line.parse_cell("-r 0,2  # don't run it on 1").ranks == "0,2"
    assert command_line.split_verb("start -n 4 # four") == ("start", ["-n", "4"])
    assert command_line.split_verb("start --cwd a#b") == ("start", ["--cwd", "a#b"])
