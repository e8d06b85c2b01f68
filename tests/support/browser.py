"""JupyterLab and Notebook 7 in a headless Chromium, driven as a person drives them.

`serving` starts one Jupyter server, `browsing` one browser; `Book` is a notebook that is open in a
tab, `BookCell` one of its cells. Needs Chromium (of the system: ``NBDDP_CHROMIUM`` or on the path)
and playwright; `missing` says what is not there.
"""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import nbformat
import psutil
from nbformat import NotebookNode

from tests.support import leaks
from tests.support.polling import poll_until

if TYPE_CHECKING:  # an extra: without it, the tests must be there to be skipped
    from playwright.sync_api import Browser, Locator, Page

#: The server ends with the tests, also if they are interrupted and end nothing.
_SERVE = """
import runpy, sys
from nbddp.system import process_tree
process_tree.die_with_parent(int(sys.argv.pop(1)))
runpy.run_module("jupyterlab", run_name="__main__", alter_sys=True)
"""
CHROMIUM_ENV = "NBDDP_CHROMIUM"
App = Literal["lab", "notebooks"]  #: JupyterLab, Notebook 7; as in the address

#: Guards against hanging; nothing is measured with it. A server needs more than 20 s to start on a
#: machine that runs ten other programs.
LIMIT_S = 50.0
_TOKEN = "tests"  # of a server on 127.0.0.1 that lives as long as the test
#: Nothing appears, moves or is written by itself; every cell is in the page.
_SETTINGS: dict[str, dict[str, Any]] = {
    "notebook-extension/tracker": {"windowingMode": "none", "recordTiming": False},
    "apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "docmanager-extension/plugin": {"autosave": False},
    "completer-extension/manager": {"autoCompletion": False},
}
_PANEL = "window.jupyterapp.shell.currentWidget"
_READY = f"""() => {{
  const panel = window.jupyterapp && {_PANEL};
  return panel && panel.context && panel.context.isReady
    && panel.sessionContext.session && panel.sessionContext.session.kernel
    && panel.sessionContext.session.kernel.status === 'idle'
    && panel.content.widgets.length > 0;
}}"""
_INSERT = f"""([source, type]) => {{
  const book = {_PANEL}.content;
  const cells = book.model.sharedModel;
  cells.insertCell(cells.cells.length, {{cell_type: type, source, metadata: {{trusted: true}}}});
  book.activeCellIndex = book.widgets.length - 1;
  book.deselectAll();
  book.activeCell.node.scrollIntoView({{block: 'end'}});
  book.activeCell.node.dataset.test = book.activeCell.model.id;
  return book.activeCell.model.id;
}}"""
_CELL = f"const cell = {_PANEL}.content.widgets.find(each => each.model.id === id);"
_IS_DONE = f"""id => {{
  {_CELL}
  return cell.model.sharedModel.execution_count !== null
    && cell.model.executionState !== 'running'
    && {_PANEL}.sessionContext.session.kernel.status === 'idle';
}}"""


def chromium() -> str | None:
    """The browser of this system."""
    named = os.environ.get(CHROMIUM_ENV)
    return named or shutil.which("chromium") or shutil.which("chromium-browser")


def missing() -> str:
    """The reason why no test can run in a browser; empty if one can."""
    for name in ("playwright", "notebook"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed (pip install '.[browser]')"
    if chromium() is None:
        return f"no chromium found (apt-get install chromium, or name one in {CHROMIUM_ENV})"
    return ""


@dataclass(frozen=True)
class Server:
    """A running Jupyter server."""

    url: str
    folder: Path  #: its notebooks

    def address(self, app: App, name: str) -> str:
        """The address of a notebook, opened in a fresh workspace."""
        if app == "lab":
            return f"{self.url}lab/tree/{name}?token={_TOKEN}&reset"
        return f"{self.url}notebooks/{name}?token={_TOKEN}"


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server with settings, kernels and runtime files of its own, all of it in ``folder``.

    Beside Python it has the kernel ``nbddp-2``.
    """
    notebooks = folder / "notebooks"
    notebooks.mkdir(parents=True)
    for name, values in _SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    env = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    install = [sys.executable, "-m", "nbddp", "kernel", "install", "-n", "2", "--user"]
    subprocess.run(install, env=env, check=True, stdout=subprocess.DEVNULL)
    command = [
        *(sys.executable, "-c", _SERVE, str(os.getpid()), "--no-browser", "--allow-root"),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", f"--IdentityProvider.token={_TOKEN}"),
        *(f"--ServerApp.root_dir={notebooks}", "--LabApp.extension_manager=readonly"),
        "--LabApp.expose_app_in_browser=True",
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ]
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
    try:
        url = poll_until(lambda: _url(folder / "runtime", process, log), LIMIT_S)
        yield Server(url, notebooks)
    finally:
        process.terminate()  # it ends its kernels, and they their pools
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url(runtime: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    """The address at which the server answers; empty before it does."""
    if process.poll() is not None:
        raise RuntimeError(f"the server has ended:\n{log.read_text(errors='replace')}")
    for found in runtime.glob(f"jpserver-{process.pid}.json"):
        with contextlib.suppress(ValueError, urllib.error.URLError, ConnectionError):
            url = str(json.loads(found.read_text(encoding="utf-8"))["url"])
            urllib.request.urlopen(f"{url}api/status?token={_TOKEN}", timeout=1).close()
            return url
    return ""


@contextlib.contextmanager
def browsing() -> Iterator["Browser"]:
    """A browser. While it lives, this thread has an asyncio loop that others may stumble upon."""
    from playwright.sync_api import sync_playwright

    before = _children()
    with sync_playwright() as playwright:
        drivers = _children() - before
        leaks.LASTING.update(drivers)
        browser = playwright.chromium.launch(
            executable_path=chromium(),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            browser.close()
            leaks.LASTING.difference_update(drivers)


def _children() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


class BookCell:
    """One cell of an open notebook."""

    def __init__(self, book: "Book", cell_id: str) -> None:
        self.book = book
        self.id = cell_id

    @property
    def node(self) -> "Locator":
        """The cell in the page."""
        return self.book.page.locator(f'[data-test="{self.id}"]')

    @property
    def output(self) -> "Locator":
        """The output area below its source."""
        return self.node.locator(".jp-Cell-outputWrapper")

    @property
    def text(self) -> str:
        """The output as a reader sees it: what is folded is not there."""
        found: str = self._ask(
            "const area = cell.node.querySelector('.jp-Cell-outputArea');"
            "return area ? area.innerText : '';"
        )
        return found.replace("\u00a0", " ")

    @property
    def printed(self) -> str:
        """The same without the line about the time, which stands above the output of ranks."""
        return re.sub(r"\A\s*ended after [^\n]*\n", "", self.text)

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """The outputs as they would be saved now."""
        found: list[dict[str, Any]] = self._ask("return cell.model.outputs.toJSON();")
        return found

    @property
    def source(self) -> str:
        """The source in the editor."""
        return str(self._ask("return cell.model.sharedModel.getSource();"))

    @property
    def is_trusted(self) -> bool:
        """Whether the front end lets its HTML do everything."""
        return bool(self._ask("return cell.model.trusted;"))

    def start(self) -> "BookCell":
        """Run it, and do not wait."""
        self.book.page.evaluate(
            f"id => {{ const book = {_PANEL}.content;"
            "book.activeCellIndex = book.widgets.findIndex(each => each.model.id === id);"
            "book.deselectAll();"
            "window.jupyterapp.commands.execute('notebook:run-cell'); }",
            self.id,
        )
        return self

    def wait_done(self, limit_s: float = LIMIT_S) -> "BookCell":
        """Waits until it has a number and the kernel is idle."""
        self.book.wait(_IS_DONE, self.id, f"the end of {self.source!r}", limit_s)
        return self

    def wait_text(self, text: str, limit_s: float = LIMIT_S) -> "BookCell":
        """Waits until a reader sees ``text``."""

        def is_shown() -> bool:
            seen = self.text
            assert text in seen, f"no {text!r} in {seen!r}"
            return True

        poll_until(is_shown, limit_s)
        return self

    def press(self, *keys: str) -> None:
        """Press keys at the end of its source, such as ``Tab``."""
        self.node.locator(".cm-content").click()
        self.book.page.keyboard.press("Control+End")
        for key in keys:
            self.book.page.keyboard.press(key)

    def screenshot(self, path: Path) -> None:
        """A picture of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.node.screenshot(path=path)

    def _ask(self, body: str) -> Any:
        return self.book.page.evaluate(f"id => {{ {_CELL} {body} }}", self.id)


class Book:
    """A notebook that is open in a tab."""

    def __init__(self, server: Server, page: "Page", name: str, app: App) -> None:
        self.server = server
        self.page = page
        self.name = name
        self.app = app
        self.console: list[str] = []
        page.set_default_timeout(LIMIT_S * 1000)
        page.on("console", lambda message: self.console.append(message.text))

    @property
    def path(self) -> Path:
        """The file."""
        return self.server.folder / self.name

    def open(self) -> "Book":
        """Load the page; until its kernel is idle."""
        self.page.goto(self.server.address(self.app, self.name))
        self.wait(_READY, None, f"{self.name} and its kernel")
        self.page.evaluate(
            f"() => {_PANEL}.content.widgets.forEach("
            "each => { each.node.dataset.test = each.model.id; })"
        )
        return self

    def close(self) -> None:
        """Close the tab and end the kernel, if the page got that far."""
        self.page.evaluate(
            f"async () => {{ const panel = window.jupyterapp && {_PANEL};"
            "if (panel && panel.sessionContext) await panel.sessionContext.shutdown(); }"
        )
        self.page.close()

    def add(self, source: str, cell_type: str = "code") -> BookCell:
        """A new last cell."""
        return BookCell(self, self.page.evaluate(_INSERT, [source, cell_type]))

    def start(self, source: str) -> BookCell:
        """A new last cell, running."""
        return self.add(source).start()

    def run(self, source: str, limit_s: float = LIMIT_S) -> BookCell:
        """A new last cell, run to its end."""
        return self.start(source).wait_done(limit_s)

    def cells(self) -> list[BookCell]:
        """All of them, in order."""
        ids = self.page.evaluate(f"() => {_PANEL}.content.widgets.map(each => each.model.id)")
        return [BookCell(self, each) for each in ids]

    def command(self, name: str, **arguments: Any) -> None:
        """A command of the application, done when this returns."""
        self.page.evaluate(
            "async ([name, arguments_]) => {"
            "await window.jupyterapp.commands.execute(name, arguments_); }",
            [name, arguments],
        )

    def press_stop(self) -> None:
        """The stop button of the tool bar."""
        self.page.locator('[data-command="notebook:interrupt-kernel"]').first.click()

    def press_restart(self) -> None:
        """The restart button of the tool bar, confirmed; until the kernel has come back."""
        self.page.evaluate(
            f"() => {{ const session = {_PANEL}.sessionContext;"
            "window.restarted = false;"
            "const note = (_, status) => { if (status === 'restarting' ||"
            " status === 'autorestarting') window.restarted = true; };"
            "session.statusChanged.connect(note); }"
        )
        self.page.locator('[data-command="notebook:restart-kernel"]').first.click()
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        self.wait("() => window.restarted", None, "a restart")
        self.wait(_READY, None, "the new kernel")

    def answer(self, text: str) -> str:
        """Fill in the field of a question; gives its prompt."""
        field = self.page.locator(
            ".jp-Stdin-input"
        ).last  # one that was answered may still be there
        field.wait_for()
        prompt = self.page.locator(".jp-Stdin-prompt").last.inner_text()
        element = field.element_handle()
        assert element is not None
        field.fill(text)
        field.press("Enter")
        # The next question has a field of its own: what is typed into this one is lost.
        poll_until(lambda: not element.evaluate("field => field.isConnected"))
        return prompt

    def save(self) -> NotebookNode:
        """Write the file; gives what is in it."""
        self.page.evaluate(f"async () => {{ await {_PANEL}.context.save(); }}")
        notebook: NotebookNode = nbformat.read(self.path, as_version=4)
        return notebook

    def wait(self, expression: str, argument: Any, what: str, limit_s: float = LIMIT_S) -> None:
        """Waits until a function of the page gives a true value."""

        def is_true() -> bool:
            assert self.page.evaluate(expression, argument), f"waits for {what}"
            return True

        poll_until(is_true, limit_s)


def write_notebook(path: Path, *sources: str, kernel: str = "python3") -> None:
    """A notebook that was never run; with nothing in it, one empty text."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells = cells or [nbformat.v4.new_markdown_cell("")]
    spec = {"display_name": kernel, "language": "python", "name": kernel}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec})
    nbformat.write(notebook, path)


def strangers_copy(book: Book, name: str) -> str:
    """The file as another user would get it: the same cells and outputs, without a signature."""
    notebook = book.save()
    notebook.cells.append(nbformat.v4.new_markdown_cell("sent by somebody else"))
    for cell in notebook.cells:
        cell.metadata.pop("trusted", None)
    nbformat.write(notebook, book.server.folder / name)
    return name
