"""Private names of ``torch.distributed.rendezvous``, and the stores that come from it.

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
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from nbddp.rank.torch_private.hooks import original_store_wait
from nbddp.wire.flight_recorder.schema import RENDEZVOUS

_AGENT_STORE_ENV = "TORCHELASTIC_USE_AGENT_STORE"
_DOOR_S = 0.5
#: ``wait(original, store, keys, timeout, op)``, as `hook_store_waits` has it, with its name.
_Wait: TypeAlias = Callable[[Callable[..., Any], Any, list[str], Any, str], Any]


def separate_rendezvous(next_prefix: Callable[[], str], wait: _Wait | None = None) -> bool:
    """Give each ``init_process_group`` keys of its own in the store.

    The store outlives process groups here. With stock handlers a second ``init_process_group``
    would read the addresses that the first one left and hang. Each URL handler of
    ``torch.distributed.rendezvous`` is wrapped so that its store has a prefix; all ranks must get
    the same one from ``next_prefix`` for the same call.

    ``tcp://`` and ``env://`` towards another address than the pool's own store are served by
    rank 0, as without torchrun. There torch would wait in C++, where nobody can end it, for rank 0
    and for all the others; with ``wait`` that is done here, where it is seen and can be ended.

    Returns:
        False where this version of torch keeps its handlers elsewhere: then a process group can
        be initialised once per pool through a URL.
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
    home = (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])

    def prefixed(url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[Store, int, int]]:
        prefix = next_prefix()
        found = handler(url, *args, **kwargs)
        is_home = _target(url) == home
        patient = nullcontext() if is_home or wait is None else _patient_stores(wait, prefix)
        with _store_of_rank_0(unless=is_home), impatient_resolver(), patient:
            store, rank, world_size = next(found)
        own = PrefixStore(prefix, store)
        if _target(url) == home:
            share_store(own, prefix)
            _on_their_way.append(own)
        yield own, rank, world_size
        yield from found

    return prefixed


class _Door:
    """What can be asked whether somebody listens at an address, as a store is asked for a key."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def check(self, keys: list[str]) -> bool:
        """Whether somebody does."""
        try:
            socket.create_connection(self._address, timeout=_DOOR_S).close()
        except OSError:
            return False
        return True

    def refuse(self, *_: Any) -> None:
        """The time is over."""
        host, port = self._address
        raise RuntimeError(f"nobody listens at {host}:{port} after 1ms; rank 0 hosts the store")


@contextmanager
def _patient_stores(wait: _Wait, prefix: str) -> Iterator[None]:
    """Stores made by a rendezvous are waited for in Python, and so are all ranks."""
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
            door = _Door(kwargs["host_name"], kwargs["port"])
            wait(_Door.refuse, door, [f"rank 0 at {address}"], kwargs["timeout"], RENDEZVOUS)
        store: Store = stock(**{**kwargs, "wait_for_workers": False})
        world_size = kwargs.get("world_size") or 0
        if world_size > 0:
            own = PrefixStore(f"{prefix}/here", store)
            everybody = f"all {world_size} ranks at {address}"
            if own.add("count", 1) == world_size:
                own.set(everybody, "1")
            wait(original_store_wait, own, [everybody], kwargs["timeout"], RENDEZVOUS)
        return store

    module.TCPStore = make
    try:
        yield
    finally:
        module.TCPStore = stock


def _target(url: str) -> tuple[str, str]:
    """Host and port that a rendezvous URL leads to."""
    parts = urlsplit(url)
    if parts.scheme == "tcp":
        return parts.hostname or "", str(parts.port)
    return os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")


@contextmanager
def _store_of_rank_0(*, unless: bool) -> Iterator[None]:
    """Let rank 0 host the store: nobody else serves another address than the pool's own."""
    before = os.environ.get(_AGENT_STORE_ENV)
    if not unless and before is not None:
        del os.environ[_AGENT_STORE_ENV]
    try:
        yield
    finally:
        if before is not None:
            os.environ[_AGENT_STORE_ENV] = before


#: Stores in which only ranks of this pool meet, each with a name that is equal on all of them.
_names: "weakref.WeakKeyDictionary[Store, str]" = weakref.WeakKeyDictionary()
#: Stores on their way from a rendezvous to the group that is made of it: torch holds them in C++
#: only, and the object that Python knows would be gone.
_on_their_way: deque[Store] = deque(maxlen=4)


def shared_prefix(store: Any) -> str | None:
    """The name of a store in which only ranks of this pool meet; None: it is not known to be one.

    ``init_process_group`` puts ``PrefixStore("default_pg", store)`` around what it was given.
    """
    try:
        return _names.get(store) or _names.get(getattr(store, "underlying_store", store))
    except TypeError:
        return None  # an object of the user that cannot be referred to weakly


def share_store(store: Store, name: str) -> None:
    """Only ranks of this pool meet in this store, and know it by this name."""
    _names[store] = name


def new_store_client(host: str, port: int, timeout_s: float) -> Store:
    """A connection of our own to the pool's store."""
    with impatient_resolver():
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
def impatient_resolver() -> Iterator[None]:
    """Within this block, look-ups of the calling thread give up after a second.

    What the user has set is left alone. Without glibc nothing changes.
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
