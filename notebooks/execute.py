"""Run notebooks through a real kernel, headless, and print live what a reader sees.

    python -m notebooks.execute notebooks/00_first_cell.ipynb     # -> out/*.ipynb, out/*.html
    python -m notebooks.execute --inplace notebooks/*.ipynb       # commits the outputs

The kernel is a stock ipykernel of the Python that runs this file, started by nbclient. It has no
user; a cell that asks for input carries the answers (`notebooks.answers`). A saved
notebook is made equal from run to run as far as it can be: stable cell ids, no timings, no
temporary paths, no addresses, neighbouring text of one stream joined.

Exit status: 0 if every cell ran, or raised with the tag ``raises-exception``; 1 if one did not;
2 if a notebook cannot be read; 130 after an interrupt.

Runs in: its own process, one thread, one asyncio loop (nbclient's).
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import pygments
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient.exceptions import (
    CellExecutionComplete,
    CellExecutionError,
    CellTimeoutError,
    DeadKernelError,
)
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.token import Operator, Text

from nbddp.settings import POOLS_DIR_ENV
from notebooks.answers import AnsweringClient, AnswersError
from notebooks.reading import ANSI, WIDGET_VIEW, View, collapse_carriage_returns

_REPOSITORY = Path(__file__).resolve().parent.parent

_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_LANGUAGE = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "pygments_lexer": "ipython3",
}


# --- running -------------------------------------------------------------------------------------


class ThisPythonKernelSpecs(KernelSpecManager):
    """Knows one kernel: that of ``sys.executable``, whatever is installed on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The same for every name."""
        del kernel_name
        return KernelSpec(**get_kernel_dict())


class LiveClient(AnsweringClient):
    """Executes a notebook and shows it while it runs.

    Output that a cell sends after its end (from a background run) goes to that cell, as in a
    front end; nbclient alone would drop it.
    """

    def __init__(
        self, notebook: NotebookNode, view: View, socket_folder: Path, **options: Any
    ) -> None:
        super().__init__(notebook, store_widget_state=False, record_timing=False, **options)
        self.view = view
        self.socket_folder = socket_folder
        self._cell_by_request: dict[str, tuple[NotebookNode, int]] = {}

    def create_kernel_manager(self) -> Any:
        """A kernel of this Python, on sockets in a private folder: nothing listens on TCP."""
        self.km = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=ThisPythonKernelSpecs(),
            transport="ipc",
            ip=str(self.socket_folder / "ipc"),
            connection_file=str(self.socket_folder / "kernel.json"),
        )
        return self.km

    async def async_start_new_kernel(self, **kwargs: Any) -> None:
        """Start it with a folder of its own for pools: the output names no other program's."""
        kwargs["env"] = {**os.environ, POOLS_DIR_ENV: str(self.socket_folder)}
        await super().async_start_new_kernel(**kwargs)

    async def _async_cleanup_kernel(self) -> None:
        # nbclient cleans up once per reason (signal, failed start, end), and asserts on the second.
        if self.km is not None:
            await super()._async_cleanup_kernel()

    _cleanup_kernel = run_sync(_async_cleanup_kernel)

    @property
    def is_interrupted(self) -> bool:
        """Whether SIGINT or SIGTERM ended the kernel."""
        return hasattr(self, "_async_cleanup_kernel_future")

    async def async_execute_cell(
        self,
        cell: NotebookNode,
        cell_index: int,
        execution_count: int | None = None,
        store_history: bool = True,
    ) -> NotebookNode:
        """Run one cell with the status shown."""
        self.view.begin_cell(cell, cell_index, self.code_cells_executed + 1)
        ticker = asyncio.create_task(self.view.tick())
        try:
            return await super().async_execute_cell(
                cell, cell_index, execution_count, store_history
            )
        finally:
            ticker.cancel()
            self.view.end_cell()

    async def _async_poll_output_msg(
        self, parent_msg_id: str, cell: NotebookNode, cell_index: int
    ) -> None:
        self._cell_by_request[parent_msg_id] = (cell, cell_index)
        client: Any = self.kc  # with AsyncKernelManager, get_msg is a coroutine
        while True:
            message = await client.iopub_channel.get_msg(timeout=None)
            request = message["parent_header"].get("msg_id")
            if request not in self._cell_by_request:
                continue
            try:
                self.process_message(message, *self._cell_by_request[request])
            except CellExecutionComplete:
                if request == parent_msg_id:
                    return

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Record a message as nbclient does, and show it."""
        content = msg["content"]
        display_id = (content.get("transient") or {}).get("display_id")
        match msg["msg_type"]:
            case "stream":
                self.view.text(content["text"])
            case "display_data":
                self.view.bundle(content["data"])
                if display_id:
                    self.view.remember(display_id, content["data"])
            case "update_display_data" if display_id:
                self.view.update(display_id, content["data"])
            case "execute_result":
                self.view.bundle(content["data"], f"Out[{content['execution_count']}]: ")
            case "error":
                self.view.error(content["traceback"])
            case "clear_output":
                self.view.clear()
            case _:
                pass  # status, input echo, comms: nothing to read
        return super().process_message(msg, cell, cell_index)


# --- reading and saving --------------------------------------------------------------------------


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook; a cell without an id gets one that is the same each time."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for number, cell in enumerate(content["cells"]):
        cell.setdefault("id", f"cell-{number}")
    content["nbformat_minor"] = max(5, content["nbformat_minor"])
    notebook: NotebookNode = nbformat.reads(json.dumps(content), as_version=4)
    return notebook


def clean(notebook: NotebookNode) -> None:
    """Remove from an executed notebook what differs from run to run without a meaning."""
    notebook.metadata = NotebookNode(
        {
            **{k: v for k, v in notebook.metadata.items() if k not in {"widgets", "papermill"}},
            "kernelspec": NotebookNode(_KERNELSPEC),
            "language_info": NotebookNode(_LANGUAGE),
        }
    )
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = _clean_outputs(cell.outputs)


def _clean_outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join neighbouring text of one stream, and clean each output.

    nbclient's own ``coalesce_streams`` joins all text of a stream, so that what was printed after
    a picture would move in front of it.
    """
    cleaned: list[NotebookNode] = []
    for output in outputs:
        previous = cleaned[-1] if cleaned else None
        if output.output_type == "stream":
            if previous and previous.output_type == "stream" and previous.name == output.name:
                previous.text += output.text
                continue
        elif "data" in output:
            output.data.pop(WIDGET_VIEW, None)
            if not any(output.data.values()):
                continue  # emptied on purpose, as a progress line is at its end
        cleaned.append(output)
    for output in cleaned:
        if output.output_type == "stream":
            output.text = normalize(collapse_carriage_returns(output.text))
        elif output.output_type == "error":
            output.evalue = normalize(output.evalue)
            output.traceback = [normalize(line) for line in output.traceback]
        else:
            for mime, content in output.data.items():
                if mime.startswith("text/") and isinstance(content, str):
                    output.data[mime] = normalize(content)
    return cleaned


def normalize(text: str) -> str:
    """Replace temporary folders, the repository's place, the home folder and addresses."""
    temporary = re.escape(tempfile.gettempdir())
    text = re.sub(rf"{temporary}/ipykernel_\d+/\d+\.py", "cell.py", text)
    text = re.sub(rf"{temporary}/(execute-\w+/)?nbddp-[\w.-]+", "/tmp/nbddp-pool", text)  # noqa: S108  # a text
    text = text.replace(f"{_REPOSITORY}/", "").replace(str(Path.home()) + "/", "~/")
    return re.sub(r"\b0x[0-9a-f]{6,}\b", "0x...", text)


def save(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook; either the whole file is replaced or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".ipynb.partial")
    nbformat.write(notebook, str(partial))
    partial.replace(path)


def save_html(notebook: NotebookNode, path: Path) -> None:
    """Write the page that a reader opens in a browser."""
    exporter = HTMLExporter(
        filters={"highlight_code": highlight_cell},
        exclude_output_stdin=False,  # by default a page has no prompts and answers
    )
    page, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": path.stem}})
    path.write_text(page, encoding="utf-8")


def highlight_cell(source: str, metadata: dict[str, Any]) -> str:
    """The code of a cell as HTML. nbconvert's own filter does not know that ``%%ddp`` is Python."""
    del metadata
    magic = re.match(r"(%%ddp\b)(.*\n?)", source)
    tokens = [(Operator, magic[1]), (Text, magic[2])] if magic else []
    body = source[magic.end() :] if magic else source
    tokens += pygments.lex(body, get_lexer_by_name("ipython3", stripnl=False))
    page: str = pygments.format(tokens, HtmlFormatter(cssclass=" highlight hl-ipython3"))
    return page


# --- command line --------------------------------------------------------------------------------


def execute_notebook(path: Path, out: Path, timeout_s: int, *, inplace: bool) -> bool:
    """Run one notebook and save it; whether every cell did what it should."""
    notebook = read_notebook(path)
    view = View(sys.stdout, len(notebook.cells))
    view.note(f"== {path} ({len(notebook.cells)} cells)")
    began = time.monotonic()
    problem = ""
    with tempfile.TemporaryDirectory(prefix="execute-") as sockets:
        client = LiveClient(
            notebook,
            view,
            Path(sockets),
            timeout=timeout_s,
            resources={"metadata": {"path": str(path.parent)}},
        )
        try:
            client.execute()
        except CellExecutionError as error:
            problem = f"{error.ename}: {error.evalue}"
        except AnswersError as error:
            problem = str(error)
        except CellTimeoutError:
            problem = f"the cell ran longer than {timeout_s} s"
        except DeadKernelError:
            if client.is_interrupted:
                raise KeyboardInterrupt from None
            problem = "the kernel died"

    clean(notebook)
    executed = path if inplace and not problem else out / path.name
    written = [executed]
    save(notebook, executed)
    if not inplace:
        written.append(executed.with_suffix(".html"))
        save_html(notebook, written[-1])

    elapsed_s = time.monotonic() - began
    if problem:
        where = f"{path}, In [{client.code_cells_executed}]"
        view.note(f"\nFAILED  {where}: {ANSI.sub('', problem)}")
    view.note(f"\n{client.code_cells_executed} cells in {elapsed_s:.1f} s")
    for file in written:
        view.note(f"  wrote {file}")
    return not problem


def main(arguments: list[str] | None = None) -> int:
    """Run the notebooks named on the command line."""
    parser = argparse.ArgumentParser(description="Run notebooks headless and show them live.")
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder (default: out)")
    parser.add_argument("--inplace", action="store_true", help="replace the outputs in the file")
    parser.add_argument("--timeout", type=int, default=300, metavar="S", help="limit of each cell")
    options = parser.parse_args(arguments)
    failed: list[Path] = []
    for path in options.notebooks:
        try:
            ok = execute_notebook(path, options.out, options.timeout, inplace=options.inplace)
        except (OSError, ValueError, KeyError, nbformat.ValidationError) as error:
            sys.stderr.write(f"{path}: not a notebook that can be run: {error}\n")
            return 2
        if not ok:
            failed.append(path)
    if failed:
        sys.stderr.write(f"failed: {', '.join(map(str, failed))}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
