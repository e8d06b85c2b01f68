"""Correct cells that resemble a hang: slow ranks, unusual orders, timeouts on purpose.

None of them may be ended, judged, or called wrong; a notice while they run is fine. The tables are
in `tricky_slow`, `tricky_orders` and `tricky_uses`; what is there before each cell is in
`lasting_pool`.
"""

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class TrickyCell:
    """Cells that are run one after another, each as ``code`` or ``(ranks, code)``."""

    name: str
    n: int
    cells: tuple[str | tuple[str, str], ...]
    may_warn: bool = False  #: a silent mismatch may be told when it has ended
    is_variant: bool = False  #: another cell shows its mechanism: left to `make test-full`


def parametrize(cells: list[TrickyCell]) -> pytest.MarkDecorator:
    """A test for each cell of a table, in a pool of its size; see `lasting_pool`."""
    return pytest.mark.parametrize(
        ("shared_pool", "cell"),
        [
            pytest.param(
                cell.n, cell, id=cell.name, marks=[pytest.mark.full] if cell.is_variant else []
            )
            for cell in cells
        ],
        indirect=["shared_pool"],
    )


def tricky(
    name: str,
    n: int,
    *cells: str | tuple[str, str],
    may_warn: bool = False,
    is_variant: bool = False,
) -> TrickyCell:
    """One of them, with its cells last."""
    return TrickyCell(name, n, cells, may_warn, is_variant)
