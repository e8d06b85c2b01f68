"""The lines of ``%%ddp`` and of ``%ddp start``, and what is meant by a line that is not legal."""

from pathlib import Path

import pytest

from nbddp.errors import BadOptionError
from nbddp.notebook.magics.cell_line import CELL, CellCommand, parse_cell
from nbddp.notebook.magics.verbs import VERBS
from tests.support.command_lines import read, refusal

# --- %%ddp ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", CellCommand(None, None, False)),
        ("-r 0,2-3", CellCommand("0,2-3", None, False)),
        ("--ranks all", CellCommand("all", None, False)),
        ("-r0", CellCommand("0", None, False)),
        ("-r dp=0,tp=1:3", CellCommand("dp=0,tp=1:3", None, False)),
        ("--mesh grid -r tp=0", CellCommand("grid[tp=0]", None, False)),
        ("-r tp=-1 --mesh=grid", CellCommand("grid[tp=-1]", None, False)),
        ("--mesh grid", CellCommand("grid[]", None, False)),
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
        ("-n 4", "no pool is running. Next: %ddp start -n 4, then %%ddp without -n"),
        ("-n2", "Next: %ddp start -n 2"),
        ("-n", "Next: %ddp start -n 4"),
        ("-r 0 --nproc-per-node=8", "Next: %ddp start -n 8"),
        ("-r 0 1", "%%ddp: unknown: 1. Did you mean %%ddp -r 0,1?"),
        ("-r dp=0 tp=1:3", "%%ddp: unknown: tp=1:3. Did you mean %%ddp -r dp=0,tp=1:3?"),
        ("tp=1", "%%ddp: unknown: tp=1. Did you mean %%ddp -r tp=1?"),
        ("--mesh a --mesh b", "%%ddp: --mesh is given twice"),
        ("--nope", "%%ddp: unknown: --nope; legal: -r RANKS, --timeout SECONDS, "),
        ("--async -r 0 2-3 5", "Did you mean %%ddp --async -r 0,2-3,5?"),
    ],
)
def test_bad_cell_line(line: str, words: str):
    with pytest.raises(BadOptionError) as caught:
        parse_cell(line)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("line", "world_size", "words"),
    [
        ("-n 4", 4, "the pool has 4 ranks already, and the cell runs on all of them. Next: leave"),
        ("-n", 1, "the pool has 1 rank already"),
        ("-n 4", 2, "the pool has 2 ranks, and their number is set when the pool starts. Next: "),
        ("--nproc=4", 2, "for 4 ranks, without the variables of these: %ddp stop, then %ddp start"),
    ],
)
def test_a_number_of_ranks_is_answered_by_the_pool_that_runs(
    line: str, world_size: int, words: str
):
    with pytest.raises(BadOptionError) as caught:
        parse_cell(line, world_size)
    assert words in str(caught.value)


def test_faults_are_texts_in_quotes():
    line = (
        "--fault 'rank 1: delay 2 s before all_reduce #3' -r 0 --fault \"nan in rank 0's gradient\""
    )
    command = parse_cell(line)
    assert command.fault == ["rank 1: delay 2 s before all_reduce #3", "nan in rank 0's gradient"]
    assert command.ranks == "0"
    assert parse_cell("").fault is None


def test_a_bad_option_is_told_with_the_legal_ones():
    with pytest.raises(BadOptionError) as caught:
        parse_cell("--no-such-option")
    assert str(caught.value) == (
        "%%ddp: unknown: --no-such-option; legal: -r RANKS, --timeout SECONDS, --async, --trace, "
        "--out folded|merged|ranks|quiet, --check, --step, --panel, --fault 'FAULT' ..., "
        "--sanitize [on|data|all]. Next: %ddp help"
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


# --- suggestions ---------------------------------------------------------------------------------


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
        ("--ranks 4", "-n 4"),
        ("-r 4", "-n 4"),
        ("--world-size=4 --backend gloo", "-n 4 --backend gloo"),
    ],
)
def test_the_meaning_of_a_common_mistake_is_suggested(line: str, meant: str):
    assert refusal(f"start {line}").endswith(f". Did you mean %ddp start {meant}?")
    read(f"start {meant}")


@pytest.mark.parametrize("line", ["two", "4 gloo", "-n 2 4", "2 2", "--gpus 2"])
def test_a_line_without_a_likely_meaning_gets_no_suggestion(line: str):
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("--sanitize", "on"),
        ("--sanitize -r 0-1", "on"),
        ("--sanitize data", "data"),
        ("--sanitize all --step", "all"),
    ],
)
def test_sanitize_may_have_a_value(text: str, value: str):
    assert parse_cell(text).sanitize == value


def test_tab_behind_sanitize_offers_its_values_and_other_options():
    offered = CELL.parser.completions(["--sanitize"])
    assert offered[:3] == ["on", "data", "all"]
    assert "--step" in offered
    assert "--sanitize" not in offered


def test_the_legal_choices_are_said_once():
    with pytest.raises(BadOptionError) as caught:
        parse_cell("--out all")
    text = "argument --out: invalid choice: 'all'; legal: --out folded|merged|ranks|quiet"
    assert str(caught.value) == f"%%ddp: {text}. Next: %ddp help"


# --- options of another program ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "slurm"),
    [
        ('--slurm "--time 1:00:00"', "--time 1:00:00"),
        ('--slurm "--time=1:00:00"', "--time=1:00:00"),
        ('--slurm="--time=1:00:00" -n 2', "--time=1:00:00"),
        ('--slurm "--exclusive" -n 2', "--exclusive"),
        ("-n 2 --slurm -O", "-O"),
        ('--slurm "-p gpu"', "-p gpu"),
    ],
)
def test_the_options_of_slurm_need_no_equals_sign(line: str, slurm: str):
    assert VERBS["start"].parser.read(f"--launcher slurm {line}").slurm == slurm


def test_options_of_slurm_without_quotes_get_a_guess():
    start = VERBS["start"].parser
    with pytest.raises(BadOptionError) as caught:
        start.read("--launcher slurm --slurm --time=1 --partition gpu")
    assert str(caught.value).endswith(
        "Did you mean %ddp start --launcher slurm --slurm '--time=1 --partition gpu'?"
    )
    with pytest.raises(BadOptionError, match="argument --slurm: expected one argument"):
        start.read("--slurm -n 2")


def test_a_blank_between_hosts_is_named():
    said = refusal("start --launcher ssh --hosts h4, h5")
    assert "'h4,' is not a list of names such as a,b, without blanks" in said


def test_the_hosts_may_stand_in_a_file(tmp_path: Path):
    path = tmp_path / "hosts"
    path.write_text("# two\nn1\n\n n2  # the spare\n")
    assert read(f"start --hostfile {path}")["hosts"] == ("n1", "n2")
    path.write_text("n1 slots=4 max_slots=8\nn2:4\n")
    assert read(f"start --hostfile {path}")["hosts"] == ("n1:4", "n2:4")
    path.write_text("n1\nn2 gpus=4\n")
    said = refusal(f"start --hostfile {path}")
    assert f"line 2 of {path} is 'n2 gpus=4'; legal: on each line a name, or a name and" in said
    path.write_text("\n")
    assert "names no host" in refusal(f"start --hostfile {path}")
    assert "cannot be read" in refusal(f"start --hostfile {tmp_path / 'none'}")
