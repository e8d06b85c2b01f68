"""Every notebook runs from top to bottom, and its committed outputs are of one clean run."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import nbformat
import papermill
import pytest
import torch
from nbclient import NotebookClient
from nbformat import NotebookNode

from notebooks.answers import AnsweringClient, answers_of
from tests.support.kernel import running_kernel

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
DEMO = REPOSITORY / "notebooks" / "00_first_cell.ipynb"
BUILD = REPOSITORY / "notebooks" / "02_build_ddp.ipynb"
DISAGREE = REPOSITORY / "notebooks" / "03_when_ranks_disagree.ipynb"
TRACE = REPOSITORY / "notebooks" / "04_read_a_trace.ipynb"
DEATH = REPOSITORY / "notebooks" / "05_a_rank_dies.ipynb"
STEPS = REPOSITORY / "notebooks" / "06_step_by_step.ipynb"
NUMBERS = REPOSITORY / "notebooks" / "07_wrong_numbers.ipynb"
MACHINES = REPOSITORY / "notebooks" / "09_several_machines.ipynb"

MAX_LINES_OF_A_CELL = 15
MAX_BYTES_OF_A_NOTEBOOK = 300_000
MIN_TEST_ACCURACY = 0.95

#: The cards of `DISAGREE`, by the words in front of the explanation.
#: The HTML of a card, and of no other output.
CARD = "border-left:4px solid "
CARDS = [
    "Deadlock: ranks 1-3 never called all_reduce",
    "Mismatch: rank 3 called all_gather of float32[24], ranks 0-2",
    "Deadlock: ranks 0-3 wait for each other in a circle",
    "Deadlock: ranks 0-3 wait for each other in a circle",
    "Notice: ranks 0-2 wait in barrier",
    "Deadlock: rank 3 never called barrier",
]

#: Those of `NUMBERS`: each bug has one, and each fixed cell none.
WRONG = [
    "Warning: ranks 1-3 read a tensor that broadcast",
    "Warning: rank 0 wrote a tensor that send to rank 1 still uses",
    "Notice: rank 3 called the 1st all_reduce",
    "Warning: rank 2 gave NaN to all_reduce",
    "Warning: ranks 0-3 have different values in '0.weight'",
    "Notice: ranks 0-3 each read all 64 samples of TensorDataset",
    "Warning: ranks 0-3 read TensorDataset in the same order in passes 1 and 2",
]

LOCAL_PATHS = re.compile(
    rf"(/home|/root|/Users|/var/folders)/\w|/tmp/(?!nbddp-pool)\w"
    rf"|{re.escape(str(REPOSITORY))}|{re.escape(tempfile.gettempdir())}/(?!nbddp-pool)\w"
)

#: A statement, outside of functions, that a reader sees something of.
SHOWS = re.compile(r"^(print|plt\.show|show_before_after)\(", re.MULTILINE)

#: Waits of `MACHINES` that a reader watches, and a test need not: the same, and shorter.
SOONER = {"TIMEOUT_S=20": "TIMEOUT_S=12", "Timer(8, ": "Timer(5, ", "sleep(3)": "sleep(2)"}

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
#: Its Gloo has no all_to_all with lists of tensors.
OLD_GLOO = {"01_ranks_and_groups"} if torch.__version__ < "2.13" else set[str]()


@cache
def committed(path: Path) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


@cache
def executed(path: Path) -> NotebookNode:
    """A fresh run; raises `nbclient.exceptions.CellExecutionError` where a cell fails."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.outputs = []
    for long, short in SOONER.items() if path == MACHINES else ():
        (found,) = (cell for cell in code_cells(notebook) if long in cell.source)
        found.source = found.source.replace(long, short)
    with pytest.MonkeyPatch.context() as patch:
        # Equal lines fold, also where a rank of a busy machine is a little late.
        patch.setenv("NBDDP_OUTPUT_FOLD_S", "0.5")
        patch.setenv("NBDDP_PRELOAD", "torch._dynamo")  # each rank would load it for DDP: seconds
        AnsweringClient(  # a cell with prompts carries what a reader types
            notebook,
            timeout=120,
            kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
        ).execute()
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(notebook: NotebookNode) -> Iterator[str]:
    """The text of all outputs, without pictures."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "stream":
                yield output.text
            elif output.output_type == "error":
                yield from (output.evalue, *output.traceback)
            else:
                yield from (
                    str(content)
                    for mime, content in output.data.items()
                    if not mime.startswith("image/")
                )


def cards(notebook: NotebookNode) -> list[str]:
    """The text of each card, in order."""
    return [
        output.data["text/plain"]
        for cell in code_cells(notebook)
        for output in cell.outputs
        if CARD in output.get("data", {}).get("text/html", "")
    ]


def errors(notebook: NotebookNode) -> list[tuple[str, str]]:
    """Name and message of each cell's error, in order."""
    return [
        (output.ename, output.evalue)
        for cell in code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "error"
    ]


def accuracy_of(notebook: NotebookNode) -> float:
    """The accuracy that the demo prints for unseen digits."""
    found = re.findall(r"\[0-3\] test accuracy (\d+\.\d)%", "".join(texts(notebook)))
    assert len(found) == 1, found
    return float(found[0]) / 100


#: `make test` runs the first one.
_MARKS = {path: [] if path == DEMO else [pytest.mark.full] for path in NOTEBOOKS}
_RUN = [
    pytest.param(path, id=path.stem, marks=_MARKS[path])
    for path in NOTEBOOKS
    if path.stem not in OLD_GLOO
]


def each_source(path: Path) -> pytest.MarkDecorator:
    """Parametrize a test of a notebook: as it is committed, and as a fresh run leaves it."""
    return pytest.mark.parametrize(
        "source", [committed, pytest.param(executed, marks=_MARKS[path])]
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", _RUN)
def test_runs_in_a_stock_kernel(path: Path):
    executed(path)


@each_notebook
def test_committed_outputs_are_of_one_clean_run(path: Path):
    notebook = committed(path)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        errors = [output.evalue for output in cell.outputs if output.output_type == "error"]
        assert not errors or "raises-exception" in cell.metadata.get("tags", [])
        assert cell.outputs or not SHOWS.search(cell.source)


@each_notebook
def test_committed_outputs_have_nothing_of_the_machine_that_made_them(path: Path):
    found = [text for text in texts(committed(path)) if LOCAL_PATHS.search(text)]
    assert found == []


@each_notebook
def test_committed_outputs_have_no_leftovers_of_live_lines(path: Path):
    assert [text for text in texts(committed(path)) if "ranks done" in text] == []
    for cell in code_cells(committed(path)):
        for output in cell.outputs:
            assert output.output_type in ("stream", "error") or any(output.data.values())


@each_notebook
def test_is_short_enough_to_be_read(path: Path):
    assert path.stat().st_size < MAX_BYTES_OF_A_NOTEBOOK
    lengths = {cell.id: len(cell.source.splitlines()) for cell in code_cells(committed(path))}
    assert {k: n for k, n in lengths.items() if n > MAX_LINES_OF_A_CELL} == {}


@pytest.mark.timeout(300)
@each_source(DEMO)
def test_the_demo_learns_the_digits(source: Callable[[Path], NotebookNode]):
    assert accuracy_of(source(DEMO)) >= MIN_TEST_ACCURACY


@pytest.mark.timeout(300)
@each_source(BUILD)
def test_a_handwritten_ddp_equals_that_of_torch(source: Callable[[Path], NotebookNode]):
    lines = "\n".join(texts(source(BUILD))).splitlines()
    assert lines.count("[0-1] equal to the loop by hand, in every bit: True") == 2
    assert {
        "network: equal on ranks 0-1",
        "by_hand: equal on ranks 0-1",
        "torchs: equal on ranks 0-1",
        "[0-1] sum      0.500 of the right gradient",
        "[0-1] weighted 1.000 of the right gradient",
        "rank 0 of 2 has 0.5",
        "rank 1 of 2 has 0.5",
    } <= set(lines)


@pytest.mark.timeout(300)
@each_source(TRACE)
def test_the_trace_names_the_straggler(source: Callable[[Path], NotebookNode]):
    text = "\n".join(texts(source(TRACE)))
    assert "on rank 0 in all_reduce #2 (cell [2], line 8), rank 1 came last" in text
    for cell, operations in ((4, 5), (15, 8)):
        drawn = text[text.index(f"timeline of cell [{cell}]") :]
        named = re.search(r"^rank (\d) (always )?came last.* (\d+) operations", drawn, re.MULTILINE)
        assert named is not None
        assert int(named[3]) == operations
        if source is committed:  # other programs may make another rank the last one
            assert int(named[1]) == 1


# --- the README ----------------------------------------------------------------------------------

#: A cell, and its output.
EXAMPLE = re.compile(r"```python\n(%%ddp\n.*?)```\n```\n(.*?)```", re.DOTALL)
#: Text that differs from run to run.
VARIES = re.compile(r"#\d+|\[\d+\]|\d+ ms|pid \d+|\d\.\d s|/tmp/\S+|\S+/ctypes/\S+ line \d+")


def shown(text: str) -> list[str]:
    return [VARIES.sub("...", line) for line in text.splitlines()]


@pytest.mark.timeout(120)
def test_the_readme_shows_what_its_cells_show():
    found = EXAMPLE.findall((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert len(found) == 4
    with running_kernel() as kernel:
        kernel.ok("%load_ext nbddp\n%ddp start -n 4")
        for code, output in found:
            page = kernel.run(code).page
            seen = shown("\n".join(message.text for message in page))
            # Chance decides which other is freed, and which sees the end of a connection first.
            missing = [line for line in shown(output) if line not in seen and "others" not in line]
            assert missing == [], "\n".join(seen)


# --- deadlocks and deaths ------------------------------------------------------------------------


@pytest.mark.timeout(300)
@each_source(DISAGREE)
def test_each_disagreement_is_explained_by_its_card(source: Callable[[Path], NotebookNode]):
    found = cards(source(DISAGREE))
    for text, words in zip(found, CARDS, strict=True):
        assert " ".join(text.split()).startswith(words)
    kinds = ["Deadlock", "Mismatch", "Deadlock", "Cell", "Deadlock", "Deadlock"]
    assert [name for name, _ in errors(source(DISAGREE))] == [f"{kind}Error" for kind in kinds]


@pytest.mark.timeout(300)
@each_source(NUMBERS)
def test_each_wrong_number_is_explained_by_its_card(source: Callable[[Path], NotebookNode]):
    found = cards(source(NUMBERS))
    for text, words in zip(found, WRONG, strict=True):
        assert " ".join(text.split()).startswith(words)
    assert errors(source(NUMBERS)) == []
    text = "\n".join(texts(source(NUMBERS)))
    assert "[1-3] learning rate 0.0\n" in text
    assert "[0-3] learning rate 0.1\n" in text
    assert text.count("[1]   activation [2.0, 2.0]\n") == 6


@pytest.mark.timeout(300)
@each_source(DISAGREE)
def test_the_training_survives_every_disagreement(source: Callable[[Path], NotebookNode]):
    text = "\n".join(texts(source(DISAGREE)))
    steps = re.findall(r"^\[0-3\] step (\d+), mean loss (\d\.\d+)$", text, re.MULTILINE)
    assert [int(step) for step, _ in steps] == [10, 20, 30, 40, 50, 60, 70, 70]
    assert steps[-1] == steps[-2]
    assert "[0-3] I am at step 45\n" in text
    assert "[0-3] largest difference: 0.0\n" in text


@pytest.mark.timeout(300)
@each_source(DEATH)
def test_both_recoveries_end_in_the_same_loss(source: Callable[[Path], NotebookNode]):
    assert [name for name, _ in errors(source(DEATH))] == ["RankExitedError"] * 2
    text = "\n".join(texts(source(DEATH)))
    assert {"[0-1,3] step 47", "[2]   step is not defined"} <= set(text.splitlines())
    assert len(losses_of_the_dying(source(DEATH))) == 1
    assert re.findall(r"from step (\d+) on", text) == ["40", "47"]


def scripts_in_the_text(folder: Path) -> str:
    """Writes the file that the notebook writes and the script that it shows; the shown command."""
    notebook = committed(DEATH)
    for cell in code_cells(notebook):
        magic, _, body = cell.source.partition("\n")
        if magic.startswith("%%writefile"):
            with (folder / magic.split()[-1]).open("a") as file:
                file.write(body + "\n")
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    blocks: dict[str, str] = dict(re.findall(r"```(\w+)\n(.*?)```", prose, re.DOTALL))
    (folder / "train.py").write_text(blocks["python"])
    return blocks["bash"]


def in_a_shell(command: str, folder: Path) -> str:
    """The text that the script prints."""
    done = subprocess.run(
        ["bash", "-euc", command.replace("torchrun", f"{sys.executable} -m torch.distributed.run")],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=360,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


#: Asks the system, since Python does not know these threads. One that was joined is gone at once,
#: but may be listed for a moment.
THREADS_OF_GLOO = """
import pathlib, sys, time

def threads_of_gloo(limit_s=0):
    deadline = time.monotonic() + limit_s
    while True:
        tasks = pathlib.Path("/proc/self/task").glob("*/comm")
        found = sorted(name for name in map(read, tasks) if "gloo" in name)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.01)

def read(path):
    try:
        return path.read_text().strip()
    except OSError:  # it has just ended
        return ""
"""


@pytest.fixture(scope="module")
def said_under_torchrun(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the script in the text prints, and its threads before and after its last line."""
    folder = tmp_path_factory.mktemp("torchrun")
    command = scripts_in_the_text(folder)
    script = folder / "train.py"
    *lines, end = script.read_text().splitlines()
    assert end == "dist.destroy_process_group()"
    # In one write: under torchrun, Python writes each argument of `print` by itself (-u), and what
    # several ranks say would stand in one line.
    told = "sys.stdout.write(f'{} {{{}}}\\n')".format
    before, after = told("threads", "threads_of_gloo()"), told("left", "threads_of_gloo(10)")
    script.write_text("\n".join([THREADS_OF_GLOO, *lines, before, end, after]))
    return in_a_shell(command, folder)


@pytest.mark.timeout(400)
@pytest.mark.full
def test_the_script_in_the_text_ends_in_the_same_loss_under_torchrun(said_under_torchrun: str):
    said = said_under_torchrun
    # torchrun runs Python with -u, where the end of a line is a write of its own: what two ranks
    # say may stand in one line.
    lives = re.findall(r"life (\d) of rank (\d) begins at step (\d+)", said)
    assert sorted(lives) == [
        (life, str(rank), step) for life, step in (("0", "0"), ("1", "40")) for rank in range(4)
    ]
    losses = re.findall(r"loss (\d+\.\d+)", said)
    assert len(losses) == 4
    assert set(losses) == losses_of_the_dying(executed(DEATH))


@pytest.mark.timeout(400)
@pytest.mark.full
def test_the_script_in_the_text_leaves_no_thread_behind(said_under_torchrun: str):
    """A thread that is left aborts the process if it needs the interpreter during shutdown."""
    threads = re.findall(r"threads (\[[^]]*\])", said_under_torchrun)
    assert ["'pt_gloo_runloop'" in each for each in threads] == [True] * 4
    assert re.findall(r"left (\[[^]]*\])", said_under_torchrun) == ["[]"] * 4


# --- machines ------------------------------------------------------------------------------------


def check_machines(notebook: NotebookNode) -> None:
    names = [name for name, _ in errors(notebook)]
    assert names == ["MismatchError", "MismatchError", "RankExitedError"]
    assert "%ddp restart -r 2-3 asks for another agent" in errors(notebook)[-1][1]
    found = "\n".join(texts(notebook))
    lines = found.splitlines()
    assert {"[2]   machine [0, 2] local [2, 3]", "[0-3] count 0", "[0-3] count 3"} <= set(lines)
    assert "[0-3] [60.0, 64.0, 68.0, 72.0] as [60.0, 64.0, 68.0, 72.0]" in lines
    assert re.search(r"^\[0-1\] step \d weight ", found, re.MULTILINE)
    assert "ranks 2-3 are fresh processes" in found
    assert "[0-3] step 10 weight 3.257" in lines


@pytest.mark.timeout(300)
@each_source(MACHINES)
def test_a_lost_machine_is_replaced(source: Callable[[Path], NotebookNode]):
    check_machines(source(MACHINES))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_stand_in_for_ssh_shows_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NBDDP_OUTPUT_FOLD_S", "0.5")
    notebook: NotebookNode = nbformat.read(MACHINES, as_version=4)
    for cell in code_cells(notebook):
        cell.source = cell.source.replace("hosts.start()", "hosts.start(stand_in=True)")
    resources = {"metadata": {"path": str(MACHINES.parent)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    check_machines(notebook)


# --- prompts -------------------------------------------------------------------------------------


def typed(notebook: NotebookNode) -> list[str]:
    """What was typed at the prompts, as JupyterLab saves it."""
    return [
        line
        for cell in code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdin"
        for line in output.text.splitlines()
    ]


@pytest.mark.timeout(300)
@each_source(STEPS)
def test_the_prompts_are_answered_and_the_reader_sees_it(source: Callable[[Path], NotebookNode]):
    found = source(STEPS)
    answers = [answer for cell in code_cells(found) for answer in answers_of(cell)]
    assert [line.partition(")  ")[2] for line in typed(found)] == answers
    for cell in code_cells(found):
        if told := re.search(r"^# You type: (.*)$", cell.source, re.MULTILINE):
            assert told[1].split(" | ") == answers_of(cell)
    lines = "\n".join(texts(found)).splitlines()
    assert {
        "[0-2] tensor([111., 111.])",
        "[0]   tensor([  1., 111., 101.])",
        "[0-2] tensor([111., 111., 111.])",
        "[0-2] True",
        "[2]   (1, 0.25)",
        "[0-2] all of us stop at step 2, mean loss 0.261",
    } <= set(lines)
    assert sum(line.startswith("ranks 0-2  before gradient averaging") for line in lines) == 2
    assert cards(found)[-1].startswith("Deadlock: rank 2 never called")


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_notebook_with_prompts_runs_to_its_end_without_a_user(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NBDDP_PRELOAD", "torch._dynamo")
    monkeypatch.setenv("NBDDP_OUTPUT_FOLD_S", "0.5")
    notebook: NotebookNode = nbformat.read(STEPS, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    assert typed(notebook) == []
    lines = "\n".join(texts(notebook)).splitlines()
    assert {
        "[0-2] tensor([111., 111.])",
        "[0-2] tensor([111., 111., 111.])",
        "[0-2] all of us stop at step 2, mean loss 0.261",
    } <= set(lines)
    assert [name for name, _ in errors(notebook)] == ["DeadlockError"]


def losses_of_the_dying(notebook: NotebookNode) -> set[str]:
    return set(re.findall(r"^\[0-3\] .*: loss (\S+)$", "\n".join(texts(notebook)), re.MULTILINE))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_papermill_runs_a_notebook_with_failing_cells(tmp_path: Path):
    """The notebook whose cells fail; the others are covered by the test with a stock kernel."""
    path = DISAGREE
    out = tmp_path / "out.ipynb"
    # It runs cells that fail on purpose and those after them, and complains at the end: it does not
    # know the tag.
    with pytest.raises(papermill.PapermillExecutionError):
        papermill.execute_notebook(
            str(path), str(out), kernel_name="python3", cwd=str(tmp_path), progress_bar=False
        )
    found = nbformat.read(out, as_version=4)
    assert all(cell.execution_count for cell in code_cells(found))


@pytest.mark.timeout(120)
def test_papermill_stops_at_a_cell_that_fails_on_a_rank(tmp_path: Path):
    sources = [
        "%load_ext nbddp\n%ddp start -n 2 --init none",
        "%%ddp\nprint('before')\nassert rank == 0, 'rank 1 has had enough'",
        "print('never')",
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path, out = tmp_path / "fails.ipynb", tmp_path / "out.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)

    with pytest.raises(papermill.PapermillExecutionError) as caught:
        papermill.execute_notebook(
            str(path), str(out), kernel_name="python3", cwd=str(tmp_path), progress_bar=False
        )
    assert "rank 1 has had enough" in str(caught.value)

    *_, failed, never = code_cells(nbformat.read(out, as_version=4))
    assert failed.outputs[0].text == "[0-1] before\n"
    assert failed.outputs[-1].output_type == "error"
    assert never.execution_count is None
    assert never.outputs == []
