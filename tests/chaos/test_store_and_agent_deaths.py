"""The store or an agent dies: a message says so at once, and a restart revives the pool."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import PoolSnapshot, RankState
from nbddp.errors import PoolBrokenError, PoolInterruptedError, PoolStartError
from nbddp.notebook.render.status_table import survey
from nbddp.wire.rank_set import RankSet
from tests.support.polling import poll_until
from tests.support.pool_processes import (
    Told,
    agent_of,
    all_gone,
    fork_server_of,
    pid_of,
    store_of,
)
from tests.support.views import begin_cell, run_cell

#: The third process that the fork server makes, rank 1, ends the first one, the store.
_SITECUSTOMIZE = """
import os
forks = []
def end_the_store():
    if len(forks) == 3:
        parent = os.getppid()
        with open(f'/proc/{parent}/task/{parent}/children') as file:
            os.kill(int(file.read().split()[0]), 9)
os.register_at_fork(before=lambda: forks.append(0), after_in_child=end_the_store)
"""


def _check_restart(pool: Pool) -> None:
    pool.restart()
    view = run_cell(pool, "dist.barrier(); dist.new_group([0, 1]); print('fresh')")
    assert set(view.texts().values()) == {"fresh\n"}


_on_one_and_two_nodes = pytest.mark.parametrize(
    "nnodes",
    [
        pytest.param(1, marks=pytest.mark.fresh_ranks(2, nnodes=1)),
        pytest.param(2, marks=[pytest.mark.fresh_ranks(1, nnodes=2), pytest.mark.full]),
    ],
)


@_on_one_and_two_nodes
def test_the_end_of_the_store_is_told(nnodes: int, pool: Pool):
    assert {info.node for info in pool.ranks()} == set(range(nnodes))
    told = Told(pool)
    run_cell(pool, "kept = rank")
    store_of(pool).kill()
    line = told.wait_for("the process of the store ended (SIGKILL)")
    assert "save what you need (x = %ddp pull x), then %ddp restart" in line
    assert pool.pull("kept") == [0, 1]
    assert run_cell(pool, "dist.barrier(); print('well')").text(0) == "well\n"
    _check_restart(pool)


@pytest.mark.fresh_ranks
def test_the_store_dies_while_a_cell_waits_for_it(pool: Pool):
    told = Told(pool)
    running = begin_cell(
        pool,
        "print('in')\nstore = dist.distributed_c10d._get_default_store()\n"
        "store.wait([f'never {rank}'])",
    )
    poll_until(lambda: running.view.texts() == {0: "in\n", 1: "in\n"})
    store_of(pool).kill()
    assert running.join().error is not None
    told.wait_for("the process of the store ended (SIGKILL)")
    _check_restart(pool)


@pytest.mark.fresh_ranks
def test_a_rank_that_dies_after_its_store_is_not_waited_for(pool: Pool):
    told = Told(pool)
    store_of(pool).kill()
    told.wait_for("the process of the store ended")
    run_cell(pool, "import os\nif rank == 1: os._exit(3)", check=False)
    with pytest.raises(PoolBrokenError, match=r"the process of the store has ended"):
        run_cell(pool, "pass")
    assert run_cell(pool, "print('kept')", ranks="0").text(0) == "kept\n"
    _check_restart(pool)


def test_a_store_that_dies_while_ranks_start_ends_the_start(
    fresh_pool: Callable[..., Pool], tmp_path: Path
):
    (tmp_path / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    with pytest.raises(PoolStartError, match=r"the process of the store ended \(SIGKILL\)"):
        fresh_pool(env={"PYTHONPATH": str(tmp_path)})


@_on_one_and_two_nodes
def test_the_end_of_an_agent_is_told_between_cells(nnodes: int, pool: Pool):
    told = Told(pool)
    helpers = [agent_of(pool), fork_server_of(pool), store_of(pool)]
    agent_of(pool).kill()
    line = told.wait_for("the agent of node 0 ended (SIGKILL)")
    assert "gone with all variables" in line
    assert "%ddp restart" in line
    assert ("rank 1 can still be used with -r 1" in line) == (nnodes == 2)
    poll_until(all_gone(helpers))
    _check_restart(pool)


@pytest.mark.full
@pytest.mark.fresh_ranks
def test_an_agent_that_dies_while_a_rank_is_replaced(pool: Pool):
    running = begin_cell(pool, "import time\nprint('in')\ntime.sleep(100)")
    poll_until(lambda: running.view.texts() == {0: "in\n", 1: "in\n"})
    agent = agent_of(pool)
    agent.suspend()  # it will not have replaced the rank

    os.kill(pid_of(pool, 1), signal.SIGKILL)
    agent.kill()
    assert "the agent of node 0 ended" in str(running.join().error)
    _check_restart(pool)


@pytest.mark.full
def test_a_stopped_pool_tells_nothing_more(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool()
    told = Told(pool)
    pool.stop()
    assert told.text == ""


@pytest.mark.fresh_ranks(1, nnodes=2)
def test_another_agent_takes_the_place_of_a_lost_one_and_the_others_keep_their_variables(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(snapshot: PoolSnapshot) -> None:
        raise KeyboardInterrupt

    told = Told(pool)
    run_cell(pool, "kept = rank")
    agent_of(pool, 1).kill()
    line = told.wait_for("the agent of node 1 ended (SIGKILL)")
    assert "Next: %ddp restart -r 1 asks for another agent" in line
    with pytest.raises(PoolBrokenError, match=r"%ddp restart -r 1 asks for another agent"):
        run_cell(pool, "pass")
    with monkeypatch.context() as patch:
        patch.setattr(pool.listeners, "progress", interrupt)  # at once, before the agent has begun
        with pytest.raises(PoolInterruptedError):
            pool.restart(1)
    for is_lost_again in (True, False):
        assert "rank 1 is a fresh process" in pool.restart(1)
        run_cell(pool, "t = torch.ones(1)\ndist.all_reduce(t)\ndist.new_group([0, 1])")
        assert pool.pull("t.item()") == [2.0, 2.0]
        assert pool.pull("'kept' in globals()") == [True, False]
        if is_lost_again:
            agent_of(pool, 1).kill()
            poll_until(lambda: pool.snapshot.lost_agents == {1})
    _check_restart(pool)


@pytest.mark.full
@pytest.mark.fresh_ranks(1, nnodes=2)
def test_ranks_of_the_node_that_had_the_store_cannot_be_replaced_alone(
    pool: Pool,
):
    agent_of(pool, 0).kill()
    poll_until(lambda: pool.snapshot.lost_agents == {0})
    with pytest.raises(PoolBrokenError, match=r"store.*pull x -r 1\), then %ddp restart"):
        pool.restart(0)
    with pytest.raises(PoolBrokenError, match=r"rank 1 cannot.*pull x -r 1\), then %ddp restart,"):
        pool.restart(1)  # its variables are still there
    assert pool.pull("rank", ranks=1) == 1
    os.kill(pid_of(pool, 1), signal.SIGKILL)
    poll_until(lambda: pool.snapshot.in_state(RankState.EXITED) == RankSet.of([0, 1]))
    with pytest.raises(PoolBrokenError) as refused:
        pool.pull("rank", ranks="0-1")
    assert "rank 1 has exited, and rank 0 has exited, since the agent of node 0 ended" in str(
        refused.value
    )
    assert "rank 1 exited. Next: %ddp restart" in survey(pool).notes
    _check_restart(pool)
