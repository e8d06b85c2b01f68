"""Finds the values that no rank makes alone: DDP models, groups, sharded tensors, their optimizers.

Runs in: the rank process, main thread, between cells. The constructor of a DistributedDataParallel
module waits for the other ranks. An optimizer of its parameters does not wait; yet every rank needs
a new one, since the parameters are new.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nbddp.rank.cells import CODE_TYPES
from nbddp.rank.collectives import state_sync


def joint_names(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Find the values that a rank cannot make if others have them, or what they are made from.

    Args:
        values: the user's variables.

    Returns:
        Each name with those of the values that only all ranks together can make: its own name, or,
        for an optimizer, its scheduler or a module inside, that of the module with its parameters.
    """
    parts_by_name = {}
    for name, value in values.items():
        with suppress(Exception, SystemExit):  # of the user's class
            if _waits(value):
                parts_by_name[name] = _ids(value)
    roots_by_name = {}
    for name, value in values.items():
        own, ids = (name,) if name in parts_by_name else (), set[int]()
        with suppress(Exception, SystemExit):
            ids = _ids(value) if parts_by_name and not own else ids
        roots = own or tuple(root for root, parts in parts_by_name.items() if ids & parts)
        if roots:
            roots_by_name[name] = roots
    return roots_by_name


def _waits(value: Any) -> bool:
    """Whether the code that makes a value calls collectives."""
    if isinstance(value, CODE_TYPES):
        return False
    if isinstance(value, torch.nn.Module):
        is_ddp = any(isinstance(part, DistributedDataParallel) for part in value.modules())
        return is_ddp or state_sync.is_sharded(value)
    return (
        isinstance(value, dist.ProcessGroup)
        or type(value).__name__ in ("DeviceMesh", "ZeroRedundancyOptimizer")
        or (isinstance(value, torch.Tensor) and hasattr(value, "device_mesh"))
    )


def _ids(value: Any) -> set[int]:
    """The ids of the parameters of a module, an optimizer, or the optimizer of a scheduler."""
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        value = value.optimizer
    if not isinstance(value, torch.nn.Module | torch.optim.Optimizer):
        return set()
    return set(map(id, state_sync.tensors_of(value)))
