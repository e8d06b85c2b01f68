"""Rows that are printed keep their place while ranks print, wait and end."""

from typing import Any

from tests.support.browser import Book

#: Notes, in every frame of the browser, the place of each printed row from the top left of the
#: output, and what the live lines are. Rows that have moved or vanished are listed.
_WATCH = """id => {
    const panel = window.jupyterapp.shell.currentWidget;
    const cell = panel.content.widgets.find(each => each.model.id === id);
    const area = cell.outputArea.node;
    const seen = window.seen = {moved: [], rows: {}, live: [], frames: 0};
    const rows = () => {
        const found = {};
        const corner = area.getBoundingClientRect();
        const walker = document.createTreeWalker(area, NodeFilter.SHOW_TEXT);
        for (let node; (node = walker.nextNode());) {
            for (const match of node.data.matchAll(/\\[[-0-9,]+\\] +row [^\\n]*/g)) {
                const range = document.createRange();
                range.setStart(node, match.index);
                range.setEnd(node, match.index + 1);
                const box = range.getBoundingClientRect();
                const place = [box.left - corner.left, box.top - corner.top].map(Math.round);
                found[match[0]] = found[match[0]] || place.join();
            }
        }
        return found;
    };
    const look = () => {
        const now = rows();
        for (const [row, place] of Object.entries(seen.rows))
            if (now[row] !== place) seen.moved.push([seen.frames, row, place, now[row] || '']);
        seen.rows = now;
        seen.frames += 1;
        const text = area.innerText;
        const live = [];
        if (/ranks done/.test(text)) live.push('progress');
        if (area.querySelector('[aria-label=ranks]')) live.push('chips');
        if (/ranks 0-2 wait in/.test(text)) live.push('notice');
        if (seen.live[seen.live.length - 1] !== live.join()) seen.live.push(live.join());
        window.watch = requestAnimationFrame(look);
    };
    look();
}"""

#: Run from Python code, the output is never put in another order when the cell ends.
_RUN = "get_ipython().run_cell_magic('ddp', '', {!r})"
_PRINTING = """
import time
from IPython.display import HTML, display
for step in range(4):
    print(f'row {step} of rank {rank}')
    time.sleep(0.5)
DISPLAY
if rank == 3:
    time.sleep(4)
dist.barrier()
print(f'row last of rank {rank}')
"""


def _watched(book: Book, display: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What was seen, and the outputs that are saved."""
    cell = book.add(_RUN.format(_PRINTING.replace("DISPLAY", display)))
    book.page.evaluate(_WATCH, cell.id)
    cell.start().wait_done()
    # The page draws the last state after the kernel has become idle.
    book.wait("() => window.seen.live.at(-1) === ''", None, "the end of the live lines")
    book.page.evaluate("cancelAnimationFrame(window.watch)")
    seen: dict[str, Any] = book.page.evaluate("window.seen")
    return seen, [each for each in cell.outputs if any(each.get("data", {"": 1}).values())]


def _check(seen: dict[str, Any]) -> None:
    assert seen["frames"] > 50, "too few frames were seen"
    assert len(seen["rows"]) == 20
    assert {"", "chips", "progress,chips", "progress,chips,notice"} <= set(seen["live"])
    assert seen["moved"] == []


def test_rows_keep_their_place_while_the_live_lines_come_and_go(wide_book: Book):
    seen, saved = _watched(wide_book, "")
    _check(seen)
    assert [output["output_type"] for output in saved] == ["display_data", "stream"]


def test_rows_keep_their_place_above_and_below_a_figure(wide_book: Book):
    seen, saved = _watched(wide_book, "display(HTML('<b>figure</b>'))")
    _check(seen)
    kinds = [output["output_type"] for output in saved]
    # The label of the figure is a display of its own.
    assert kinds == ["display_data", "stream", "display_data", "display_data", "stream"]
