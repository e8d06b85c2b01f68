"""Copies of tensors that an operation writes, to restore them if the operation fails.

Runs in: the rank process, any thread.

Collectives work in place and piece by piece: an ``all_reduce`` that is aborted because rank 1 never
came has added the values of ranks 2 and 3 by then. A user who fixes the cell and runs it again
would get a wrong sum. So the memory is copied before, as plain bytes: neither autograd nor a
profiler nor a dispatch mode sees the copy. ``tests/bench/bench_trace.py`` measures the cost.
Of a tensor with gaps, all bytes from its first to its last element are copied, and only those of
its elements are restored: what lies between them may have changed since.
Messages are not copied: a receive that is aborted has got no data.
"""

import ctypes
import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import torch

#: Larger tensors are not copied. To copy 4 MiB takes 0.1 ms, and to add them up takes 8 ms. For
#: larger sizes the allocator gets fresh pages from the system each time, and a copy takes five
#: times as long.
LIMIT_BYTES = 4 << 20
#: Limit for asynchronous operations. DDP's gradients come in buckets of megabytes during the
#: backward, which copies would slow down, and after a failure they are computed again.
ASYNC_LIMIT_BYTES = 1 << 16

#: The format of a `memoryview` whose items have this many bytes.
_UNITS: Final[Mapping[int, Literal["B", "H", "I", "Q"]]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
_read = ctypes.string_at
_restoring = threading.Lock()


class WrittenCopies:
    """Copies of tensors, and the size of those that were not copied."""

    def __init__(self) -> None:
        self.parts: list[tuple[torch.Tensor, int, bytes]] = []
        self.lost_bytes = 0  #: of tensors that are too large, or not in CPU memory

    def put_back(self) -> None:
        """Restore the tensors. Call this when no thread writes to them any more.

        A second caller waits for the first, so that the user may change the tensors afterwards.
        """
        with _restoring:
            for tensor, address, content in self.parts:
                if tensor.data_ptr() != address:  # its memory was replaced
                    continue
                if len(content) == tensor.nbytes and tensor.is_contiguous():
                    ctypes.memmove(address, content, len(content))
                    continue
                _restore_elements(tensor, address, content)
            self.parts = []


def copy_written(written: Any, room: int = LIMIT_BYTES) -> WrittenCopies:
    """Copy the tensors that an operation writes: a tensor, a list of them, or a list of lists.

    Other arguments, such as the options of a barrier, need no copy.

    Args:
        written: the first argument of a collective.
        room: number of bytes that may be copied.
    """
    copies = WrittenCopies()
    for tensor in tensors_in(written):
        size = tensor.nbytes if tensor.is_contiguous() else _span(tensor)
        if size <= room and tensor.is_cpu:
            address = tensor.data_ptr()
            copies.parts.append((tensor, address, _read(address, size)))
            room -= size
        else:
            copies.lost_bytes += tensor.nbytes
    return copies


def _span(tensor: torch.Tensor) -> int:
    """The bytes from the first element of a tensor in memory to the end of its last one."""
    last = sum((size - 1) * stride for stride, size in _dimensions(tensor))
    return (last + 1) * tensor.itemsize


def _restore_elements(tensor: torch.Tensor, address: int, content: bytes) -> None:
    """Restore the elements of a tensor, and not what lies between them."""
    unit = min(tensor.itemsize, 8)
    memory = (ctypes.c_ubyte * len(content)).from_address(address)
    there = memoryview(memory).cast("B").cast(_UNITS[unit])
    kept = memoryview(content).cast(_UNITS[unit])
    for place in _lines(tensor, unit):
        there[place] = kept[place]


def _lines(tensor: torch.Tensor, unit: int) -> Iterator[slice]:
    """The places of the elements from the first one on: one slice with equal steps is one copy.

    Elements that share a place, as those of ``expand``, are in one slice or in several.

    Args:
        tensor: a tensor in memory.
        unit: the bytes that a slice counts: those of an element, or a part of them.
    """
    per_element = tensor.itemsize // unit
    steps = [(stride * per_element, size) for stride, size in _dimensions(tensor)]
    dimensions: list[tuple[int, int]] = []
    for stride, size in sorted([(1, per_element), *steps]):
        if size == 1 or not stride:
            continue
        below = dimensions[-1] if dimensions else (0, 0)
        if stride == below[0] * below[1]:
            dimensions[-1] = below[0], below[1] * size
        else:
            dimensions.append((stride, size))
    *others, (step, count) = sorted(dimensions, key=lambda each: each[1]) or [(1, 1)]
    for place in itertools.product(*(range(0, one * size, one) for one, size in others)):
        yield slice(sum(place), sum(place) + step * (count - 1) + 1, step)


def _dimensions(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """The stride and the size of each dimension of a tensor."""
    return zip(tensor.stride(), tensor.shape, strict=True)


def has_failed(work: Any) -> bool:
    """Return whether the work of a stock group has ended with an error.

    A work that still runs may succeed yet, and writes until then.
    """
    try:
        future = work.get_future()
        if not future.done():
            return False
        future.value()
    except RuntimeError:
        return True
    return False


def tensors_in(written: Any) -> Iterator[torch.Tensor]:
    """Yield a tensor, those of a list, or those of a list of lists; not those without memory."""
    if isinstance(written, torch.Tensor):
        if written.layout is torch.strided and written.numel():
            yield written
    elif isinstance(written, list | tuple):
        for part in written:
            yield from tensors_in(part)
