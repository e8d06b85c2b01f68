"""Clears DTensor's caches of device meshes whose groups are gone.

Runs in: the rank process. Private names of torch 2.13; where one is missing, its cache stays.
"""

import sys
from collections.abc import Callable
from typing import Any

#: Module, and the path in it to the function that clears a cache.
_CACHE_CLEARS = (
    (
        "torch.distributed.tensor._api",
        "DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear",
    ),
    ("torch._C", "_clear_DTensor_sharding_propagator_cache"),
    ("torch.distributed.tensor._redistribute", "clear_redistribute_planner_cache"),
    ("torch.distributed.tensor._redistribute", "_gen_transform_infos.cache_clear"),
)


def forget_meshes() -> None:
    """Make DTensor plan its operations again.

    DTensor caches the mesh of each operation's result. Two meshes of the same ranks and names are
    equal for it, so that results of a program that is run again, with groups of its own, had the
    mesh of the first run: "Could not resolve the process group registered under the name 24". The
    programs of torchrun begin in a fresh process.
    """
    if "torch.distributed.tensor._api" not in sys.modules:
        return
    for module, path in _CACHE_CLEARS:
        clear = _resolve(sys.modules.get(module), path)
        if clear is not None:
            clear()


def _resolve(module: Any, path: str) -> Callable[[], object] | None:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module if callable(module) else None
