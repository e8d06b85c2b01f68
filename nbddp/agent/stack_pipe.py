"""The pipe to which one rank writes its stacks.

Runs in: the agent's thread. Two things come through it: the stack of the main thread, each time the
agent asks for it with a signal, and the report at a fatal signal. Their first words differ.

    rank, in signal handlers --pipe--> StackPipe --> a dump for `nbddp.agent.stack_dumps`
                                                  --> the stack at a crash, for `RankExited`
"""

import os
import re

_READ_BYTES = 1 << 16
#: A dump has about 10 KiB. This limit is for a rank that is asked to write over and over.
_KEPT_BYTES = 1 << 20
_CRASH = b"Fatal Python error: "
#: The first line of a dump. A rank may answer two signals, and write two.
_BEGIN = b"Stack (most recent call first):"
#: The outermost frame of a rank's main thread, the last line of a dump.
_OUTERMOST = re.compile(rb'\n  File "<string>", line \d+ in <module>\n\Z')


class StackPipe:
    """Both ends; the agent closes the write end when the rank's process was made."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._text = b""

    def read(self) -> bool:
        """Read all that is there; returns whether the pipe is still open."""
        try:
            while chunk := os.read(self.read_fd, _READ_BYTES):
                self._text = (self._text + chunk)[-_KEPT_BYTES:]
        except BlockingIOError:
            return True
        return False

    def forget_dumps(self) -> None:
        """Forget the dumps written so far, which answer no request; keep a crash."""
        self.read()
        self._text = self._text[self._dump_end() :]

    def dump(self) -> str:
        """Return the stack of the main thread: the last whole one, or what has arrived of it."""
        dumps = [_BEGIN + rest for rest in self._text[: self._dump_end()].split(_BEGIN)[1:]]
        whole = [dump for dump in dumps if _OUTERMOST.search(dump)]
        return (whole or dumps or [b""])[-1].decode("utf-8", "replace")

    @property
    def dump_bytes(self) -> int:
        """Length of the dump that has arrived."""
        return self._dump_end()

    @property
    def has_whole_dump(self) -> bool:
        """True if the dump is certainly complete. Some complete dumps do not look complete."""
        return _OUTERMOST.search(self._text, 0, self._dump_end()) is not None

    def crash(self) -> str:
        """Return the text that was written at a fatal signal; empty without one."""
        self.read()
        return self._text[self._dump_end() :].decode("utf-8", "replace")

    def _dump_end(self) -> int:
        at = self._text.find(_CRASH)
        return len(self._text) if at < 0 else at

    def close(self) -> None:
        """Close the read end."""
        os.close(self.read_fd)
