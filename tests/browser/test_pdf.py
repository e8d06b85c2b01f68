"""A saved notebook as PDF, as `nbconvert --to webpdf` makes it from HTML."""

from typing import TYPE_CHECKING

from nbconvert import HTMLExporter

from tests.support.browser import Book

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Content beyond a page of A4, in the pixels of a browser.
_A4 = {"width": 794, "height": 1123}
_CUT_OFF = """() => [...document.querySelectorAll('.jp-OutputArea-output, .jp-OutputArea-output *')]
  .filter(each => each.checkVisibility({contentVisibilityAuto: true}) // not in a closed fold
    && getComputedStyle(each).overflowX !== 'visible'
    && each.scrollWidth > each.clientWidth + 1)
  .map(each => each.innerText)"""
_TRACED = """%%ddp
import time

for step in range(5):
    time.sleep(0.02 if rank == 1 else 0.0)
    dist.all_reduce(torch.ones(200_000), op=dist.ReduceOp.SUM)"""
_DEADLOCK = "%%ddp\nif rank == 0:\n    dist.all_reduce(torch.ones(200_000), op=dist.ReduceOp.SUM)"
_MODEL = "%%ddp\ntorch.manual_seed(rank)\nmodel = torch.nn.Linear(2, 2)"
_SHOWN = "%%ddp\nnbddp.show(model.weight)"
_LOOKS = (
    "%ddp trace --last 4",
    "%ddp timeline",
    "%ddp status",
    "%ddp vars model",
    "%ddp diff model",
)


def test_a_pdf_cuts_nothing_off(lab_book: Book, browser: "Browser"):
    cells = [lab_book.run(code) for code in (_MODEL, _DEADLOCK, _TRACED, *_LOOKS, _SHOWN)]
    notebook = lab_book.save()
    notebook.cells = notebook.cells[-len(cells) :]  # the others are of other tests
    source, _ = HTMLExporter(template_name="webpdf").from_notebook_node(notebook)
    page = browser.new_page(viewport=_A4)  # type: ignore[arg-type]  # of its two fields
    page.route("**/*", lambda route: route.abort())  # MathJax: it is not needed
    page.emulate_media(media="print")
    page.set_content(source, wait_until="domcontentloaded")
    assert page.evaluate(_CUT_OFF) == []
    seen = page.inner_text("body")
    for words in ("never called all_reduce", "dist.all_reduce(", "came last"):
        assert words in seen
    assert page.pdf(print_background=True).startswith(b"%PDF")
    page.close()
