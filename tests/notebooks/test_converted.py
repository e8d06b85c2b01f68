"""nbconvert makes pages of every notebook that say what the notebook says."""

import html
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mistune
import nbformat
import pytest
from nbconvert import HTMLExporter, MarkdownExporter
from nbconvert.exporters.exporter import Exporter
from nbformat import NotebookNode

from notebooks.reading import ANSI

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

_TAG = re.compile(r"<[^>]*>")
#: Parts that an untrusted notebook, GitHub or a mail would strip, or run.
_STRIPPED = re.compile(r"<(?:script|style|svg|iframe|link|input|button)\b|\son\w+=|javascript:")


@cache
def notebook(path: Path) -> NotebookNode:
    read: NotebookNode = nbformat.read(path, as_version=4)
    return read


def bundles(path: Path) -> Iterator[dict[str, Any]]:
    for cell in notebook(path).cells:
        for output in cell.get("outputs", []):
            if "data" in output:
                yield output.data


def letters(page: str) -> str:
    """The text for a reader; tags may stand between the letters of a word."""
    return "".join(html.unescape(_TAG.sub("", page)).split())


def converted(path: Path, exporter: Exporter) -> str:
    page: Any = exporter.from_notebook_node(notebook(path))[0]
    return str(page)


@each_notebook
def test_saved_outputs_are_static(path: Path):
    for data in bundles(path):
        assert not [mime for mime in data if "widget" in mime]
        assert "text/plain" in data
        if "text/html" in data:
            assert _STRIPPED.search(data["text/html"]) is None


@each_notebook
def test_a_page_of_html_says_all_that_the_cells_showed(path: Path):
    page = letters(converted(path, HTMLExporter(exclude_output_stdin=False)))
    missing = [text for text in shown(path) if text not in page]
    assert missing == []


@each_notebook
def test_markdown_says_all_that_the_cells_showed(path: Path):
    """The same after rendering: a blank line or an indent in HTML would become code."""
    source = converted(path, MarkdownExporter())
    page = letters(str(mistune.create_markdown(escape=False, plugins=["table"])(source)))
    missing = [text for text in shown(path) if text not in page]
    assert missing == []


def shown(path: Path) -> Iterator[str]:
    """The text of each output, as a reader should find it."""
    for cell in notebook(path).cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                yield "".join(ANSI.sub("", output.text).split())
            elif output.output_type == "error":
                yield "".join(ANSI.sub("", output.traceback[-1]).split())
            elif "text/html" in output.data:
                yield letters(output.data["text/html"])
