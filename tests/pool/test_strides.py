"""Gloo sends tensors as they lie in memory: wrong values that nothing else would show."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError
from tests.support.views import run_cell

GAPS = {
    "slice with a step": "torch.zeros(2, 6)[:, ::2]",
    "column": "torch.zeros(3, 2)[:, 0]",
    "expanded": "torch.zeros(1, 3).expand(2, 3)",
    "overlapping": "torch.zeros(5).unfold(0, 2, 1)",
}
CALLS = {
    "all_reduce": "dist.all_reduce(x)",
    "broadcast": "dist.broadcast(x, 0)",
    "reduce": "dist.reduce(x, 0)",
    "scatter": "dist.scatter(x, [torch.ones(x.shape)] * 2 if rank == 0 else None, src=0)",
}
HEALTHY = "x = torch.ones(1)\ndist.all_reduce(x)\nprint(int(x))"


@pytest.mark.parametrize("tensor", GAPS)
def test_a_tensor_with_gaps_is_refused_on_each_rank(pool: Pool, tensor: str):
    with pytest.raises(CellError) as caught:
        run_cell(pool, f"x = {GAPS[tensor]}\ndist.all_reduce(x.contiguous())\ndist.all_reduce(x)")
    assert {name for name, _ in caught.value.by_rank.values()} == {"CollectiveRefusedError"}
    assert set(caught.value.by_rank) == {0, 1}
    assert run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}


@pytest.mark.parametrize("call", CALLS)
def test_a_tensor_with_gaps_on_one_rank_is_the_error_of_that_rank(pool: Pool, call: str):
    code = f"x = torch.zeros(2, 6)[:, ::2] if rank else torch.zeros(2, 3)\n{CALLS[call]}"
    with pytest.raises(CellError) as caught:
        run_cell(pool, code)
    name, text = caught.value.by_rank[1]
    assert name == "CollectiveRefusedError"
    assert "strides (6, 2)" in text
    assert "next: y = x.contiguous()" in text
    assert run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}


def test_a_tensor_without_gaps_is_sent_in_any_order(pool: Pool):
    code = """\
x = (torch.arange(24.0) + rank).reshape(2, 3, 4).permute(2, 0, 1)
expected = 2 * torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1) + 1
dist.all_reduce(x)
print(torch.equal(x, expected))
"""
    assert run_cell(pool, code).texts() == {0: "True\n", 1: "True\n"}


@pytest.mark.parametrize(("setting", "warned"), [("warn", True), ("off", False)])
def test_it_is_sent_where_mismatches_are_no_errors(pool: Pool, setting: str, warned: bool):
    pool.configure(on_mismatch=setting)
    try:
        view = run_cell(pool, "x = torch.zeros(2, 6)[:, ::2]\ndist.all_reduce(x)\nprint('sent')")
        assert view.texts() == {0: "sent\n", 1: "sent\n"}
        assert ("wrong values" in view.text(1, "stderr")) == warned
    finally:
        pool.configure(on_mismatch="raise")
