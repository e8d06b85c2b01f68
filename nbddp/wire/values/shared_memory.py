"""Sends large values from one process of a machine to others, through reused shared memory.

Runs in: notebook and rank processes, any thread. Needs POSIX; useful on Linux.

    owner                                           reader (one or many)
    Arena.write(pieces, readers)
      copy into a free segment (a memfd)
      --------- header: /proc/<pid>/fd/<n> ------>  attach(header, on_release)
                                                      private mapping, writable views
                                                    ... values are built on the views ...
      <-------- number of the write --------------  the last of them dies: on_release(number)
    Arena.release(number, reader)
      all readers done: the segment is free

A segment is a `memfd`: a file without a name, so no killed process leaves one behind, and the size
of ``/dev/shm`` does not matter. Page faults cost more than copying, so segments are reused, and the
owner keeps all pages mapped that it has touched once.

Each *write* has its own number, random and never used again. It stands in the first bytes of the
segment, which proves to a reader that the path led to the right memory (two containers can have
equal process ids), and a late or repeated release can never free a newer write. A segment is not
written while a reader may still use it. A reader's mapping is private: its writes reach neither the
owner nor other readers, and it stays valid when the owner is gone.
"""

import fcntl
import mmap
import os
import re
import secrets
import stat
import struct
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nbddp.errors import BadMessageError, TransferError
from nbddp.wire.message_types import ValueHeader

#: One piece of a packed value: contiguous bytes.
Piece = bytes | bytearray | memoryview

#: The reader of an arena that only one process reads: the notebook, for the arena of a rank.
NOTEBOOK = -1

_ALIGN = 64  # a cache line; more than any dtype of torch or numpy asks for
_STAMP = struct.Struct("<8sQ")  # magic, number of the write
_MAGIC = b"nbddp\0v1"
_SMALLEST_BYTES = 1024 * 1024
_COPY_BYTES = 4 * 1024 * 1024  # bytes per copy, which holds the GIL
_PATH = re.compile(r"/proc/[0-9]+/fd/[0-9]+")


class SegmentUnreachableError(TransferError):
    """This process cannot open the sender's shared memory: ask again, for frames."""


def is_supported() -> bool:
    """Return whether this system has memory files that another process can open."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


@dataclass(eq=False)
class _Segment:
    fd: int
    mapping: mmap.mmap
    capacity: int
    touched: int = 0  #: bytes from the start that have memory behind them
    readers: set[int] = field(default_factory=set)  #: readers that may still use the last write

    @classmethod
    def create(cls, capacity: int) -> "_Segment":
        fd = os.memfd_create("nbddp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, capacity)
            # No reader gets a SIGBUS: the file never gets shorter.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            return cls(fd, mmap.mmap(fd, capacity), capacity)
        except BaseException:
            os.close(fd)
            raise

    def put(self, offset: int, piece: memoryview) -> None:
        """Copy ``piece`` to ``offset``; other threads can run in between."""
        for start in range(0, len(piece), _COPY_BYTES):
            part = piece[start : start + _COPY_BYTES]
            at = offset + start
            if at + len(part) <= self.touched:
                self.mapping[at : at + len(part)] = part
            else:
                # New pages: a system call fills them at twice the speed of page faults.
                _write_all(self.fd, part, at)

    def close(self) -> None:
        self.mapping.close()
        os.close(self.fd)


def _write_all(fd: int, piece: memoryview, offset: int) -> None:
    done = 0
    while done < len(piece):
        done += os.pwrite(fd, piece[done:], offset + done)


class Arena:
    """The segments that one process writes for others. All methods may be called by any thread.

    Args:
        keep_bytes: size of the free memory that is kept for the next write.
        keep_segments: number of free segments that are kept.
        max_segments: number of all segments. Each costs two descriptors here and one per reader.
            `write` declines beyond it, so that a reader that keeps many values does not use up the
            descriptors.
    """

    def __init__(
        self,
        *,
        keep_bytes: int = 512 * 1024 * 1024,
        keep_segments: int = 2,
        max_segments: int = 32,
    ) -> None:
        self._keep_bytes = keep_bytes
        self._keep_segments = keep_segments
        self._max_segments = max_segments
        self._lock = threading.Lock()  # for the fields below; never held while bytes are copied
        self._free: list[_Segment] = []  # longest unused first
        self._leased: dict[int, _Segment] = {}  # by number of the write
        self._writing = 0
        self._closed = False

    def write(
        self, pieces: Sequence[Piece], readers: Collection[int] = (NOTEBOOK,)
    ) -> ValueHeader | None:
        """Copy ``pieces`` into one segment, leased to ``readers`` until each has released it.

        Args:
            pieces: the pickle stream and its buffers, contiguous.
            readers: processes that get the header. Each must be released, by its own message or by
                `release_all` when it is gone.

        Returns:
            The place of the bytes, or None if no segment is available: send frames instead.
        """
        views = [memoryview(piece).cast("B") for piece in pieces]
        offsets, used_bytes = _layout([len(view) for view in views])
        segment = self._take(used_bytes)
        if segment is None:
            return None
        number = secrets.randbits(63)
        leased_to = set(readers)
        complete = False
        try:
            segment.put(0, memoryview(_STAMP.pack(_MAGIC, number)))
            for offset, view in zip(offsets, views, strict=True):
                segment.put(offset, view)
            segment.touched = max(segment.touched, used_bytes)
            complete = True
        except OSError:
            return None  # no memory for new pages
        finally:
            self._put_back(segment, number, leased_to if complete else set())
        return ValueHeader(
            pickle_bytes=len(views[0]),
            buffer_bytes=tuple(len(view) for view in views[1:]),
            segment=number,
            segment_path=f"/proc/{os.getpid()}/fd/{segment.fd}",
            segment_size=segment.capacity,
        )

    def release(self, number: int, reader: int = NOTEBOOK) -> None:
        """End the lease of ``reader`` on write ``number``; ignores unknown numbers and readers."""
        with self._lock:
            self._release(number, reader)

    def release_all(self, reader: int) -> None:
        """End all leases of ``reader``, which is gone."""
        with self._lock:
            for number in list(self._leased):
                self._release(number, reader)

    def close(self) -> None:
        """Close all segments. Values that readers have attached stay valid."""
        with self._lock:
            self._closed = True
            self._free += self._leased.values()
            self._leased.clear()
            self._trim(keep_bytes=0, keep_segments=0)

    @property
    def leased_count(self) -> int:
        """Number of writes that a reader may still use."""
        with self._lock:
            return len(self._leased)

    @property
    def free_bytes(self) -> int:
        """Size of the memory that is kept for the next write."""
        with self._lock:
            return sum(segment.touched for segment in self._free)

    def _take(self, needed_bytes: int) -> _Segment | None:
        with self._lock:
            if self._closed:
                return None
            fitting = [segment for segment in self._free if segment.capacity >= needed_bytes]
            if fitting:
                segment = min(fitting, key=lambda segment: (segment.capacity, -segment.touched))
                self._free.remove(segment)
                self._writing += 1
                return segment
            if len(self._leased) + self._writing + len(self._free) >= self._max_segments:
                if not self._free:
                    return None
                self._free.pop(0).close()
            try:
                # Only written pages take memory, so a generous size costs nothing.
                capacity = 1 << (max(needed_bytes, _SMALLEST_BYTES) - 1).bit_length()
                segment = _Segment.create(capacity)
            except (OSError, ValueError, OverflowError):  # no descriptor or address space left
                return None
            self._writing += 1
            return segment

    def _put_back(self, segment: _Segment, number: int, readers: set[int]) -> None:
        with self._lock:
            self._writing -= 1
            segment.readers = readers
            if readers and not self._closed:
                self._leased[number] = segment
            else:
                self._keep(segment)

    def _release(self, number: int, reader: int) -> None:
        segment = self._leased.get(number)
        if segment is not None:
            segment.readers.discard(reader)
            if not segment.readers:
                self._keep(self._leased.pop(number))

    def _keep(self, segment: _Segment) -> None:
        self._free.append(segment)
        if self._closed:
            self._trim(keep_bytes=0, keep_segments=0)
        else:
            self._trim(self._keep_bytes, self._keep_segments)

    def _trim(self, keep_bytes: int, keep_segments: int) -> None:
        while len(self._free) > keep_segments or (
            self._free and sum(segment.touched for segment in self._free) > keep_bytes
        ):
            self._free.pop(0).close()


def _layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the aligned offset of each piece after the stamp, and the end of the last piece."""
    offsets = []
    end = _STAMP.size
    for size in sizes:
        start = -(-end // _ALIGN) * _ALIGN
        offsets.append(start)
        end = start + size
    return offsets, end


# --- reader ------------------------------------------------------------------------------------


class _Mapping(mmap.mmap):
    """A mapping that allows weak references: its finalizer ends the lease."""


@dataclass
class Attached:
    """The bytes of a value in a sender's segment; all views are writable and private."""

    pickle: memoryview
    buffers: list[memoryview]


def attach(header: ValueHeader, on_release: Callable[[int], None]) -> Attached:
    """Map the segment that ``header`` names.

    Args:
        header: as the owner's `Arena.write` made it.
        on_release: called once with the number of the write: when the last object that uses the
            mapping is freed, or before this function raises. A garbage collection may call it in
            any thread at any time, so it must only enqueue. It is not called in a forked child, nor
            at the exit of the interpreter.

    Raises:
        SegmentUnreachableError: the segment cannot be opened here, or is another one.
        BadMessageError: the header contradicts itself.
    """
    try:
        return _attach(header, on_release)
    except BaseException:
        on_release(header.segment)
        raise


def _attach(header: ValueHeader, on_release: Callable[[int], None]) -> Attached:
    sizes = [header.pickle_bytes, *header.buffer_bytes]
    offsets, used_bytes = _layout(sizes)
    if (
        min(sizes) < 0
        or used_bytes > header.segment_size
        or not _PATH.fullmatch(header.segment_path)
    ):
        raise BadMessageError("a header of a value in shared memory contradicts itself")
    try:
        mapping = _map(header.segment_path, used_bytes, header.segment_size)
    except (OSError, ValueError) as error:
        raise SegmentUnreachableError(
            f"the sender's shared memory cannot be opened: {error}"
        ) from None
    if mapping[: _STAMP.size] != _STAMP.pack(_MAGIC, header.segment):
        mapping.close()
        raise SegmentUnreachableError("the sender's shared memory is not that of this machine")
    weakref.finalize(mapping, _end_lease, on_release, header.segment, os.getpid()).atexit = False
    view = memoryview(mapping)
    pieces = [view[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
    return Attached(pickle=pieces[0], buffers=pieces[1:])


def _map(path: str, length: int, file_size: int) -> _Mapping:
    # O_NONBLOCK: opening a wrong path, such as a FIFO, does not wait.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != file_size:
            raise ValueError("the segment no longer exists")
        return _Mapping(fd, length, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)


def _end_lease(on_release: Callable[[int], None], number: int, pid: int) -> None:
    if os.getpid() == pid:
        on_release(number)
