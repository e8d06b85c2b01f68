"""Shows the start of a pool: how many ranks are ready, and at the end a sentence about the pool.

Runs in: the notebook's process, in the thread that waits for the start.
"""

import html

from nbddp.controller.state import PoolSnapshot, RankState
from nbddp.notebook.output.sinks import Live, Sink
from nbddp.notebook.render.html import PRE_STYLE, preformatted


class StartDisplay:
    """One line that changes in place; in a front end its last text stays.

    Args:
        sink: the running cell, or a terminal.
        display_id: the id of the line.
        is_front_end: whether the sink can change a display.
    """

    def __init__(self, sink: Sink, display_id: str, *, is_front_end: bool) -> None:
        self._sink = sink
        self._display_id = display_id
        self._is_front_end = is_front_end
        self._text: str | None = None  # None: nothing is shown

    @property
    def is_shown(self) -> bool:
        """Whether `show` was called."""
        return self._text is not None

    def show(self, snapshot: PoolSnapshot) -> None:
        """Show the progress of the start."""
        self._put(progress_line(snapshot))

    def end(self, text: str) -> None:
        """Show ``text``, which stays, in the place of the progress; empty: remove the line."""
        if self._is_front_end:
            if text or self.is_shown:
                self._put(text)
            return
        self._sink.live(Live())
        if text:
            self._sink.text("stdout", f"{text}\n")

    def _put(self, text: str) -> None:
        if text == self._text:
            return
        if not self._is_front_end:
            self._sink.live(Live((text,)))
        else:
            self._sink.display(_bundle(text), {}, self._display_id, self.is_shown)
        self._text = text


def progress_line(snapshot: PoolSnapshot) -> str:
    """``starting 4 ranks ... 2 of 4 ready``."""
    count = len(snapshot.ranks)
    if not count:
        return "starting"
    ready = len(snapshot.in_state(RankState.IDLE))
    return f"starting {count} {'rank' if count == 1 else 'ranks'} ... {ready} of {count} ready"


def _bundle(text: str) -> dict[str, str]:
    if not text:
        return {"text/plain": ""}
    return {"text/plain": text, "text/html": preformatted(html.escape(text), PRE_STYLE)}
