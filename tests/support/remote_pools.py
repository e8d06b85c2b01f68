"""Pools on other machines for tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
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
    **more: object,
) -> Iterator[Pool]:
    """A pool with `n` ranks on each host; nothing of it is left there at the end."""
    options = PoolOptions.checked(
        n, launcher="ssh", hosts=[host.name for host in hosts], python=str(site.python), **more
    )
    made = start(options, settings)
    try:
        yield made
    finally:
        made.stop()
        for host in hosts:
            poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]
