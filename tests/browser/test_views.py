"""Pictures and folded output in JupyterLab and Notebook 7, with and without trust."""

from collections.abc import Callable

from tests.support.browser import Book, BookCell, strangers_copy

_IS_DRAWN = "images => images.length > 0 && images.every(i => i.complete && i.naturalWidth > 20)"
SHOW = """%%ddp
t = torch.arange(3.0) + 10 * rank
with nbddp.show(t):
    dist.all_reduce(t)"""


def has_pictures(cell: BookCell) -> bool:
    cell.output.locator("img").first.wait_for()
    return bool(cell.output.locator("img").evaluate_all(_IS_DRAWN))


def test_pictures_and_tables_are_seen_with_and_without_trust(
    any_book: Book, open_book: Callable[..., Book]
):
    any_book.run("%%ddp\ntorch.manual_seed(rank)\nmodel = torch.nn.Linear(2, 2)")
    shown = any_book.run(SHOW)
    drawn = any_book.run("%ddp timeline")
    tables = [any_book.run("%ddp vars t"), any_book.run("%ddp diff model")]
    assert has_pictures(shown)
    assert has_pictures(drawn)
    assert "all_reduce" in drawn.text
    assert "float32" in tables[0].text
    assert "differ" in tables[1].text

    book = open_book(strangers_copy(any_book, f"views-{any_book.app}.ipynb"), any_book.app)
    copies = {cell.id: cell for cell in book.cells()}
    for cell in (shown, drawn, *tables):
        assert not copies[cell.id].is_trusted
        assert copies[cell.id].text == cell.text
    assert has_pictures(copies[shown.id])
    assert has_pictures(copies[drawn.id])
    book.close()


def test_long_output_is_folded_and_opens_with_a_click(any_book: Book):
    cell = any_book.run("%%ddp\nfor n in range(3000):\n    print('line', rank, n)")
    assert "line 0 1500" not in cell.text
    folded = cell.output.locator("details")
    assert folded.count() >= 1
    folded.first.locator("summary").first.click()
    assert cell.output.locator("details[open]").count() == 1
