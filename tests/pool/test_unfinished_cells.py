"""Cells that fail when they run again for a fresh rank: the next catch-up runs them."""

from pathlib import Path

from nbddp.controller.pool import Pool
from tests.support.restarted_pool import restarted_pool
from tests.support.views import run_cell

shared_pool = restarted_pool(3)

READ = "sizes = [rank]\nsizes.append(int(open({path!r}).read()) + rank)"


def test_a_cell_that_failed_runs_again_with_those_that_use_its_names(pool: Pool, tmp_path: Path):
    file = tmp_path / "size"
    file.write_text("5")
    for code in (READ.format(path=str(file)), "first = sizes[:]", "z = [rank]"):
        pool.run(code)
    file.unlink()
    pool.restart(1)
    result = pool.catch_up()
    (number,) = [cell for cell, _ in result.failed]
    assert result.doubtful == (("sizes", number), ("first", number))
    assert pool.pull("sizes, first", ranks=1) == ([1], [1])
    file.write_text("5")
    again = pool.catch_up(1)
    assert (again.cells, again.failed, again.doubtful) == ((number, number + 1), (), ())
    assert pool.pull("(sizes, first)") == [([rank, 5 + rank],) * 2 for rank in range(3)]
    assert pool.catch_up(1).cells == ()


def test_a_cell_that_fails_again_and_again_keeps_what_the_user_has_made(pool: Pool, tmp_path: Path):
    file = tmp_path / "size"
    file.write_text("5")
    pool.run(READ.format(path=str(file)))
    file.unlink()
    pool.restart(1)
    pool.catch_up()
    run_cell(pool, "sizes = 'mine'", ranks=[1])
    assert [name for name, _ in pool.catch_up(1).doubtful] == ["sizes"]
    assert pool.pull("sizes", ranks=1) == "mine"
