"""A pool that lives without a notebook, and the search for it.

Runs in: the notebook's process.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.ended_jobs import note_ended_jobs
from nbddp.errors import BadOptionError, PoolAttachError
from nbddp.system import kept_pools, pool_folder
from nbddp.system.kept_pools import KnownPool, PoolRecord

#: A time of more minutes is told in hours.
_HOURS_FROM = 120.0
#: More hosts of a pool are not named.
_HOSTS = 4


@dataclass(frozen=True)
class KeptPool:
    """A pool that lives without a notebook, and that this process may take back."""

    folder: Path
    record: PoolRecord
    until: float | None = None  #: it waits until then, in seconds since 1970; None: not known

    @property
    def options(self) -> PoolOptions:
        """The options with which it was started, and for how long it is kept now.

        Raises:
            PoolAttachError: another version of nbddp has started it.
        """
        try:
            options = msgspec.convert(self.record.options, PoolOptions)
        except msgspec.ValidationError as error:
            raise PoolAttachError(
                f"pool {self.record.pool_id} was started by another version of nbddp ({error}). "
                "Next: attach with that one, or let the pool end when its time is over"
            ) from None
        return replace(options, keep=self.record.keep_s)


@contextmanager
def find_kept(name: str | None) -> Iterator[KeptPool]:
    """Find a pool without a notebook, and let no other process take it meanwhile.

    Args:
        name: of the pool, or its beginning; None: the only one.

    Raises:
        BadOptionError: no such pool is without a notebook; the message names those that are.
        PoolAttachError: another process takes it at this moment.
    """
    note_ended_jobs()
    pool = _choose(kept_pools.known_pools(), name)
    with kept_pools.attaching(pool.folder) as is_ours:
        record = kept_pools.read(pool.folder) if is_ours else None
        is_free = record is not None and (record.notebook is None or not record.notebook.is_alive)
        if record is None or not is_free or not record.token:
            raise PoolAttachError(
                f"pool {pool.pool_id} is being taken back by another process. "
                "Next: %ddp pools says which"
            )
        yield KeptPool(pool.folder, record, pool.until)


def _choose(pools: Sequence[KnownPool], name: str | None) -> KnownPool:
    free = [pool for pool in kept_pools.detached_pools(pools) if not pool.is_over]
    where = pool_folder.where()
    if name is None:
        if len(free) == 1:
            return free[0]
        if not free:
            raise BadOptionError(f"no pool of yours is detached {where}{_others(pools)}")
        lines = "\n".join(_line(pool, kept_pools.now()) for pool in free)
        raise BadOptionError(f"%ddp attach needs the name of a pool; legal:\n{lines}")
    named = [pool for pool in pools if pool.pool_id.startswith(name)] if name else []
    if len(named) > 1:
        raise BadOptionError(f"several pools begin with {name!r}: {_names(named)}")
    if not named:
        legal = f"; legal: {_names(free)}" if free else _others(pools)
        raise BadOptionError(f"there is no pool {name!r} of yours {where}{legal}")
    pool = named[0]
    if pool.state == "attached":
        raise BadOptionError(
            f"pool {pool.pool_id} is attached to process {pool.pid}. Next: %ddp detach there, or "
            "end that kernel"
        )
    if pool.state == "elsewhere":
        raise BadOptionError(
            f"the agents of pool {pool.pool_id} connect to {pool.notebook_host}. Next: %ddp attach "
            f"{pool.pool_id} there"
        )
    if pool.state == "ended":
        raise BadOptionError(f"pool {pool.pool_id} has ended: {pool.reason}. Next: %ddp start")
    return pool


def _line(pool: KnownPool, now: float) -> str:
    """``b3ed9eaa  -n 2 --launcher ssh --hosts n1,n2, without a kernel for 8 min, on n1, n2``."""
    minutes = max(0.0, now - pool.since) / 60
    age = f"{minutes:.0f} min" if minutes < _HOURS_FROM else f"{minutes / 60:.0f} h"
    hosts = f", on {', '.join(pool.hosts[:_HOSTS])}" if pool.hosts else ""
    more = f" and {len(pool.hosts) - _HOSTS} more" if len(pool.hosts) > _HOSTS else ""
    return f"  {pool.pool_id}  {pool.described}, without a kernel for {age}{hosts}{more}"


def _names(pools: Sequence[KnownPool]) -> str:
    return ", ".join(pool.pool_id for pool in pools)


def _others(pools: Sequence[KnownPool]) -> str:
    """Name the pools that cannot be taken back here, and say what to do instead."""
    attached = [pool for pool in pools if pool.state == "attached"]
    if attached:
        are = "is" if len(attached) == 1 else "are"
        return f", and {_names(attached)} {are} attached. Next: %ddp pools says where"
    if not pools:
        return ". Next: %ddp start"
    ends = {
        "ended": "has ended",
        "elsewhere": "connects elsewhere",
        "detached": "has no time left",  # its agents may live for a while: by name it is tried
    }
    states = ", ".join(f"{pool.pool_id} {ends.get(pool.state, pool.state)}" for pool in pools)
    return f", and {states}. Next: %ddp pools says why; %ddp start makes another"
