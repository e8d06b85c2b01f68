"""The kernel "Python (nbddp, 2 ranks)" in JupyterLab, with its debugger."""

from collections.abc import Callable, Iterator

import nbformat
import pytest

from nbddp import cli
from tests.support.browser import Book, Server
from tests.support.polling import poll_until

_CELL = """x = rank + 1
def double(number):
    twice = number * 2
    return twice
y = double(x)
dist.barrier()
print('y is', y)"""


@pytest.fixture(scope="module")
def own_book(server: Server, open_book: Callable[..., Book]) -> Iterator[Book]:
    """A notebook on the kernel, which is installed where the server looks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(server.folder.parent / "data"))
        assert cli.main(["kernel", "install", "-n", "2", "--user"]) == 0
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("")],
        metadata={"kernelspec": {"name": "nbddp-2", "display_name": "", "language": "python"}},
    )
    nbformat.write(notebook, server.folder / "own.ipynb")
    book = open_book("own.ipynb")
    yield book
    book.close()


def test_every_cell_runs_on_the_ranks(own_book: Book):
    assert own_book.page.get_by_text("Python (nbddp, 2 ranks)").count()
    own_book.run("print('rank', rank)").wait_text("[1]   rank 1")
    own_book.run("%%local\n'here'").wait_text("'here'")
    cell = own_book.add("world_si")
    cell.press("Tab")
    own_book.page.locator(".jp-Completer-item").wait_for()
    own_book.page.keyboard.press("Enter")
    poll_until(lambda: cell.source == "world_size")


def test_a_breakpoint_stops_a_rank_and_the_other_is_shown_waiting(own_book: Book):
    page = own_book.page
    cell = own_book.add(_CELL)
    page.locator(".jp-DebuggerBugButton").click()
    page.locator(".jp-DebuggerBugButton[aria-pressed=true]").wait_for()
    cell.node.locator(".cm-breakpoint-gutter .cm-gutterElement").nth(3).click()
    page.locator(".jp-DebuggerBreakpoint").wait_for()
    cell.start()
    calls = page.locator(".jp-DebuggerCallstack-body")
    poll_until(lambda: calls.inner_text().split() == _calls("double", 3, 5))
    variables = page.locator(".jp-DebuggerVariables")
    poll_until(lambda: variables.inner_text().split()[-2:] == ["number", "1"])
    cell.wait_text("rank 1 waits in barrier #")
    cell.wait_text("for rank 0, at a breakpoint")
    page.locator('[data-command="debugger:next"]').first.click()
    poll_until(lambda: calls.inner_text().split() == _calls("double", 4, 5))
    poll_until(lambda: variables.inner_text().split()[-2:] == ["twice", "2"])
    page.locator('[data-command="debugger:continue"]').first.click()
    assert cell.wait_done().text.splitlines()[:2] == ["[0]   y is 2", "[1]   y is 4"]


def _calls(function: str, line: int, called_at: int) -> list[str]:
    """The words of the call stack, in a cell that runs."""
    return [function, "Cell", f"[*]:{line}", "<module>", "Cell", f"[*]:{called_at}"]
