"""A catch-up leaves a fresh rank what its cells make for its role, and trusts no doubtful value."""

import pytest

from nbddp.controller.pool import Pool
from nbddp.errors import CellError
from nbddp.notebook.magics.catch_up_verb import answer
from nbddp.wire.rank_set import RankSet
from tests.support.restarted_pool import restarted_pool

shared_pool = restarted_pool(3)

ROLES = """
is_main = rank == 0
log_every = 10 if rank == 0 else 0
data = torch.arange(3.) if rank == 0 else torch.empty(3).zero_()
parts = [torch.ones(1)] if rank == 0 else None
"""
USES = "role = 'main' if is_main else 'worker'\ndef mine(): return rank == 0\nflag = mine()"
BRANCH = "if rank == 0: who = 'boss'\nelse: who = 'worker'"


def run_cells(pool: Pool, *cells: str) -> None:
    for cell in cells:
        pool.run(cell)


def test_the_one_rank_that_has_a_role_keeps_what_its_cells_make(pool: Pool):
    values = "(is_main, log_every, data.tolist(), parts and len(parts), role, flag, who)"
    run_cells(pool, ROLES, USES, BRANCH)
    before = pool.pull(values)
    pool.restart(0)
    result = pool.catch_up()
    assert (result.copied, result.different, result.left_out) == ((), (), ())
    assert {"is_main", "data", "parts", "role", "flag", "who"} <= {*result.regained}
    assert pool.pull(values) == before


def test_a_reduced_value_is_still_that_of_the_others(pool: Pool):
    run_cells(pool, "x = torch.ones(2) * rank", "dist.all_reduce(x)")
    pool.restart(0)
    result = pool.catch_up()
    assert result.copied == ("x",)
    assert pool.pull("x.tolist()") == [[3.0, 3.0]] * 3


def test_a_value_of_a_role_that_later_code_has_changed_is_told(pool: Pool):
    code = "best = [] if rank == 0 else None\nif rank == 0: count = 5\nelse: count = 1"
    run_cells(pool, code, "if rank == 0: best.append(7)")
    pool.restart(0)
    result = pool.catch_up()
    assert (result.copied, result.different) == ((), ("best",))
    assert pool.pull("(best, count)") == [([], 5), (None, 1), (None, 1)]


def test_the_names_of_a_branch_that_a_rank_does_not_take_are_not_given_to_it(pool: Pool):
    run_cells(pool, "if rank != 1: only = torch.ones(2)\nmine = rank")
    pool.restart(1)
    result = pool.catch_up()
    assert (result.regained, result.copied) == (("mine",), ())
    assert pool.pull("'only' in globals()") == [True, False, True]


def test_a_copied_value_of_a_cell_that_had_failed_is_not_called_had_before(pool: Pool):
    with pytest.raises(CellError):
        pool.run("a = rank\nif rank == 1: raise OSError\nlate = 'alike'")
    pool.restart(1)
    result = pool.catch_up()
    assert (result.copied, result.perhaps_new) == (("late",), ("late",))
    text = answer(result).bundle()["text/plain"]
    assert "got late from rank 0: the cell had failed there, perhaps before making it." in " ".join(
        text.split()
    )
    assert "again: late" not in text


def test_a_doubtful_value_proves_nothing_for_the_next_rank(pool: Pool):
    run_cells(pool, "hist = []", "hist.append(rank)")
    pool.restart(1)
    assert pool.catch_up().initial == ("hist",)
    pool.restart(2)
    result = pool.catch_up()
    assert (result.copied, result.doubted) == ((), (("hist", RankSet.of([1])),))
    text = " ".join(answer(result).bundle()["text/plain"].split())
    assert "hist has a value, perhaps not the right one, as on rank 1" in text
    assert "begins with %%ddp -r 1-2" in text
    pool.run("hist = [rank]")
    pool.restart(2)
    assert pool.catch_up().doubted == ()


def test_a_container_in_a_container_that_changed_is_told(pool: Pool):
    run_cells(pool, "nest = {'l': []}", "nest['l'].append(rank)")
    pool.restart(1)
    assert pool.catch_up().initial == ("nest",)
