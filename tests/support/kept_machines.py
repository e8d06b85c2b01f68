"""Kept pools whose agents are elsewhere, as the tests of machines take them back."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool import find_kept
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import PoolSnapshot
from nbddp.notebook import source_check
from nbddp.settings import Settings
from nbddp.system import kept_pools
from nbddp.system.kept_pools import KnownPool
from tests.support.polling import poll_until
from tests.support.remote_pools import DEFAULTS, start
from tests.support.views import RecordingView

#: Each agent loads torch, which takes long on a busy machine.
START_S = 100.0
AGENT = [sys.executable, "-P", "-m", "nbddp", "agent", "--connect"]


def take_back(
    pool_id: str,
    settings: Settings,
    on_progress: Callable[[PoolSnapshot], None] = lambda snapshot: None,
) -> Pool:
    with find_kept(pool_id) as kept:
        return Pool(
            kept.options,
            settings,
            lambda pool, run: RecordingView(),
            source_check.check_source,
            on_progress,
            kept=kept,
        )


def known_pool(pool_id: str) -> KnownPool | None:
    """The pool as it is listed, among those of other tests."""
    pools = [known for known in kept_pools.known_pools() if known.pool_id == pool_id]
    return pools[0] if pools else None


def known_state(pool_id: str) -> str:
    known = known_pool(pool_id)
    return "" if known is None else known.state


class Listening:
    """A pool of agents that the test starts, on this machine."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.agents: list[subprocess.Popen[bytes]] = []
        self.pool: Pool | None = None

    def start_agents(self, nodes: int, *before: str) -> list["subprocess.Popen[bytes]"]:
        """Start agents for a pool that waits for them; ``before`` begins the command."""
        path = poll_until(lambda: list((self._home / ".nbddp").glob("*.json")))[0]
        self.agents += [subprocess.Popen([*before, *AGENT, str(path)]) for _ in range(nodes)]
        return self.agents

    def start(
        self, nodes: int = 2, settings: Settings = DEFAULTS, *, n: int = 1, **more: object
    ) -> Pool:
        options = PoolOptions.checked(
            n, nnodes=nodes, launcher="listen", address="127.0.0.1", **more
        )
        made: list[Pool] = []
        thread = threading.Thread(target=lambda: made.append(start(options, settings)))
        thread.start()
        self.start_agents(nodes)
        thread.join(START_S)
        self.pool = made[0]
        return self.pool

    def take_back(self, settings: Settings = DEFAULTS) -> Pool:
        assert self.pool is not None
        self.pool = take_back(self.pool.pool_id, settings)
        return self.pool

    def wait_for_agents(self) -> None:
        for agent in self.agents:
            agent.wait(30)

    def close(self) -> None:
        try:
            if self.pool is not None:
                if known_state(self.pool.pool_id) == "detached":
                    self.take_back()
                self.pool.stop()
        except BaseException:
            for agent in self.agents:
                agent.kill()
            raise
        finally:
            try:
                self.wait_for_agents()
            except subprocess.TimeoutExpired:  # the test has failed, and they are kept
                for agent in self.agents:
                    agent.terminate()
                self.wait_for_agents()
                raise
