"""Collectives in code that runs on some ranks only: Tab, Shift-Tab, `pull`, `vars`."""

from contextlib import suppress

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import BadOptionError, TransferError
from tests.support.views import begin_cell, run_cell

LIMIT_S = 30.0
HEALTHY = "x = torch.ones(1)\ndist.all_reduce(x)\nprint(int(x))"
#: An object of whose names, help and properties each calls something.
ODD = """
class Odd:
    said = []
    def __repr__(self):
        return self.call()
    def __dir__(self):
        self.call()
        return ["found"]
    @property
    def total(self):
        return self.call()
    def call(self):
        try:
            {call}
        except BaseException as error:
            self.said.append(f"{{type(error).__name__}}: {{error}}")
            raise
        self.said.append("went on")
        return "odd"
odd = Odd()
x = torch.ones(1)
"""
CALLS = {
    "barrier": "dist.barrier()",
    "all_reduce": "dist.all_reduce(x)",
    "send": "dist.send(x, 1)",
    "new_group": "dist.new_group([0, 1])",
}


def said(pool: Pool) -> list[str]:
    """The results of the calls on rank 0."""
    found: list[str] = pool.pull("list(odd.said)", ranks=0)
    return found


def is_healthy(pool: Pool) -> bool:
    return run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}


@pytest.mark.parametrize("way", ["inspect", "complete"])
@pytest.mark.parametrize("call", CALLS)
def test_an_inspection_with_a_collective_makes_no_rank_wait(pool: Pool, call: str, way: str):
    run_cell(pool, ODD.format(call=CALLS[call]))
    if way == "inspect":
        assert pool.talk.inspect(0, "odd", 3, 0, LIMIT_S) is not None
    else:
        assert pool.talk.complete(0, "odd.", 4, LIMIT_S) is not None
    words = (
        f"CollectiveRefusedError: rank 0 called {call} for Tab or Shift-Tab, which ask one rank\n"
        "  rank 1 would never make this call; nothing was sent"
    )
    assert set(said(pool)) == {words}
    assert is_healthy(pool)


def test_an_inspection_while_a_cell_runs_makes_no_rank_wait(pool: Pool):
    run_cell(pool, ODD.format(call="dist.all_reduce(x)"))
    stop = "stop = torch.zeros(1)\nwhile not stop:\n    stop.fill_(len(odd.said))\n"
    cell = begin_cell(pool, f"{stop}    dist.all_reduce(stop)\nprint('ended')")
    assert pool.talk.inspect(0, "odd", 3, 0, LIMIT_S) is not None
    assert cell.join().error is None
    assert cell.view.texts() == {0: "ended\n", 1: "ended\n"}
    assert "which ask one rank" in said(pool)[0]
    assert is_healthy(pool)


@pytest.mark.parametrize("call", CALLS)
def test_a_value_that_one_rank_is_asked_for_makes_no_other_wait(pool: Pool, call: str):
    run_cell(pool, ODD.format(call=CALLS[call]))
    with pytest.raises(TransferError) as caught:
        pool.pull("odd.total", ranks=0)
    assert str(caught.value) == (
        f"could not pull 'odd.total' (rank 0: CollectiveRefusedError: it calls {call}, which "
        "rank 1 would never call: only rank 0 was asked; nothing was sent. Next: ask all ranks)"
    )
    assert is_healthy(pool)


def test_a_variable_that_one_rank_is_asked_for_says_so(pool: Pool):
    run_cell(pool, ODD.format(call="dist.barrier()"))
    told = pool.vars("odd", ranks=[0])["odd"][0]
    assert told is not None
    assert said(pool)
    assert all("it calls barrier" in each for each in said(pool))
    assert is_healthy(pool)


def test_a_description_of_a_value_makes_no_rank_wait(pool: Pool):
    run_cell(
        pool,
        f"{ODD.format(call='dist.barrier()')}\n"
        "class Gathers:\n"
        "    def __reduce__(self):\n"
        "        dist.barrier()\n"
        "        return (int, ())\n"
        "if rank:\n"
        "    odd = 3\n"
        "else:\n"
        "    gathers = Gathers()",
    )
    assert set(pool.vars()) >= {"odd", "gathers"}
    assert not pool.diff("odd").is_equal
    assert pool.diff("globals().get('gathers')").is_equal is not True
    assert set(said(pool)) == {
        "CollectiveRefusedError: it calls barrier when its value is described, and rank 1 may have "
        "a value of another kind; nothing was sent"
    }
    assert is_healthy(pool)


def test_an_expression_that_is_compared_may_call_a_collective(pool: Pool):
    run_cell(pool, ODD.format(call="dist.all_reduce(x)"))
    assert pool.diff("(odd.total, int(x))").is_equal
    assert is_healthy(pool)


def test_an_expression_on_all_ranks_may_call_a_collective(pool: Pool):
    run_cell(pool, ODD.format(call="dist.all_reduce(x)"))
    assert pool.pull("(odd.total, int(x))") == [("odd", 2), ("odd", 2)]
    assert is_healthy(pool)


@pytest.mark.parametrize(
    "expression",
    [
        "dist.barrier() if rank == 0 else 1",
        "dist.all_reduce(x, async_op=True) if rank else None",
        "dist.all_gather_object([None, None], rank) if rank else None",
        "rank or [dist.barrier(), dist.barrier()]",
        "[dist.barrier() for _ in range(3 + rank)]",
        "1 / rank, dist.barrier()",
        "functional.all_reduce(x, 'sum', dist.group.WORLD) if rank else 0",
    ],
)
def test_an_expression_that_calls_a_collective_on_some_ranks_ends(pool: Pool, expression: str):
    run_cell(pool, "import torch.distributed._functional_collectives as functional")
    run_cell(pool, "x = torch.ones(1)")
    for _ in range(2):
        with pytest.raises(
            TransferError, match=r"calls \w+, which rank [01] did not call"
        ) as caught:
            pool.pull(expression)
        assert "nothing was sent" in str(caught.value)
        with suppress(BadOptionError):  # no rank has a value
            assert not pool.diff(expression).is_equal
    assert is_healthy(pool)


def test_a_call_that_was_taken_back_is_none_of_the_next_expression(pool: Pool):
    """It had the number that the other rank's call has now."""
    for caller in (0, 1, 1, 0):
        with pytest.raises(TransferError, match=f"which rank {1 - caller} did not call"):
            pool.pull(f"dist.barrier() if rank == {caller} else 0")
    assert is_healthy(pool)


@pytest.mark.parametrize(
    ("call", "op"),
    [
        ("dist.recv(x, 1 - rank)", "recv"),
        ("dist.send(x, 1 - rank)", "send"),
        ("dist.monitored_barrier()", "monitored_barrier"),
    ],
)
def test_an_expression_calls_nothing_that_could_wait_forever(pool: Pool, call: str, op: str):
    run_cell(pool, "x = torch.ones(1)")
    with pytest.raises(TransferError, match=f"it calls {op}, which could wait forever"):
        pool.pull(f"{call} if rank else 0")
    assert is_healthy(pool)


def test_the_calls_of_an_expression_may_go_ahead_of_each_other(pool: Pool):
    run_cell(
        pool,
        "import time\n"
        "def ahead():\n"
        "    works = []\n"
        "    for number in range(20):\n"
        "        time.sleep(0.01 * (number % 2 == rank))\n"
        "        works.append(dist.broadcast(torch.ones(1), number % 2, async_op=True))\n"
        "        works.append(dist.all_reduce(torch.ones(1), async_op=True))\n"
        "    for work in works: work.wait()\n"
        "    found = [None, None]\n"
        "    dist.all_gather_object(found, rank)\n"
        "    return found",
    )
    for _ in range(3):
        assert pool.pull("ahead()") == [[0, 1], [0, 1]]
    assert is_healthy(pool)


def test_a_group_may_be_used_when_all_of_its_members_are_asked(pool: Pool):
    run_cell(pool, "x = torch.ones(1)\nalone = [dist.new_group([0]), dist.new_group([1])][rank]")
    assert pool.pull("(dist.all_reduce(x, group=alone), int(x))", ranks=1) == (None, 1)
    assert is_healthy(pool)


def test_a_callback_of_pickle_is_refused_too(pool: Pool):
    run_cell(
        pool,
        "class Gathers:\n"
        "    def __reduce__(self):\n"
        "        dist.barrier()\n"
        "        return (int, ())\n"
        "gathers = Gathers()",
    )
    with pytest.raises(TransferError, match="it calls barrier, which rank 1 would never call"):
        pool.pull("gathers", ranks=0)
    assert is_healthy(pool)
