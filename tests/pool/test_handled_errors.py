"""An exception that sends a rank into a collective in ``finally`` or ``except`` is named."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.actions import VerdictReached
from nbddp.errors import CellInterruptedError
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell

_CELLS = {
    "mismatch in finally": """
x = torch.ones(4)
try:
    if rank == 1:
        raise ValueError("the real bug")
    dist.all_reduce(x)
finally:
    dist.barrier()
""",
    "deadlock in except": """
x = torch.ones(4)
def load():
    raise ValueError("the real bug")
try:
    if rank == 1:
        load()
    dist.all_reduce(x)
except ValueError:
    dist.recv(x, 0)
""",
}
_LINES = {"mismatch in finally": 5, "deadlock in except": 4}


@pytest.mark.parametrize("name", _CELLS)
def test_the_real_error_is_told(name: str, pool: Pool):
    view = run_cell(pool, _CELLS[name], check=False)
    place = f"ValueError: the real bug (cell [1], line {_LINES[name]})"
    assert f"before    rank 1 raised {place}" in str(view.error)
    [judged] = [event for event in view.events if isinstance(event, VerdictReached)]
    assert place in judged.report.findings[0].suspicions[0]


def test_an_operation_that_fails_by_itself_names_nothing(pool: Pool):
    view = run_cell(pool, "if rank == 0: dist.all_reduce(torch.ones(1))", check=False)
    assert "DeadlockError" in str(view.error)
    assert "before" not in str(view.error)


def test_an_interrupt_that_sends_a_rank_into_finally_is_named_as_the_cause(pool: Pool):
    cell = """
import time
x = torch.ones(4)
try:
    if rank == 0: work = dist.all_reduce(x, async_op=True)
    print("in", flush=True)
    work.wait() if rank == 0 else time.sleep(100)
finally:
    dist.barrier()
"""
    running = begin_cell(pool, cell)
    poll_until(lambda: running.view.texts() == {0: "in\n", 1: "in\n"})
    pool.interrupt()
    view = running.join()
    assert isinstance(view.error, CellInterruptedError)
    assert "before    rank 1 was interrupted (cell [1], line" in str(view.error)
    [judged] = [event for event in view.events if isinstance(event, VerdictReached)]
    [finding] = judged.report.findings
    [suspicion] = finding.suspicions
    assert suspicion.startswith("rank 1 was interrupted (cell [1], line")
    assert finding.next_step.startswith("Nothing, if the interrupt was meant.")


@pytest.mark.fresh_ranks(3)
def test_a_quit_after_a_step_of_one_rank_is_named_as_the_cause(pool: Pool):
    """Rank 0 has called its operation before the interrupt, which sends the others elsewhere."""
    cell = "try:\n    dist.all_reduce(torch.ones(1))\nfinally:\n    dist.barrier()"
    view = run_cell(pool, cell, step=True, answers=["step -r 0", "quit"], check=False)
    error = str(view.error)
    assert isinstance(view.error, CellInterruptedError)
    assert (
        "was interrupted; ranks 1-2 then made a call that does not match: rank 0 called "
        "all_reduce, ranks 1-2 called barrier\n" in error
    )
    assert "ranks 1-2 were interrupted (cell [1], line 2), and were here" in error
    assert "next      Nothing, if the interrupt was meant." in error
    assert view.outcome is not None
    assert view.outcome.report is not None
    [finding] = view.outcome.report.findings
    [suspicion] = finding.suspicions
    assert suspicion.startswith("ranks 1-2 were interrupted (cell [1], line 2), and came here")
    run_cell(pool, "dist.barrier()")


@pytest.mark.fresh_ranks(3)
def test_a_quit_that_the_code_catches_blames_no_line_after_it(pool: Pool):
    cell = """
try:
    dist.all_reduce(torch.ones(1))
except KeyboardInterrupt:
    pass
dist.all_reduce(torch.ones(2))
"""
    view = run_cell(pool, cell, step=True, answers=["step -r 0", "quit"], check=False)
    assert "next      Nothing, if the interrupt was meant." in str(view.error)
    assert view.outcome is not None
    assert view.outcome.report is not None
    [finding] = view.outcome.report.findings
    assert (finding.kind, finding.suspicions) == ("mismatched-collective", ())
    assert finding.next_step.startswith("Nothing, if the interrupt was meant.")
    run_cell(pool, "dist.barrier()")
