"""Notes device meshes, and clears DTensor's caches of those whose groups are gone.

Runs in: the rank process. Private names of torch 2.13; where one is missing, its cache stays.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

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


def hook_meshes(note: Callable[[DeviceMesh], None]) -> None:
    """Call ``note`` with each new mesh: also a slice or a flattened one is made by its class."""
    original = DeviceMesh.__init__

    @functools.wraps(original)
    def init(self: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        note(self)

    DeviceMesh.__init__ = init  # type: ignore[method-assign]


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
