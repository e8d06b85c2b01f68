"""``nbddp.sync``: give ranks the state of one rank, for example a rank that replaced another.

Runs in: the rank process, main thread, in a cell of the user.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from nbddp.errors import BadOptionError
from nbddp.rank import torch_private

#: Number of the rebuild in which this process replaced another; 0: it did not. Set by
#: `Collectives.rebuild`.
fresh_since = 0

_SHARDED = ("FullyShardedDataParallel", "ZeroRedundancyOptimizer")


def sync(*objects: Any, src: int | None = None, group: Any = None) -> None:
    """Give all ranks of a group the state that one of them has.

    Call it on every rank, in the same order, with the same objects::

        nbddp.sync(model, optimizer, src=0)

    Args:
        objects: tensors (any shape; equal shapes and dtypes on all ranks), or objects with
            ``state_dict()`` and ``load_state_dict()``: modules, optimizers, schedulers, scalers.
            DistributedDataParallel modules get the state of their modules, and new buckets of
            gradients: those of a module that has stepped differ from those of a new one.
        src: global rank that has the state; default: the lowest of the ranks that have lived
            longest.
        group: process group; default: all ranks.

    Raises:
        BadOptionError: an object has no state, an object is sharded (a DTensor: every rank has its
            own part of it), or there is no such rank.
    """
    if not objects:
        raise BadOptionError(
            "nbddp.sync needs at least one object. Next: nbddp.sync(model, optimizer, src=0)"
        )
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    if src is not None and src not in members:
        raise BadOptionError(f"nbddp.sync: src={src} is no member; legal: {members}")
    for number, item in enumerate(objects):
        _check(number, item)
    source = _source(members, group) if src is None else src
    for item in objects:
        if isinstance(item, torch.Tensor):
            _broadcast(item, source, group)
        else:
            _sync_state(item, source, group)


def give(item: Any, *, src: int, to: Sequence[int]) -> None:
    """Give some ranks the state of one; cells of `%ddp catchup` call it by name, on all ranks.

    The others take part in the operations, and keep their states. All of them get new buckets of
    gradients for a DistributedDataParallel module.

    Args:
        item: an object that `sync` takes; None on a rank that neither has it nor gets it.
        src: global rank that has the state.
        to: global ranks that get it.
    """
    takes = dist.get_rank() in to
    if takes or dist.get_rank() == src:
        _check(0, item)
    _sync_state(item, src, None, takes=takes)


def _source(members: list[int], group: Any) -> int:
    """Return the default source; ranks ask each other, because a fresh one lacks the history."""
    times: list[Any] = [None] * len(members)
    dist.all_gather_object(times, fresh_since, group=group)
    return min(zip(times, members, strict=True))[1]


def has_state(item: Any) -> bool:
    """Return whether `sync` takes an object: a module, an optimizer, and the like; not a tensor."""
    if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
        return False
    return not is_sharded(item)


def is_sharded(item: Any) -> bool:
    """Return whether each rank keeps a part of a module, of an optimizer, or of its tensors."""
    return _keeps_parts(item) or any(map(_has_mesh, tensors_of(item)))


def _check(number: int, item: Any) -> None:
    kind = "module of Python" if isinstance(item, ModuleType) else type(item).__name__
    name = f"argument {number + 1}, a {kind}"
    if isinstance(item, torch.Tensor):
        tensors = [item]
    elif hasattr(item, "state_dict") and hasattr(item, "load_state_dict"):
        tensors = tensors_of(item)
    else:
        raise BadOptionError(
            f"nbddp.sync: {name}, has no state; legal: tensors, and objects with state_dict() and "
            "load_state_dict(), such as an nn.Module and optimizers"
        )
    if any(map(_has_mesh, tensors)) or _keeps_parts(item):
        raise BadOptionError(
            f"nbddp.sync: {name}, is sharded: no rank has all of it. "
            "Next: load a checkpoint with torch.distributed.checkpoint"
        )


def _has_mesh(tensor: Any) -> bool:
    return hasattr(tensor, "device_mesh")


def tensors_of(item: Any) -> list[Any]:
    """Return the parameters of a module or of an optimizer."""
    if isinstance(item, torch.optim.Optimizer):
        return [tensor for group in item.param_groups for tensor in group["params"]]
    parameters = getattr(item, "parameters", None)
    return list(parameters()) if callable(parameters) else []


def _keeps_parts(item: Any) -> bool:
    """Return whether each rank keeps a part of it; checked by class name, without imports."""
    parts = item.modules() if isinstance(item, torch.nn.Module) else [item]
    return any(kind.__name__ in _SHARDED for part in parts for kind in type(part).__mro__)


def _sync_state(item: Any, source: int, group: Any, *, takes: bool = True) -> None:
    """Send the structure and small values as an object, and tensors as tensors."""
    is_ddp = isinstance(item, torch.nn.parallel.DistributedDataParallel)
    target = item.module if is_ddp else item
    is_source = dist.get_rank() == source
    state = target.state_dict() if is_source else None
    tensors: list[torch.Tensor] = []
    numbers = torch_private.numbers_of(item) if is_ddp else None
    message = [_split(state, tensors), numbers] if is_source else [None, None]
    dist.broadcast_object_list(message, source, group=group)
    skeleton, numbers = message
    if not is_source:
        _make(skeleton, tensors)
    for tensor in tensors:
        _broadcast(tensor, source, group)
    if takes and not is_source:
        target.load_state_dict(_join(skeleton, tensors))
    if is_ddp and numbers is not None:
        torch_private.renew(item, numbers)


def _broadcast(tensor: torch.Tensor, source: int, group: Any) -> None:
    """Broadcast contiguous bytes, because Gloo supports neither all dtypes nor strides."""
    target = tensor.detach()
    flat = target.contiguous().reshape(-1)
    dist.broadcast(flat.view(torch.uint8), source, group=group)
    if flat.data_ptr() != target.data_ptr():
        target.copy_(flat.view_as(target))


class _Place:
    """The placeholder of a tensor in a state."""

    def __init__(self, index: int, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        self.index, self.shape, self.dtype, self.device = index, shape, dtype, device


def _split(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().contiguous())
        return _Place(len(tensors) - 1, tuple(value.shape), value.dtype, value.device.type)
    if isinstance(value, dict):
        return {key: _split(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_split(item, tensors) for item in value]
    return value


def _make(value: Any, tensors: list[torch.Tensor]) -> None:
    """Allocate the tensors, in the order of their numbers."""
    if isinstance(value, _Place):
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=value.device))
    elif isinstance(value, dict):
        for item in value.values():
            _make(item, tensors)
    elif isinstance(value, list):
        for item in value:
            _make(item, tensors)


def _join(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _join(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_join(item, tensors) for item in value]
    return value
