"""Training continues after deadlocks with the same results, for each kind of training."""

from collections.abc import Iterator
from typing import Any

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError
from tests.cases.training_kinds import CLEAN_UP, DEFAULTS, KINDS, PRELUDE, Kind, parametrize
from tests.conftest import make_pool
from tests.support.views import run_cell

_LIMIT_S = 40.0


class Kept:
    """A pool that is kept from test to test; a pool of another size replaces it."""

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._ranks = 0

    def get(self, ranks: int) -> Pool:
        if self._pool is None or self._ranks != ranks:
            self.stop()
            # Each rank would load it.
            self._pool = make_pool(ranks, env={"NBDDP_PRELOAD": "torch._dynamo"})
            self._ranks = ranks
            run_cell(self._pool, PRELUDE, timeout=_LIMIT_S)
        return self._pool

    def stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()


@pytest.fixture(scope="module")
def kept(own_temporary_folder: object) -> Iterator[Kept]:
    made = Kept()
    yield made
    made.stop()


@pytest.fixture
def no_leaks() -> None:
    """The pool lives on; other tests look for what is left behind."""


@pytest.mark.timeout(180)
@parametrize(KINDS)
def test_training_continues_after_deadlocks(kept: Kept, kind: Kind):
    pool = kept.get(kind.ranks)
    try:
        losses = train_with_deadlocks(pool, kind)
        steps = 2 * len(kind.ways) + 2
        run_cell(pool, f"reference = make()\nexpected = fit(reference, 0, {steps})", timeout=60)
        expected = pool.pull("expected")
        assert losses == close(expected)
        assert pool.pull("weights(state)") == close(pool.pull("weights(reference)"))
        run_cell(pool, CLEAN_UP, timeout=_LIMIT_S)
    except BaseException:
        kept.stop()
        raise


def train_with_deadlocks(pool: Pool, kind: Kind) -> list[list[float]]:
    """Two steps; then, for each way to leave, a step that hangs and two that continue."""
    begin = "state = make()\nlosses = fit(state, 0, 2)"
    run_cell(pool, f"{DEFAULTS}\n{kind.code}\n{begin}", timeout=_LIMIT_S)
    for index, way in enumerate(kind.ways):
        number = 2 + 2 * index
        with pytest.raises(CellError) as caught:
            run_cell(pool, f"fit(state, {number}, {number + 1}, {way!r})", timeout=_LIMIT_S)
        last = kind.ranks - 1
        names = {rank: name for rank, (name, _) in caught.value.by_rank.items()}
        assert (last in names) == (way != "missing")
        names.pop(last, None)
        # A rank that reached the end of the step would be one step ahead of the others.
        assert names == dict.fromkeys(range(last), "CollectiveAbortedError")
        run_cell(pool, f"losses += fit(state, {number}, {number + 2})", timeout=_LIMIT_S)
    found: list[list[float]] = pool.pull("losses")
    return found


def close(values: list[Any]) -> Any:
    """Sums of more than two numbers depend on their order, and so on the buckets of a step."""
    return [pytest.approx(value, rel=1e-5, abs=1e-6) for value in values]
