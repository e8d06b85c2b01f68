"""Private names of ``torch.distributed.rpc``.

Runs in: the rank process. Checked with torch 2.13; where a name is missing, RPC is left as it is.
"""

import functools
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore


def _rpc() -> Any:
    return sys.modules.get("torch.distributed.rpc")


def hook_init_rpc(connect: Callable[[Any, int, Callable[[], Any]], Any]) -> None:
    """Let ``connect(store, number of workers, call)`` be called when ``init_rpc`` has its store.

    ``call`` has torch connect the workers, in C++, where it waits for all of them; the number is 0
    where they may come and go. It counts the ``init_rpc`` of a process, and finds the others under
    the count: one whose ``init_rpc`` has failed, or a fresh process, would look in another place
    than the others. A rendezvous of ours has a place of its own for each cell, so the count is
    left out.
    """
    rpc = _rpc()
    original = getattr(rpc, "_init_rpc_backend", None)
    if original is None:
        return

    @functools.wraps(original)
    def init_rpc_backend(
        backend: Any, store: Any, name: Any, rank: Any, world_size: Any, *more: Any, **names: Any
    ) -> Any:
        if isinstance(store, PrefixStore):
            # Also where workers come and go: torch refuses to mix the two kinds in one place.
            store = PrefixStore("rpc", store.underlying_store)
            if world_size:
                _forget_rounds()
        call = partial(original, backend, store, name, rank, world_size, *more, **names)
        return connect(store, world_size or 0, call)

    rpc._init_rpc_backend = init_rpc_backend


def _forget_rounds() -> None:
    """Workers meet in rounds that each counts; a shutdown that failed leaves one open."""
    api: Any = sys.modules["torch.distributed.rpc.api"]
    for name in ("_all_gather_sequence_id", "_all_gather_sequence_id_to_states"):
        getattr(api, name, {}).clear()


def rpc_timeout() -> timedelta:
    """What torch takes where the user has not asked for a time-out."""
    constants = sys.modules.get("torch.distributed.rpc.constants")
    return timedelta(seconds=getattr(constants, "DEFAULT_RPC_TIMEOUT_SEC", 60.0))


def has_rpc() -> bool:
    """Whether ``init_rpc`` was called, and ``shutdown`` not yet."""
    is_set = getattr(_rpc(), "_is_current_rpc_agent_set", None)
    return bool(is_set and is_set())


def shut_rpc_down() -> None:
    """End RPC on this rank without waiting for others; calls under way fail."""
    _rpc().shutdown(graceful=False)
