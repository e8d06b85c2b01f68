"""Completion, auto mode, the live table and the debugger of a rank, used by a person."""

from collections.abc import Callable
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from notebooks.answers import AnsweringClient
from tests.support.browser import Book, strangers_copy
from tests.support.polling import poll_until

#: A cell that goes on until a file is there.
UNTIL = """%%ddp{how}
import time
from pathlib import Path

while not Path({path!r}).exists():
    time.sleep(0.01)"""


def test_tab_completes_by_the_names_of_a_rank(any_book: Book):
    any_book.run("%%ddp\nclass Only:\n    inhabitant = rank\n\nonly = Only()")
    cell = any_book.add("%%ddp\nonly.inhab")
    cell.press("Tab")
    any_book.page.locator(".jp-Completer-item").wait_for()
    any_book.page.keyboard.press("Enter")
    poll_until(lambda: cell.source == "%%ddp\nonly.inhabitant")


def test_tab_offers_names_of_a_rank_while_a_cell_runs(any_book: Book, tmp_path: Path):
    gate = tmp_path / "gate"
    any_book.run("%%ddp\nfirst_name, first_number = 'Ada', 1815")
    any_book.run(UNTIL.format(how=" --async", path=str(gate)))
    try:
        cell = any_book.add("%%ddp\nfirst_n")
        cell.press("Tab")
        offered = any_book.page.locator(".jp-Completer-item")
        poll_until(lambda: offered.count() >= 2)
        texts = " ".join(offered.all_inner_texts())
        assert "first_name" in texts
        assert "first_number" in texts
        any_book.page.keyboard.press("Escape")
    finally:
        gate.touch()
        any_book.run("_.wait()")


def test_shift_tab_shows_the_signature_that_a_rank_knows(any_book: Book):
    any_book.run("%%ddp\ndef halve(number: float) -> float:\n    '''A half of it.'''")
    cell = any_book.add("%%ddp\nhalve(")
    cell.press("Shift+Tab")
    tooltip = any_book.page.locator(".jp-Tooltip")
    tooltip.wait_for()
    assert "A half of it." in tooltip.inner_text()
    any_book.page.keyboard.press("Escape")


def test_every_cell_runs_on_the_ranks_in_auto_mode(any_book: Book):
    any_book.run("%ddp auto on")
    try:
        assert any_book.run("print('rank', rank)").printed == "[0]   rank 0\n[1]   rank 1\n"
        assert any_book.run("%%local\nprint('rank' in globals())").text == "False\n"
    finally:
        any_book.run("%ddp auto off")
    assert any_book.run("print('rank' in globals())").text == "False\n"


def test_the_live_panel_changes_and_stays_as_a_table(
    any_book: Book, open_book: Callable[..., Book], tmp_path: Path
):
    gate = tmp_path / "gate"
    panel = any_book.run("%ddp status --live")
    panel.wait_text("idle")
    running = any_book.start(UNTIL.format(how="", path=str(gate)))
    try:
        panel.wait_text("runs")
    finally:
        gate.touch()
    running.wait_done()
    poll_until(lambda: "runs" not in panel.text and "idle" in panel.text)
    any_book.run("%ddp status --live off")
    poll_until(lambda: "live" not in panel.text)
    assert [sorted(each["data"]) for each in panel.outputs] == [["text/html", "text/plain"]]

    book = open_book(strangers_copy(any_book, f"panel-{any_book.app}.ipynb"), any_book.app)
    copy = next(cell for cell in book.cells() if cell.id == panel.id)
    assert not copy.is_trusted
    assert copy.text == panel.text
    assert copy.output.locator("table").first.is_visible()
    book.close()


def test_answers_are_saved_as_the_notebooks_of_the_course_have_them(lab_book: Book):
    code = "%%ddp --step\nx = torch.ones(1)\ndist.all_reduce(x)\nprint(x.item())"
    answers = ["print rank", "step"]
    cell = lab_book.start(code)
    for answer in answers:
        lab_book.answer(answer)
    cell.wait_text("[0-1] 2.0")
    cell.wait_done()
    in_lab = next(each for each in lab_book.save().cells if each.source == code)

    sources = ["%load_ext nbddp\n%ddp start -n 2", code]
    headless = new_notebook(cells=[new_code_cell(source) for source in sources])
    headless.cells[1].metadata["nbddp"] = {"answers": answers}
    AnsweringClient(headless, timeout=60, kernel_name="python3").execute()
    assert typed(in_lab) == typed(headless.cells[1]) == ["(step)  print rank\n", "(step)  step\n"]


def typed(cell: NotebookNode) -> list[str]:
    return [output.text for output in cell.outputs if output.get("name") == "stdin"]


def test_the_debugger_of_a_rank_asks_in_the_notebook(lab_book: Book):
    lab_book.run("%%ddp\ndef half(n):\n    return 1 / n\n\nhalf(rank)")
    cell = lab_book.start("%ddp debug -r 0")
    assert lab_book.answer("p f'n is {n}'").strip() == "[0]   ipdb>"
    cell.wait_text("'n is 0'")
    lab_book.answer("q")
    cell.wait_done()
    assert lab_book.run("%%ddp\nprint('next')").printed == "[0-1] next\n"
