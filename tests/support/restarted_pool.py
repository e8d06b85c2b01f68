"""Pools whose ranks are fresh processes in each test: a restart takes a tenth of a start's time.

A test file has ``shared_pool = restarted_pool(3)``, and its tests take `conftest.pool`.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import Config
from nbddp.notebook import source_check
from nbddp.settings import Settings
from tests.support import leaks
from tests.support.polling import poll_until
from tests.support.views import RecordingView


class RestartedPool:
    """A pool in the place of `conftest.SharedPool`; all its ranks are restarted after each test."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._pool: Pool | None = None

    @property
    def pool_id(self) -> str | None:
        return self._pool.pool_id if self._pool is not None else None

    def get(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(
                self._options,
                Settings(),
                lambda pool, run: RecordingView(),
                source_check.check_source,
            )
        return self._pool

    def get_for(self, test: object) -> Pool:
        """The pool: each test restarts it, so no test finds groups of another one."""
        return self.get()

    def check_health(self, *, may_replace_group: bool = False) -> None:
        """Make it as it was after its start; fails, and drops the pool, if it cannot restart."""
        pool = self.get()
        try:
            pool.restart()
            pool.configure(**asdict(Config()))
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Stop it; the next test gets another. Nothing of it may be left."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            poll_until(lambda: not leaks.processes_of_pool(pool.pool_id))


def restarted_pool(n: int = 2, **options: Any) -> Any:
    """A fixture in the place of `conftest.shared_pool`, for one file of tests.

    Args:
        n: number of ranks on each node.
        options: of `nbddp.start`.
    """

    @pytest.fixture(scope="module")
    def shared_pool(own_temporary_folder: Path) -> Iterator[RestartedPool]:
        pool = RestartedPool(PoolOptions.checked(n, **options))
        yield pool
        pool.drop()

    return shared_pool
