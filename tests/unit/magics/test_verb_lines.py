"""The lines of ``%ddp VERB``: which verb is meant, and its options."""

import pytest

from nbddp.controller.state.config import LEGAL_CONFIG, Config
from nbddp.notebook.magics.cell_line import parse_cell
from nbddp.notebook.magics.verbs import VERBS, find_verb
from tests.support.command_lines import HELP, read, refusal


@pytest.mark.parametrize(("verb", "meant"), [("Start", "start"), ("intrupt", "interrupt")])
def test_a_misspelled_verb(verb: str, meant: str):
    said = f"%ddp has no verb '{verb}'. Did you mean %ddp {meant}? Legal: start, status, "
    assert refusal(verb).startswith(said)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_known(name: str):
    verb, text = find_verb(f" {name}  a 'b c' ")
    assert (verb.name, text.strip()) == (name, "a 'b c'")


@pytest.mark.parametrize("line", ["", "  ", "# what was it?"])
def test_a_line_without_a_verb_means_help(line: str):
    assert find_verb(line) == (VERBS["help"], "")


def test_an_unknown_verb_lists_the_legal_ones():
    assert refusal("begin -n 4") == f"%ddp has no verb 'begin'; legal: {', '.join(VERBS)}"


@pytest.mark.parametrize(
    ("line", "ranks"),
    [("", None), ("-r 2", "2"), ("--ranks=0,2-3", "0,2-3"), ("-r tp=0 --mesh m", "m[tp=0]")],
)
@pytest.mark.parametrize("verb", ["stacks", "restart", "debug", "debugger"])
def test_verbs_that_take_ranks(verb: str, line: str, ranks: str | None):
    assert read(f"{verb} {line}") == {"ranks": ranks}


@pytest.mark.parametrize("verb", ["stacks", "restart", "debug", "debugger"])
def test_a_rank_needs_its_option(verb: str):
    assert refusal(f"{verb} 2") == f"%ddp {verb}: unknown: 2. Did you mean %ddp {verb} -r 2?"


def test_a_duration_needs_its_option():
    guess = "Did you mean %ddp detach --keep 5min?"
    assert refusal("detach 5min") == f"%ddp detach: unknown: 5min. {guess}"
    assert "Did you mean" not in refusal("detach soon")
    assert "Did you mean" not in refusal("stacks 5min")


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
            "%ddp config: 'on_deadlok' is unknown; legal: on_deadlock=abort|report|debug, "
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


def misspelled() -> list[tuple[str, str]]:
    """The long options of all verbs without their last letter, with a value that few take."""
    return [
        (f"{name} {option[:-1]}{'' if action.nargs == 0 else ' x'}", option)
        for name, verb in VERBS.items()
        for action in verb.parser.arguments()
        for option in action.option_strings
        if option.startswith("--") and option[:-1] not in verb.parser._option_string_actions
    ]


@pytest.mark.parametrize(("line", "option"), misspelled())
def test_a_misspelled_option_is_guessed_whatever_its_value(line: str, option: str):
    verb, _, words = line.partition(" ")
    for before in ("", "zz "):
        said = refusal(f"{verb} {before}{words}")
        assert "Did you mean" in said
        assert option in said.partition("Did you mean")[2].partition("?")[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "--hosts a,b -n 2 --hots a",
            "unknown: --hots a; perhaps --hosts is meant, which is given already. Next: the line "
            "without --hots a",
        ),
        ("--nnodes 2 --nnode 2", "unknown: --nnode 2; perhaps --nnodes is meant, which is given"),
        ("-n 2 --nproc-per=2", "unknown: --nproc-per=2; perhaps -n is meant, which is given"),
    ],
)
def test_no_line_is_proposed_that_has_an_option_twice(line: str, said: str):
    assert f"%ddp start: {said}" in refusal(f"start {line}")
