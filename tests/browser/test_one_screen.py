"""On a projector at 150 %, the answer of a card and the error below it are on one screen."""

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.cases.projected_cells import CELLS, ProjectedCell
from tests.support.browser import Book, BookCell

_NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "03_when_ranks_disagree.ipynb"
#: From the title of the card to the last line of the error, the height of the error, and that of
#: the part of the page that shows cells.
_HEIGHTS = """output => {
  const box = node => node.getBoundingClientRect();
  const last = selector => [...output.querySelectorAll(selector)].at(-1);
  const title = [...output.querySelectorAll('[role=heading]')].find(
    node => !node.closest('details'));
  const error = last('[data-mime-type="application/vnd.jupyter.stderr"]');
  if (!title || !error) return null;
  return [box(error).bottom - box(title).top, box(error).height,
    box(output.closest('.jp-WindowedPanel-outer')).height];
}"""

#: The lines of a text as the browser breaks it, and as they are written.
_LINES = """node => {
  const range = document.createRange();
  range.selectNodeContents(node);
  const rows = new Set([...range.getClientRects()].map(each => Math.round(each.bottom)));
  return [rows.size, node.textContent.trimEnd().split('\\n').length];
}"""


@pytest.fixture(scope="module")
def book(wide_book: Book) -> Iterator[Book]:
    """The notebook with four ranks on a small screen, with the side bar closed."""
    size = wide_book.page.viewport_size
    assert size is not None
    wide_book.page.set_viewport_size({"width": 853, "height": 480})  # 1280 x 720 at 150 %
    wide_book.command("application:toggle-left-area")
    yield wide_book
    wide_book.command("application:toggle-left-area")
    wide_book.page.set_viewport_size(size)


def check_screen(cell: BookCell) -> bool:
    """Whether the cell has a card, all of which is on one screen with its error."""
    heights = cell.output.evaluate(_HEIGHTS)
    if heights is None:
        return False
    whole, error, screen = heights
    assert error < whole <= screen, cell.text
    return True


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_answer_and_the_error_are_on_one_screen(cell: ProjectedCell, book: Book):
    shown = book.run(cell.code)
    assert cell.answer in " ".join(shown.text.split())
    assert check_screen(shown)
    rows, lines = shown.output.locator("pre").last.evaluate(_LINES)
    assert rows == lines, shown.text


@pytest.mark.slow
def test_the_faulty_cells_of_the_course_are_on_one_screen(book: Book):
    seen = 0
    for cell in nbformat.read(_NOTEBOOK, as_version=4).cells:
        if (
            cell.cell_type == "code"
            and "%load_ext" not in cell.source
            and cell.source != "%ddp stop"
        ):
            shown = book.run(cell.source)
            if "raises-exception" in cell.metadata.get("tags", []):
                seen += check_screen(shown)
    assert seen >= 4
