"""A running cell in which printed lines keep their place while the live lines come and go.

Runs in: the thread that waits for the cell. I/O: IPython's display publisher.

A front end cannot move an output: text that is printed after the live lines would stand below them,
and move up when they go. So that text stands in their display, above them, until it ends::

    stream: the first lines              stream: the first lines
    display: later lines          -->    display: empty, without a height
             the live lines              stream: later lines

A new display (a figure, a card) ends that display, and the live lines begin one of their own below.
"""

from IPython.core.interactiveshell import InteractiveShell

from nbddp.notebook.output.sinks import Bundle, CellSink, Live, live_bundle
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
    """

    def __init__(self, shell: InteractiveShell, live_id: str) -> None:
        super().__init__(shell, live_id)
        self._start = live_id
        self._ended = 0  # displays of live lines
        self._lines = Live()
        self._held: list[tuple[Stream, str]] = []

    def text(self, stream: Stream, text: str) -> None:
        """See `Sink.text`."""
        if self._lines:
            self._held.append((stream, text))
            self._show()
        else:
            super().text(stream, text)

    def display(self, data: Bundle, metadata: Bundle, display_id: str | None, update: bool) -> None:
        """See `Sink.display`."""
        lines = Live() if update else self._lines
        if lines:
            self._release()
        super().display(data, metadata, display_id, update)
        if lines:
            self.live(lines)

    def clear(self) -> None:
        """See `Sink.clear`."""
        self._held.clear()
        self._lines = Live()
        super().clear()

    def live(self, live: Live) -> None:
        """See `Sink.live`."""
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
