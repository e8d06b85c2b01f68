"""The end of a log."""

from pathlib import Path

import pytest

from nbddp.controller.pool import LogTail
from nbddp.notebook.magics.log_verb import log_text
from nbddp.system.log_tail import read_tail


@pytest.mark.parametrize(
    ("max_bytes", "text"),
    [(100, "one\ntwo\n\u00e9three"), (12, "two\n\u00e9three"), (7, "\ufffdthree"), (0, "")],
)
def test_the_end_begins_with_a_line(tmp_path: Path, max_bytes: int, text: str):
    path = tmp_path / "rank0.log"
    path.write_text("one\ntwo\n\u00e9three", encoding="utf-8")
    found, size = read_tail(path, max_bytes)
    assert size == 15
    assert found == text or (max_bytes == 7 and found.endswith("three"))


def test_a_missing_log_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        read_tail(tmp_path / "none", 10)


def test_the_lines_below_the_place_of_the_log():
    place = "n2:/tmp/x/rank3.log"
    assert log_text(LogTail(3, place, "one\ntwo\n", 8), 5) == f"rank 3: {place} (8 B)\none\ntwo"
    assert (
        log_text(LogTail(3, place, "one\ntwo\n", 8), 1)
        == f"rank 3: {place} (8 B), the last line\ntwo"
    )
    assert (
        log_text(LogTail(3, place, "one\ntwo\n", 900), 2)
        == f"rank 3: {place} (900 B), the last 2 lines\none\ntwo"
    )
    assert log_text(LogTail(3, place), 5) == f"rank 3: {place} is empty"
    failed = LogTail(3, place, problem="node 1 is lost")
    assert log_text(failed, 5) == f"rank 3: {place} cannot be read: node 1 is lost"
