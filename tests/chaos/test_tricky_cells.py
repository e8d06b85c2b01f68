"""Correct cells that look like a hang: none of them is judged, ended or called wrong."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.actions import VerdictReached
from tests.cases.tricky_cells import TrickyCell, parametrize
from tests.cases.tricky_orders import ORDERS
from tests.cases.tricky_slow import SLOW
from tests.cases.tricky_uses import USES
from tests.support.lasting_pool import choose_lasting_pool, make_lasting_pools
from tests.support.views import RecordingView, run_cell

lasting_pools = pytest.fixture(scope="module")(make_lasting_pools)
shared_pool = pytest.fixture(choose_lasting_pool)

_LIMIT_S = 30.0

CELLS = [*SLOW, *ORDERS, *USES]


def test_the_tables_hold_enough_cells():
    assert len(CELLS) >= 20
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def _judged(view: RecordingView, *, may_warn: bool) -> list[str]:
    found = [
        finding
        for event in view.events
        if isinstance(event, VerdictReached)
        for finding in event.report.proven
    ]
    return [f.headline for f in found if not (may_warn and f.kind == "silent-mismatch")]


@parametrize(CELLS)
def test_a_correct_cell(cell: TrickyCell, pool: Pool):
    for step in cell.cells:
        ranks, code = step if isinstance(step, tuple) else (None, step)
        view = run_cell(pool, code, ranks=ranks, timeout=_LIMIT_S, check=False)
        assert view.error is None, view.error
        assert _judged(view, may_warn=cell.may_warn) == []
        assert view.outcome is not None
        assert view.outcome.rebuild_failure == ""
