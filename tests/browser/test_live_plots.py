"""Ranks that clear and draw again in a loop: nothing moves, and the ranks keep their order."""

from tests.support.browser import Book

#: Notes, in every frame of the browser, the labels in the output of a cell, and the places of its
#: first and last pixel: below it, the progress line comes and goes.
_WATCH = """id => {
    const panel = window.jupyterapp.shell.currentWidget;
    const cell = panel.content.widgets.find(each => each.model.id === id);
    const area = cell.outputArea.node;
    window.seen = [];
    window.hasRow = false;
    const look = () => {
        const labels = [...area.querySelectorAll('td b')].map(node => node.textContent);
        const heights = [...area.querySelectorAll('img')].map(node => node.clientHeight);
        const children = [...area.querySelectorAll('.jp-OutputArea-child')];
        const first = children.find(node => node.querySelector('td'));
        window.hasRow = window.hasRow || Boolean(area.querySelector('[aria-label=ranks]'));
        const box = first ? [first.offsetTop, first.offsetHeight].join() : '';
        window.seen.push([labels.join(''), box, Math.min(...heights)]);
        window.watch = requestAnimationFrame(look);
    };
    look();
}"""

_PLOTS = """%%ddp
import base64, struct, time, zlib
from IPython.display import Image, clear_output, display

def picture(grey):
    def chunk(kind, data):
        check = zlib.crc32(kind + data)
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', check)

    head = chunk(b'IHDR', struct.pack('>IIBBBBB', 160, 90, 8, 0, 0, 0, 0))
    rows = chunk(b'IDAT', zlib.compress((b'\\0' + bytes([grey]) * 160) * 90))
    return Image(b'\\x89PNG\\r\\n\\x1a\\n' + head + rows + chunk(b'IEND', b''))

for frame in range(12):
    time.sleep(0.05 + 0.03 * rank)
    clear_output(wait=WAIT)
    if frame % 4 == 3:
        time.sleep(0.5 * rank)  # longer than the old picture is kept
    print('frame', frame)
    display(picture(20 * frame + rank))
"""


def _watched(book: Book, source: str) -> list[tuple[str, str, int]]:
    cell = book.add(source)
    book.page.evaluate(_WATCH, cell.id)
    cell.start().wait_done()
    book.page.evaluate("cancelAnimationFrame(window.watch)")
    assert book.page.evaluate("window.hasRow"), "the row of ranks was never shown"
    return [tuple(frame) for frame in book.page.evaluate("window.seen")]


def _check(seen: list[tuple[str, str, int]]) -> None:
    """From the frame in which all ranks are there, all frames must look alike."""
    first = next(index for index, frame in enumerate(seen) if frame[0] == "[0][1]")
    assert len(seen) - first > 5, "too few frames were seen"
    assert {frame[0] for frame in seen[first:]} == {"[0][1]"}
    assert len({frame[1] for frame in seen[first:]}) == 1, seen[first:]
    assert {frame[2] for frame in seen[first:]} == {90}


def test_live_plots_keep_their_place_and_their_height(lab_book: Book):
    _check(_watched(lab_book, _PLOTS.replace("WAIT", "True")))


def test_live_plots_without_wait_do_not_flicker(lab_book: Book):
    _check(_watched(lab_book, _PLOTS.replace("WAIT", "False")))
