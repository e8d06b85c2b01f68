"""A cell initialises the process group itself, in a pool with ``init="none"``."""

from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError
from tests.support.restarted_pool import restarted_pool
from tests.support.views import run_cell

shared_pool = restarted_pool(init="none")

SUM = "t = torch.ones(1) * (rank + 1); dist.all_reduce(t); t.item()"

CALLS = {
    "env": "dist.init_process_group('gloo')",
    "env url": "dist.init_process_group('gloo', init_method='env://')",
    "tcp": (
        "import os\n"
        "url = f\"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}\"\n"
        "dist.init_process_group('gloo', init_method=url, rank=rank, world_size=world_size)"
    ),
    "file": (
        "dist.init_process_group('gloo', init_method=f'file://{path}', "
        "rank=rank, world_size=world_size)"
    ),
    "store": (
        "import os\n"
        "store = dist.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), "
        "world_size, is_master=False)\n"
        "store = dist.PrefixStore(f'own {round_}', store)\n"
        "dist.init_process_group('gloo', store=store, rank=rank, world_size=world_size)"
    ),
}


def test_the_user_initialises(pool: Pool, tmp_path: Path):
    """Each way, twice in a row, in one pool: the store outlives the groups."""
    assert run_cell(pool, "dist.is_initialized()").result(1) == "False"
    assert [info.backend for info in pool.ranks()] == ["", ""]
    for name, call in CALLS.items():
        run_cell(pool, f"path = {str(tmp_path / name)!r}")
        for round_ in range(2):
            run_cell(pool, f"round_ = '{name} {round_}'\n{call}")
            assert run_cell(pool, SUM).result(1) == "3.0", (name, round_)
            run_cell(pool, "dist.destroy_process_group()")


def test_twice_in_one_cell(pool: Pool):
    once = f"{CALLS['env']}\n{SUM}\ndist.destroy_process_group()\n"
    run_cell(pool, once + once + CALLS["tcp"])
    assert run_cell(pool, SUM).result(0) == "3.0"


def test_an_init_after_one_that_failed_on_one_rank(pool: Pool):
    code = (
        "from datetime import timedelta\n"
        "if rank == 0: dist.init_process_group('gloo', timeout=timedelta(seconds=0.3))"
    )
    with pytest.raises(CellError) as caught:
        run_cell(pool, code)
    assert set(caught.value.by_rank) == {0}
    run_cell(pool, CALLS["env"])
    assert run_cell(pool, SUM).result(1) == "3.0"


def test_a_port_that_the_user_chose(pool: Pool):
    """As in tutorials, rank 0 serves the store at an address that the cell chooses."""
    free = run_cell(
        pool, "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.getsockname()[1]"
    )
    call = (
        f"s.close()\nurl = 'tcp://127.0.0.1:{free.result()}'\n"
        "dist.init_process_group('gloo', init_method=url, rank=rank, world_size=world_size)"
    )
    run_cell(pool, call)
    assert run_cell(pool, SUM).result(1) == "3.0"


@pytest.mark.parametrize("before", ["", "if dist.is_initialized(): dist.destroy_process_group()"])
def test_a_fresh_rank_catches_up_with_a_cell_that_makes_the_default_group(pool: Pool, before: str):
    """All ranks have that group: the fresh one since nbddp has formed it again."""
    pool.run(f"{before}\n{CALLS['env']}\nw = torch.ones(1) * (rank + 1)\ndist.all_reduce(w)")
    pool.run("pair = dist.new_group([0, 1]); group = dist.group.WORLD")
    pool.restart(1)
    result = pool.catch_up()
    assert (result.failed, result.failed_aside, result.left_out) == ((), (), ())
    assert pool.pull("w.item()") == [3.0, 3.0]
    same = "v = w.clone(); dist.all_reduce(v, group=pair); (v.item(), group is dist.group.WORLD)"
    assert run_cell(pool, same).result(0) == "(6.0, True)"
    run_cell(pool, "dist.destroy_process_group()")
    run_cell(pool, CALLS["env"])
    assert run_cell(pool, SUM).result(1) == "3.0"


@pytest.mark.parametrize(
    "call",
    [
        "dist.init_process_group('gloo', rank=0, world_size=2)",
        "import os; os.environ['RANK'] = '0'; dist.init_process_group('gloo')",
    ],
)
def test_two_processes_with_one_rank_are_refused(pool: Pool, call: str):
    """C++ would wait for rank 1, which is nowhere, for half an hour."""
    with pytest.raises(CellError) as caught:
        run_cell(pool, call)
    (refused,) = [text for name, text in caught.value.by_rank.values() if "Refused" in name]
    assert "calls init_process_group with rank=0, as rank " in refused
    assert "next: pass rank=rank, world_size=world_size" in refused
    run_cell(pool, "dist.init_process_group('gloo', rank=rank, world_size=world_size)")
    assert run_cell(pool, SUM).result(1) == "3.0"


def test_each_rank_may_be_alone_in_a_group(pool: Pool):
    run_cell(pool, "dist.init_process_group('gloo', rank=0, world_size=1)")
    run_cell(pool, SUM)
    alone = run_cell(pool, "dist.group.WORLD.counters.ranks")
    assert (alone.result(0), alone.result(1)) == ("(0,)", "(1,)")
    run_cell(pool, "dist.destroy_process_group()")
