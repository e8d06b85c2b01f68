"""Processes that are killed from outside: the message, and the state afterwards."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import CellError, PoolBrokenError, PoolStartError, RankExitedError
from tests.support.polling import poll_until
from tests.support.restarted_pool import restarted_pool
from tests.support.views import begin_cell, run_cell

shared_pool = restarted_pool()

#: A child in a session of its own, and one whose parent is gone: daemons.
_DAEMONS = """
import subprocess
children = [subprocess.Popen(['sleep', '1000'], start_new_session=True).pid]
children.append(int(subprocess.run(
    ['sh', '-c', 'setsid sleep 1000 >/dev/null 2>&1 & echo $!'], capture_output=True).stdout))
"""

_FORKED_DAEMON = """
import os, time
def daemon():
    if (pid := os.fork()) == 0:
        os.setsid()
        time.sleep(1000)
        os._exit(0)
    return pid
children.append(daemon())
"""


def _pid(pool: Pool, rank: int) -> int:
    return next(info.pid for info in pool.ranks() if info.rank == rank)


def _agent(pool: Pool) -> psutil.Process:
    """The parent of the fork server, which is the parent of the ranks."""
    server = psutil.Process(_pid(pool, 0)).parent()
    assert server is not None
    agent = server.parent()
    assert agent is not None
    return agent


def _children_of_ranks(pool: Pool) -> list[psutil.Process]:
    run_cell(pool, _DAEMONS)
    found = [psutil.Process(pid) for pids in pool.pull("children") for pid in pids]
    assert len(found) == 4
    return found


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _check_restart(pool: Pool) -> None:
    pool.restart()
    view = run_cell(pool, "dist.barrier(); print('fresh')", timeout=20.0)
    assert view.texts() == {0: "fresh\n", 1: "fresh\n"}


def test_a_rank_that_dies_while_idle(pool: Pool):
    run_cell(pool, "kept = rank")
    pid = _pid(pool, 1)
    os.kill(pid, signal.SIGKILL)
    poll_until(lambda: _pid(pool, 1) != pid)
    view = run_cell(pool, "dist.barrier(); print('kept' in globals())")  # waits for the fresh one
    assert view.texts() == {0: "True\n", 1: "False\n"}


def test_a_rank_that_dies_while_idle_and_is_not_replaced(pool: Pool):
    pool.configure(on_death="keep")
    os.kill(_pid(pool, 1), signal.SIGKILL)
    poll_until(lambda: pool.ranks()[1].state is RankState.EXITED)
    with pytest.raises(PoolBrokenError, match=r"rank 1 has exited.*%ddp restart"):
        run_cell(pool, "pass")
    with pytest.raises(PoolBrokenError, match="rank 1 has exited"):
        pool.pull("rank")
    assert pool.pull("rank", ranks=0) == 0
    _check_restart(pool)


@pytest.mark.fresh_ranks(3)
def test_groups_with_a_dead_member_refuse_until_it_is_replaced(pool: Pool):
    pool.configure(on_death="keep")
    died = run_cell(
        pool,
        "import os\nx = torch.ones(1)\npair = dist.new_group([0, 1])\nif rank == 2: os._exit(3)",
        check=False,
    )
    assert "(ranks 0-1 keep their variables)" in str(died.error)
    # A second time as well: the first refusal has changed nothing.
    for call in ("all_reduce(x)", "barrier()", "all_reduce(x, async_op=True)", "all_reduce(x)"):
        view = run_cell(pool, f"dist.{call}", ranks="0-1", check=False)
        assert isinstance(view.error, CellError)
        told = str(view.error)
        assert "CollectiveRefusedError: rank 2 has exited, and no operation of a group with" in told
        assert "next: %ddp restart -r 2 puts a fresh process in its place" in told
        assert set(view.error.by_rank) == {0, 1}
    among = run_cell(pool, "dist.all_reduce(x, group=pair); print(x.item())", ranks="0-1")
    assert among.texts() == {0: "2.0\n", 1: "2.0\n"}
    hung = run_cell(pool, "if rank == 0: dist.barrier(pair)", ranks="0-1", check=False)
    assert "groups with rank 2, which exited, need %ddp restart -r 2" in str(hung.error)
    pool.restart(2)
    again = run_cell(pool, "dist.barrier(); print('all')")
    assert again.texts() == dict.fromkeys(range(3), "all\n")


def test_a_rank_that_dies_in_a_cell(pool: Pool):
    running = begin_cell(pool, "import time\nprint('step 40')\ntime.sleep(100)")
    poll_until(lambda: running.view.texts() == {0: "step 40\n", 1: "step 40\n"})
    os.kill(_pid(pool, 0), signal.SIGKILL)
    error = running.join().error
    assert isinstance(error, RankExitedError)
    for word in ("rank 0 exited", "SIGKILL (signal 9)", "step 40", "rank0.log", "was replaced"):
        assert word in str(error)
    run_cell(pool, "made_by_one = 1", ranks=[1])
    for _ in range(2):  # also after its first cell
        error = run_cell(pool, "made_by_one", check=False).error
        assert "rank 0 raised NameError" in str(error)
        assert "rank 0 is a fresh process since cell [" in str(error)
    assert "fresh" not in str(run_cell(pool, "lacking", check=False).error)
    _check_restart(pool)
    error = run_cell(pool, "made_by_one", check=False).error
    assert "fresh" not in str(error)  # rank 0 did not have it before the restart either


def test_a_rank_that_dies_while_its_value_is_pulled(pool: Pool):
    with pytest.raises(PoolBrokenError, match=r"rank [01] exited before its value was transferred"):
        pool.pull("__import__('os').kill(__import__('os').getpid(), 9)")
    _check_restart(pool)


#: In the fork server: the third process that it forks, rank 1, ends at once.
_SITECUSTOMIZE = """
import os
forks = []
def die():
    if len(forks) == 3: os.kill(os.getpid(), 9)
os.register_at_fork(before=lambda: forks.append(0), after_in_child=die)
"""


def test_a_rank_that_dies_while_it_starts(fresh_pool: Callable[..., Pool], tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    with pytest.raises(PoolStartError, match="rank 1 ended while it started") as caught:
        fresh_pool(env={"PYTHONPATH": str(tmp_path)})
    assert "SIGKILL" in str(caught.value)


def test_children_of_a_dead_rank_are_gone(pool: Pool):
    children = _children_of_ranks(pool)
    for rank in (0, 1):
        os.kill(_pid(pool, rank), signal.SIGKILL)
    pool.restart()
    poll_until(lambda: all(map(_is_gone, children)))
    _check_restart(pool)


def test_processes_of_a_dead_rank_end_and_those_of_others_live(pool: Pool):
    """The same holds for a child without a mark: it never called exec and has left the session."""
    run_cell(pool, _DAEMONS + _FORKED_DAEMON)
    pids = pool.pull("children")
    mine, other = ([psutil.Process(pid) for pid in pids[rank]] for rank in (1, 0))
    assert len(mine) == len(other) == 3
    run_cell(pool, "import time; time.sleep(1.2)")  # the agent looks around once a second
    run_cell(pool, "import os; os.kill(os.getpid(), 9)", ranks="1", check=False)
    poll_until(lambda: all(map(_is_gone, mine)))
    assert not any(map(_is_gone, other))
    assert run_cell(pool, "print('well')", ranks="0").text(0) == "well\n"


@pytest.mark.breaks_pool
def test_children_of_ranks_do_not_outlive_the_pool(pool: Pool):
    children = _children_of_ranks(pool)
    pool.stop()
    assert all(map(_is_gone, children))


@pytest.mark.parametrize(
    "signum", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_the_agent_dies(signum: int, pool: Pool):
    children = _children_of_ranks(pool)
    ranks = [psutil.Process(info.pid) for info in pool.ranks()]
    agent = _agent(pool)
    agent.send_signal(signum)
    poll_until(lambda: all(info.state is RankState.EXITED for info in pool.ranks()))
    poll_until(lambda: all(map(_is_gone, [agent, *ranks, *children])))
    with pytest.raises(PoolBrokenError, match=r"agent.*%ddp restart"):
        run_cell(pool, "pass")
    _check_restart(pool)


def test_the_agent_dies_while_a_cell_runs(pool: Pool):
    running = begin_cell(pool, "import time\nprint('in')\ntime.sleep(100)")
    poll_until(lambda: running.view.texts() == {0: "in\n", 1: "in\n"})
    _agent(pool).kill()
    error = running.join().error
    assert isinstance(error, RankExitedError)
    assert "the agent of node 0 ended" in str(error)
    assert "%ddp restart" in str(error)
    assert "out of memory" not in str(error)
    _check_restart(pool)


@pytest.mark.full
def test_the_fork_server_dies(pool: Pool):
    server = psutil.Process(_pid(pool, 0)).parent()
    assert server is not None
    before = [info.pid for info in pool.ranks()]
    server.kill()
    # Another fork server loads torch, which takes long on a busy machine.
    poll_until(lambda: not {info.pid for info in pool.ranks()} & set(before), 60.0)
    assert run_cell(pool, "dist.barrier(); print('well')").texts() == {0: "well\n", 1: "well\n"}


def test_the_fork_server_dies_while_a_cell_runs(pool: Pool):
    running = begin_cell(pool, "import time\nprint('in')\ntime.sleep(100)")
    poll_until(lambda: running.view.texts() == {0: "in\n", 1: "in\n"})
    server = psutil.Process(_pid(pool, 0)).parent()
    assert server is not None
    server.kill()
    error = running.join().error
    assert isinstance(error, RankExitedError)
    assert "the fork server ended (SIGKILL)" in str(error)
    assert "os._exit" not in str(error)
    _check_restart(pool)


def test_an_exit_code_of_255_is_one(pool: Pool):
    """`multiprocessing` reports the same code for an unknown exit."""
    view = run_cell(pool, "import os; os._exit(255)", check=False)
    assert "exit code 255" in str(view.error)
    assert "fork server" not in str(view.error)


@pytest.mark.full  # also in test_store_and_agent_deaths
def test_the_store_dies(pool: Pool):
    server = psutil.Process(_pid(pool, 0)).parent()
    assert server is not None
    ranks = {info.pid for info in pool.ranks()}
    (store,) = [child for child in server.children() if child.pid not in ranks]
    store.kill()
    # Cells without the store continue; cells with it get an error and no hang.
    assert run_cell(pool, "print(1)").text(0) == "1\n"
    view = run_cell(pool, "dist.new_group([0, 1])", timeout=20.0, check=False)
    assert view.error is not None
    _check_restart(pool)


def test_a_stopped_rank_does_not_keep_a_pool_from_restarting(pool: Pool):
    os.kill(_pid(pool, 1), signal.SIGSTOP)
    _check_restart(pool)
    os.kill(_pid(pool, 1), signal.SIGSTOP)  # nor from stopping


def test_a_full_disk_costs_the_log_and_nothing_else(pool: Pool):
    limit = 200_000
    resource.prlimit(_agent(pool).pid, resource.RLIMIT_FSIZE, (limit, limit))
    view = run_cell(pool, "for n in range(50_000): print('line', n)\nprint('end')")
    assert view.text(0).splitlines()[-1] == "end"
    assert run_cell(pool, "print('next')").texts() == {0: "next\n", 1: "next\n"}


@pytest.mark.full
@pytest.mark.fresh_ranks(1, nnodes=2)
def test_a_pool_with_nodes_loses_one_agent(pool: Pool):
    _agent(pool).kill()
    poll_until(lambda: pool.ranks()[0].state is RankState.EXITED)
    assert run_cell(pool, "print('node 1')", ranks="1").text(1) == "node 1\n"
    _check_restart(pool)


def test_a_cell_waits_for_the_replacement_of_ranks_that_died_just_before(
    pool: Pool,
):
    for _ in range(2):
        for ranks in ([0], [1], [0, 1]):
            for rank in ranks:
                os.kill(_pid(pool, rank), signal.SIGKILL)
            view = run_cell(pool, "dist.barrier(); print('well')")
            assert view.texts() == {0: "well\n", 1: "well\n"}
    os.kill(_pid(pool, 1), signal.SIGKILL)
    assert pool.pull("rank") == [0, 1]
