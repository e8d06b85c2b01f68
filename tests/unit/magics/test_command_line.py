"""The lines of %ddp and %%ddp."""

import inspect
from typing import Any

import pytest

from nbddp.controller.options import LINE_OPTIONS
from nbddp.controller.state.config import LEGAL_CONFIG, Config
from nbddp.errors import BadOptionError
from nbddp.notebook.magics.cell_line import CELL, CellCommand, parse_cell
from nbddp.notebook.magics.verb import Verb
from nbddp.notebook.magics.verbs import VERBS, find_verb, help_page

HELP = help_page()


def read(line: str) -> dict[str, Any]:
    """The arguments of the verb's action."""
    verb, text = find_verb(line)
    return vars(verb.parser.read(text))


def refusal(line: str) -> str:
    """What the reader is told of a line that is not legal."""
    with pytest.raises(BadOptionError) as caught:
        read(line)
    return str(caught.value)


# --- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_an_action_takes_what_the_parser_gives(verb: Verb):
    shell, *parameters = inspect.signature(verb.action).parameters.values()
    assert shell.name == "shell"
    if verb.name == "start":
        assert list(LINE_OPTIONS) == [action.dest for action in verb.parser.arguments()]
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
        if action.option_strings and action.help:
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
        ("stacks", [], {"-r", "--ranks"}),
        ("config", ["on_death=keep"], {"on_deadlock=report", "on_mismatch=off"}),
        ("auto", [], {"on", "off"}),
        ("auto", ["on"], {"-r", "--timeout", "--out"}),
        ("auto", ["on", "--out"], {"merged", "ranks", "quiet"}),
        ("trace", ["--cell", "3"], {"--last", "--save"}),
    ],
)
def test_what_may_come_next(verb: str, before: list[str], words: set[str]):
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
def test_what_may_not(verb: str, before: list[str], word: str):
    assert word not in VERBS[verb].parser.completions(before)


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
    assert parse_cell(line) == found


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
        ("-r 0 --ranks=1", "%%ddp: --ranks is given twice"),
        ("'open", "%%ddp: No closing quotation"),
    ],
)
def test_bad_cell_line(line: str, words: str):
    with pytest.raises(BadOptionError) as caught:
        parse_cell(line)
    assert words in str(caught.value)


def test_a_bad_option_is_told_with_the_legal_ones():
    with pytest.raises(BadOptionError) as caught:
        parse_cell("--no-such-option")
    assert str(caught.value) == (
        "%%ddp: unknown: --no-such-option; legal: -r RANKS, --timeout SECONDS, --async, --trace, "
        "--out merged|ranks|quiet, --check. Next: %ddp help"
    )
    assert "'maybe'" in refusal("status --live maybe")
    assert "; legal: --live [on|off]. Next" in refusal("status --live maybe")
    assert "; legal: --cell N, -r RANKS, --last N, --save FILE" in refusal("trace everything")


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
    assert read(f"start {line}") == found


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
    assert words in refusal(f"start {line}")


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
    assert refusal(f"start {line}").endswith(f". Did you mean %ddp start {meant}?")
    read(f"start {meant}")


@pytest.mark.parametrize("line", ["two", "4 gloo", "-n 2 4", "2 2", "--gpus 2"])
def test_what_cannot_be_guessed_is_not(line: str):
    said = refusal(f"start {line}")
    assert "unknown: " in said
    assert "; legal: -n N, --nnodes M, " in said
    assert said.endswith(". Next: %ddp help")


@pytest.mark.parametrize(
    ("line", "meant"), [("0", "-r 0"), ("0-1 --async", "-r 0-1 --async"), ("--rank 0", "--ranks 0")]
)
def test_ranks_without_their_option(line: str, meant: str):
    with pytest.raises(BadOptionError) as caught:
        parse_cell(line)
    assert str(caught.value).endswith(f". Did you mean %%ddp {meant}?")


@pytest.mark.parametrize(("verb", "meant"), [("Start", "start"), ("intrupt", "interrupt")])
def test_a_verb_with_a_slip(verb: str, meant: str):
    said = f"%ddp has no verb '{verb}'. Did you mean %ddp {meant}? Legal: start, status, "
    assert refusal(verb).startswith(said)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_known(name: str):
    verb, text = find_verb(f" {name}  a 'b c' ")
    assert (verb.name, text.strip()) == (name, "a 'b c'")


@pytest.mark.parametrize("line", ["", "  ", "# what was it?"])
def test_no_verb_means_help(line: str):
    assert find_verb(line) == (VERBS["help"], "")


def test_an_unknown_verb_lists_the_legal_ones():
    assert refusal("begin -n 4") == f"%ddp has no verb 'begin'; legal: {', '.join(VERBS)}"


@pytest.mark.parametrize(("line", "ranks"), [("", None), ("-r 2", "2"), ("--ranks=0,2-3", "0,2-3")])
@pytest.mark.parametrize("verb", ["stacks", "restart", "debug", "debugger"])
def test_verbs_that_take_ranks(verb: str, line: str, ranks: str | None):
    assert read(f"{verb} {line}") == {"ranks": ranks}


@pytest.mark.parametrize("verb", ["stacks", "restart", "debug", "debugger"])
def test_a_rank_needs_its_option(verb: str):
    assert refusal(f"{verb} 2") == f"%ddp {verb}: unknown: 2. Did you mean %ddp {verb} -r 2?"


# --- names and expressions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "names", "ranks"),
    [
        ("push x y", ["x", "y"], None),
        ("push -r 0,1 x", ["x"], "0,1"),
        ("vars", [], None),
        ("vars a b -r 0  # why", ["a", "b"], "0"),
        ("vars d['a b']", ["d['a b']"], None),  # the ranks say that it is no name
    ],
)
def test_names(line: str, names: list[str], ranks: str | None):
    assert read(line) == {"names": names, "ranks": ranks}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("push", "%ddp push needs a name. Next: %ddp push NAME ... [-r RANKS]"),
        ("push -r 0", "%ddp push needs a name. Next: %ddp push NAME ... [-r RANKS]"),
        ("push x --rank 1", "%ddp push: unknown: --rank 1. Did you mean %ddp push x --ranks 1?"),
        ("push x --foo", "%ddp push: unknown: --foo; legal: NAME ..., -r RANKS. Next: %ddp help"),
        (
            "push x, 'y'",
            "%ddp push takes names without commas and quotes, and got \"x, 'y'\". "
            "Next: %ddp push x y",
        ),
        ("vars x -r", "%ddp vars: argument -r/--ranks: expected one argument; legal: -r RANKS. "),
        ("vars -r 0 x -r 1", "%ddp vars: -r is given twice; legal: -r RANKS. Next"),
        ("vars --foo", "%ddp vars: unknown: --foo; legal: NAME ..., -r RANKS. Next: %ddp help"),
    ],
)
def test_bad_names(line: str, said: str):
    assert refusal(line).startswith(said)


@pytest.mark.parametrize(
    ("line", "what", "ranks"),
    [
        ("x", "x", None),
        ("d['a  b'] + \"it's\" -r 0,1", "d['a  b'] + \"it's\"", "0,1"),
        ("--ranks=0 model.state_dict()", "model.state_dict()", "0"),
        ("x - r ", "x - r", None),
        ("d['x -r 0']", "d['x -r 0']", None),
        ("f(x -r, 'a # b')  # why", "f(x -r, 'a # b')", None),
        ("-1", "-1", None),
        ("-r 1 -x", "-x", "1"),
        ("x - -y", "x - -y", None),
        ("x - --y", "x - --y", None),
        ("f(x --y)", "f(x --y)", None),
        ("'x --y'", "'x --y'", None),
        ("x if y else --z", "x if y else --z", None),
        ("lambda: --y", "lambda: --y", None),
        ("x--y", "x--y", None),
        ("{'a': 1}['a']", "{'a': 1}['a']", None),
    ],
)
def test_an_expression_is_that_of_python(line: str, what: str, ranks: str | None):
    assert read(f"pull {line}") == {"expression": what, "ranks": ranks}
    assert read(f"diff {line}" if line[0] != "'" else "diff x") == {
        "expressions": [what if line[0] != "'" else "x"],
        "ranks": ranks,
    }


@pytest.mark.parametrize(
    ("line", "expressions"),
    [
        ("model optimizer", ["model", "optimizer"]),
        ("cfg['a b'] model # two", ["cfg['a b']", "model"]),
        ("a + b c.d", ["a + b", "c.d"]),
        ("a, b", ["a, b"]),
        ("[p.grad for p in ps] -r 0 rng", ["[p.grad for p in ps]", "rng"]),
    ],
)
def test_several_expressions(line: str, expressions: list[str]):
    assert read(f"diff {line}")["expressions"] == expressions


_NO_OPTION = "unknown: --{}; legal: EXPRESSION{}, -r RANKS. Next: %ddp help"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("diff y --rtol 1", "%ddp diff: " + _NO_OPTION.format("rtol", " ...")),
        ("diff a b --rtol=1", "%ddp diff: " + _NO_OPTION.format("rtol=1", " ...")),
        ("diff --rtol 1 y", "%ddp diff: " + _NO_OPTION.format("rtol", " ...")),
        ("pull --foo y", "%ddp pull: " + _NO_OPTION.format("foo", "")),
        ("pull --foo", "%ddp pull: " + _NO_OPTION.format("foo", "")),
        (
            "pull y --foo",
            "%ddp pull: unknown: --foo (for two minus signs write (y --foo)); legal: EXPRESSION, "
            "-r RANKS. Next: %ddp help",
        ),
        ("pull y --rank 0", "%ddp pull: unknown: --rank. Did you mean %ddp pull y --ranks 0?"),
        (
            "pull y d",
            "%ddp pull takes one expression, and got 2: y and d. Next: %ddp pull (y, d), or a line "
            "for each",
        ),
        ("pull", "%ddp pull needs an expression. Next: %ddp pull EXPRESSION [-r RANKS]"),
        ("pull -r 0", "%ddp pull needs an expression. Next: %ddp pull EXPRESSION [-r RANKS]"),
        ("pull x -r", "%ddp pull: argument -r/--ranks: expected one argument; legal: -r RANKS. "),
        ("pull -r 0 x --ranks=1", "%ddp pull: --ranks is given twice; legal: -r RANKS"),
        ("pull x = 3", "%ddp pull: 'x = 3' is not an expression (invalid syntax"),
        ("pull f(x", "%ddp pull: 'f(x' is not an expression ('(' was never closed). Next: %ddp "),
        ("diff", "%ddp diff needs an expression. Next: %ddp diff EXPRESSION ... [-r RANKS]"),
        ("diff -r 0", "%ddp diff needs an expression. Next: %ddp diff EXPRESSION ... [-r RANKS]"),
        ("diff x -r 0 -r 1", "%ddp diff: -r is given twice; legal: -r RANKS. Next"),
        ("diff -r", "%ddp diff: argument -r/--ranks: expected one argument; legal: -r RANKS. "),
        ("diff a b(", "%ddp diff: 'a b(' is not an expression ("),
        ("diff if x", "%ddp diff: 'if x' is not an expression (invalid syntax). Next: %ddp diff m"),
    ],
)
def test_bad_expressions(line: str, said: str):
    assert refusal(line).startswith(said)


# --- the other verbs -----------------------------------------------------------------------------


TRACE = {"cell": None, "ranks": None, "last": 20, "save": None}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", {}),
        ("--cell 4", {"cell": 4}),
        ("-r 0,2 --last 5", {"ranks": "0,2", "last": 5}),
        ("--save 'my # trace.json' # why", {"save": "my # trace.json"}),
        ("--cell=4 --save t.json -r1", {"cell": 4, "ranks": "1", "save": "t.json"}),
    ],
)
def test_trace(line: str, found: dict[str, object]):
    assert read(f"trace {line}") == TRACE | found


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
    assert words in refusal(f"trace {line}")


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("", {}),
        ("on_deadlock=report on_death=keep", {"on_deadlock": "report", "on_death": "keep"}),
        ("on_death=keep on_death=keep", {"on_death": "keep"}),
    ],
)
def test_config(line: str, changes: dict[str, str]):
    assert read(f"config {line}") == {"changes": changes}


@pytest.mark.parametrize("name", LEGAL_CONFIG)
def test_every_value_of_config_is_read_and_in_the_help(name: str):
    default, *others = LEGAL_CONFIG[name]
    line = next(each for each in HELP.splitlines() if each.startswith(f"    {name}={default} "))
    for value in [default, *others]:
        assert read(f"config {name}={value}") == {"changes": {name: value}}
        assert value in line


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
    assert words in refusal(f"config {line}")


@pytest.mark.parametrize("verb", ["interrupt", "stop", "diagnose", "help"])
def test_verbs_without_options(verb: str):
    assert read(verb) == {}
    assert refusal(f"{verb} -f now") == f"%ddp {verb} takes no options, and got '-f now'"


@pytest.mark.parametrize(
    ("line", "mode", "options"),
    [("", "", ""), ("off", "off", ""), ("on -r '0, 2' --trace", "on", "-r '0, 2' --trace")],
)
def test_auto(line: str, mode: str, options: str):
    assert read(f"auto {line}") == {"mode": mode, "options": options}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("of", "%ddp auto: 'of' is unknown; legal: on, off. Next: %ddp help"),
        ("off now", "%ddp auto off takes no options, and got 'now'"),
        ("on --nonsense", "%%ddp: unknown: --nonsense; legal: -r RANKS, "),
    ],
)
def test_bad_auto(line: str, said: str):
    assert refusal(f"auto {line}").startswith(said)


def test_a_comment_behind_the_words_is_left_out():
    assert parse_cell("-r 0,2  # don't run it on 1").ranks == "0,2"
    assert read("start -n 4 # four") == {"nproc_per_node": 4}
    assert read("start --cwd a#b") == {"cwd": "a#b"}
    assert read("start --cwd 'a # b'") == {"cwd": "a # b"}
