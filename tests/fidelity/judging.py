"""Results that count as the same, and differences that are known.

Runs in: the process that drives the pools. Pure, but for the reading of one file.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.fidelity.sides import Ending, Result

EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
_GOOD = ("passed", "skipped")


@dataclass(frozen=True)
class Compared:
    """One test on both sides."""

    name: str
    ranks: int
    traced: Result
    stock: Result

    @property
    def is_equal(self) -> bool:
        """All kinds of failures are equal.

        A hang until the timeout on stock groups is a proven deadlock on traced ones.
        """
        return _kind(self.traced.ending) == _kind(self.stock.ending)


def known(path: Path = EXCEPTIONS) -> dict[str, str]:
    """The reason of each difference that is known, by the name of the test.

    Raises:
        ValueError: an entry has no reason.
    """
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("test", [])
    for entry in entries:
        if not entry.get("reason", "").strip():
            raise ValueError(f"{path.name}: {entry['name']} has no reason")
    return {entry["name"]: entry["reason"] for entry in entries}


def without_entry(compared: Iterable[Compared], entries: dict[str, str]) -> list[Compared]:
    """The differences without an entry."""
    return [one for one in compared if not one.is_equal and one.name not in entries]


def _kind(ending: Ending) -> str:
    return ending if ending in _GOOD else "failed"
