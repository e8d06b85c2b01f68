"""Ranks of different machines, whose boards they cannot read: two nodes, simulated."""

from collections.abc import Callable

import pytest

from nbddp.controller.pool.pool import CellOptions, Pool
from nbddp.errors import DeadlockError, MismatchError
from tests.support.views import run_cell

_SHAPES = "dist.all_reduce(torch.ones(3 + rank))\n"
_DTYPES = "dist.all_reduce(torch.ones(3, dtype=torch.int32 if rank else torch.float32))\n"


def _run_checked(pool: Pool, code: str) -> None:
    pool.run_cell(code, CellOptions(ranks=pool.all_ranks, check=True))


def test_with_check_a_mismatch_is_seen_before_data_moves(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(1, nnodes=2)
    run_cell(pool, "x = rank")
    for code, field in ((_SHAPES, "input_sizes"), (_DTYPES, "input_dtypes")):
        with pytest.raises(MismatchError, match=f"disagree in {field}") as caught:
            _run_checked(pool, code)
        assert set(caught.value.by_rank) == {0, 1}  # each of them sees it
        view = run_cell(pool, "y = torch.ones(1); dist.all_reduce(y); print(x, y.item())")
        assert view.texts() == {0: "0 2.0\n", 1: "1 2.0\n"}


def test_with_check_a_missing_rank_is_no_hang(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(1, nnodes=2)
    with pytest.raises(DeadlockError, match="Rank 0 never called all_reduce #1"):
        _run_checked(pool, "if rank:\n    dist.all_reduce(torch.ones(3))\n")
    view = run_cell(pool, "dist.barrier(); print('well')")
    assert view.texts() == {0: "well\n", 1: "well\n"}


def test_without_it_what_did_not_hang_is_told_afterwards(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(1, nnodes=2)
    run_cell(pool, _DTYPES)
    report = pool.last_report
    assert report is not None
    (finding,) = report.findings
    assert (finding.kind, finding.fields) == ("silent-mismatch", ("input_dtypes",))
