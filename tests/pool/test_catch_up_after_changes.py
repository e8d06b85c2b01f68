"""A catch-up repeats cells, and not what a user at the prompt or a fault on purpose did in them."""

from pathlib import Path

import pytest

from nbddp.controller.pool import Pool
from nbddp.errors import CellError
from nbddp.wire.rank_set import RankSet
from tests.support.restarted_pool import restarted_pool
from tests.support.views import run_cell

shared_pool = restarted_pool(3)

SUM = "g = torch.ones(2) * (rank + 1)\ndist.all_reduce(g)\nh = g + 1"


def test_a_cell_whose_operation_was_skipped_runs_along_on_the_others(pool: Pool):
    run_cell(pool, SUM, step=True, answers=["skip", "continue"], execution_count=2)
    pool.restart(2)
    result = pool.catch_up()
    assert (result.cells, result.aside, result.failed) == ((2,), RankSet.of([0, 1]), ())
    assert result.unrepeated == (("g", 2), ("h", 2))
    assert pool.pull("h.tolist()") == [[2.0, 2.0], [3.0, 3.0], [7.0, 7.0]]


def test_a_cell_with_a_fault_that_struck_is_told(pool: Pool):
    code = "v = torch.ones(1)\ndist.all_reduce(v)\nvv = v + rank"
    fault = "rank 1: flip a bit in the next all_reduce"
    run_cell(pool, code, faults=fault, execution_count=2)
    run_cell(pool, "w = 1 + rank", faults="rank 1: delay 0.1 s at line 1", execution_count=3)
    before = pool.pull("vv.item()")[0]
    pool.restart(0)
    result = pool.catch_up()
    assert pool.pull("vv.item()")[0] != before
    assert (result.cells, result.struck, result.prompted) == ((2, 3), (2,), ())
    assert result.unrepeated == (("vv", 2),)


def test_names_that_the_ranks_lack_are_no_error_and_the_one_that_has_them_gives(
    pool: Pool, tmp_path: Path
):
    loop = "sums = []\nfor i in range(2):\n    t = torch.ones(1)\n    dist.all_reduce(t)"
    loop += "\n    sums.append(t.item())"
    once = f"once = open(f'{tmp_path}/{{rank}}', 'x').name"
    for code in (loop, "best = max(sums)", "own = rank", once):
        pool.run(code)
    first, *_, own, _ = (cell.number for cell in pool.history)
    pool.restart(1)
    assert pool.catch_up(cells=[first]).failed
    pool.run("later = 1")
    pool.restart([0, 2])
    lacks = {name for left in pool.catch_up().left_out for name in left.names}
    assert {"best", "sums"} <= lacks
    result = pool.catch_up(0, cells=[own])
    assert result.source == 1
    assert {name for left in result.left_out for name in left.names} == lacks


def test_a_tensor_that_a_method_has_changed_in_place(pool: Pool):
    for code in ("w = torch.full((2,), float(rank))", "w.add_(1)"):
        pool.run(code)
    with pytest.raises(CellError):
        run_cell(pool, "w.mul_(2)\nassert rank != 1", execution_count=7)
    pool.restart(1)
    result = pool.catch_up()
    assert (result.overtaken, result.regained) == ((("w", 7),), ("w",))
    assert pool.pull("w[0].item()") == [2.0, 2.0, 6.0]


def test_a_tensor_that_a_loop_has_changed_which_does_not_run_again(pool: Pool):
    pool.run("w = torch.full((2,), float(rank)); counts = {}")
    loop = "for i in range(2):\n    dist.all_reduce(torch.ones(1))\n    w.add_(i)"
    loop += "\n    counts[i] = rank"
    run_cell(pool, loop, execution_count=7)
    pool.restart(1)
    result = pool.catch_up()
    assert (result.overtaken, result.initial) == ((("w", 7),), ("counts",))


def test_ranks_that_get_other_names_are_told_apart(pool: Pool):
    pool.run("if rank == 0:\n    boss = 1\nelse:\n    worker = rank\nboth = rank")
    pool.restart([0, 2])
    result = pool.catch_up()
    assert result.regained_in_part == (("worker", RankSet.of([2])),)  # no other rank tells of boss
    assert {"both", "worker"} <= {*result.regained}
