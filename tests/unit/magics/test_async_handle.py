"""The output of a background cell that has failed, below its state line."""

import pytest

from nbddp.errors import CellError, CellInterruptedError, DeadlockError, RankExitedError
from nbddp.notebook.magics import async_handle

STATE = "<cell [3] on ranks 0-1: failed after 0.5 s>"
TRACEBACK = [
    "rank 1", "---------", "\x1b[31mValueError\x1b[39m  Traceback (most recent call last)",
    "----> 2 raise ValueError('<bad>')", "ValueError: <bad>", "", "rank 0 finished",
]  # fmt: skip


def told(error: BaseException | None, *, is_expected: bool = False) -> dict[str, str]:
    return async_handle.failure_bundle(STATE, error, is_expected=is_expected)


def test_the_headline_is_open_and_the_traceback_folded():
    headline = "\x1b[31mCellError\x1b[39m: rank 1 raised ValueError: <bad>"
    found = told(CellError("\n".join([*TRACEBACK, headline])))
    opened, _, folded = found["text/html"].partition("<details>")
    assert "</b>: rank 1 raised ValueError: &lt;bad&gt;" in opened
    assert "&lt;cell [3] on ranks 0-1" in opened
    assert "Traceback" not in opened
    assert "Traceback (most recent call last)" in folded
    assert found["text/plain"].startswith(f"{STATE}\nrank 1\n")
    assert found["text/plain"].endswith("\nCellError: rank 1 raised ValueError: <bad>")
    assert "\x1b" not in found["text/plain"] + found["text/html"]


def test_a_rank_that_exited_is_named_first():
    lines = [
        "RankExitedError: rank 1 exited with code 3 while it ran cell [3]",
        *("  detail",) * 5,
    ]
    opened, _, folded = told(RankExitedError("\n".join(lines), headline=lines[0]))[
        "text/html"
    ].partition("<details>")
    assert "rank 1 exited with code 3 while it ran cell [3]" in opened
    assert folded.count("  detail") == 5


def test_the_short_error_below_a_card_is_not_folded():
    error = DeadlockError("long\n" * 50, displayed="DeadlockError: why\n  kept  every variable")
    found = told(error)
    assert "<details>" not in found["text/html"]
    assert found["text/html"].endswith("</b>: why\n  kept  every variable</pre>")


def test_an_error_that_could_not_be_shown_has_a_name():
    assert told(OSError("closed"))["text/plain"] == f"{STATE}\nOSError: closed"


@pytest.mark.parametrize("error", [None, CellError("CellError: was ended by %ddp stop")])
def test_an_end_by_the_user_is_no_error(error: CellError | None):
    assert "Error" not in "".join(told(error, is_expected=True).values())


def test_an_interrupt_is_no_error_and_says_where_the_ranks_were_on_a_click():
    error = CellInterruptedError("\n".join([*TRACEBACK, "CellInterruptedError: cell [3] was"]))
    found = told(error)
    assert found["text/plain"] == STATE
    opened, _, folded = found["text/html"].partition("<details>")
    assert "Error" not in opened
    assert "where the ranks were" in folded
