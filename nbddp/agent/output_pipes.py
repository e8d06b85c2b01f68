"""The output pipes of one rank: text comes in as it is printed, and goes out in batches.

Runs in: the agent's thread. The agent reads the pipes, not the rank, so the last output of a rank
that crashes is kept, and a rank never waits for a slow notebook. Text that the notebook cannot take
is left out there and counted; the rank's log file still has it.

    rank, its C code, its children --fd 1, 2--> RankPipes --> log file
                                                          --> Output messages, batched

The text of both streams is sent in the order in which Python code printed it, see
`nbddp.wire.stream_order`.
"""

import array
import codecs
import fcntl
import os
import shutil
import sys
import termios
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Literal

from nbddp.agent.stack_pipe import StackPipe
from nbddp.settings import Settings
from nbddp.wire import stream_order
from nbddp.wire.launch_specs import InheritedFd
from nbddp.wire.left_out_text import LeftOutText
from nbddp.wire.messages import Output, RunId, Stream

_PIPE_BYTES = 1 << 20  #: as large as an ordinary user may ask for
_READ_BYTES = 1 << 18
_TAIL_BYTES = 4096
_F_SETPIPE_SZ = 1031
#: A batch with more changes between the streams is sent stream by stream: messages cost time.
_MAX_RUNS = 100
_STREAMS: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")


class _Stream:
    """One pipe: raw bytes that wait to be sent, and a decoder that handles cut characters."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        if sys.platform == "linux":
            with suppress(OSError):  # the user's pipe budget is used up; the usual 64 KiB work too
                fcntl.fcntl(self.write_fd, _F_SETPIPE_SZ, _PIPE_BYTES)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.marks = stream_order.MarkReader()
        self.waiting: list[tuple[int, bytes]] = []  # each part with the number of its mark
        self.left_out = LeftOutText()
        self.is_open = True


class RankPipes:
    """Standard output and error of one rank.

    Args:
        rank: number of the rank.
        log_path: path of its log file.
        settings: limits.
        sharers: number of ranks whose logs are on the same disk; together they fill at most half
            of its free space.
        heading: a line for the log, written if the log is not empty.
    """

    def __init__(
        self,
        rank: int,
        log_path: Path,
        settings: Settings,
        *,
        sharers: int = 1,
        heading: str = "",
    ) -> None:
        self._rank = rank
        self._settings = settings
        self._streams: dict[Stream, _Stream] = {name: _Stream() for name in _STREAMS}
        self._log_fd = os.open(
            log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self.stacks = StackPipe()  #: reads the text that `faulthandler` writes
        free_bytes = shutil.disk_usage(log_path.parent).free
        self._log_room = min(settings.log_limit_bytes, free_bytes // 2 // sharers)
        self._notice = ""  #: is sent to the notebook with the next text
        self._tail = b""
        self._first_waiting_at: float | None = None
        #: The cell to which the output belongs; None between cells.
        self.run_id: RunId | None = None
        if heading and os.fstat(self._log_fd).st_size:
            self._write_log(f"\n[nbddp: {heading}]\n".encode())

    def write_ends(self) -> tuple[InheritedFd, InheritedFd, InheritedFd]:
        """Return the descriptors for the rank: its descriptors 1 and 2, and for `faulthandler`."""
        stdout, stderr = (InheritedFd(stream.write_fd) for stream in self._streams.values())
        return stdout, stderr, InheritedFd(self.stacks.write_fd)

    def close_write_ends(self) -> None:
        """Close the write ends after the rank's process was made, so that only it has them."""
        for stream in self._streams.values():
            os.close(stream.write_fd)
        os.close(self.stacks.write_fd)

    def fds(self) -> list[int]:
        """Return the open read ends of standard output and error, for polling."""
        return [stream.read_fd for stream in self._streams.values() if stream.is_open]

    @property
    def flush_at(self) -> float | None:
        """The time at which the waiting text has to be sent; None: no text waits."""
        if self._first_waiting_at is None:
            return None
        return self._first_waiting_at + self._settings.output_flush_s

    @property
    def waiting_bytes(self) -> int:
        """Bytes read and not yet taken."""
        return sum(len(text) for each in self._streams.values() for _, text in each.waiting)

    def begin_cell(self, run_id: RunId) -> None:
        """Begin a cell: output that comes from now on belongs to it."""
        self.run_id = run_id
        self._tail = b""

    def read(self, fd: int, now: float) -> bool:
        """Read once from one pipe; returns whether it is still open."""
        name = next(name for name, stream in self._streams.items() if stream.read_fd == fd)
        return self._read_some(self._streams[name], _READ_BYTES, now) is not None

    def drain(self, now: float) -> None:
        """Read only the text that is in the pipes at this moment, because a flood has no end."""
        for stream in self._streams.values():
            left = _bytes_in_pipe(stream.read_fd) if stream.is_open else 0
            while left > 0:
                count = self._read_some(stream, min(left, _READ_BYTES), now)
                if not count:
                    break
                left -= count

    def _read_some(self, stream: _Stream, limit: int, now: float) -> int | None:
        """Read; returns the number of bytes, 0: the pipe is empty, None: no writer is left."""
        try:
            chunk = os.read(stream.read_fd, limit)
        except BlockingIOError:
            return 0
        if not chunk:
            stream.is_open = False
            return None
        self._keep(stream, stream.marks.feed(chunk))
        if self._first_waiting_at is None:
            self._first_waiting_at = now
        return len(chunk)

    def _keep(self, stream: _Stream, parts: list[tuple[int, bytes]]) -> None:
        text = b"".join(text for _, text in parts)
        if text and self._log_room > 0:
            self._write_log(text)
        self._tail = (self._tail + text[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        stream.waiting += parts

    def _write_log(self, chunk: bytes) -> None:
        try:
            os.write(self._log_fd, chunk[: self._log_room])
            self._log_room -= len(chunk)
            if self._log_room <= 0:
                os.write(self._log_fd, b"\n[nbddp: the log is full; the rest is not kept]\n")
        except OSError as error:
            # For example, the disk is full. The pool and the notebook continue without a log.
            self._log_room = 0
            reason = f"the log cannot be written: {error.strerror}; the rest is not kept"
            self._notice = f"[nbddp: {reason}]\n"

    def take(self, *, drop: bool, last: bool = False, followed: bool = False) -> list[Output]:
        """Return the waiting text as messages.

        Args:
            drop: count the text instead of sending it; the next message says how much was left out,
                and has the last lines of it if no other text has come.
            last: the cell or the rank has ended, so keep neither half a character nor a count.
            followed: something else of the rank is shown behind the text, so keep no count.
        """
        keeps_count = drop and not (last or followed)
        runs = self._take_runs(last=last)
        names = {name for name, _ in runs}
        silent = [(name, stream) for name, stream in self._streams.items() if name not in names]
        is_due = [name for name, stream in silent if last or (stream.left_out and not keeps_count)]
        runs = [*((name, b"") for name in is_due), *runs]
        last_run_by_stream = {name: index for index, (name, _) in enumerate(runs)}
        outputs: list[Output] = []
        for index, (name, chunk) in enumerate(runs):
            is_last_run = last_run_by_stream[name] == index
            stream = self._streams[name]
            text = stream.decoder.decode(chunk, final=last and is_last_run)
            if drop:
                stream.left_out.add(text)
                text = ""
            dropped_bytes = stream.left_out.take() if text else 0
            if not text and is_last_run and not keeps_count:
                dropped_bytes, text = stream.left_out.take_with_end()
            if text or dropped_bytes:
                outputs.append(
                    Output(
                        run_id=self.run_id,
                        rank=self._rank,
                        stream=name,
                        text=text,
                        dropped_bytes=dropped_bytes,
                    )
                )
        if self._notice:
            outputs.append(
                Output(run_id=self.run_id, rank=self._rank, stream="stderr", text=self._notice)
            )
            self._notice = ""
        return outputs

    @property
    def has_left_out(self) -> bool:
        """Whether text was left out, and none has been sent since."""
        return any(stream.left_out for stream in self._streams.values())

    def _take_runs(self, *, last: bool) -> list[tuple[Stream, bytes]]:
        """Take the waiting text in the order of its marks; one run has text of one stream."""
        known = self._catch_up()
        parts: list[tuple[int, Stream, bytes]] = []
        for name, stream in self._streams.items():
            if last:
                self._keep(stream, stream.marks.end())
            taken = [part for part in stream.waiting if last or part[0] <= known]
            stream.waiting = stream.waiting[len(taken) :]
            parts += [(number, name, text) for number, text in taken]
        if not any(stream.waiting for stream in self._streams.values()):
            self._first_waiting_at = None
        parts.sort(key=lambda part: part[0])
        runs = [
            (name, b"".join(text for _, _, text in run))
            for name, run in groupby(parts, key=lambda part: part[1])
        ]
        if len(runs) > _MAX_RUNS:
            runs = [(name, b"".join(b for of, b in runs if of == name)) for name in _STREAMS]
        return runs

    def _catch_up(self) -> int:
        """Read both streams up to the same mark; return its number, up to which the order is known.

        A mark that was read in one stream is in the pipe of the other one already.
        """
        behind, ahead = sorted(self._streams.values(), key=lambda each: each.marks.number)
        number = ahead.marks.number
        if self._first_waiting_at is not None:
            while behind.is_open and behind.marks.number < number:
                if not self._read_some(behind, _READ_BYTES, self._first_waiting_at):
                    break
        # Without the mark, a child has written the other one, or the stream is closed.
        behind.marks.number = max(behind.marks.number, number)
        return number

    def last_output(self) -> str:
        """Return the end of the rank's output, in whole lines where possible."""
        text = self._tail.decode("utf-8", "replace")
        if len(self._tail) == _TAIL_BYTES:
            text = text.partition("\n")[2] or text
        return text

    def crash(self) -> str:
        """Return the Python stack at a fatal signal; empty without one. Call this once."""
        text = self.stacks.crash()
        if text and self._log_room > 0:
            self._write_log(text.encode())
        return text

    def close(self) -> None:
        """Close the read ends and the log."""
        self.stacks.close()
        for stream in self._streams.values():
            os.close(stream.read_fd)
        os.close(self._log_fd)


def _bytes_in_pipe(fd: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]
