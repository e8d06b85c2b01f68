"""The objects that the error of a cell keeps alive."""

import traceback

import pytest

from nbddp.controller.hub.run import Run
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.outcome import RunOutcome
from nbddp.errors import DeadlockError
from tests.support.views import RecordingView


def test_an_error_keeps_neither_the_run_nor_the_outcome_of_its_cell(pool: Pool):
    with pytest.raises(DeadlockError) as caught:
        pool.run("if rank == 0:\n    dist.barrier()")
    kept = [
        value
        for frame, _ in traceback.walk_tb(caught.value.__traceback__)
        for value in frame.f_locals.values()
        if isinstance(value, Run | RunOutcome | RecordingView)
    ]
    assert not kept
