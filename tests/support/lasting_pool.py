"""Pools that many bad cells share: variables and groups are checked after each cell.

Only a pool that fails this check is replaced. A test file makes two fixtures of the functions at
the end.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.rank_state import RankState
from nbddp.notebook import source_check
from nbddp.settings import Settings
from tests.support import leaks
from tests.support.polling import poll_until
from tests.support.views import RecordingView, run_cell

#: Names that every bad cell finds; all but ``kept`` are what it may break.
_PREPARE = """
import io, os, threading, time
from datetime import timedelta
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

kept = {"rank": rank, "data": torch.arange(4.0) + rank}
everyone = dist.new_group()
low = dist.new_group([0, 1])
high = dist.new_group([world_size - 2, world_size - 1])
torch.manual_seed(0)
model = DDP(nn.Linear(4, 2))
group_names = {
    group.group_name: dist.get_process_group_ranks(group)
    for group in (dist.group.WORLD, everyone, low, high)
    if group is not dist.GroupMember.NON_GROUP_MEMBER
}
"""

#: The groups are found by name: a fresh rank has them, and no names for them in Python. A new group
#: needs ranks that have counted their groups alike.
_GROUPS = """
for _name, _ranks in {names!r}.items():
    if rank in _ranks:
        _group = dist.distributed_c10d._resolve_process_group(_name)
        _t = torch.tensor([float(rank)])
        dist.all_reduce(_t, group=_group)
        assert _t.item() == sum(_ranks), (_name, _t)
_group = dist.new_group()
dist.barrier(group=_group)
dist.destroy_process_group(_group)
del _group  # which would keep its sockets
"""

#: The sum of the gradients says whether DDP has communicated.
_STEP = """
assert kept["rank"] == rank and kept["data"].tolist() == [rank + i for i in range(4)], kept
for _ in range(2):
    model.zero_grad()
    model(torch.full((1, 4), float(rank))).sum().backward()
    assert model.module.weight.grad.eq((world_size - 1) / 2).all(), model.module.weight.grad
"""

_LIMIT_S = 20.0


class LastingPool:
    """A pool for `conftest.pool`, in the place of the shared one."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.failures = 0  #: pools that had to be replaced
        self._pool: Pool | None = None
        self._names: dict[str, list[int]] = {}

    @property
    def pool_id(self) -> str | None:
        return self._pool.pool_id if self._pool is not None else None

    def get_for(self, test: pytest.Item) -> Pool:
        """The pool, for any test: each bad cell is checked by itself."""
        del test
        return self.get()

    def get(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(
                # Each of many ranks would load it; a test of `tests/pool` shows that they do.
                PoolOptions.checked(self.n, env={"NBDDP_PRELOAD": "torch._dynamo"}),
                Settings(quiet_after_s=0.1),  # all of them wait for it
                lambda pool, run: RecordingView(),
                source_check.check_source,
            )
            self._prepare(self._pool)
        return self._pool

    def _prepare(self, pool: Pool) -> None:
        run_cell(pool, _PREPARE, timeout=_LIMIT_S)
        self._names = {}
        for found in pool.pull("group_names"):
            self._names.update(found)

    def check_health(self, *, may_replace_group: bool = False) -> None:
        """All groups work, DDP works, variables are there; fails, and drops the pool, if not."""
        del may_replace_group
        pool = self.get()
        try:
            assert not pool.is_stopped, "the pool was stopped"
            assert not pool.is_running, "a cell is running"
            states = {info.rank: info.state.name for info in pool.ranks()}
            assert set(states.values()) == {RankState.IDLE.name}, f"ranks: {states}"
            run_cell(pool, _GROUPS.format(names=self._names), timeout=_LIMIT_S)
            fresh = [rank for rank in range(self.n) if not self._has_kept(pool, rank)]
            if fresh:
                self._check_fresh(pool, fresh)
            run_cell(pool, _STEP, timeout=_LIMIT_S)
        except BaseException:
            self.failures += 1
            self.drop()
            raise

    def _has_kept(self, pool: Pool, rank: int) -> bool:
        return bool(pool.pull("'kept' in globals()", ranks=rank))

    def _check_fresh(self, pool: Pool, fresh: list[int]) -> None:
        """Survivors must have kept their variables; fresh ranks get them."""
        for rank in set(range(self.n)) - set(fresh):
            assert pool.pull("kept['rank']", ranks=rank) == rank
        self._prepare(pool)

    def renew(self) -> None:
        """Drop it: its variables are those of the first start."""
        self.drop()

    def drop(self) -> None:
        """Stop it; the next test gets another. Nothing of it may be left."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            poll_until(lambda: not leaks.processes_of_pool(pool.pool_id))


class LastingPools:
    """One of each size."""

    def __init__(self) -> None:
        self._by_size: dict[int, LastingPool] = {}

    def of(self, n: int) -> LastingPool:
        if n not in self._by_size:
            self._by_size[n] = LastingPool(n)
        return self._by_size[n]

    def drop(self) -> None:
        for lasting in self._by_size.values():
            lasting.drop()


def make_lasting_pools(own_temporary_folder: Path) -> Iterator[LastingPools]:
    """A fixture for one file of tests: ``lasting_pools``."""
    pools = LastingPools()
    yield pools
    pools.drop()


def choose_lasting_pool(request: pytest.FixtureRequest, lasting_pools: LastingPools) -> LastingPool:
    """A fixture in the place of `conftest.shared_pool`: as many ranks as the parameter says."""
    return lasting_pools.of(getattr(request, "param", 2))
