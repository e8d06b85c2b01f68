"""A running cell in which printed lines keep their place while the live lines come and go.

Runs in: the thread that waits for the cell. I/O: IPython's display publisher.

A front end cannot move an output: text that is printed after the live lines would stand below them,
and move up when they go. So that text stands in their display, above them, until it ends::

    stream: the first lines              stream: the first lines
    display: later lines          -->    display: empty, without a height
             the live lines              stream: later lines

A new display (a figure, a card) ends that display, and the live lines begin one of their own below.

The row of ranks with the progress has a place of its own, above all output. The place is there from
the first output on, blank in a quick cell, and it stays when the cell ends: nothing moves, and what
is saved does not depend on the time that the cell took. In a cell without output it goes.
"""

from dataclasses import replace

from IPython.core.interactiveshell import InteractiveShell

from nbddp.notebook.output.sinks import Bundle, CellSink, Live, live_bundle, strip_bundle
from nbddp.notebook.render.html import escape, preformatted, without_codes
from nbddp.wire.messages import Stream

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
        place: the blank row of ranks, in HTML; empty: the live lines have no such row.
        is_alone: whether the cell has no other output.
    """

    def __init__(
        self, shell: InteractiveShell, live_id: str, *, place: str = "", is_alone: bool = False
    ) -> None:
        super().__init__(shell, live_id)
        self._start = live_id
        self._ended = 0  # displays of live lines
        self._lines = Live()
        self._held: list[tuple[Stream, str]] = []
        self._place, self._is_alone = place, is_alone
        self._strip: Bundle | None = None  # the row that is shown
        self._strip_id = f"{live_id}-strip"
        self._is_followed = False  # output stands below the row
        self._rows = 0  # unfinished lines that were shown at once so far

    def text(self, stream: Stream, text: str) -> None:
        """See `Sink.text`."""
        self._begin()
        if self._lines:
            self._held.append((stream, text))
            self._show()
        else:
            super().text(stream, text)

    def display(self, data: Bundle, metadata: Bundle, display_id: str | None, update: bool) -> None:
        """See `Sink.display`."""
        self._begin()
        lines = Live() if update else self._lines
        if lines:
            self._release()
        super().display(data, metadata, display_id, update)
        if lines:
            self._set_lines(lines)

    def clear(self) -> None:
        """See `Sink.clear`."""
        self._held.clear()
        self._lines = Live()
        super().clear()
        if self._strip is not None:
            super().display(self._strip, {}, self._strip_id, False)

    def live(self, live: Live) -> bool:
        """See `Sink.live`."""
        is_told = bool(live.strip) and not live.is_well  # how ranks failed is told without output
        goes = live.end is not None and not self._is_followed and not is_told
        if goes:
            self._remove_strip()
        elif self._place:
            if live.strip and (live.end is None or self._strip is not None or is_told):
                self._show_strip(strip_bundle(live))
            elif live:
                self._show_place()
            self._rows = max(self._rows, len(live.open_lines))
            live = replace(live, status=(), height=self._rows)
        self._set_lines(Live() if goes else live)
        if live.end is not None:
            self._place = ""  # what comes now is below a row that stays, or needs none
        return self._strip is not None

    def _begin(self) -> None:
        """Note that output comes, and show the place of the row above it."""
        self._is_followed = True
        self._show_place()

    def _show_place(self) -> None:
        if self._place and self._strip is None:
            self._show_strip(strip_bundle(Live(strip=self._place)))

    def _remove_strip(self) -> None:
        if self._strip is None:
            return
        self._strip = None
        if self._is_alone:  # nothing is saved, as for a cell that was quicker
            self._shell.display_pub.clear_output(wait=False)
            self.forget_live()
        else:
            super().display(live_bundle(Live()), {}, self._strip_id, True)

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
