"""Rebuilds groups in place, after some of their operations were aborted.

Runs in: the rank process, main thread, between cells. All ranks do the same in the same order, with
a store prefix that was never used before, so that they find each other.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore

from nbddp.errors import CollectiveAbortedError
from nbddp.rank import torch_private
from nbddp.rank.collectives.gloo import sockets, waits
from nbddp.rank.collectives.group import TracedGroup
from nbddp.rank.collectives.group_creation import GroupFactory, connects_at_once
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.wire.flight_recorder import GroupInfo
from nbddp.wire.messages import RebuildGroups

#: Timeout of each step, so that a peer that died meanwhile does not block the others for long.
_TIMEOUT_S = 15.0


class GroupRebuild:
    """Answers `RebuildGroups` requests of one rank."""

    def __init__(self, factory: GroupFactory, recorder: Recorder, prefix: str) -> None:
        self._factory = factory
        self._recorder = recorder
        self._prefix = prefix
        self._client: Any = None
        #: Number of the rebuild in which this process replaced another one; 0: it did not.
        self.fresh_since = 0

    def rebuild(self, request: RebuildGroups, initialise: Callable[[], None]) -> None:
        """Rebuild the groups of the request, and check that they work.

        Args:
            request: has the groups.
            initialise: makes the default group as at the start of the pool.

        Raises:
            CollectiveAbortedError: this attempt was aborted, perhaps before it began.
            RuntimeError: a peer is missing, or a group does not work.
        """
        self._factory.store_wait.begin_attempt(request.number)
        if request.initialises:
            self._initialise(initialise)
            self.fresh_since = request.number
            return
        try:
            self._rebuild_groups(request, self._store(request.number))
        except BaseException:
            self._client = None  # the abort may have closed its connection
            raise

    def _initialise(self, initialise: Callable[[], None]) -> None:
        """Initialise the default group of fresh ranks, without the groups of earlier attempts."""
        for group in list(self._factory.groups.values()):
            sockets.shut(group.fds)
        if dist.is_initialized():
            dist.destroy_process_group()
        torch_private.forget_failed_groups()
        initialise()
        world = torch_private.default_group()
        if isinstance(world, TracedGroup):
            _check(world)

    def _rebuild_groups(self, request: RebuildGroups, store: Any) -> None:
        """Rebuild the groups, then reset the modules that are not whole on all of their ranks.

        The order is essential: each rank counts in the store what is whole, then rebuilds groups,
        and reads the counts only then. A rank that has rebuilt a group with others knows that
        these have counted. Groups are rebuilt in the order of the request, equal on all ranks.
        """
        rank = self._recorder.rank
        rebuilt = {info.pg_id for info in request.groups}
        whole = _report_whole_modules(rebuilt, store)
        units = [(unit, _report_whole_unit(unit, store)) for unit in torch_private.units()]
        for info in request.groups:
            if rank in info.ranks:
                self._rebuild_group(info, store, request.number)
        torch_private.set_group_count(request.group_count)
        torch_private.forget_failed_groups()  # a rank without a default group begins with the first
        if rank in request.fresh:
            self.fresh_since = request.number
        spared = [module for module, key, size in whole if not key or store.add(key, 0) == size]
        torn_units = [unit for unit, key in units if not _can_stay(unit, key, rebuilt, store)]
        torch_private.reset_modules(request.number, spared, torn_units)
        for info in request.groups:
            if rank in info.ranks:
                group = self._factory.groups[info.pg_id]
                _check(group)
                if connects_at_once(group.creation):
                    sockets.refuse_new(group.fds)

    def _store(self, number: int) -> Any:
        if self._client is None:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            self._client = torch_private.new_store_client(
                host, port, default_pg_timeout.total_seconds()
            )
        return PrefixStore(f"{self._prefix}/rebuild/{number}", self._client)

    def _rebuild_group(self, info: GroupInfo, store: Any, number: int) -> None:
        name = f"{info.name}~{number}"
        group = self._factory.groups.get(info.pg_id)
        if group is not None and group.counters.ended is None:
            group.counters.ended = _rebuilt_before_end  # set before any rank shuts a socket
        arrived = f"arrived/{info.pg_id}"
        timeout = timedelta(seconds=_TIMEOUT_S)
        self._factory.store_wait.gather(store, arrived, len(info.ranks), timeout)
        if group is None:
            group = self._make_group(info, store, number)
        else:
            sockets.shut(group.fds)  # the destructor waits for open operations
            inner, group.fds = self._factory.make_inner(self._arguments(group, info), name, store)
            held = [group.inner]  # soon the only reference: `release` chooses who destroys it
            group.replace(inner)
            waits.release(held, group.counters, lambda: self._recorder.is_busy(info.pg_id))
        self._recorder.abandon(info.pg_id)
        group.counters.restart(number, info.collective_seq_id, info.p2p_seq_id)
        self._recorder.board.forget(info.pg_id)
        group_store = PrefixStore(f"{name}/", store)
        torch_private.share_store(group_store, f"{self._prefix}/rebuild/{number}/{name}")
        torch_private.set_registered_store(group, group_store)

    def _arguments(self, group: TracedGroup, info: GroupInfo) -> dict[str, Any]:
        arguments = dict(group.creation)
        if "group_rank" in arguments:
            return arguments
        return self._fresh_arguments(info)  # split_group made it, which cannot be repeated

    def _fresh_arguments(self, info: GroupInfo) -> dict[str, Any]:
        rank = self._recorder.rank
        # Without a default group, torch's helper does not ask for its rank in that group.
        is_default = info.is_default or torch_private.default_group() is None
        milliseconds = info.timeout_ms or _TIMEOUT_S * 1000
        return {
            "group_size": len(info.ranks),
            "group_rank": info.ranks.index(rank),
            "global_ranks_in_group": [] if is_default else _torch_ranks(info),
            "backend": dist.Backend(info.backend),
            "store": None,
            "group_name": info.name,
            "timeout": timedelta(milliseconds=milliseconds),
            "group_desc": info.desc,
        }

    def _make_group(self, info: GroupInfo, store: Any, number: int) -> TracedGroup:
        """Make a group on a fresh rank, which the other members have already."""
        arguments = self._fresh_arguments(info)
        inner, fds = self._factory.make_inner(arguments, f"{info.name}~{number}", store)
        group = self._factory.wrap(inner, GroupCounters(info), arguments)
        group.fds = fds
        torch_private.register_group(group, info.backend, store, info.name, _torch_ranks(info))
        if info.is_default:
            torch_private.set_default_group(group)
        return group


def _torch_ranks(info: GroupInfo) -> list[int]:
    """Return the members by their ranks in the default group, as torch numbers them."""
    world = torch_private.default_group()
    if info.is_default or not isinstance(world, TracedGroup):
        return list(range(len(info.ranks)))
    return [world.counters.ranks.index(rank) for rank in info.ranks]


def _report_whole_modules(rebuilt: set[str], store: Any) -> list[tuple[Any, str, int]]:
    """Add the DDP modules that are whole on this rank to counters in the store.

    Returns:
        ``(module, key of its counter, size of its group)``; the key is empty if its group is not
        rebuilt.
    """
    counted = []
    for module, state in torch_private.whole_modules():
        group, key = module.process_group, ""
        if isinstance(group, TracedGroup) and group.counters.info.pg_id in rebuilt:
            key = f"whole/{group.counters.info.pg_id}/{state}"
            store.add(key, 1)
        counted.append((module, key, group.size()))
    return counted


def _report_whole_unit(unit: torch_private.Unit, store: Any) -> str:
    """Add a unit to counters in the store; return the key of the one for whole units, or ""."""
    store.add(f"sharded/{unit.key}", 1)
    if unit.is_torn():
        return ""
    key = f"sharded/{unit.key}/{unit.fingerprint()}"
    store.add(key, 1)
    return key


def _can_stay(unit: torch_private.Unit, key: str, rebuilt: set[str], store: Any) -> bool:
    """Return whether all ranks agree that a step, or its gradients, may go on in the next cell.

    If any rank has left it in the middle, the default group is among the groups to rebuild.
    """
    world = torch_private.default_group()
    if not key or not isinstance(world, TracedGroup) or world.counters.info.pg_id not in rebuilt:
        return bool(key)
    count = store.add(key, 0)
    return bool(count >= unit.size() and count == store.add(f"sharded/{unit.key}", 0))


def _rebuilt_before_end() -> BaseException:
    return CollectiveAbortedError("its group was formed again before it had ended")


def _check(group: TracedGroup) -> None:
    """Try a group with an all_reduce, which is not recorded because it is not the user's."""
    # The user's default dtype is that of this process, and a fresh one has torch's.
    device = torch_private.supported_device(group.inner)
    ones = torch.ones(1, dtype=torch.float32, device=device)
    options = dist.AllreduceOptions()
    work = group.inner.allreduce([ones], options)
    if work is not None:
        work.wait(timedelta(seconds=_TIMEOUT_S))
    if int(ones.item()) != group.size():
        raise RuntimeError(
            f"group {group.group_name} does not work: a sum of {group.size()} ones is {ones.item()}"
        )
