"""The pipe into which `faulthandler` of one rank writes.

Runs in: the agent's thread. Two things come through it: the stack of the main thread, each time the
agent asks for it by a signal, and the last words at a fatal signal. They are told apart by how they
begin.

    rank, in a signal handler --pipe--> FaultPipe --> a dump for `nbddp.agent.stack_dumps`
                                                  --> the stack at a crash, for `RankExited`
"""

import os
import re

_READ_BYTES = 1 << 16
#: A dump is some 10 KiB; this is for a rank that is told to write over and over.
_KEPT_BYTES = 1 << 20
_CRASH = b"Fatal Python error: "
#: The outermost frame of a rank's main thread, the last line of a dump.
_OUTERMOST = re.compile(rb'\n  File "<string>", line \d+ in <module>\n\Z')


class FaultPipe:
    """Both ends; the agent closes the one for writing when the rank's process was made."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._text = b""

    def read(self) -> bool:
        """Read all that is there; tells whether it is still open."""
        try:
            while chunk := os.read(self.read_fd, _READ_BYTES):
                self._text = (self._text + chunk)[-_KEPT_BYTES:]
        except BlockingIOError:
            return True
        return False

    def forget_dumps(self) -> None:
        """What was written so far answers nobody; a crash is kept."""
        self.read()
        self._text = self._text[self._dump_end() :]

    def dump(self) -> str:
        """The stack of the main thread, as far as it has come."""
        return self._text[: self._dump_end()].decode("utf-8", "replace")

    @property
    def dump_bytes(self) -> int:
        """The length of that."""
        return self._dump_end()

    @property
    def has_whole_dump(self) -> bool:
        """Whether nothing of the dump is missing. Some dumps are whole and do not look it."""
        return _OUTERMOST.search(self._text, 0, self._dump_end()) is not None

    def crash(self) -> str:
        """What was written at a fatal signal; empty without one."""
        self.read()
        return self._text[self._dump_end() :].decode("utf-8", "replace")

    def _dump_end(self) -> int:
        at = self._text.find(_CRASH)
        return len(self._text) if at < 0 else at

    def close(self) -> None:
        """Close the end for reading."""
        os.close(self.read_fd)
