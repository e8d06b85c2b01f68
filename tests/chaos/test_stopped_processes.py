"""A fork server, an agent or the store is stopped: reported, continued, and never waited for."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import PoolBrokenError, RankExitedError
from nbddp.system import process_tree
from tests.support.polling import poll_until
from tests.support.pool_processes import (
    Told,
    agent_of,
    all_gone,
    fork_server_of,
    pid_of,
    stop,
    store_of,
)
from tests.support.views import begin_cell, run_cell

_HELPERS = {"the fork server": fork_server_of, "the agent": agent_of, "the store": store_of}


def _check_works(pool: Pool) -> None:
    view = run_cell(pool, "dist.barrier(); dist.new_group([0, 1]); print('well')")
    assert set(view.texts().values()) == {"well\n"}


@pytest.mark.parametrize("name", _HELPERS)
@pytest.mark.fresh_ranks
def test_a_stopped_process_is_continued_and_the_user_is_told(name: str, pool: Pool):
    told = Told(pool)
    helper = _HELPERS[name](pool)
    run_cell(pool, "kept = rank")
    stop(helper)
    line = told.wait_for(name)
    assert f"{name} of node 0 (pid {helper.pid}) was stopped" in line
    assert "nothing is lost" in line
    poll_until(lambda: not process_tree.is_stopped(helper.pid))
    assert run_cell(pool, "print(kept)").texts() == {0: "0\n", 1: "1\n"}
    _check_works(pool)


@pytest.mark.parametrize("name", _HELPERS)
@pytest.mark.parametrize(
    "nnodes",
    [
        pytest.param(1, marks=pytest.mark.fresh_ranks(2)),
        pytest.param(2, marks=[pytest.mark.fresh_ranks(1, nnodes=2), pytest.mark.slow]),
    ],
)
def test_a_pool_with_a_stopped_process_restarts(name: str, nnodes: int, pool: Pool):
    assert {info.node for info in pool.ranks()} == set(range(nnodes))
    stop(_HELPERS[name](pool))
    pool.restart()
    _check_works(pool)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "the agent" else [pytest.mark.full])
        for name in _HELPERS
    ],
)
def test_a_pool_with_a_stopped_process_stops(name: str, fresh_pool: Callable[..., Pool]):
    pool = fresh_pool()
    helpers = [agent_of(pool), fork_server_of(pool), store_of(pool)]
    stop(_HELPERS[name](pool))
    pool.stop()
    poll_until(all_gone(helpers))


@pytest.mark.fresh_ranks
def test_a_rank_is_replaced_though_the_fork_server_was_stopped(pool: Pool):
    run_cell(pool, "kept = rank")
    stop(fork_server_of(pool))
    assert "those of rank 0 are kept" in pool.restart(1)
    view = run_cell(pool, "dist.barrier(); print('kept' in globals())")
    assert view.texts() == {0: "True\n", 1: "False\n"}


@pytest.mark.fresh_ranks
def test_the_death_of_a_rank_is_told_though_the_fork_server_is_stopped(
    pool: Pool,
):
    """The fork server is the parent: it learns of the death only when it continues."""
    running = begin_cell(pool, "import time\nprint('in')\ntime.sleep(100)")
    poll_until(lambda: running.view.texts() == {0: "in\n", 1: "in\n"})
    pid = pid_of(pool, 1)
    stop(fork_server_of(pool))
    os.kill(pid, signal.SIGKILL)
    error = running.join().error
    assert isinstance(error, RankExitedError)
    assert "rank 1 exited" in str(error)
    assert "SIGKILL (signal 9)" in str(error)
    assert "was replaced" in str(error)
    _check_works(pool)


@pytest.mark.fresh_ranks
def test_the_stop_button_works_though_the_agent_was_stopped(pool: Pool):
    running = begin_cell(pool, "import time\nprint('in')\ntime.sleep(100)")
    poll_until(lambda: running.view.texts() == {0: "in\n", 1: "in\n"})
    stop(agent_of(pool))
    pool.interrupt()
    assert "interrupted" in str(running.join().error)
    _check_works(pool)


#: Holds a process as a debugger does: SIGCONT means nothing to it. See ptrace(2).
_DEBUGGER = """
import ctypes, os, sys
pid, libc = int(sys.argv[1]), ctypes.CDLL(None)
assert libc.ptrace(0x4206, pid, 0, 0) == 0  # PTRACE_SEIZE
assert libc.ptrace(0x4207, pid, 0, 0) == 0  # PTRACE_INTERRUPT
print('held', flush=True)
while not os.WIFSIGNALED(os.waitpid(pid, 0x40000000)[1]): pass  # __WALL
"""


@pytest.fixture
def hold() -> Iterator[Callable[[psutil.Process], Callable[[], None]]]:
    """Holds a process; returns a function that releases it."""
    debuggers: list[subprocess.Popen[str]] = []

    def begin(process: psutil.Process) -> Callable[[], None]:
        command = [sys.executable, "-c", _DEBUGGER, str(process.pid)]
        debugger = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        debuggers.append(debugger)
        assert debugger.stdout is not None
        assert debugger.stdout.readline() == "held\n"
        poll_until(lambda: process_tree.is_stopped(process.pid))
        return debugger.kill

    yield begin
    for debugger in debuggers:
        debugger.kill()
        debugger.communicate()


@pytest.mark.full
@pytest.mark.fresh_ranks
def test_an_agent_that_a_debugger_holds(
    pool: Pool, hold: Callable[[psutil.Process], Callable[[], None]]
):
    """The agent cannot be woken: requests are refused at once, and a restart does not wait."""
    told = Told(pool)
    agent = agent_of(pool)
    let_go = hold(agent)
    line = told.wait_for("the agent of node 0", "does not resume")
    assert "Next: resume it, or %ddp restart" in line
    with pytest.raises(PoolBrokenError, match=r"the agent of node 0 is stopped.*%ddp restart"):
        run_cell(pool, "pass")
    with pytest.raises(PoolBrokenError, match="the agent of node 0 is stopped"):
        pool.restart(1)
    let_go()
    told.wait_for("the agent of node 0", "runs again")
    _check_works(pool)
    hold(agent)
    told.wait_for("the agent of node 0", "does not resume")
    pool.restart()
    _check_works(pool)
    poll_until(all_gone([agent]))


@pytest.mark.fresh_ranks
def test_a_fork_server_that_a_debugger_holds(
    pool: Pool, hold: Callable[[psutil.Process], Callable[[], None]]
):
    told = Told(pool)
    server = fork_server_of(pool)
    hold(server)
    line = told.wait_for("the fork server of node 0", "does not resume")
    assert "Cells run, but ranks that exit cannot be replaced" in line
    _check_works(pool)
    with pytest.raises(PoolBrokenError, match=r"the fork server .*is stopped"):
        pool.restart(1)
    pool.restart()
    _check_works(pool)
    poll_until(all_gone([server]))
