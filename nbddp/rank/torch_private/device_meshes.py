"""What DTensor remembers of device meshes whose groups are gone.

Runs in: the rank process. Private names of torch 2.13; where one is missing, that memory is left.
"""

import sys
from collections.abc import Callable
from typing import Any

#: Module, and the path in it to what clears a memory.
_CLEARINGS = (
    (
        "torch.distributed.tensor._api",
        "DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear",
    ),
    ("torch._C", "_clear_DTensor_sharding_propagator_cache"),
    ("torch.distributed.tensor._redistribute", "clear_redistribute_planner_cache"),
    ("torch.distributed.tensor._redistribute", "_gen_transform_infos.cache_clear"),
)


def forget_meshes() -> None:
    """Have DTensor plan its operations anew.

    It remembers for each operation which mesh its result has. Two meshes of the same ranks and
    names are equal to it, so that the results of a program that is run again, with groups of its
    own, had the mesh of the first run: "Could not resolve the process group registered under the
    name 24". The programs of torchrun begin in a fresh process.
    """
    if "torch.distributed.tensor._api" not in sys.modules:
        return
    for module, path in _CLEARINGS:
        clear = _found(sys.modules.get(module), path)
        if clear is not None:
            clear()


def _found(module: Any, path: str) -> Callable[[], object] | None:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module if callable(module) else None
