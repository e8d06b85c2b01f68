"""Pools whose ranks are fresh processes in each test: a restart takes a tenth of a start's time.

A test has the mark ``fresh_ranks(3, init="none")`` and takes `conftest.pool`. A file all of whose
tests need the same has ``shared_pool = restarted_pool(3)`` instead.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from nbddp.controller.hub import Listeners
from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.controller.prompts import BreakPoints
from nbddp.controller.state import Config
from nbddp.errors import NbddpError
from nbddp.notebook import source_check
from nbddp.settings import Settings
from tests.support import leaks
from tests.support.polling import poll_until
from tests.support.views import RecordingView

#: This many pools live beside the shared one: the memory of each is that of its ranks.
_KEPT = 3


def forget_test(pool: Pool) -> None:
    """Undo what a test has set in the notebook's half of a pool: it outlives the ranks."""
    pool.listeners.background = Listeners().background
    pool.break_points = BreakPoints()


def make_as_new(pool: Pool) -> None:
    """Make a pool as it was after its start, which takes a tenth of the time of a start."""
    forget_test(pool)
    pool.restart()
    pool.configure(**asdict(Config()))


class RestartedPool:
    """A pool in the place of `conftest.SharedPool`; all its ranks are restarted after each test."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._pool: Pool | None = None

    @property
    def pool_id(self) -> str | None:
        return self._pool.pool_id if self._pool is not None else None

    def get_for(self, test: pytest.Item) -> Pool:
        """The pool, for any test."""
        del test
        return self.get()

    def get(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(
                self._options,
                Settings(),
                lambda pool, run: RecordingView(),
                source_check.check_source,
            )
        return self._pool

    def check_health(self, *, may_replace_group: bool = False) -> None:
        """Make it as it was after its start; fails, and drops the pool, if it cannot restart."""
        del may_replace_group
        pool = self.get()
        try:
            make_as_new(pool)
        except BaseException:
            self.drop()
            raise

    def adopt(self, pool: Pool) -> None:
        """Take the pool of the next hub: the test has let the pool go and taken it back."""
        self._pool = pool

    def renew(self) -> None:
        """Make it as it was after its start, or drop it."""
        try:
            self.check_health()
        except NbddpError:
            self.drop()

    def drop(self) -> None:
        """Stop it; the next test gets another. Nothing of it may be left."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            poll_until(lambda: not leaks.processes_of_pool(pool.pool_id))


class RestartedPools:
    """One for each set of options; the last that were used live on."""

    def __init__(self) -> None:
        self._by_options: dict[str, RestartedPool] = {}

    def of(self, n: int = 2, **options: Any) -> RestartedPool:
        """The pool of these options, see `nbddp.start`."""
        key = repr((n, sorted(options.items())))
        pool = self._by_options.pop(key, None) or RestartedPool(PoolOptions.checked(n, **options))
        self._by_options[key] = pool
        while len(self._by_options) > _KEPT:
            self._by_options.pop(next(iter(self._by_options))).drop()
        return pool

    def drop(self) -> None:
        """Stop all of them."""
        while self._by_options:
            self._by_options.popitem()[1].drop()


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
