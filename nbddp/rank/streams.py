"""File descriptors 0, 1 and 2 of a rank.

Runs in: the rank process. The agent reads the pipes behind 1 and 2, so it gets all printed text: of
Python, C code, subprocesses and forked children. Python's own streams are line buffered; the I/O
thread flushes unfinished lines. They mark each change between them in both pipes, see
`nbddp.wire.stream_order`.
"""

import ctypes
import fcntl
import io
import os
import resource
import sys
from contextlib import suppress

from nbddp.wire import stream_order

_IOLBF = 1  # stdio.h, the same on Linux and macOS
_libc = ctypes.CDLL(None)

_FAR_FD = 100
#: The pipes to the agent, by the number of the descriptor that is connected to them.
_pipe_by_target: dict[int, int] = {}
#: The streams that we have made; a cell may replace them.
_own_streams: "dict[int, _MarkedStream]" = {}
#: The descriptor of the stream that was written last, and the number of changes.
_written, _changes = 1, 0
_write = io.TextIOWrapper.write


class _MarkedStream(io.TextIOWrapper):
    """A stream of Python that marks a change to it.

    Not the raw stream below it: an interrupt there would make its text come twice. The stream that
    was written last has `io.TextIOWrapper.write` in the place of this method: it marks nothing,
    and a method of Python would take as long again as the write.
    """

    target = 1  #: its descriptor

    def write(self, text: str, /) -> int:
        if _written != self.target:
            _mark_change(self.target)
        return _write(self, text)

    def set_written(self, *, is_last: bool) -> None:
        """Note whether this is the stream that was written last."""
        if is_last:
            self.__dict__["write"] = _write.__get__(self)
        else:
            self.__dict__.pop("write", None)


def _mark_change(target: int) -> None:
    global _written, _changes  # noqa: PLW0603 - of the process, as the descriptors are
    before, _written = _written, target
    _changes += 1
    for descriptor in (before, target):  # the text before the change is in the pipe already
        with suppress(OSError, KeyError):  # the agent is gone
            os.write(_pipe_by_target[descriptor], stream_order.mark(_changes))
    for stream in _own_streams.values():
        stream.set_written(is_last=stream.target == target)


def take_over(stdout_fd: int, stderr_fd: int) -> None:
    """Connect descriptors 1 and 2 to the pipes, and make Python's streams on them."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    first_fd = min(_FAR_FD, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    for fd, target in ((stdout_fd, 1), (stderr_fd, 2)):
        # This duplicate has a high number, which a cell will hardly close or overwrite.
        _pipe_by_target[target] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first_fd)
        os.close(fd)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for the whole process
    _connect()
    _make_stdout()
    _make_stderr()
    _line_buffer_c_stdout()


def repair() -> None:
    """Connect the streams to the agent again, before each cell.

    A cell may have closed a descriptor, overwritten it, or replaced ``sys.stdout`` by an object
    that is not writable. A writable stream of the user stays.
    """
    _connect()
    if not _is_writable(getattr(sys, "stdout", None)):
        _make_stdout()
    if not _is_writable(getattr(sys, "stderr", None)):
        _make_stderr()


def _connect() -> None:
    for target, pipe in _pipe_by_target.items():
        if not _is_same_file(target, pipe):
            os.dup2(pipe, target, inheritable=True)


def _make_stdout() -> None:
    sys.stdout = sys.__stdout__ = _text_stream(1)  # type: ignore[misc]  # final only in the stubs


def _make_stderr() -> None:
    sys.stderr = sys.__stderr__ = _text_stream(2)  # type: ignore[misc]  # final only in the stubs


def _is_same_file(target: int, pipe: int) -> bool:
    try:
        return os.path.sameopenfile(target, pipe)
    except OSError:
        return False


def _is_writable(stream: object) -> bool:
    return callable(getattr(stream, "write", None)) and not getattr(stream, "closed", False)


def _text_stream(fd: int) -> io.TextIOWrapper:
    raw = open(fd, "wb", closefd=False, buffering=1 << 16)  # noqa: SIM115 - for the whole process
    stream = _MarkedStream(raw, "utf-8", errors="backslashreplace", line_buffering=True)
    stream.target = fd
    stream.set_written(is_last=fd == _written)
    _own_streams[fd] = stream
    return stream


def _line_buffer_c_stdout() -> None:
    """Make stdout of C line buffered; on a pipe, C code would hold output back up to 4 KiB."""
    name = "__stdoutp" if sys.platform == "darwin" else "stdout"
    stream = ctypes.c_void_p.in_dll(_libc, name)
    _libc.setvbuf(stream, None, _IOLBF, 0)


def flush_own() -> None:
    """Flush unfinished lines of nbddp's streams. Callable from any thread: it runs no user code."""
    for stream in tuple(_own_streams.values()):
        with suppress(OSError, ValueError):  # the user closed it
            stream.flush()


def flush_all() -> None:
    """Flush the buffers of Python and C, and the user's streams that replace nbddp's."""
    for name in ("stdout", "stderr"):
        with suppress(Exception):  # the user's stream may raise anything
            getattr(sys, name).flush()
    flush_own()
    _libc.fflush(None)
