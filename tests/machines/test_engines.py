"""Agents that torchrun and Open MPI start, with the lines that `%ddp listen` prints."""

import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.errors import DeadlockError, RankExitedError
from tests.support.polling import poll_until
from tests.support.remote_pools import start

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
#: The programs and the agents load torch, which takes long on a busy machine.
START_S = 120.0
NODES = 2
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NODES)),
    *("--nproc-per-node", "1"),
]


@pytest.fixture
def invitation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, list[Pool]]]:
    """The file of a waiting pool of two nodes, and the list that gets the pool."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    options = PoolOptions.checked(1, nnodes=NODES, launcher="listen", address="127.0.0.1")
    pools: list[Pool] = []
    thread = threading.Thread(target=lambda: pools.append(start(options)))
    thread.start()
    yield poll_until(lambda: list((tmp_path / ".nbddp").glob("*.json")))[0], pools
    thread.join(START_S)
    for pool in pools:
        pool.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_pool(pools: list[Pool], programs: list["subprocess.Popen[bytes]"]) -> None:
    """Check that the pool works, that nothing of the engine reaches a rank, and that all ends."""
    pool = poll_until(lambda: pools, START_S)[0]
    pool.run("import os\nt = torch.ones(1) * rank\ndist.all_reduce(t)")
    assert pool.pull("t.item()") == [1.0] * NODES
    assert (
        pool.pull("[n for n in os.environ if n.startswith(('OMPI_', 'PMIX_', 'PET_'))]") == [[]] * 2
    )
    assert pool.pull("[os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')]") == [
        ["0", "2", "0"],
        ["1", "2", "0"],
    ]
    with pytest.raises(DeadlockError, match="Rank 1 never called all_reduce"):
        pool.run("if rank == 0:\n    dist.all_reduce(t)")
    with pytest.raises(RankExitedError, match="rank 1 exited with code 3"):
        pool.run("if rank == 1:\n    os._exit(3)\ndist.barrier()")
    pool.push({"sent": torch.arange(3.0)})
    pool.run("dist.all_reduce(sent)")
    assert pool.pull("sent.tolist()") == [[0.0, 2.0, 4.0]] * NODES
    pool.stop()
    assert [program.wait(60) for program in programs] == [0] * len(programs)


def agent(path: Path) -> list[str]:
    return ["-m", "nbddp", "agent", "--connect", str(path)]


@pytest.mark.parametrize("rendezvous", ["c10d", pytest.param("static", marks=pytest.mark.slow)])
def test_torchrun_starts_agents(invitation: tuple[Path, list[Pool]], rendezvous: str):
    path, pools = invitation
    port = free_port()
    programs = []
    for node in range(NODES):
        how = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        if rendezvous == "static":
            how = ["--node-rank", str(node), "--master-addr", "127.0.0.1"]
            how += ["--master-port", str(port)]
        programs.append(subprocess.Popen([*TORCHRUN, *how, *agent(path)]))
    check_pool(pools, programs)


def test_open_mpi_starts_agents(invitation: tuple[Path, list[Pool]]):
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("Open MPI is not installed")
    path, pools = invitation
    words = [mpirun, "-np", str(NODES), "--oversubscribe", "--allow-run-as-root"]
    words += ["--bind-to", "none", sys.executable, *agent(path)]
    check_pool(pools, [subprocess.Popen(words)])
