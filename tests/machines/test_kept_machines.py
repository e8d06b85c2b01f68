"""Pools on other machines that outlive their notebook, and are taken back."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool import find_kept
from nbddp.controller.pool.pool import Pool
from nbddp.errors import PoolBrokenError
from nbddp.notebook import source_check
from nbddp.settings import Settings
from nbddp.system import kept_pools
from tests.support.polling import poll_until
from tests.support.remote_pools import start
from tests.support.views import RecordingView, run_cell

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
#: Each agent loads torch, which takes long on a busy machine.
START_S = 100.0
AGENT = [sys.executable, "-P", "-m", "nbddp", "agent", "--connect"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without pools, and a PYTHONPATH with this nbddp."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return tmp_path


def take_back(pool_id: str, view: RecordingView | None = None) -> Pool:
    with find_kept(pool_id) as kept:
        return Pool(
            kept.options,
            Settings(),
            lambda pool, run: view or RecordingView(),
            source_check.check_source,
            kept=kept,
        )


class Listening:
    """A pool of agents that the test starts, on this machine."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.agents: list[subprocess.Popen[bytes]] = []
        self.pool: Pool

    def start(self, nodes: int = 2, **more: object) -> Pool:
        options = PoolOptions.checked(
            1, nnodes=nodes, launcher="listen", address="127.0.0.1", **more
        )
        made: list[Pool] = []
        thread = threading.Thread(target=lambda: made.append(start(options)))
        thread.start()
        path = poll_until(lambda: list((self._home / ".nbddp").glob("*.json")))[0]
        self.agents += [subprocess.Popen([*AGENT, str(path)]) for _ in range(nodes)]
        thread.join(START_S)
        self.pool = made[0]
        return self.pool

    def take_back(self, view: RecordingView | None = None) -> Pool:
        self.pool = take_back(self.pool.pool_id, view)
        return self.pool

    def close(self) -> None:
        if any(known.state == "detached" for known in kept_pools.known_pools()):
            self.take_back()
        self.pool.stop()
        for agent in self.agents:
            agent.wait(20)


@pytest.fixture
def listening(home: Path) -> Iterator[Listening]:
    made = Listening(home)
    yield made
    made.close()


def test_agents_of_a_shell_are_let_go_and_taken_back_again_and_again(
    listening: Listening, home: Path
):
    pool = listening.start()
    run_cell(pool, "x = torch.ones(2) * rank")
    for _ in range(2):
        pool.detach("5min")
        with pytest.raises(PoolBrokenError, match=f"Next: %ddp attach {pool.pool_id} takes it"):
            pool.run("x")
        (known,) = kept_pools.known_pools()
        assert (known.state, known.pool_id) == ("detached", pool.pool_id)
        assert len(known.hosts) == 2
        assert not list((home / ".nbddp").glob("*.json"))
        pool = listening.take_back()
        assert kept_pools.known_pools()[0].state == "attached"
        run_cell(pool, "dist.all_reduce(x)")
        pool.push(value=bytes(1 << 20))
        assert pool.pull("len(value)") == [1 << 20] * 2
    assert pool.pull("x.tolist()") == [[2.0, 2.0]] * 2
    view = run_cell(pool, "if rank == 0: dist.barrier()", check=False)
    assert type(view.error).__name__ == "DeadlockError"
    pool.restart(1)
    run_cell(pool, "dist.barrier()")
    assert pool.pull("'x' in globals()") == [True, False]
    record = home / ".nbddp" / "kept" / pool.pool_id
    assert (record / "pool.json").stat().st_mode & 0o777 == 0o600
    assert record.stat().st_mode & 0o777 == 0o700
    pool.stop()
    assert not (home / ".nbddp").exists()
