"""Warnings of torch about its connections: one quiet line for a pool, not a block of errors.

Runs in: the notebook's process, any thread. Torch warns, once per rank, of each host name that it
cannot look up while ranks connect. No code of the user causes that or can change it, and the logs
of the ranks have it. Errors of connections are shown as all others. Between cells nbddp
itself connects ranks: `BackgroundOutput` leaves the lines out.
"""

import threading
import uuid

from nbddp.notebook.output import torch_log
from nbddp.notebook.output.sinks import QUIET_STYLE, Sink, TerminalSink
from nbddp.notebook.render.html import escape, preformatted
from nbddp.wire.messages import Stream

_MAX_LINES = 200
_STYLE = f"{QUIET_STYLE};white-space:normal"


class SocketLog:
    """The lines of one pool so far, and the display that has them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._count = 0
        self._display_id = f"nbddp-sockets-{uuid.uuid4().hex[:12]}"
        self._shown_by: object = None  # the sink that shows it; None: none does
        self._lock = threading.Lock()

    def print(self, sink: Sink, stream: Stream, text: str) -> None:
        """Print text without these lines, which go to the display.

        Args:
            sink: shows the text.
            stream: of the text.
            text: complete lines, with their labels.
        """
        rest = text
        if stream == "stderr" and "socket.cpp" in text:
            lines = text.removesuffix("\n").split("\n")
            taken = [line for line in lines if _is_taken(line)]
            if taken:
                self._take(sink, taken)
                rest = "".join(f"{line}\n" for line in lines if not _is_taken(line))
        if rest or not text:
            sink.text(stream, rest)

    def clear(self, sink: Sink) -> None:
        """Note that a sink has removed what it has shown."""
        with self._lock:
            if self._shown_by is sink:
                self._lines, self._count, self._shown_by = [], 0, None

    def _take(self, sink: Sink, lines: list[str]) -> None:
        with self._lock:
            self._count += len(lines)
            self._lines = [*self._lines, *lines][-_MAX_LINES:]
            is_known = self._shown_by is not None
            if is_known and isinstance(sink, TerminalSink):
                return  # it would print all of it again
            self._shown_by = self._shown_by or sink
            sink.display(self._bundle(), {}, self._display_id, is_known)

    def _bundle(self) -> dict[str, str]:
        lines = f"{self._count} line{'s' * (self._count != 1)}"
        text = f"torch's log has {lines} about the connections of the ranks"
        more = self._count - len(self._lines)
        shown = [f"... {more} more lines are in the logs of the ranks"] * bool(more) + self._lines
        return {
            "text/plain": f"{text}; see the logs of the ranks: %ddp status",
            "text/html": (
                f'<details style="{_STYLE}"><summary>{escape(text)}</summary>'
                f"{preformatted(escape(chr(10).join(shown)), QUIET_STYLE)}</details>"
            ),
        }


def _is_taken(line: str) -> bool:
    """Return whether this is such a warning, with or without a label."""
    return torch_log.is_about_sockets(line) or torch_log.is_about_sockets(
        line.partition("] ")[2].lstrip()
    )
