"""Shows what a verb does now, while it takes long: one line, which goes at the end.

Runs in: the notebook's process, in the thread of the running cell.
"""

from nbddp.notebook.output.sinks import Bundle, Live, Sink
from nbddp.wire.messages import Stream


class StepLine:
    """A sink for the cells of a verb, whose live lines stand with the step of the verb.

    Args:
        verb: the subject of all steps: ``%ddp catchup``.
        sink: the running cell, or a terminal.
        has_live: whether the sink can show a line that changes.
    """

    def __init__(self, verb: str, sink: Sink, *, has_live: bool) -> None:
        self._verb = verb
        self._sink = sink
        self._has_live = has_live
        self._step = ""
        self._shown = Live()

    def say(self, step: str) -> None:
        """Show a step in the place of the last one: ``runs cell [4] again on rank 2``."""
        self._step = f"{self._verb} {step}"
        self._show(Live())

    def end(self) -> None:
        """Remove the line."""
        self._step = ""
        self._show(Live())

    def text(self, stream: Stream, text: str) -> None:
        """See `Sink.text`."""
        self._sink.text(stream, text)

    def display(self, data: Bundle, metadata: Bundle, display_id: str | None, update: bool) -> None:
        """See `Sink.display`."""
        self._sink.display(data, metadata, display_id, update)

    def clear(self) -> None:
        """See `Sink.clear`."""
        self._sink.clear()

    def live(self, live: Live) -> bool | None:
        """Show the lines of a cell with the step; see `Sink.live`."""
        self._show(live)
        return False

    def _show(self, cell: Live) -> None:
        progress, *notices = cell.status or ("",)
        first = " | ".join(filter(None, (self._step, progress)))
        lines = Live((first, *notices), cell.open_lines) if first else Live()
        if self._has_live and lines != self._shown:
            self._sink.live(lines)
            self._shown = lines
