"""A cell that awaits a thread of an executor waits for what that thread waits for."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.actions import VerdictReached
from tests.support.views import run_cell

_LIMIT_S = 60.0
_HANGS = {
    "to_thread": "await asyncio.to_thread(dist.barrier)",
    "run_in_executor": "await asyncio.get_running_loop().run_in_executor(None, dist.barrier)",
    "gather": "await asyncio.gather(asyncio.to_thread(dist.barrier), asyncio.to_thread(len, []))",
}


@pytest.mark.parametrize("name", _HANGS)
def test_a_hang_in_an_awaited_thread_is_told_and_ended(pool: Pool, name: str):
    code = f"import asyncio\nif rank:\n    {_HANGS[name]}"
    view = run_cell(pool, code, check=False, timeout=_LIMIT_S)
    assert "DeadlockError" in str(view.error)
    [judged] = [event for event in view.events if isinstance(event, VerdictReached)]
    [finding] = judged.report.findings
    assert (finding.op, finding.proven) == ("barrier", True)
    assert (list(finding.culprits), list(finding.waiting)) == ([0], [1])
