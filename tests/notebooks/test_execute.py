"""The page that notebooks/execute.py writes for a browser, and its answers to prompts."""

import re
from html import unescape
from pathlib import Path

import nbformat
import pytest

from notebooks.answers import AnsweringClient, AnswersError
from notebooks.execute import highlight_cell, save_html

IMPORT = '<span class="kn">import</span>'


def text_of(page: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page)).strip("\n")


@pytest.mark.parametrize("first", ["", "%%ddp\n", "%%ddp -r 0,2-3 --timeout 5\n\n", "%%time\n"])
def test_the_body_of_a_cell_is_coloured_as_python(first: str):
    source = f"{first}import torch\n\n!ls\nx = '<&>'"
    page = highlight_cell(source, {})
    assert IMPORT in page
    assert text_of(page) == source


@pytest.mark.parametrize("source", ["%%bash\nimport x", "%%ddpother\nimport x", "%%ddp", ""])
def test_other_cells_are_not_coloured(source: str):
    page = highlight_cell(source, {})
    assert IMPORT not in page
    assert text_of(page) == source


# --- answers -------------------------------------------------------------------------------------


def answered(*cells: tuple[str, list[str]]) -> nbformat.NotebookNode:
    notebook: nbformat.NotebookNode = nbformat.v4.new_notebook()
    for source, answers in cells:
        notebook.cells.append(
            nbformat.v4.new_code_cell(source, metadata={"nbddp": {"answers": answers}})
        )
    AnsweringClient(notebook, timeout=60, kernel_name="python3").execute()
    return notebook


def test_a_cell_gets_its_answers_in_order_and_shows_them(tmp_path: Path):
    ask = "print('first')\nprint(input('a? ') + input('b? '))"
    notebook = answered((ask, ["x", "y"]), ("print(input('c? '))", ["z"]))
    one, other = notebook.cells
    shown = [(output.name, output.text) for output in one.outputs]
    assert [text for name, text in shown if name == "stdin"] == ["a?  x\n", "b?  y\n"]
    assert shown[0] == ("stdout", "first\n")
    assert shown[-1] == ("stdout", "xy\n")
    assert other.outputs[-1].text == "z\n"
    save_html(notebook, tmp_path / "page.html")
    assert "b?  y" in text_of((tmp_path / "page.html").read_text())


def test_answers_that_are_too_many_or_too_few_are_an_error():
    with pytest.raises(AnswersError, match=r"has ended without a prompt for \['y'\]"):
        answered(("input('a? ')", ["x", "y"]))
    with pytest.raises(AnswersError, match=r"has no answer for another prompt, 'b\? '"):
        answered(("input('a? '); input('b? ')", ["x"]))
