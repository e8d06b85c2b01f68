"""Pools on other machines for tests."""

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.notebook import source_check
from nbddp.settings import Settings
from tests.support.views import RecordingView

#: A busy machine may be silent for seconds, and is not lost.
DEFAULTS = Settings()


def start(options: PoolOptions, settings: Settings = DEFAULTS) -> Pool:
    """A pool whose cells show nothing."""
    return Pool(options, settings, lambda pool, run: RecordingView(), source_check.check_source)
