"""Pools on other machines for tests."""

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.notebook import source_check
from nbddp.settings import Settings
from tests.support.views import RecordingView

QUICK = Settings(silent_after_s=1.0, node_timeout_s=4.0)


def start(options: PoolOptions, settings: Settings = QUICK) -> Pool:
    """A pool whose cells show nothing."""
    return Pool(options, settings, lambda pool, run: RecordingView(), source_check.check_source)
