"""What an operation is about to write, to put it back if the operation does not end well.

Runs in: the rank process, any thread.

Collectives work in place and piece by piece: an ``all_reduce`` that is freed because rank 1 never
came has by then added up what ranks 2 and 3 had. A user who mends the cell and runs it again would
get a wrong sum. So the memory is copied before, as the bytes that it is: nothing of torch sees it,
neither autograd nor a profiler nor a dispatch mode. ``tests/bench/bench_trace.py`` measures what it
costs. Messages are left out: a receive that is freed has got nothing.
"""

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import torch

#: More than that is not copied. To copy 4 MiB takes 0.1 ms, and to add them up 8 ms; with more the
#: allocator asks the system for fresh pages each time, and a copy takes five times as long.
LIMIT_BYTES = 4 << 20
#: Of an operation that nobody waits for at once: DDP's gradients come in buckets of megabytes while
#: the backward goes on, which copies would slow down, and after a failure they are made anew.
ASYNC_LIMIT_BYTES = 1 << 16

_read = ctypes.string_at
_putting_back = threading.Lock()


class Kept:
    """Copies of tensors, and whether there is one of each."""

    def __init__(self) -> None:
        self.parts: list[tuple[torch.Tensor, int, bytes]] = []
        self.lost_bytes = 0  #: of tensors that were too large, or lie in memory of another kind

    def put_back(self) -> None:
        """As if the operation had not begun. To be called when nothing writes any longer.

        The second caller waits for the first: afterwards the tensors are the user's again.
        """
        with _putting_back:
            for tensor, address, content in self.parts:
                if tensor.data_ptr() == address:  # else its memory was exchanged
                    ctypes.memmove(address, content, len(content))
            self.parts = []


def keep(written: Any, room: int = LIMIT_BYTES) -> Kept:
    """Copy what is about to be written: a tensor, a list of them, or a list of lists.

    Anything else, the options of a barrier for example, is nothing to keep.

    Args:
        written: the first argument of a collective.
        room: for so many bytes.
    """
    kept = Kept()
    for tensor in _tensors(written):
        size = tensor.nbytes
        if size <= room and tensor.is_cpu and tensor.is_contiguous():
            address = tensor.data_ptr()
            kept.parts.append((tensor, address, _read(address, size)))
            room -= size
        else:
            kept.lost_bytes += size
    return kept


def has_failed(work: Any) -> bool:
    """Whether the work of a stock group has ended, and not well.

    One that still runs may end well yet, and writes until then.
    """
    try:
        future = work.get_future()
        if not future.done():
            return False
        future.value()
    except RuntimeError:
        return True
    return False


def _tensors(written: Any) -> Iterator[torch.Tensor]:
    if isinstance(written, torch.Tensor):
        if written.layout is torch.strided and written.numel():
            yield written
    elif isinstance(written, list | tuple):
        for part in written:
            yield from _tensors(part)
