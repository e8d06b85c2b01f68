"""Cells in which a rank would wait forever, and the diagnosis that each must get.

The tables are in `hung_collectives`, `hung_wrapped`, `hung_iterations`, `hung_conditions`,
`hung_modules`, `hung_mismatches`, `hung_mismatched_messages`, `hung_strides`, `hung_messages`,
`hung_cycles`, `hung_stores`, `hung_failures`, `hung_deaths` and `hung_suspects`; what is there
before each cell is in `lasting_pool`. Expectations are of the first proven finding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from nbddp.controller.diagnosis.report import Kind
from nbddp.errors import CellError, DeadlockError

#: A cell that releases an iterator of a DataLoader, and so its workers: IPython and Python
#: keep the last traceback.
LET_GO_OF_WORKERS = """
import gc, sys
batch = sys.last_value = sys.last_traceback = sys.last_exc = None
get_ipython().InteractiveTB.tb = get_ipython().last_execution_result = None
gc.collect()
"""


@dataclass(frozen=True, kw_only=True)
class HungCell:
    """One hanging cell. Ranks are written as ``0,2-3``."""

    name: str
    code: str
    n: int = 2  #: ranks
    before: str = ""  #: a cell that is run before it
    after: str = ""  #: a cell that is run after it, to look at what it left

    kind: Kind | None  #: None: nothing is left to be said when it has ended
    culprits: str | None = ""  #: None: it depends on which rank is quicker
    waiting: str | None = ""
    op: str = ""
    fields: tuple[str, ...] = ()  #: that differ
    lines: Mapping[int, int] = field(default_factory=dict)  #: where each rank is, or has ended
    cell: int = 2  #: to which `lines` belong; `before` is cell 1
    error: type[CellError] | None = DeadlockError  #: None: the cell handles it by itself
    words: tuple[str, ...] = ()  #: in the error, and if there is none, in the finding
    dead: str = ""  #: ranks whose process ends
    quotes: str = ""  #: in the suspicions or the next step of the finding
    is_variant: bool = False  #: another cell shows its mechanism: left to `make test-full`


def parametrize(cells: list[HungCell]) -> pytest.MarkDecorator:
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
