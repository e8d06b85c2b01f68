"""Groups made with ``TORCH_DISTRIBUTED_DEBUG=DETAIL``: torch compares the ranks inside each call.

That blocks in the call itself, before there is a handle to wait for.
"""

from collections.abc import Iterator

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError, DeadlockError, MismatchError
from tests.support.views import begin_cell, run_cell

_SET_UP = """
import os
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
dist.set_debug_level_from_env()
try:
    checked = dist.new_group()
finally:
    del os.environ["TORCH_DISTRIBUTED_DEBUG"]
    dist.set_debug_level_from_env()
"""
_USE = """
x = torch.ones(3)
dist.all_reduce(x, group=checked)
dist.barrier(group=checked)
dist.all_reduce(x)
x.tolist()
"""
_CLEAN_UP = "dist.destroy_process_group(checked)\ndel checked"


@pytest.fixture
def checked(pool: Pool) -> Iterator[Pool]:
    """Has a group named ``checked``, which must work after each test."""
    run_cell(pool, _SET_UP)
    yield pool
    assert run_cell(pool, _USE, timeout=20).result() == "[4.0, 4.0, 4.0]"
    run_cell(pool, _CLEAN_UP)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "x = torch.ones(3)\n"
            "dist.all_reduce(x, group=checked) if rank else dist.broadcast(x, 0, group=checked)",
            "Op type: ",
        ),
        ("dist.all_reduce(torch.ones(3 + rank), group=checked)", "Tensor shapes: "),
        (
            "dist.all_reduce(torch.ones(3, dtype=(torch.float, torch.int)[rank]), group=checked)",
            "Tensor dtypes: ",
        ),
        ("dist.all_reduce(torch.ones(3 + rank), group=checked, async_op=True).wait()", "shapes: "),
    ],
)
def test_mismatches_that_torch_compares_are_told_as_on_stock_groups(
    checked: Pool, code: str, words: str
):
    with pytest.raises(CellError) as caught:
        run_cell(checked, code, timeout=30)
    assert not isinstance(caught.value, MismatchError | DeadlockError)
    assert set(caught.value.by_rank) == {0, 1}
    for name, text in caught.value.by_rank.values():
        assert name == "RuntimeError"
        assert "Detected mismatch between collectives on ranks" in text
        assert words in text


def test_mismatches_that_torch_does_not_compare_are_still_told(checked: Pool):
    code = "dist.broadcast(torch.ones(3), rank, group=checked)"
    with pytest.raises(MismatchError, match="src"):
        run_cell(checked, code, timeout=30)


@pytest.mark.parametrize(
    "call",
    [
        "dist.all_reduce(torch.ones(3), group=checked)",
        "dist.all_reduce(torch.ones(3), group=checked, async_op=True).wait()",
        "dist.all_gather_object([None] * world_size, 'x', group=checked)",
        "dist.barrier(group=checked)",
    ],
)
def test_a_rank_that_waits_for_a_missing_call_is_freed(checked: Pool, call: str):
    with pytest.raises(DeadlockError) as caught:
        run_cell(checked, f"if rank == 0:\n    {call}", timeout=30)
    assert {rank: error[0] for rank, error in caught.value.by_rank.items()} == {
        0: "CollectiveAbortedError"
    }


def test_an_interrupt_frees_a_rank_whose_peer_is_only_late(checked: Pool):
    code = """
import threading
print("begun")
if rank == 0:
    dist.all_reduce(torch.ones(3), group=checked)
else:
    threading.Event().wait(600)
"""
    cell = begin_cell(checked, code)
    checked.interrupt()
    view = cell.join(30)
    assert view.outcome is not None
    assert view.outcome.interrupted
    assert set(view.outcome.ranks("error")) == {0, 1}


def test_a_call_that_torch_refuses_costs_the_group_nothing(checked: Pool):
    code = """
try:
    dist.all_gather([torch.ones(3)], torch.ones(3), group=checked)
except (RuntimeError, ValueError) as error:
    refused = str(error)
state = (bool(refused), checked.counters.is_broken, checked.counters.seq)
del refused
"""
    run_cell(checked, code, timeout=30)
    assert checked.pull("state") == [(True, False, 0)] * 2
