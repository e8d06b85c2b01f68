"""A loop is named whose items perhaps come in another order on each rank, if that explains it."""

from typing import Any

import pytest

from tests.support.looks import CELL, Ranks


def sizes(*shapes: tuple[int, ...]) -> dict[str, Any]:
    return {"input_sizes": shapes}


def test_items_in_another_order():
    pool = Ranks(2)
    pool.code[CELL] = "for key, v in stats.items():\n    dist.all_reduce(v)"
    for rank, shape in enumerate(((5,), (1,))):
        pool[rank].blocked("all_reduce", line=2, **sizes(shape))
    assert (
        pool.diagnose()
        .findings[0]
        .next_step.endswith(
            " Perhaps the ranks go through `stats.items()` in different orders: sort it, or make "
            "it in one order on all ranks."
        )
    )
    pool.code[CELL] = "for i, v in enumerate(reversed(stats)):\n    dist.all_reduce(v)"
    assert "go through `stats` in different orders" in pool.diagnose().findings[0].next_step


@pytest.mark.parametrize(
    "items", ["range(2)", "tqdm(range(2))", "list(range(2))", "enumerate(sorted(stats))"]
)
def test_items_that_have_one_order(items: str):
    pool = Ranks(2)
    pool.code[CELL] = f"for step in {items}:\n    dist.all_reduce(v[step])"
    for rank, shape in enumerate(((5,), (1,))):
        pool[rank].blocked("all_reduce", line=2, **sizes(shape))
    assert "orders" not in pool.diagnose().findings[0].next_step


def test_an_order_does_not_explain_other_arguments_than_tensors():
    pool = Ranks(2)
    pool.code[CELL] = "for p in net.parameters():\n    dist.all_reduce(p, op=op)"
    for rank, op in enumerate(("SUM", "MAX")):
        pool[rank].blocked("all_reduce", line=2, reduce_op=op)
    assert "orders" not in pool.diagnose().findings[0].next_step
