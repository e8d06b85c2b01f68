"""Widgets that live in ranks: shown, moved, reloaded, and saved as text."""

from collections.abc import Callable
from pathlib import Path

from tests.support.browser import Book, strangers_copy
from tests.support.polling import poll_until

WIDGET = "application/vnd.jupyter.widget-view+json"
SLIDER = """%%ddp
import ipywidgets as widgets

slider = widgets.IntSlider(description='scale', value=rank)
slider.observe(lambda change: print('moved to', change.new), 'value')
slider"""
BARS = """%%ddp
import time
from pathlib import Path
from tqdm.notebook import tqdm

for n in tqdm(range(3), desc='load', mininterval=0):
    while n == 2 and not Path({path!r}).exists():
        time.sleep(0.01)"""

_BOTH_DRAWN = """images => images.length === 2
  && images.every(each => each.complete && each.naturalWidth === 1)"""
#: The smallest picture there is.
PICTURE = """%%ddp
import base64
import ipywidgets as widgets

png = ('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk'
       'YPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==')
widgets.Image(value=base64.b64decode(png))"""


def test_a_slider_of_a_rank_is_moved_with_the_mouse(any_book: Book):
    cell = any_book.run(SLIDER)
    tracks = cell.output.locator(".noUi-target")
    readout = cell.output.locator(".widget-readout").nth(1)
    poll_until(lambda: tracks.count() == 2)
    tracks.nth(1).click()  # in the middle
    poll_until(lambda: readout.inner_text() == "50")
    cell.wait_text("moved to 50")
    assert any_book.run("%%ddp\nprint(slider.value)").printed == "[0]   0\n[1]   50\n"


def test_a_rank_moves_its_slider_in_the_page(any_book: Book):
    cell = any_book.run(SLIDER)
    cell.output.locator(".noUi-handle").first.wait_for()
    any_book.run("%%ddp -r 0\nslider.value = 77")
    cell.wait_text("77")


def test_a_picture_of_a_rank_is_drawn_when_the_page_is_loaded_again(any_book: Book):
    shown = any_book.run(PICTURE)

    def is_drawn() -> bool:
        copy = next(each for each in any_book.cells() if each.id == shown.id)
        return bool(copy.output.locator("img.widget-image").evaluate_all(_BOTH_DRAWN))

    poll_until(is_drawn)
    for before in ("pass", "import ipywidgets"):  # then a page asks in another way
        any_book.run(before)
        any_book.run("%%ddp\npass")
        any_book.save()
        any_book.open()
        poll_until(is_drawn, 60.0)  # a page that loads asks for all widgets, one after the other


def test_bars_move_while_the_cell_runs_and_leave_text(
    any_book: Book, open_book: Callable[..., Book], tmp_path: Path
):
    gate = tmp_path / "gate"
    cell = any_book.start(BARS.format(path=str(gate)))
    try:
        bars = cell.output.locator(".jupyter-widgets .progress-bar")
        poll_until(lambda: bars.count() == 2)
        cell.wait_text("2/3")
    finally:
        gate.touch()
    cell.wait_done()
    poll_until(lambda: cell.text.count("3/3") == 2)
    assert all(WIDGET not in output["data"] for output in cell.outputs)

    book = open_book(strangers_copy(any_book, f"bars-{any_book.app}.ipynb"), any_book.app)
    copy = next(each for each in book.cells() if each.id == cell.id)
    assert copy.text == cell.text
    assert "Error displaying widget" not in book.page.inner_text("body")
    book.close()
