"""Encodes the user's values for the way between the notebook and the ranks.

Runs in: notebook and rank processes, any thread. Does not import torch; see
`nbddp.wire.values.tensors`. This is the only file that unpickles, and it unpickles only values from
an authenticated end of the same pool.

    encode_value:  value -> pickle stream + buffers -> one shared-memory segment, or frames
    split:         frames -> chunks, one message each; Reassembler: chunks -> frames
    decode_value:  header + frames -> value, built on top of the shared memory or the frames

A value in shared memory travels as its header alone. The frames of a value are its pickle stream
and its buffers, ``[pickle, *buffers]``, in the order of the header.
"""

import io
import mmap
import os
import pickle
import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nbddp.errors import BadMessageError, TransferError
from nbddp.settings import POOL_ID_ENV
from nbddp.wire.message_types import ValueHeader
from nbddp.wire.values.shared_memory import NOTEBOOK, Arena, Piece, attach

#: Values below travel as frames: a segment for each would cost more than copying them.
ARENA_MIN_BYTES = 64 * 1024
#: Buffers below stay in the pickle stream: a frame for each would cost more than copying them.
BUFFER_MIN_BYTES = 4 * 1024
#: Bytes of one message when a value travels in chunks.
CHUNK_BYTES = 4 * 1024 * 1024

_HUGE_PAGE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True)
class Packed:
    """A pickle stream, and the memory of the value's arrays and tensors, which is not copied."""

    pickle: bytes
    buffers: list[memoryview]  #: contiguous, read for as long as this object lives

    @property
    def total_bytes(self) -> int:
        """Size of stream and buffers."""
        return len(self.pickle) + sum(buffer.nbytes for buffer in self.buffers)


def pack(value: object) -> Packed:
    """Pickle ``value`` without copying its arrays and tensors.

    Raises:
        TransferError: the value cannot be pickled.
    """
    stream = io.BytesIO()
    buffers: list[memoryview] = []

    def keep_in_stream(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < BUFFER_MIN_BYTES:
            return True
        buffers.append(view)
        return False

    reason = ""
    try:
        _Pickler(stream, protocol=5, buffer_callback=keep_in_stream).dump(value)
    except RecursionError:
        reason = "it is nested too deeply"
    except Exception as error:  # noqa: BLE001  # the value's own code runs here
        reason = str(error) or type(error).__name__
    if reason:
        raise TransferError(
            f"a value of type {_type_name(value)} cannot be pickled {_here()}: {reason}"
        )
    return Packed(stream.getvalue(), buffers)


def unpack(stream: Piece, buffers: Sequence[Piece]) -> Any:
    """Return the value that `pack` packed, built on top of ``buffers`` that are writable.

    Raises:
        TransferError: the value cannot be built in this process.
    """
    # Numpy and torch ask for writable memory unless the sender's was read-only.
    writable = [bytearray(buffer) if memoryview(buffer).readonly else buffer for buffer in buffers]
    reason = ""
    try:
        return _Unpickler(io.BytesIO(stream), buffers=writable).load()
    except TransferError as error:
        reason = str(error)
    except RecursionError:
        reason = f"the value cannot be built {_here()}: it is nested too deeply"
    except Exception as error:  # noqa: BLE001  # the value's own code runs here
        reason = f"the value cannot be built {_here()}: {type(error).__name__}: {error}"
    finally:
        writable.clear()
    # Raised out here, so that no traceback keeps parts of the value, and the lease with them.
    raise TransferError(reason)


def encode_value(
    value: object, arena: Arena | None = None, readers: Collection[int] = (NOTEBOOK,)
) -> tuple[ValueHeader, list[Piece]]:
    """Pack ``value`` for ``readers``, into ``arena`` if it is large enough.

    Without an arena, the frames of a large value are the memory of its arrays and tensors itself:
    send them (see `split`) before the user's code can change them. Other frames are copies.

    Args:
        value: any object that can be pickled.
        arena: shared memory that all readers can open; None: use frames.
        readers: see `Arena.write`.

    Returns:
        The header, and the frames: none if the value lies in the arena.

    Raises:
        TransferError: the value cannot be pickled.
    """
    packed = pack(value)
    pieces: list[Piece] = [packed.pickle, *packed.buffers]
    if packed.total_bytes < ARENA_MIN_BYTES:
        pieces = [bytes(piece) for piece in pieces]
    elif arena is not None:
        header = arena.write(pieces, readers)
        if header is not None:
            return header, []
    return _frames_header(packed), pieces


def decode_value(
    header: ValueHeader, frames: Sequence[Piece], on_release: Callable[[int], None]
) -> Any:
    """Return the value that `encode_value` has packed.

    Args:
        header: the header that `encode_value` returned.
        frames: the value's frames, from one message or from a `Reassembler`; none if it lies in
            shared memory.
        on_release: see `nbddp.wire.values.shared_memory.attach`; called exactly once for a value in
            shared memory, also after an error, and never for another value.

    Raises:
        TransferError: the value cannot be built in this process.
        SegmentUnreachableError: its shared memory cannot be opened here; ask for frames.
        BadMessageError: header and frames do not fit together.
    """
    if header.segment < 0:
        _check_frames(header, frames)
        return unpack(frames[0], frames[1:])
    attached = attach(header, on_release)
    try:
        return unpack(attached.pickle, attached.buffers)
    finally:
        # An error's traceback keeps this frame: it must not keep the lease.
        attached.buffers.clear()
        attached.pickle.release()


# --- chunks ------------------------------------------------------------------------------------


def split(
    header: ValueHeader, frames: Sequence[Piece], chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[int, int, list[Piece]]]:
    """Cut the frames of a value into messages of at most ``chunk_bytes``, without copying.

    A frame of a chunk is a slice of one frame of the value. A value that fits into one chunk, or
    lies in shared memory, is one message with unchanged frames.

    Yields:
        The number of the part from 0, the number of parts, and the frames of the part.
    """
    total = header.pickle_bytes + sum(header.buffer_bytes)
    if header.segment >= 0 or total <= chunk_bytes:
        yield 0, 1, list(frames)
        return
    parts = -(-total // chunk_bytes)
    part = 0
    chunk: list[Piece] = []
    room = chunk_bytes
    for frame in frames:
        view = memoryview(frame).cast("B")
        start = 0
        while start < view.nbytes:
            piece = view[start : start + room]
            chunk.append(piece)
            start += piece.nbytes
            room -= piece.nbytes
            if not room:
                yield part, parts, chunk
                part, chunk, room = part + 1, [], chunk_bytes
    if chunk:
        yield part, parts, chunk


@dataclass
class _Partial:
    header: ValueHeader
    parts: int
    frames: list[memoryview]
    next_part: int = 0
    frame: int = 0  #: index of the frame that gets the next bytes
    offset: int = 0  #: in that frame

    @property
    def total_bytes(self) -> int:
        return sum(frame.nbytes for frame in self.frames)

    def add(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            view = memoryview(piece).cast("B")
            self._skip_full_frames()
            if self.frame == len(self.frames):
                raise BadMessageError("a chunk of a value has bytes beyond its end")
            target = self.frames[self.frame]
            end = self.offset + view.nbytes
            if end > target.nbytes:
                raise BadMessageError("a chunk of a value goes beyond the end of its buffer")
            target[self.offset : end] = view
            self.offset = end
        self.next_part += 1
        self._skip_full_frames()
        if (self.frame == len(self.frames)) != (self.next_part == self.parts):
            raise BadMessageError("the chunks of a value are not as long as its header says")

    def _skip_full_frames(self) -> None:
        while self.frame < len(self.frames) and self.offset == self.frames[self.frame].nbytes:
            self.frame, self.offset = self.frame + 1, 0


class Reassembler:
    """Joins the chunks of values, in memory that is allocated before the chunks come.

    For one thread. The chunks of one value come in order; those of several values may be mixed.

    Args:
        max_bytes: largest size of all unfinished values together.
    """

    def __init__(self, max_bytes: int = 64 * 1024**3) -> None:
        self._max_bytes = max_bytes
        self._partials: dict[Hashable, _Partial] = {}

    def add(
        self, key: Hashable, header: ValueHeader, part: int, parts: int, frames: Sequence[Piece]
    ) -> list[Piece] | None:
        """Add the frames of one message.

        Args:
            key: identifies the value, such as (request id, rank).
            header: of the value, equal in all of its chunks.
            part: number of this chunk, from 0.
            parts: number of chunks.
            frames: the bytes; not needed afterwards unless the value has only one part.

        Returns:
            All frames of the value, for `decode_value`, after the last chunk; None before.

        Raises:
            BadMessageError: the chunk does not fit; the value is dropped.
            TransferError: there is no memory for the value.
        """
        try:
            if parts == 1 and part == 0 and key not in self._partials:
                _check_frames(header, frames)
                return list(frames)
            partial = self._partial(key, header, part, parts)
            partial.add(frames)
        except BaseException:
            self.drop(key)
            raise
        if partial.next_part < parts:
            return None
        self.drop(key)
        return list(partial.frames)

    def drop(self, key: Hashable) -> None:
        """Discard an unfinished value: its sender is gone, or no caller waits for it."""
        self._partials.pop(key, None)

    def _partial(self, key: Hashable, header: ValueHeader, part: int, parts: int) -> _Partial:
        partial = self._partials.get(key)
        if partial is None:
            if part != 0 or parts < 1:
                raise BadMessageError("the chunks of a value do not begin with the first")
            self._check_room(header)
            try:
                frames = [_new_buffer(size) for size in (header.pickle_bytes, *header.buffer_bytes)]
            except (MemoryError, OSError, OverflowError):
                raise TransferError("there is no memory here for a value of that size") from None
            partial = self._partials[key] = _Partial(header, parts, frames)
        if (header, part, parts) != (partial.header, partial.next_part, partial.parts):
            raise BadMessageError("the chunks of a value do not follow each other")
        return partial

    def _check_room(self, header: ValueHeader) -> None:
        if (
            header.segment >= 0
            or header.pickle_bytes < 0
            or min(header.buffer_bytes, default=0) < 0
        ):
            raise BadMessageError("a value in chunks has an impossible header")
        used = sum(partial.total_bytes for partial in self._partials.values())
        if used + header.pickle_bytes + sum(header.buffer_bytes) > self._max_bytes:
            raise BadMessageError(f"values in chunks need more than {self._max_bytes} bytes")


def _new_buffer(size: int) -> memoryview:
    """Return writable memory. Huge pages make filling it more than three times as fast."""
    if size < _HUGE_PAGE_BYTES:
        return memoryview(bytearray(size))
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # an operating system without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)


def _frames_header(packed: Packed) -> ValueHeader:
    return ValueHeader(
        pickle_bytes=len(packed.pickle),
        buffer_bytes=tuple(buffer.nbytes for buffer in packed.buffers),
    )


def _check_frames(header: ValueHeader, frames: Sequence[Piece]) -> None:
    expected = [header.pickle_bytes, *header.buffer_bytes] if header.segment < 0 else []
    if [memoryview(frame).nbytes for frame in frames] != expected:
        raise BadMessageError("the frames of a value are not as long as its header says")


# --- pickling ----------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sent: dict[Any, Any] = {}  #: memory of tensors; see `nbddp.wire.values.tensors`

    def reducer_override(self, value: Any) -> Any:
        if sys.modules.get("torch") is None:
            return NotImplemented  # nothing can be a tensor
        from nbddp.wire.values.tensors import reduce_tensor  # noqa: PLC0415  # imports torch

        return reduce_tensor(value, self._sent)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except ImportError as error:
            missing = error.name or module
            raise TransferError(
                f"the value needs the module {missing!r}, which cannot be imported {_here()}: "
                f"install it there, or convert the value first"
            ) from None
        except AttributeError:
            if module == "__main__":
                raise TransferError(
                    f"{name!r} is defined {_other_side()} only: define it {_here()} too, "
                    f"or convert the value first"
                ) from None
            raise TransferError(
                f"the value needs {module}.{name}, which does not exist {_here()}; "
                f"the two sides may have different versions of {module!r}"
            ) from None


def _here() -> str:
    return "on the rank" if POOL_ID_ENV in os.environ else "in the notebook"


def _other_side() -> str:
    return "in the notebook" if POOL_ID_ENV in os.environ else "on the ranks"


def _type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ in {"builtins", "__main__"}:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
