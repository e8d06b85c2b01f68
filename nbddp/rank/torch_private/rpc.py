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
    """Call ``connect(store, number of workers, call)`` when ``init_rpc`` has its store.

    ``call`` makes torch connect the workers, in C++, where it waits for all of them; the number is
    0 if workers may join and leave. torch counts the ``init_rpc`` of a process, and finds the other
    workers by this count: a worker whose ``init_rpc`` has failed, or a fresh process, would look
    for other keys than the others. nbddp's rendezvous has its own keys for each cell, so the count
    is left out.
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
            # Also if workers may join and leave: torch refuses to mix the two kinds in one store.
            store = PrefixStore("rpc", store.underlying_store)
            if world_size:
                _forget_rounds()
        call = partial(original, backend, store, name, rank, world_size, *more, **names)
        return connect(store, world_size or 0, call)

    rpc._init_rpc_backend = init_rpc_backend


def _forget_rounds() -> None:
    """Forget the rounds in which workers meet: a shutdown that failed leaves one open."""
    api: Any = sys.modules["torch.distributed.rpc.api"]
    for name in ("_all_gather_sequence_id", "_all_gather_sequence_id_to_states"):
        getattr(api, name, {}).clear()


def rpc_timeout() -> timedelta:
    """Return the timeout that torch uses if the user has given none."""
    constants = sys.modules.get("torch.distributed.rpc.constants")
    return timedelta(seconds=getattr(constants, "DEFAULT_RPC_TIMEOUT_SEC", 60.0))


def has_rpc() -> bool:
    """Return whether ``init_rpc`` was called, and ``shutdown`` not yet."""
    is_set = getattr(_rpc(), "_is_current_rpc_agent_set", None)
    return bool(is_set and is_set())


def shut_rpc_down() -> None:
    """End RPC on this rank without waiting for other ranks; open calls fail."""
    _rpc().shutdown(graceful=False)
