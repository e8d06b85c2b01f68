"""Pools on other machines for tests."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import PoolSnapshot
from nbddp.errors import PoolStartError
from nbddp.notebook import source_check
from nbddp.settings import Settings
from tests.support.network_hosts import NetworkHost
from tests.support.polling import poll_until
from tests.support.ssh_hosts import SshSite
from tests.support.views import RecordingView

#: A busy machine may be silent for seconds, and is not lost.
DEFAULTS = Settings()


def start(options: PoolOptions, settings: Settings = DEFAULTS) -> Pool:
    """A pool whose cells show nothing."""
    return Pool(options, settings, lambda pool, run: RecordingView(), source_check.check_source)


@contextmanager
def ssh_pool(
    site: SshSite,
    *hosts: NetworkHost,
    n: int = 2,
    settings: Settings = DEFAULTS,
    python: str = "",
    **more: object,
) -> Iterator[Pool]:
    """A pool with `n` ranks on each host; nothing of it is left there at the end."""
    options = PoolOptions.checked(
        n,
        launcher="ssh",
        hosts=[host.name for host in hosts],
        python=python or str(site.python),
        **more,
    )
    made = start(options, settings)
    try:
        yield made
    finally:
        made.stop()
        for host in hosts:
            poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]


@contextmanager
def waiting_start(
    options: PoolOptions, on_progress: Callable[[PoolSnapshot], None] = lambda snapshot: None
) -> Iterator[list[str]]:
    """A start that waits, in a thread, and is ended at the end; gives what it has waited for."""
    states: list[str] = []
    is_over = threading.Event()

    def progress(snapshot: PoolSnapshot) -> None:
        states.append(snapshot.waits_for)
        on_progress(snapshot)
        if is_over.is_set():
            raise PoolStartError("the test is over")

    def run() -> None:
        with suppress(PoolStartError):
            Pool(options, DEFAULTS, lambda pool, run: RecordingView(), on_progress=progress)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield states
    finally:
        is_over.set()
        thread.join()


@contextmanager
def listening_pool(address: str, on_progress: Callable[[PoolSnapshot], None]) -> Iterator[Path]:
    """A pool that waits for one agent, and is stopped at the end; gives its invitation's file."""
    options = PoolOptions.checked(1, nnodes=1, launcher="listen", address=address)
    folder = Path.home() / ".nbddp"
    with waiting_start(options, on_progress):
        yield poll_until(lambda: list(folder.glob("*.json")))[0]
