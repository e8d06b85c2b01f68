"""The conditions that a pool must meet after each fault: usable, and nothing lost or left."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import NbddpError
from tests.support import leaks
from tests.support.views import run_cell

#: Ranks that were freed or were in C code leave their cell in this time.
_BACK_S = 12.0
_LIMIT_S = 60.0
#: Over what there was at the beginning, in one process.
_MORE_FDS = 200
_MORE_BYTES = 400e6

#: The variables and groups of a pool; made again on all ranks when some are fresh.
PREPARE = """
import os, threading, time
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
for _name in {old!r}:
    try: dist.destroy_process_group(dist.distributed_c10d._resolve_process_group(_name))
    except (RuntimeError, ValueError): pass
kept = {{"rank": rank, "data": torch.arange(1000.0) + rank}}
everyone = dist.new_group()
low = dist.new_group([0, 1])
high = dist.new_group([world_size - 2, world_size - 1])
torch.manual_seed(0)
model = DDP(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):  # a DDP that is freed in its first step fails once more (README, limits)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.zero_grad()
group_names = {{
    group.group_name: dist.get_process_group_ranks(group)
    for group in (everyone, low, high)
    if group is not dist.GroupMember.NON_GROUP_MEMBER
}}
"""

_VALUES = """
assert kept["rank"] == rank and kept["data"].equal(torch.arange(1000.0) + rank), kept
"""

_SUM = """
print({token!r}, rank)
_t = torch.full((100_000,), float(rank))
dist.all_reduce(_t)
assert _t.eq(sum(range(world_size))).all(), _t.unique()
"""

_GROUPS = """
print({token!r}, rank)
for _name, _ranks in {names!r}.items():
    if rank in _ranks:
        _group = dist.distributed_c10d._resolve_process_group(_name)
        _t = torch.full((1000,), float(rank))
        dist.all_reduce(_t, group=_group)
        assert _t.eq(sum(_ranks)).all(), (_name, _t.unique())
_group = dist.new_group()
_found = [None] * world_size
dist.all_gather_object(_found, rank, group=_group)
assert _found == list(range(world_size)), _found
dist.destroy_process_group(_group)
del _group, _t, _found
"""

_REPLICAS = """
print({token!r}, rank)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.full((1, 4), float(rank))).sum().backward()
    assert model.module.weight.grad.eq((world_size - 1) / 2).all(), model.module.weight.grad
    optimizer.step()
_mine = torch.cat([p.detach().flatten() for p in model.parameters()])
_all = [torch.empty_like(_mine) for _ in range(world_size)]
dist.all_gather(_all, _mine)
assert all(each.equal(_mine) for each in _all), _all
"""


class Checks:
    """The facts about a pool before a fault, which are compared afterwards."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._names: dict[str, list[int]] = {}
        self.prepare()
        self._processes = len(leaks.processes_of_pool(pool.pool_id))
        self._least = dict(self._usage())
        self.most: dict[str, tuple[int, float]] = {}
        self.pids = self._current_pids()

    def prepare(self) -> None:
        """Give all ranks what a pool holds."""
        run_cell(self._pool, PREPARE.format(old=list(self._names)), timeout=_LIMIT_S)
        self._names = {}
        for found in self._pool.pull("group_names"):
            self._names.update(found)

    def _current_pids(self) -> dict[int, int]:
        return {info.rank: info.pid for info in self._pool.ranks()}

    def after(self, step: int, hit: set[int], then: str, *, exits: bool, stays: bool) -> list[str]:
        """The broken conditions after a fault; empty if the pool is in order.

        Args:
            step: number of the fault.
            hit: ranks that were killed.
            then: a cell that must succeed on each rank that has lived on.
            exits: the cell itself may end ranks.
            stays: ranks may stay in their cell, and are restarted then.
        """
        wrong = self._come_back(stays=stays)
        token = f"token-{step}"
        # The first cell waits for fresh ranks.
        wrong += self._expect(_SUM.format(token=token), token)
        if wrong:
            return wrong
        fresh = {rank for rank, pid in self._current_pids().items() if self.pids[rank] != pid}
        known = {name: ranks for name, ranks in self._names.items() if set(ranks) - fresh}
        wrong += self._expect(_GROUPS.format(token=token, names=known), token)
        if not exits and fresh - hit and not stays:
            wrong.append(f"ranks {sorted(fresh - hit)} are fresh, and nothing has ended them")
        for code in (_VALUES, then):
            for rank in set(self.pids) - fresh if code else ():
                wrong += self._expect(code, "", ranks=str(rank))
        if fresh:
            self.prepare()
        wrong += self._expect(_REPLICAS.format(token=token), token)
        self.pids = self._current_pids()
        return wrong

    def _come_back(self, *, stays: bool) -> list[str]:
        until = time.monotonic() + _BACK_S
        while time.monotonic() < until:
            late = [i.rank for i in self._pool.ranks() if i.state is RankState.BUSY]
            if not late:
                return []
            time.sleep(0.02)
        if not stays:
            found = self._pool.stacks(late)
            told = [f"rank {rank}: {peek.stack}" for rank, peek in found.peeks.items()]
            return [f"ranks {late} are still in an old cell", *told]
        try:
            self._pool.restart(late)
        except NbddpError as error:
            return [f"restart -r {late}: {str(error).splitlines()[0]}"]
        return []

    def _expect(self, code: str, token: str, ranks: str | None = None) -> list[str]:
        began = time.monotonic()
        try:
            view = run_cell(self._pool, code, ranks=ranks, timeout=_LIMIT_S, check=False)
        except NbddpError as error:
            return [f"the next cell is refused: {str(error).splitlines()[0]}"]
        wrong = []
        if view.error is not None:
            lines = str(view.error).splitlines()
            wrong.append("the next cell fails: " + " | ".join([*lines[:4], "...", *lines[-8:]]))
        if time.monotonic() - began > _LIMIT_S / 2:
            wrong.append(f"the next cell took {time.monotonic() - began:.0f} s")
        if token and not wrong:
            expected = {rank: f"{token} {rank}\n" for rank in self.pids}
            if view.texts() != expected:
                told = {rank: text[:200] for rank, text in view.texts().items()}
                wrong.append(f"the next cell's output: {told}")
        return wrong

    # --- processes, descriptors, memory --------------------------------------------------------

    def resources(self, *, memory: bool) -> list[str]:
        """The limits that are exceeded."""
        wrong = []
        until = time.monotonic() + 5.0
        while len(found := leaks.processes_of_pool(self._pool.pool_id)) > self._processes:
            if time.monotonic() > until:
                wrong.append(f"{len(found)} processes, at first {self._processes}: {found}")
                break
            time.sleep(0.1)
        for name, (fds, size) in self._usage(memory=memory):
            first_fds, first_size = self._least.get(name, (fds, size))
            more = (fds - first_fds, size - first_size)
            self.most[name] = (
                max(self.most.get(name, more)[0], more[0]),
                max(self.most.get(name, more)[1], more[1]),
            )
            if more[0] > _MORE_FDS:
                wrong.append(f"{name} has {more[0]} more descriptors")
            if memory and more[1] > _MORE_BYTES:
                wrong.append(f"{name} has {more[1] / 1e6:.0f} MB more")
        return wrong

    def _usage(self, *, memory: bool = True) -> Iterator[tuple[str, tuple[int, float]]]:
        me = psutil.Process()
        names = {me.pid: "notebook"}
        names |= {child.pid: "agent" for child in me.children() if _is_agent(child)}
        names |= {pid: f"rank {rank}" for rank, pid in self._current_pids().items()}
        for pid, name in names.items():
            try:
                fds = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                size = float(psutil.Process(pid).memory_full_info().uss) if memory else 0.0
            except (OSError, psutil.Error):
                continue
            yield name, (fds, size)

    def summary(self) -> Mapping[str, tuple[int, float]]:
        """The most descriptors and bytes of each process above those at the start."""
        return self.most


def _is_agent(process: psutil.Process) -> bool:
    try:
        return "nbddp.agent" in process.cmdline()
    except psutil.Error:
        return False
