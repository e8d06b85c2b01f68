"""Private names of ``torch.distributed.rendezvous``, and the stores that it makes.

Runs in: the rank process.
"""

import ctypes
import os
import socket
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from nbddp.rank.torch_private.hooks import original_store_wait
from nbddp.wire.flight_recorder import CONNECTION, RENDEZVOUS

_AGENT_STORE_ENV = "TORCHELASTIC_USE_AGENT_STORE"
_CONNECT_S = 0.5
_STORE_TIMEOUT = timedelta(seconds=300)  # torch's own
#: ``wait(original, store, keys, timeout, op)``, as in `hook_store_waits`, with its name.
_Wait: TypeAlias = Callable[[Callable[..., Any], Any, list[str], Any, str], Any]


def separate_rendezvous(next_prefix: Callable[[], str], wait: _Wait | None = None) -> bool:
    """Give each ``init_process_group`` keys of its own in the store.

    The store outlives process groups here. With stock handlers a second ``init_process_group``
    would read the addresses that the first one left, and hang. Each URL handler of
    ``torch.distributed.rendezvous`` is wrapped so that its store has a prefix; all ranks must get
    the same prefix from ``next_prefix`` for the same call.

    Rank 0 serves ``tcp://`` and ``env://`` for another address than that of the pool's own store,
    as without torchrun. torch would wait in C++ for rank 0 and for all other ranks, which cannot be
    aborted; with ``wait`` the wait is done in Python, where it is recorded and can be aborted.

    Returns:
        False if this version of torch keeps its handlers elsewhere: then a process group can be
        initialised only once per pool through a URL.
    """
    handlers = getattr(
        sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", None
    )
    if not isinstance(handlers, dict):
        return False
    for scheme in ("env", "tcp", "file"):
        if scheme in handlers:
            handlers[scheme] = _with_prefix(handlers[scheme], next_prefix, wait)
    return True


def _with_prefix(
    handler: Callable[..., Any], next_prefix: Callable[[], str], wait: _Wait | None
) -> Callable[..., Any]:
    pool_address = (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])

    def prefixed(url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[Store, int, int]]:
        prefix = next_prefix()
        rendezvous = handler(url, *args, **kwargs)
        is_pool_store = _target(url) == pool_address
        stores = nullcontext() if is_pool_store or wait is None else _waited_stores(wait, prefix)
        with _store_of_rank_0(unless=is_pool_store), short_lookups(), stores:
            store, rank, world_size = next(rendezvous)
        prefixed_store = PrefixStore(prefix, store)
        if _target(url) == pool_address:
            share_store(prefixed_store, prefix)
            _pending_stores.append(prefixed_store)
        yield prefixed_store, rank, world_size
        yield from rendezvous

    return prefixed


class _Listener:
    """An address that is checked for a listener, with the interface of a store that has keys."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def check(self, keys: list[str]) -> bool:
        """Return whether a process listens at the address."""
        try:
            socket.create_connection(self._address, timeout=_CONNECT_S).close()
        except OSError:
            return False
        return True

    def refuse(self, *_: Any) -> None:
        """Raise the error of a timeout."""
        host, port = self._address
        raise dist.DistNetworkError(f"no process listens at {host}:{port} after 1ms")


def hook_store_connections(
    wait: _Wait, connect: Callable[[Callable[[], None], list[str], timedelta], None]
) -> None:
    """Wait in Python for the process that serves a ``TCPStore`` of the user, and for its clients.

    torch would wait for them in C++, for five minutes, and no interrupt would end that.

    Args:
        wait: waits for the process that serves it.
        connect: calls a function that waits in C++ for all clients; its second argument names the
            store, and says how many there have to be.
    """
    store_type: Any = getattr(dist, "TCPStore", None)
    stock = getattr(store_type, "__init__", None)
    if stock is None:
        return
    pool_address = (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])

    def make(  # noqa: PLR0917 - the signature is torch's
        store: Any, host_name: str, port: int, world_size: int | None = None,
        is_master: bool = False, timeout: timedelta = _STORE_TIMEOUT,
        wait_for_workers: bool = True, *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        begin = partial(
            stock, store, host_name, port, world_size, is_master, timeout, wait_for_workers,
            *args, **kwargs,
        )  # fmt: skip
        is_address = isinstance(host_name, str) and isinstance(port, int)  # else torch will raise
        if not is_address or (host_name, str(port)) == pool_address:
            begin()
            return
        address = f"tcp://{host_name}:{port}"
        if not is_master:
            wait(_Listener.refuse, _Listener(host_name, port), [address], timeout, CONNECTION)
        if is_master and wait_for_workers and world_size is not None and world_size > 1:
            connect(begin, [address, str(world_size)], timeout)
        else:
            begin()

    store_type.__init__ = make


@contextmanager
def _waited_stores(wait: _Wait, prefix: str) -> Iterator[None]:
    """Wait in Python for stores that a rendezvous makes, and for all ranks, within this block."""
    module: Any = sys.modules["torch.distributed.rendezvous"]
    stock = getattr(module, "TCPStore", None)
    if stock is None:
        yield
        return

    def make(*args: Any, **kwargs: Any) -> Store:
        if args or not {"host_name", "port", "timeout"} <= set(kwargs):
            return stock(*args, **kwargs)  # type: ignore[no-any-return]  # another version of torch
        address = f"tcp://{kwargs['host_name']}:{kwargs['port']}"
        if not kwargs.get("is_master"):
            listener = _Listener(kwargs["host_name"], kwargs["port"])
            keys = [f"rank 0 at {address}"]
            wait(_Listener.refuse, listener, keys, kwargs["timeout"], RENDEZVOUS)
        store: Store = stock(**{**kwargs, "wait_for_workers": False})
        world_size = kwargs.get("world_size") or 0
        if world_size > 0:
            prefixed_store = PrefixStore(f"{prefix}/here", store)
            all_ranks = f"all {world_size} ranks at {address}"
            if prefixed_store.add("count", 1) == world_size:
                prefixed_store.set(all_ranks, "1")
            timeout = kwargs["timeout"]
            wait(original_store_wait, prefixed_store, [all_ranks], timeout, RENDEZVOUS)
        return store

    module.TCPStore = make
    try:
        yield
    finally:
        module.TCPStore = stock


def _target(url: str) -> tuple[str, str]:
    """Return the host and port of a rendezvous URL."""
    parts = urlsplit(url)
    if parts.scheme == "tcp":
        return parts.hostname or "", str(parts.port)
    return os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")


@contextmanager
def _store_of_rank_0(*, unless: bool) -> Iterator[None]:
    """Let rank 0 host the store: no other process serves another address than the pool's own."""
    before = os.environ.get(_AGENT_STORE_ENV)
    if not unless and before is not None:
        del os.environ[_AGENT_STORE_ENV]
    try:
        yield
    finally:
        if before is not None:
            os.environ[_AGENT_STORE_ENV] = before


#: Stores that only ranks of this pool use, each with a name that is equal on all ranks.
_names: "weakref.WeakKeyDictionary[Store, str]" = weakref.WeakKeyDictionary()
#: Stores between a rendezvous and the creation of its group: torch holds them in C++ only, and the
#: Python object would be deleted.
_pending_stores: deque[Store] = deque(maxlen=4)


def shared_prefix(store: Any) -> str | None:
    """Return the name of a store that only ranks of this pool use; None: it is another store.

    ``init_process_group`` wraps its store into ``PrefixStore("default_pg", store)``.
    """
    try:
        return _names.get(store) or _names.get(getattr(store, "underlying_store", store))
    except TypeError:
        return None  # an object of the user without weak references


def share_store(store: Store, name: str) -> None:
    """Name a store that only ranks of this pool use."""
    _names[store] = name


def new_store_client(host: str, port: int, timeout_s: float) -> Store:
    """Make a connection of our own to the pool's store."""
    with short_lookups():
        store: Store = dist.TCPStore(  # type: ignore[attr-defined]  # missing in torch's own types
            host,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
        )
    return store


# --- addresses -----------------------------------------------------------------------------------


_ENV = "RES_OPTIONS"  # see resolv.conf(5)


@contextmanager
def short_lookups() -> Iterator[None]:
    """Let address look-ups of the calling thread time out after a second within this block.

    A setting of the user stays. Without glibc nothing changes.
    """
    reinit = getattr(ctypes.CDLL(None), "__res_init", None)
    if reinit is None or _ENV in os.environ:
        yield
        return
    os.environ[_ENV] = "timeout:1 attempts:1"
    reinit()
    try:
        yield
    finally:
        del os.environ[_ENV]
        reinit()
