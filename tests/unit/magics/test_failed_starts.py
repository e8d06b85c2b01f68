"""What a cell says where the last start has failed, or was interrupted."""

import pytest

from nbddp.errors import NoPoolError, PoolInterruptedError, PoolStartError
from nbddp.notebook.failed_start import FailedStart


def refusal(line: str, error: BaseException) -> str:
    failed = FailedStart()
    with pytest.raises(type(error)), failed.noted(line, lambda: False):
        raise error
    with pytest.raises(NoPoolError) as caught:
        failed.refuse()
    return str(caught.value)


def test_a_start_that_was_interrupted_has_not_failed():
    for error in (KeyboardInterrupt(), PoolInterruptedError("the start was interrupted")):
        assert refusal("%ddp listen --nnodes 2", error) == (
            "no pool is running, since %ddp listen --nnodes 2 was interrupted; this cell ran "
            "nowhere, and starts no other pool in its place. Next: %ddp listen --nnodes 2 again, "
            "or %ddp start with the options that you need"
        )


def test_a_start_that_has_failed_needs_other_options():
    said = refusal("%ddp start -n 3", PoolStartError("no"))
    assert "since %ddp start -n 3 failed; this cell ran nowhere" in said
    assert said.endswith("Next: %ddp start with the options that you need")
