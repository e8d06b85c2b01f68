"""The kernel "Python (nbddp, 2 ranks)", as `nbddp kernel install` adds it to Jupyter."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import nbclient
import nbformat
import papermill
import pexpect
import psutil
import pytest
from jupyter_kernel_test import KernelTests

from nbddp import cli
from tests.support.kernel import Kernel, running_kernel
from tests.support.polling import poll_until

LAUNCH = ("-m", "nbddp.notebook.ipykernel_app", "--NbddpKernel.pool=-n 2")
NAME = "nbddp-2"


@pytest.fixture(scope="module")
def installed() -> Iterator[str]:
    """Its name; Jupyter finds it during these tests."""
    with tempfile.TemporaryDirectory() as prefix, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(Path(prefix, "share", "jupyter")))
        patch.setenv("IPYTHONDIR", str(Path(prefix, "ipython")))  # a history of its own
        # A slow machine is no reason for a progress line: the conformance test counts the outputs.
        patch.setenv("NBDDP_PROGRESS_AFTER_S", "60")
        assert cli.main(["kernel", "install", "-n", "2", "--prefix", prefix]) == 0
        yield NAME


@pytest.fixture(scope="module")
def own() -> Iterator[Kernel]:
    with running_kernel(*LAUNCH) as kernel:
        yield kernel


# --- as a notebook uses it -----------------------------------------------------------------------


def test_the_first_cell_is_distributed(own: Kernel):
    cell = own.ok("x = rank + 1\nprint(world_size)")
    assert (cell.number, cell.lines[-1]) == (1, "[0-1] 2")
    assert own.ok("x").lines == ["[0]   Out: 1", "[1]   Out: 2"]


def test_a_first_cell_that_waits_for_the_ranks_shows_their_start():
    with running_kernel(*LAUNCH, NBDDP_PROGRESS_AFTER_S="0") as kernel:
        cell = kernel.ok("print(world_size)")
    assert cell.lines == [
        "2 processes (ranks 0-1) on the CPU, connected with Gloo. Each cell runs on all of",
        "them; %%local keeps one here.",
        "[0-1] 2",
    ]


def test_local_cells_and_magics_work_in_its_own_process(own: Kernel):
    assert own.value("%%local\nimport os\nos.getpid()") == str(own.process.pid)
    assert "2 ranks on cpu" in own.ok("%ddp status").of("display_data")[0].text
    assert "auto mode is on" in own.ok("%ddp auto").text


def test_completion_and_inspection_ask_a_rank(own: Kernel):
    own.ok("only_on_ranks = {'a': 1}")
    reply = own.client.complete("only_on_r", reply=True, timeout=20)
    assert reply["content"]["matches"] == ["only_on_ranks"]
    reply = own.client.inspect("only_on_ranks", reply=True, timeout=20)
    assert reply["content"]["found"]
    assert "{'a': 1}" in reply["content"]["data"]["text/plain"]


def test_an_interrupt_ends_the_cell_on_all_ranks(own: Kernel):
    cell_id = own.execute("print('in')\nif rank: dist.barrier()\nwhile True: pass")
    own.wait_text(cell_id, "[0-1] in")
    own.interrupt()
    assert "CellInterruptedError" in own.finish(cell_id).error
    assert own.ok("dist.barrier(); print('well')").lines == ["[0-1] well"]


def test_input_names_the_rank(own: Kernel):
    cell = own.run("if rank == 1: print(input('name? '))", "Ada")
    assert (cell.questions, cell.lines) == (["[1]   name? "], ["[1]   Ada"])


@pytest.mark.full
def test_another_pool_may_take_its_place(own: Kernel):
    own.ok("%ddp stop")
    assert own.ok("%ddp start -n 1").page[0].text.startswith("1 process")
    assert own.ok("world_size").lines == ["Out: 1"]


# --- its life ------------------------------------------------------------------------------------


def _gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


@pytest.mark.full
def test_a_restart_and_a_shutdown_leave_nothing():
    with running_kernel(*LAUNCH) as kernel:
        kernel.ok("kept = 1")
        below = kernel.process.children(recursive=True)
        kernel.manager.restart_kernel()
        kernel.client.wait_for_ready(timeout=20)
        poll_until(lambda: _gone(below), 10.0)
        assert "NameError" in kernel.run("kept").error
        process = psutil.Process(kernel.manager.provisioner.pid)  # type: ignore[union-attr]
        below = process.children(recursive=True)
        assert len(below) >= 5
        kernel.shutdown()
        poll_until(lambda: _gone(below), 10.0)


def test_a_pool_that_does_not_come_up_is_told_by_the_first_cell():
    with running_kernel(
        "-m", "nbddp.notebook.ipykernel_app", "--NbddpKernel.pool=-n 2 --backend no"
    ) as k:
        assert k.value("%%local\n1 + 1") == "2"
        assert "backend 'no' is not available" in k.run("rank").error


# --- what any kernel must do ---------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
class TestConformance(KernelTests):  # type: ignore[misc]  # the package has no types
    """https://github.com/jupyter/jupyter_kernel_test"""

    kernel_name = NAME
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('oops', file=sys.stderr)"
    completion_samples: ClassVar[list[dict[str, Any]]] = [
        {"text": "zi", "matches": {"zip"}},
        {"text": "world_si", "matches": {"world_size"}},
    ]
    complete_code_samples: ClassVar[list[str]] = [
        "1",
        "print('hello, world')",
        "def f(x):\n  return x*2\n\n",
    ]
    incomplete_code_samples: ClassVar[list[str]] = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples: ClassVar[list[str]] = ["import = 7q"]
    code_page_something = "%%local\nzip?"
    code_generate_error = "raise ValueError"
    code_execute_result: ClassVar[list[dict[str, str]]] = [
        {"code": "%%local\n1+2+3", "result": "6"}
    ]
    code_display_data: ClassVar[list[dict[str, str]]] = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>t</b>'))",
         "mime": "text/html"},
    ]  # fmt: skip
    code_history_pattern = "*1+2*"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    # Both ranks have shown it before one clears it: what was never shown is not cleared.
    code_clear_output = (
        "from IPython.display import clear_output\ndisplay('x')\ndist.barrier()\nclear_output()"
    )


del KernelTests  # else pytest would collect it


# --- other front ends ----------------------------------------------------------------------------


def _notebook(*sources: str) -> Any:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.mark.full
def test_nbclient_and_papermill_run_notebooks_on_it(installed: str, tmp_path: Path):
    book = _notebook("x = torch.full((1,), float(rank))", "dist.all_reduce(x)\nprint(x.item())")
    nbclient.NotebookClient(book, kernel_name=installed, timeout=30).execute()
    assert book.cells[1].outputs[0].text == "[0-1] 1.0\n"

    book = _notebook("steps = 1", "print(steps * world_size)")
    book.cells[0].metadata.tags = ["parameters"]
    book.metadata.kernelspec = {"name": installed, "language": "python", "display_name": ""}
    nbformat.write(book, tmp_path / "in.ipynb")
    done = papermill.execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", parameters={"steps": 21}, progress_bar=False
    )
    assert done.cells[-1].outputs[0].text == "[0-1] 42\n"


@pytest.mark.full
def test_a_console_works_on_it(installed: str):
    console = pexpect.spawn(
        sys.executable,
        ["-m", "jupyter_console", "--simple-prompt", "--kernel", installed],
        timeout=20,
        encoding="utf8",
        env={**os.environ, "NBDDP_FOLD_OUTPUT": "0"},
    )
    try:
        console.expect("cells run on 2 ranks")
        console.expect(r"In \[1\]: ")
        console.sendline("print('on', rank)")
        console.expect(r"\[0\]   on 0\s+\[1\]   on 1")
        console.expect(r"In \[2\]: ")
        console.sendline("if rank == 0: input('who? ')")
        console.sendline("")
        console.expect(r"\[0\]   who\? ")
        console.sendline("me")
        console.expect(r"In \[3\]: ")
        console.sendline("nbddp.show(torch.ones(2))")
        console.expect(r"equal on all ranks\s+rank 0   rank 1\s+1 1      1 1")
        console.expect(r"In \[\d\]: ")
        console.sendline("exit")
        console.expect(pexpect.EOF)
    finally:
        console.close(force=True)
