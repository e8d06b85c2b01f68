"""Private names of ``torch.distributed.rendezvous``, and the stores that come from it.

Runs in: the rank process.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from nbddp.rank.resolver import impatient_resolver

_AGENT_STORE_ENV = "TORCHELASTIC_USE_AGENT_STORE"


def separate_rendezvous(next_prefix: Callable[[], str]) -> bool:
    """Give each ``init_process_group`` keys of its own in the store.

    The store outlives process groups here. With stock handlers a second ``init_process_group``
    would read the addresses that the first one left and hang. Each URL handler of
    ``torch.distributed.rendezvous`` is wrapped so that its store has a prefix; all ranks must get
    the same one from ``next_prefix`` for the same call.

    ``tcp://`` and ``env://`` towards another address than the pool's own store are served by
    rank 0, as without torchrun.

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
            handlers[scheme] = _with_prefix(handlers[scheme], next_prefix)
    return True


def _with_prefix(handler: Callable[..., Any], next_prefix: Callable[[], str]) -> Callable[..., Any]:
    home = (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])

    def prefixed(url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[Store, int, int]]:
        prefix = next_prefix()
        found = handler(url, *args, **kwargs)
        with _store_of_rank_0(unless=_target(url) == home), impatient_resolver():
            store, rank, world_size = next(found)
        own = PrefixStore(prefix, store)
        if _target(url) == home:
            _prefix_by_store[id(own)] = (own, prefix)
        yield own, rank, world_size
        yield from found

    return prefixed


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


#: Stores that lead to the pool's own, by id; kept alive so that no other object gets the id.
_prefix_by_store: dict[int, tuple[Store, str]] = {}


def pool_prefix(store: Any) -> str | None:
    """The keys' prefix if the store leads to the pool's own; None for a store of the user's."""
    found = _prefix_by_store.get(id(store))
    return None if found is None else found[1]


def mark_pool_store(store: Store, prefix: str) -> None:
    """This store, made by torch or us, leads to the pool's own."""
    _prefix_by_store[id(store)] = (store, prefix)


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
