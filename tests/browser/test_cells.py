"""Cells in JupyterLab and Notebook 7: output, the stop button, questions, the card."""

from collections.abc import Callable
from pathlib import Path

from tests.support.browser import Book, strangers_copy

DEADLOCK = """%%ddp
loss = torch.tensor(float(rank))
if rank == 0:
    dist.all_reduce(loss)"""


def test_lines_come_while_the_cell_runs_and_equal_ones_are_folded(any_book: Book, tmp_path: Path):
    gate = tmp_path / "gate"
    cell = any_book.start(
        "%%ddp\nimport time\nfrom pathlib import Path\n\n"
        "print('equal')\nprint(f'from {rank}')\n"
        f"while not Path({str(gate)!r}).exists():\n    time.sleep(0.01)\nprint('after')"
    )
    cell.wait_text("[0-1] equal")
    cell.wait_text("[0]   from 0")
    cell.wait_text("[1]   from 1")
    gate.touch()
    assert cell.wait_done().text.lstrip().startswith("ended after ")
    assert sorted(cell.printed.splitlines()) == [
        "[0-1] after",
        "[0-1] equal",
        "[0]   from 0",
        "[1]   from 1",
    ]


def test_a_question_names_its_rank_and_gets_the_answer(any_book: Book):
    cell = any_book.start("%%ddp -r 1\nname = input('who? ')\nprint('hello', name)")
    assert any_book.answer("Ada").strip() == "[1]   who?"
    cell.wait_done().wait_text("[1]   hello Ada")


def test_the_stop_button_ends_a_cell_and_keeps_the_variables(any_book: Book):
    any_book.run("%%ddp\nkept = 40 + rank")
    cell = any_book.start("%%ddp\nimport time\nprint('begun')\nwhile True:\n    time.sleep(0.01)")
    cell.wait_text("[0-1] begun")
    any_book.press_stop()
    assert "KeyboardInterrupt" in cell.wait_done().text
    assert any_book.run("%%ddp\nprint(kept)").printed == "[0]   40\n[1]   41\n"


def test_a_deadlock_ends_in_a_card_and_the_next_cell_runs(any_book: Book):
    card = any_book.run(DEADLOCK)
    assert "rank 1 never called all_reduce" in card.text
    assert "DeadlockError" in card.text
    assert card.output.locator("details").count() >= 2
    assert any_book.run("%%ddp\nprint('mine was', loss.item())").printed == (
        "[0]   mine was 0.0\n[1]   mine was 1.0\n"
    )


def test_a_saved_notebook_is_readable_without_trust_and_without_a_kernel(
    any_book: Book, open_book: Callable[..., Book]
):
    written = [
        any_book.run("%%ddp\nprint('equal')\nprint(f'from {rank}')"),
        any_book.run(DEADLOCK),
        any_book.run("%ddp trace"),
    ]
    seen = [cell.text for cell in written]
    book = open_book(strangers_copy(any_book, f"copy-{any_book.app}.ipynb"), any_book.app)
    copies = {cell.id: cell for cell in book.cells()}
    for cell, before in zip(written, seen, strict=True):
        copy = copies[cell.id]
        assert not copy.is_trusted
        assert copy.text == before
    card = copies[written[1].id].output
    card.locator("summary").first.click()
    assert card.locator("details[open] table").first.is_visible()
    book.close()
