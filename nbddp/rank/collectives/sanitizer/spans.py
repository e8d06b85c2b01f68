"""The memory of tensors, and whether two tensors share some of it.

Runs in: the rank process, any thread. No tensor is kept, so that it is deleted as without this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import torch

from nbddp.rank.torch_private import dispatch_watch

#: Size, and distance in bytes, the largest distance first.
_Dims: TypeAlias = tuple[tuple[int, int], ...]
#: Elements that are compared one by one, where both tensors have gaps.
_MAX_ELEMENTS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The memory of one tensor."""

    begin: int  #: address of its first byte
    end: int
    itemsize: int
    dims: _Dims = ()  #: empty: it has no gaps
    storage: Any = None  #: a weak reference; None: the tensor lives

    @property
    def is_gone(self) -> bool:
        """Whether the memory was freed, so that another tensor may be there."""
        return self.storage is not None and bool(self.storage.expired())


def span_of(tensor: torch.Tensor, *, lasts: bool = False) -> Span | None:
    """Return the memory of a tensor; None: it has none, or torch does not say where.

    Args:
        tensor: any tensor.
        lasts: the span may be used when the tensor was deleted.
    """
    if tensor.layout is not torch.strided or tensor.is_meta or dispatch_watch.is_fake(tensor):
        return None
    try:
        begin = tensor.data_ptr()
    except RuntimeError:  # a wrapper without memory
        return None
    if not begin or not tensor.numel():
        return None
    storage = dispatch_watch.storage_of(tensor) if lasts else None
    itemsize = tensor.element_size()
    if tensor.is_contiguous():
        return Span(begin, begin + tensor.numel() * itemsize, itemsize, storage=storage)
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    dims = [(size, stride * itemsize) for size, stride in pairs if size > 1 and stride]
    dims.sort(key=lambda dim: -dim[1])
    kept = () if _is_dense(dims, itemsize) else tuple(dims)
    return Span(begin, begin + _extent(dims, itemsize), itemsize, kept, storage)


def overlap(one: Span, other: Span) -> bool:
    """Return whether two tensors have a byte in common; False where that would take long."""
    if one.begin >= other.end or other.begin >= one.end:
        return False
    if not other.dims:
        one, other = other, one
    if not one.dims:
        return not other.dims or _touches(
            other.begin, other.dims, other.itemsize, one.begin, one.end
        )
    if _count(one.dims) > _count(other.dims):
        one, other = other, one
    if _count(one.dims) > _MAX_ELEMENTS:
        return False
    steps = (range(0, size * stride, stride) for size, stride in one.dims)
    return any(
        _touches(other.begin, other.dims, other.itemsize, at, at + one.itemsize)
        for at in (one.begin + sum(offsets) for offsets in product(*steps))
    )


def _touches(base: int, dims: _Dims, itemsize: int, begin: int, end: int) -> bool:
    """Return whether elements at ``base`` and their distances have a byte in a range."""
    if not dims:
        return base < end and base + itemsize > begin
    (size, stride), *inner = dims
    rest = tuple(inner)
    extent = _extent(rest, itemsize)
    first = max(0, (begin - extent - base) // stride + 1)
    last = min(size - 1, (end - 1 - base) // stride)
    for index in range(first, last + 1):
        at = base + index * stride
        is_inside = at >= begin and at + extent <= end
        if is_inside or _touches(at, rest, itemsize, begin, end):
            return True
    return False


def _is_dense(dims: Sequence[tuple[int, int]], itemsize: int) -> bool:
    """Return whether elements follow each other without gaps, each in a place of its own."""
    distance = itemsize
    for size, stride in reversed(dims):
        if stride != distance:
            return False
        distance *= size
    return True


def _extent(dims: Sequence[tuple[int, int]], itemsize: int) -> int:
    return itemsize + sum((size - 1) * stride for size, stride in dims)


def _count(dims: Sequence[tuple[int, int]]) -> int:
    count = 1
    for size, _ in dims:
        count *= size
    return count
