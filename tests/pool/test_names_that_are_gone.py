"""A catch-up names what no rank has any more."""

from nbddp.controller.catch_up import LeftOut, Reason
from nbddp.controller.pool import Pool
from nbddp.wire.rank_set import RankSet
from tests.support.restarted_pool import restarted_pool

shared_pool = restarted_pool(3)

LOOP = "sums = []\nfor i in range(2):\n    dist.all_reduce(torch.ones(1))\n    sums.append(rank)"


def test_names_whose_last_holder_is_replaced_and_pushed_ones(pool: Pool):
    for code in (LOOP, "own = rank", "mark = 1"):
        pool.run(code)
    pool.push(value=5, ranks="0,2")
    loop = next(cell.number for cell in pool.history)
    pool.restart([0, 2])
    left_out = pool.catch_up().left_out
    assert LeftOut(("sums", "i"), Reason.LOOP, loop) in left_out
    assert LeftOut(("value",), Reason.GONE) in left_out
    pool.run("mark = 2")
    pool.restart(1)
    assert pool.catch_up(1).left_out == (LeftOut(("i", "sums"), Reason.GONE, loop),)
    pool.restart(2)
    assert LeftOut(("value",), Reason.GONE) in pool.catch_up().left_out
    assert pool.catch_up(1).ranks == RankSet.of([1])


def test_a_counter_that_was_pushed_is_to_be_pushed_again(pool: Pool):
    pool.push({"n": 0})
    for code in ("n += 1", "n += rank"):
        pool.run(code)
    pool.restart(2)
    result = pool.catch_up()
    assert {name for name, _ in result.to_push} == {"n"}
    assert {number for _, number in result.to_push} == {number for number, _ in result.failed}
    pool.push({"n": 0}, ranks=2)
    pool.catch_up(2)
    assert pool.pull("n") == [1, 2, 3]
