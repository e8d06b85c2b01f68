"""Programs give the same on stock and on traced process groups."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError
from tests.cases.fidelity import CLEAN_UP, PRELUDE, Program, parametrize
from tests.cases.fidelity_collectives import COLLECTIVES
from tests.cases.fidelity_groups import GROUPS
from tests.cases.fidelity_sharded import SHARDED
from tests.cases.fidelity_training import TRAINING
from tests.cases.fidelity_wider import WIDER
from tests.cases.fidelity_works import WORKS
from tests.conftest import make_pool
from tests.support.views import run_cell

#: Modules of the programs that take long to load; each rank would load them again.
LOADED_ONCE = {
    "NBDDP_PRELOAD": "torch._dynamo,torch.distributed.fsdp,torch.distributed.tensor.parallel"
}


class Pair:
    """Two pools, one with stock groups; when another size is asked for, others take their place."""

    def __init__(self) -> None:
        self._ranks = 0
        self._pools: dict[bool, Pool] = {}

    def get(self, ranks: int, *, plain: bool) -> Pool:
        if ranks != self._ranks:
            self.stop()
            self._ranks = ranks
        pool = self._pools.get(plain)
        if pool is None:
            pool = self._pools[plain] = make_pool(ranks, plain=plain, env=LOADED_ONCE)
            run_cell(pool, PRELUDE)
        return pool

    def drop(self, *, plain: bool) -> None:
        """It may hang, or be in an unknown state."""
        self._pools.pop(plain).stop()

    def stop(self) -> None:
        for plain in list(self._pools):
            self.drop(plain=plain)


@pytest.fixture(scope="module")
def pair(own_temporary_folder: object) -> Iterator[Pair]:
    made = Pair()
    yield made
    made.stop()


@pytest.fixture
def no_leaks() -> None:
    """Pools live here from one test to the next; other tests look for what they leave behind."""


def results(pair: Pair, program: Program, *, plain: bool) -> list[list[Any]]:
    """The ``result`` of the program, by rank."""
    pool = pair.get(program.ranks, plain=plain)
    try:
        run_cell(pool, program.code, timeout=program.timeout_s)
        found: list[list[Any]] = pool.pull("plainly([result])")
        run_cell(pool, CLEAN_UP, timeout=program.timeout_s)
    except BaseException:
        pair.drop(plain=plain)
        raise
    return found


def differences(ours: Any, stock: Any) -> list[tuple[Any, Any]]:
    """The innermost parts that are not equal."""
    if isinstance(ours, list) and isinstance(stock, list) and len(ours) == len(stock):
        return [
            pair
            for mine, theirs in zip(ours, stock, strict=True)
            for pair in differences(mine, theirs)
        ]
    return [] if ours == stock else [(ours, stock)]


@pytest.mark.full
def test_groups_are_what_the_pool_says(pair: Pair):
    kinds = {
        plain: run_cell(pair.get(2, plain=plain), "type(dist.group.WORLD).__name__").result()
        for plain in (True, False)
    }
    assert kinds == {True: "'ProcessGroup'", False: "'TracedGroup'"}


def test_a_group_has_the_text_of_the_stock_one(pair: Pair):
    code = "import re\nre.sub('0x[0-9a-f]+', '', repr([dist.group.WORLD]))"
    texts = {run_cell(pair.get(2, plain=plain), code).result() for plain in (True, False)}
    assert len(texts) == 1


def test_a_warning_of_torch_names_the_line_of_the_user(pair: Pair):
    code = (
        "import warnings\nwith warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    torch.nn.parallel.DistributedDataParallel(\n"
        "        torch.nn.Linear(1, 1), check_reduction=True)\n"
        "[(each.lineno, 'ipython-input' in each.filename) for each in seen]"
    )
    for plain in (True, False):
        assert run_cell(pair.get(2, plain=plain), code).result() == "[(4, True)]"


@pytest.mark.timeout(180)
@parametrize([*GROUPS, *COLLECTIVES, *WORKS, *TRAINING, *SHARDED, *WIDER])
def test_a_program_gives_the_same(pair: Pair, program: Program):
    if torch.__version__ < program.since:
        pytest.skip(f"torch {torch.__version__} compiles calls of stock groups only")
    stock = results(pair, program, plain=True)
    traced = results(pair, program, plain=False)
    assert len(stock) == program.ranks
    assert differences(traced, stock) == []


OWN_TIME_OUTS = {
    "of a wait": "dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=1.5))",
    "of a group": (
        "c10d._set_pg_timeout(timedelta(seconds=1.5))\n    dist.all_reduce(torch.ones(1))"
    ),
    "of a new group": "dist.all_reduce(torch.ones(1), group=short)",
    "of a receive": "dist.irecv(torch.ones(1), 1).wait(timedelta(seconds=1.5))",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[] if name in ("of a new group", "of a receive") else [pytest.mark.full]
        )
        for name in OWN_TIME_OUTS
    ],
)
def test_timeouts_of_the_user_come_first(pool: Pool, name: str):
    """A deadlock is proven earlier, but the cell asked for the error of torch."""
    run_cell(pool, PRELUDE)
    run_cell(pool, "short = dist.new_group(timeout=timedelta(seconds=1.5))")
    code = f"if rank == 0:\n    {OWN_TIME_OUTS[name]}"
    with pytest.raises(CellError) as caught:
        run_cell(pool, code, timeout=20)
    (error,) = caught.value.by_rank.values()
    assert error[0] == "RuntimeError"
    assert "imed out" in error[1]
    again = "t = torch.ones(1)\nfor g in (None, short): dist.all_reduce(t, group=g)\nt.item()"
    assert run_cell(pool, again, timeout=20).result() == "4.0"
    run_cell(pool, "c10d._set_pg_timeout(timedelta(minutes=30))\n" + CLEAN_UP, timeout=20)
