"""Pools on a real Ray cluster of two nodes, which are processes of this machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.errors import DeadlockError, PoolBrokenError, PoolStartError, RankExitedError
from tests.support import ray_site
from tests.support.polling import poll_until
from tests.support.pool_processes import agent_of
from tests.support.ray_site import RaySite
from tests.support.remote_pools import start, waiting_start

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool, pytest.mark.timeout(400)]
_START_S = 120.0
#: Nothing is left of a pool this long after its notebook was killed.
_GONE_S = 10.0
_NOTEBOOK = """
import nbddp, os
pool = nbddp.start(1, nnodes=2, launcher="ray")
pids = pool.pull("(__import__('os').getpid(), __import__('os').getppid())")
print(*[pid for pair in pids for pid in pair], flush=True)
input()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RaySite]:
    """A head and one more node, with two processors each."""
    if reason := ray_site.reason_to_skip():
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        made = RaySite()
        try:
            made.add_node()
            patch.setenv("RAY_ADDRESS", made.address)
            yield made
        finally:
            made.close()


def processes(pool: Pool) -> set[int]:
    """The ranks, their parents and grandparents."""
    pids = pool.pull("(os.getpid(), os.getppid())")
    return {pid for pair in pids for pid in pair} | {psutil.Process(p[1]).ppid() for p in pids}


def test_there_is_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first test: Ray finds the clusters of this machine among the processes."""
    if reason := ray_site.reason_to_skip():
        pytest.skip(reason)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(PoolStartError, match="Could not find any running Ray instance"):
        start(PoolOptions.checked(1, nnodes=1, launcher="ray"))


def test_a_pool_is_a_job_of_ray(cluster: RaySite):
    pool = start(PoolOptions.checked(2, nnodes=2, launcher="ray"))
    try:
        pool.run("import os\nt = torch.ones(1) * rank\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [6.0] * 4
        assert pool.pull("os.environ['LOCAL_RANK'], os.environ['GROUP_RANK']") == [
            *(("0", "0"), ("1", "0"), ("0", "1"), ("1", "1"))
        ]
        pids = processes(pool)
        with pytest.raises(DeadlockError, match="Ranks 1-3 never called all_reduce"):
            pool.run("if rank == 0:\n    dist.all_reduce(t)")
        with pytest.raises(RankExitedError, match="rank 3 exited with code 3"):
            pool.run("if rank == 3:\n    os._exit(3)\ndist.barrier()")
        pool.push({"sent": 5})
        pool.run("t = torch.ones(1) * sent\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [20.0] * 4
    finally:
        pool.stop()
    poll_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_cluster_that_is_too_small(cluster: RaySite):
    with pytest.raises(
        PoolStartError,
        match=r"2 nodes with CPU 3 each are needed, 0 of its 2 nodes have that \(CPU 2; CPU 2\)",
    ):
        start(PoolOptions.checked(3, nnodes=2, launcher="ray"))
    with pytest.raises(PoolStartError, match="3 nodes with CPU 1 each are needed, 2 of its 2"):
        start(PoolOptions.checked(1, nnodes=3, launcher="ray"))


def test_a_cluster_that_is_busy_is_waited_for(cluster: RaySite):
    first = start(PoolOptions.checked(2, nnodes=2, launcher="ray"))
    words = "Ray: waits for CPU 1 on 2 nodes; free in the whole cluster: CPU 0"
    try:
        with waiting_start(PoolOptions.checked(1, nnodes=2, launcher="ray")) as states:
            poll_until(lambda: words in states, _START_S)
    finally:
        first.stop()


def test_a_notebook_that_is_killed_leaves_nothing(cluster: RaySite):
    notebook = subprocess.Popen(
        [sys.executable, "-c", _NOTEBOOK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert notebook.stdout is not None
    assert notebook.stdin is not None
    pids = [int(word) for word in notebook.stdout.readline().split()]
    assert len(pids) == 4
    pids += [process.pid for process in psutil.Process(notebook.pid).children(recursive=True)]
    notebook.kill()
    notebook.wait()
    notebook.stdin.close()
    notebook.stdout.close()
    poll_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), _GONE_S)
    # Its place is free again.
    start(PoolOptions.checked(2, nnodes=2, launcher="ray")).stop()


def test_another_actor_takes_the_place_of_a_lost_agent(cluster: RaySite):
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="ray"))
    try:
        pool.run("x = rank")
        agent_of(pool, 1).kill()
        poll_until(lambda: pool.snapshot.lost_agents == {1})
        pool.restart(1)
        pool.run("t = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [2.0] * 2
        assert pool.pull("'x' in globals()") == [True, False]
    finally:
        pool.stop()


def test_the_end_of_a_node_is_told_and_another_one_takes_its_place(cluster: RaySite):
    """The last test: the cluster has lost a node then."""
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="ray"))
    try:
        pool.run("x = rank")
        cluster.kill_node(1)
        poll_until(lambda: pool._processes.snapshot.lost_agents)
        (lost,) = pool._processes.snapshot.lost_agents
        assert pool.pull("rank", ranks=str(1 - lost)) == [1 - lost]
        with pytest.raises(PoolBrokenError) as caught:
            pool.run("dist.barrier()")
        assert f"since node {lost} was " in str(caught.value)
        cluster.add_node()
        if lost == 1:  # node 0 has the store
            pool.restart(1)
            assert pool.pull("x", ranks=0) == 0
        else:
            pool.restart()
        pool.run("t = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [2.0] * 2
    finally:
        pool.stop()
