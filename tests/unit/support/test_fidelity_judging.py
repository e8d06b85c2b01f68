"""Results of one test on both kinds of groups that count as the same."""

from pathlib import Path

import pytest

from tests.fidelity.judging import Compared, known, without_entry
from tests.fidelity.sides import Ending, Result


def compared(name: str, traced: Ending, stock: Ending) -> Compared:
    return Compared(name, 2, traced=Result(traced, "", 1.0), stock=Result(stock, "", 1.0))


@pytest.mark.parametrize(
    ("traced", "stock", "is_equal"),
    [
        ("passed", "passed", True),
        ("skipped", "skipped", True),
        ("failed", "timed out", True),
        ("exited", "failed", True),
        ("passed", "skipped", False),
        ("failed", "passed", False),
        ("passed", "failed", False),
        ("timed out", "skipped", False),
    ],
)
def test_failures_are_equal_however_they_come_about(traced: Ending, stock: Ending, is_equal: bool):
    assert compared("a", traced, stock).is_equal is is_equal


def test_a_difference_needs_an_entry():
    found = [
        compared("equal", "passed", "passed"),
        compared("known", "failed", "passed"),
        compared("new", "failed", "passed"),
    ]
    assert [one.name for one in without_entry(found, {"known": "why"})] == ["new"]


def test_an_entry_needs_a_reason(tmp_path: Path):
    file = tmp_path / "exceptions.toml"
    file.write_text('[[test]]\nname = "a"\nreason = "because"\n', encoding="utf-8")
    assert known(file) == {"a": "because"}
    file.write_text('[[test]]\nname = "a"\nreason = " "\n', encoding="utf-8")
    with pytest.raises(ValueError, match="a has no reason"):
        known(file)


def test_the_entries_of_this_repository_have_reasons():
    assert all(known().values())
