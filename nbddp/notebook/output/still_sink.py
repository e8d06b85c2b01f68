"""A running cell in which printed lines keep their place while the live lines come and go.

Runs in: the thread that waits for the cell. I/O: IPython's display publisher.

A front end cannot move an output: text that is printed after the live lines would stand below them,
and move up when they go. So that text stands in their display, above them, until it ends::

    stream: the first lines              stream: the first lines
    display: later lines          -->    display: empty, without a height
             the live lines              stream: later lines

A new display (a figure, a card) ends that display, and the live lines begin one of their own below.

The row of ranks with the progress has a place of its own, above all output. It is shown when the
cell has run for a moment, until which output is held back, and it stays when the cell ends: nothing
moves.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from nbddp.notebook.output.sinks import Bundle, CellSink, Live, live_bundle, strip_bundle
from nbddp.notebook.render.html import escape, preformatted, without_codes
from nbddp.wire.messages import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

#: As a front end shows a stream, so that nothing moves when it becomes one.
_STYLE = (
    "margin:0;padding:0 0 0 8px;border:none;background:none;white-space:pre-wrap;"
    "word-break:break-all;font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px);"
    "line-height:var(--jp-code-line-height,1.3)"
)


class StillSink(CellSink):
    """A `CellSink` for front ends that update displays, such as JupyterLab.

    Args:
        shell: the shell of the cell.
        live_id: the start of display ids; no other view has it.
        has_strip: whether the live lines will have a row of ranks.
    """

    def __init__(self, shell: InteractiveShell, live_id: str, *, has_strip: bool = False) -> None:
        super().__init__(shell, live_id)
        self._start = live_id
        self._ended = 0  # displays of live lines
        self._lines = Live()
        self._held: list[tuple[Stream, str]] = []
        #: Output that waits for the row of ranks to be shown; None: it does not wait any more.
        self._early: list[Callable[[], None]] | None = [] if has_strip else None
        self._strip: Bundle | None = None  # the row that is shown
        self._strip_id = f"{live_id}-strip"
        self._is_followed = False  # output stands below the row
        self._rows = 0  # unfinished lines that were shown at once so far

    def text(self, stream: Stream, text: str) -> None:
        """See `Sink.text`."""
        if self._early is not None:
            self._early.append(partial(self.text, stream, text))
            return
        self._is_followed = True
        if self._lines:
            self._held.append((stream, text))
            self._show()
        else:
            super().text(stream, text)

    def display(self, data: Bundle, metadata: Bundle, display_id: str | None, update: bool) -> None:
        """See `Sink.display`."""
        if self._early is not None:
            self._early.append(partial(self.display, data, metadata, display_id, update))
            return
        self._is_followed = True
        lines = Live() if update else self._lines
        if lines:
            self._release()
        super().display(data, metadata, display_id, update)
        if lines:
            self._set_lines(lines)

    def clear(self) -> None:
        """See `Sink.clear`."""
        if self._early is not None:
            self._early = [super().clear]
            return
        self._held.clear()
        self._lines = Live()
        super().clear()
        if self._strip is not None:
            super().display(self._strip, {}, self._strip_id, False)

    def live(self, live: Live) -> bool:
        """See `Sink.live`."""
        if self._early is not None:
            if not live.strip and live.end is None:
                return False  # the lines come with the row
            early, self._early = self._early, None
            if live.end is None:
                self._show_strip(strip_bundle(live))
            for show in early:
                show()
        elif self._strip is not None and live.strip:
            self._show_strip(strip_bundle(live))
        if self._strip is not None:
            self._rows = max(self._rows, len(live.open_lines))
            live = replace(live, status=(), height=self._rows)
        self._set_lines(live)
        if live.end is not None and self._strip is not None and not self._is_followed:
            self._show_strip(live_bundle(Live()))
            self._strip = None
        return self._strip is not None

    def _show_strip(self, strip: Bundle) -> None:
        if strip != self._strip:
            super().display(strip, {}, self._strip_id, self._strip is not None)
            self._strip = strip

    def _set_lines(self, live: Live) -> None:
        if live:
            self._lines = live
            self._show()
        else:
            self._release()

    def _show(self) -> None:
        """Show the text and the live lines."""
        bundle: Bundle = live_bundle(self._lines)
        text = without_codes("".join(text for _, text in self._held))
        if text:
            # The first line end of a <pre> does not count, nor does the last one.
            above = preformatted(escape(text.removesuffix("\n")), _STYLE)
            bundle = {
                "text/plain": f"{text}{bundle['text/plain']}",
                "text/html": f"{above}{bundle['text/html']}",
            }
        super().display(bundle, {}, self._live_id, self._has_live)
        self._has_live = True

    def _release(self) -> None:
        """Remove the live lines, and print the text as a stream.

        In this order: a page that became shorter in between would scroll.
        """
        held, self._held = self._held, []
        for stream, text in held:
            super().text(stream, text)
        self._lines = Live()
        if self._has_live:
            super().display(live_bundle(Live()), {}, self._live_id, True)
            self._has_live = False
            self._ended += 1
            self._live_id = f"{self._start}-{self._ended}"
