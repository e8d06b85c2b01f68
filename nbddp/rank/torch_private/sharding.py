"""The part of a tensor that a rank holds.

Runs in: the rank process. Private names: ``compute_local_shape_and_global_offset`` of torch 2.5 and
later (without it the offset of a shard is not reported), and the marks of FSDP1 at its parameters.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Sharding:
    """A rank's part of a tensor that is distributed over several ranks."""

    placements: str  #: ``Shard(0), Replicate()``
    mesh: str  #: ``dp=2, tp=4``; without names ``2 x 4``
    offset: tuple[int, ...] | None  #: of the part; None: not known, or the part is no block
    part: str  #: equal on ranks that hold the same part, such as ``dp 1 of 2``; empty: all of it
    local: torch.Tensor


def sharding_of(tensor: torch.Tensor) -> Sharding | None:
    """Return the sharding of a DTensor; None: another tensor. No data moves between ranks."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(tensor, module.DTensor):
        return None
    with torch.no_grad():
        local = tensor.to_local()
    mesh = tensor.device_mesh
    sizes = tuple(mesh.mesh.shape)
    names = mesh.mesh_dim_names
    coordinate = mesh.get_coordinate()
    parts = []
    for dim, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            continue
        where = "outside of it" if coordinate is None else f"{coordinate[dim]} of {sizes[dim]}"
        parts.append(f"{names[dim] if names else f'mesh dimension {dim}'} {where}")
    return Sharding(
        placements=", ".join(map(_placement_text, tensor.placements)),
        mesh=", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
        if names
        else " x ".join(map(str, sizes)),
        offset=_offset(tensor),
        part=", ".join(parts),
        local=local,
    )


def is_flat_shard(tensor: torch.Tensor) -> bool:
    """Return whether FSDP1 keeps only this rank's part of it."""
    return any(getattr(tensor, mark, False) for mark in ("_is_flat_param", "_fsdp_flattened"))


def _placement_text(placement: Any) -> str:
    if placement.is_replicate():
        return "Replicate"
    if placement.is_partial():
        return f"Partial({placement.reduce_op})"
    return f"{type(placement).__name__.lstrip('_')}({placement.dim})"


def _offset(tensor: Any) -> tuple[int, ...] | None:
    utils = sys.modules.get("torch.distributed.tensor._utils")
    compute = getattr(utils, "compute_local_shape_and_global_offset", None)
    if compute is None:
        return None
    try:
        shape, offset = compute(tensor.shape, tensor.device_mesh, tensor.placements)
    except (NotImplementedError, RuntimeError, ValueError):
        return None  # a placement that the user has defined
    if tuple(shape) != tuple(tensor.to_local().shape):
        return None
    return tuple(offset)
