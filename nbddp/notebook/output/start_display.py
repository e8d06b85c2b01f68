"""Shows the start of a pool: how many ranks are ready, and at the end a sentence about the pool.

Runs in: the notebook's process, in the thread that waits for the start.
"""

from nbddp.controller.state import PoolSnapshot, RankState
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook.output.sinks import Live, Sink


class StartDisplay:
    """One line that changes in place, and a text at the end.

    Args:
        sink: the running cell, or a terminal.
        has_live: whether the sink can show a line that changes.
    """

    def __init__(self, sink: Sink, *, has_live: bool) -> None:
        self._sink = sink
        self._has_live = has_live
        self._line = ""
        self.is_shown = False  #: whether `show` was called

    def show(self, snapshot: PoolSnapshot) -> None:
        """Show the progress of the start."""
        self.is_shown = True
        line = progress_line(snapshot)
        if self._has_live and line != self._line:
            self._sink.live(Live((line,)))
            self._line = line

    def end(self, text: str) -> None:
        """Remove the progress, and print ``text`` unless it is empty."""
        if self._line:
            self._sink.live(Live())
        if text:
            # Not in the place of the progress: `jupyter console` shows no updates.
            self._sink.text("stdout", f"{with_line_breaks(text, 0)}\n")


def progress_line(snapshot: PoolSnapshot) -> str:
    """``starting 4 ranks ... 2 of 4 ready``."""
    count = len(snapshot.ranks)
    ready = len(snapshot.in_state(RankState.IDLE))
    return f"starting {count} {'rank' if count == 1 else 'ranks'} ... {ready} of {count} ready"
