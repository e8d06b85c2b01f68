"""Process groups are initialised by the pool or by the user, repeatedly."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.actions import NoticeChanged
from nbddp.errors import CellError, CellInterruptedError, DeadlockError
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell

SUM = "t = torch.ones(1) * (rank + 1); dist.all_reduce(t); t.item()"


@pytest.mark.parametrize("init", ["tcp", pytest.param("file", marks=pytest.mark.full)])
def test_the_pool_initialises_otherwise_than_from_the_environment(
    fresh_pool: Callable[..., Pool], init: str
):
    pool = fresh_pool(2, init=init)
    assert run_cell(pool, SUM).result(1) == "3.0"
    assert [info.backend for info in pool.ranks()] == ["gloo", "gloo"]
    pool.restart()
    assert run_cell(pool, SUM).result(1) == "3.0"


def test_a_second_init_says_what_to_do(pool: Pool):
    with pytest.raises(CellError, match="%ddp start --init none"):
        run_cell(pool, "dist.init_process_group('gloo')")


@pytest.mark.replaces_group
def test_a_group_that_one_rank_has_destroyed_is_made_again(pool: Pool):
    with pytest.raises(CellError, match="rank 1 raised ValueError") as raised:
        run_cell(pool, f"if rank: dist.destroy_process_group()\n{SUM}")
    assert "nbddp has made it again" in str(raised.value)
    assert run_cell(pool, SUM).result(1) == "3.0"


@pytest.mark.replaces_group
def test_the_advice_for_a_group_that_one_rank_lacks_works_also_after_a_failed_init(pool: Pool):
    run_cell(pool, "for _ in range(300): dist.barrier()")  # older records are overwritten
    with pytest.raises(CellError) as raised:
        run_cell(pool, "if rank: dist.destroy_process_group(); dist.barrier()")
    destroy = "if dist.is_initialized(): dist.destroy_process_group()"
    assert f"`{destroy}`, then dist.init_process_group()" in str(raised.value)
    with pytest.raises(CellError, match="rank 0 has a default process group"):
        run_cell(pool, "dist.init_process_group()")
    run_cell(pool, f"{destroy}\ndist.init_process_group()")
    assert run_cell(pool, SUM).result(1) == "3.0"


def test_two_nodes(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(2, nnodes=2)
    names = "RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE"
    view = run_cell(pool, f"import os\n*(int(os.environ[n]) for n in '{names}'.split()),")
    assert [view.result(rank) for rank in range(4)] == [
        "(0, 0, 0, 0, 4, 2, 2)",
        "(1, 1, 0, 1, 4, 2, 2)",
        "(2, 0, 1, 2, 4, 2, 2)",
        "(3, 1, 1, 3, 4, 2, 2)",
    ]
    view = run_cell(pool, "rank, local_rank, local_world_size, world_size, os.getppid()")
    parents = {str(view.result(rank)).rpartition(" ")[2] for rank in range(4)}
    assert len(parents) == 2  # a fork server on each node
    assert run_cell(pool, SUM).result(3) == "10.0"
    assert [info.node for info in pool.ranks()] == [0, 0, 1, 1]
    assert run_cell(pool, "rank", ranks="1-2").result(2) == "2"
    assert pool.pull("rank * 2") == [0, 2, 4, 6]


def test_torchrun_variables(pool: Pool):
    view = run_cell(
        pool,
        "import os\n"
        "[os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'OMP_NUM_THREADS')], "
        "dist.is_torchelastic_launched()",
    )
    assert view.result(1) == "(['1', '2', '127.0.0.1', '1'], True)"
    assert run_cell(pool, "torch.get_num_threads()").result() == "1"


def test_options_reach_the_ranks(fresh_pool: Callable[..., Pool], tmp_path: Path):
    pool = fresh_pool(1, env={"MY_VARIABLE": "a b=c"}, cwd=tmp_path, threads=2, timeout=77.0)
    view = run_cell(
        pool,
        "import os\nprint(os.environ['MY_VARIABLE'], os.getcwd(), torch.get_num_threads(), "
        "os.environ['OMP_NUM_THREADS'])",
    )
    assert view.text() == f"a b=c {tmp_path} 2 2\n"
    timeout = "dist.distributed_c10d._get_default_timeout(dist.Backend('gloo'))"
    assert run_cell(pool, f"{timeout} is not None").result() == "True"
    options = "dist.group.WORLD._get_backend(device).options._timeout.total_seconds()"
    assert run_cell(pool, options).result() == "77.0"


_TCP = "dist.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank, "
_FREE_PORT = (
    "import socket\nwith socket.socket() as s: s.bind(('127.0.0.1', 0)); p = s.getsockname()[1]"
)


@pytest.mark.parametrize(
    ("code", "awaited"),
    [
        (f"if rank != 2: {_TCP}world_size=3)", "all 3 ranks at tcp://"),
        (f"if rank != 0: {_TCP}world_size=3)", "rank 0 at tcp://"),
        (f"{_TCP}world_size=4)", "all 4 ranks at tcp://"),
    ],
    ids=["one does not call", "rank 0 does not call", "too many ranks"],
)
@pytest.mark.fresh_ranks(3, init="none")
def test_a_rendezvous_that_cannot_come_about_ends(pool: Pool, code: str, awaited: str):
    """Torch would wait for half an hour, in C++."""
    run_cell(pool, _FREE_PORT, ranks="0")
    pool.push(port=pool.pull("p", ranks=0), kept="yes")
    view = run_cell(pool, code, check=False)
    assert isinstance(view.error, DeadlockError)
    assert f"in init_process_group for {awaited}" in str(view.error)
    run_cell(pool, f"{_TCP}world_size=3)")
    assert run_cell(pool, f"{SUM}, kept").result(2) == "(6.0, 'yes')"


@pytest.mark.full
@pytest.mark.fresh_ranks
def test_an_init_for_more_ranks_than_there_are_is_noticed_and_ended_by_an_interrupt(
    pool: Pool,
):
    """A thread of the user could be the third member: it is no proven deadlock."""
    run_cell(pool, "import threading\nevent = threading.Event()\n"
             "threading.Thread(target=event.wait, daemon=True).start()")  # fmt: skip
    code = "dist.destroy_process_group()\ndist.init_process_group('gloo', world_size=3, rank=rank)"
    running = begin_cell(pool, code)

    def told() -> set[str]:
        reports = [
            event.report for event in running.view.events if isinstance(event, NoticeChanged)
        ]
        return {finding.headline for report in reports if report for finding in report.findings}

    notice = "Ranks 0-1 wait in init_process_group for 3 members: 2 have come."
    poll_until(lambda: notice in told())
    pool.interrupt()
    assert isinstance(running.join().error, CellInterruptedError)
    with pytest.raises(CellError, match=r"next +dist\.init_process_group\(\) in a cell"):
        run_cell(pool, SUM)
    run_cell(pool, "event.set()\ndist.init_process_group()")
    assert run_cell(pool, SUM).result(1) == "3.0"


@pytest.mark.fresh_ranks
def test_ranks_with_another_default_dtype_form_groups_with_a_fresh_rank(
    pool: Pool,
):
    pool.run("torch.set_default_dtype(torch.float64)")
    pool.restart(1)
    pool.run("total = torch.ones(1, dtype=torch.float64)\ndist.all_reduce(total)")
    assert pool.pull("total.item()") == [2.0, 2.0]
