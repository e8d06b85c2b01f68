"""The places where output is shown: the running cell, an earlier cell, or a terminal.

Runs in: the notebook's process. A sink shows all that it gets, and decides nothing.
"""

import html
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from IPython.core.interactiveshell import InteractiveShell

from nbddp.notebook.render.html import clean, preformatted
from nbddp.printable import harmless
from nbddp.wire.messages import Stream

Bundle = Mapping[str, Any]

#: Style of printed text, but fainter. JupyterLab names its fonts; other pages use the fallbacks.
QUIET_STYLE = (
    "margin:0;padding:0 0 0 1ch;opacity:.65;white-space:pre-wrap;"
    "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px)"
)
#: A line that wraps would move all that is below it.
_LIVE_STYLE = QUIET_STYLE.replace("white-space:pre-wrap", "white-space:pre;overflow-x:hidden")


@dataclass(frozen=True)
class Live:
    """The part of a running cell's output that changes: it goes when the cell ends."""

    status: tuple[str, ...] = ()  #: the progress, and a notice
    open_lines: tuple[str, ...] = ()  #: lines without an end, such as progress bars
    strip: str = ""  #: a row of ranks, in HTML; alone it is only for sinks that give it a place
    legend: str = ""  #: of the row of ranks, for the first line below it
    height: int = 0  #: at least this many lines, so that nothing below moves
    end: str | None = None  #: the cell has ended, and this stands below the row of ranks
    is_well: bool = False  #: all ranks ended it well, so that a reader of plain text needs no row

    def __bool__(self) -> bool:
        return bool(self.status or self.open_lines)


class Sink(Protocol):
    """Shows text and MIME bundles."""

    def text(self, stream: Stream, text: str) -> None:
        """Print complete lines."""

    def display(self, data: Bundle, metadata: Bundle, display_id: str | None, update: bool) -> None:
        """Show a bundle, or replace the one with this ``display_id``."""

    def clear(self) -> None:
        """Remove all output when the next output is shown."""

    def live(self, live: Live) -> bool | None:
        """Replace the live lines by these; no lines: remove them.

        Returns:
            True: the row of ranks stays after the end of the cell.
        """


class _JupyterSink:
    """The live lines of a front end: one display that is updated in place."""

    def __init__(self, live_id: str) -> None:
        self._live_id = live_id
        self._has_live = False

    def display(self, data: Bundle, metadata: Bundle, display_id: str | None, update: bool) -> None:
        raise NotImplementedError

    def live(self, live: Live) -> bool | None:
        """See `Sink.live`."""
        if live or self._has_live:
            self.display(live_bundle(live), {}, self._live_id, self._has_live)
            self._has_live = True
        return False

    def forget_live(self) -> None:
        """Note that the front end has removed the live lines with all other output."""
        self._has_live = False


class CellSink(_JupyterSink):
    """The running cell, through IPython's display publisher, so that ``%%capture`` works."""

    def __init__(self, shell: InteractiveShell, live_id: str) -> None:
        super().__init__(live_id)
        self._shell = shell

    def text(self, stream: Stream, text: str) -> None:
        """See `Sink.text`."""
        file = sys.stdout if stream == "stdout" else sys.stderr
        file.write(text)
        file.flush()

    def display(self, data: Bundle, metadata: Bundle, display_id: str | None, update: bool) -> None:
        """See `Sink.display`."""
        transient = {} if display_id is None else {"display_id": display_id}
        self._shell.display_pub.publish(
            data=dict(data), metadata=dict(metadata), transient=transient, update=update
        )

    def clear(self) -> None:
        """See `Sink.clear`."""
        self._shell.display_pub.clear_output(wait=True)
        self.forget_live()


class EarlierCellSink(_JupyterSink):
    """A cell that ran earlier: its messages carry that cell's parent header. For any thread.

    Front ends find an updated display by its id. nbclient listens to the running cell only, so
    updates carry the parent header of the running cell.
    """

    def __init__(self, kernel: Any, parent: Any, live_id: str) -> None:
        super().__init__(live_id)
        self._kernel = kernel
        self._parent = parent

    def text(self, stream: Stream, text: str) -> None:
        """See `Sink.text`."""
        self._send("stream", {"name": stream, "text": text})

    def display(self, data: Bundle, metadata: Bundle, display_id: str | None, update: bool) -> None:
        """See `Sink.display`."""
        transient = {} if display_id is None else {"display_id": display_id}
        kind = "update_display_data" if update else "display_data"
        content = {"data": dict(data), "metadata": dict(metadata), "transient": transient}
        self._send(kind, content, self._kernel.get_parent() if update else None)

    def clear(self) -> None:
        """See `Sink.clear`."""
        self._send("clear_output", {"wait": True})
        self.forget_live()

    def _send(self, kind: str, content: dict[str, Any], parent: Any = None) -> None:
        # The socket of the kernel's IOPub thread takes messages from any thread.
        self._kernel.session.send(
            self._kernel.iopub_socket,
            kind,
            content,
            parent=parent or self._parent,
            ident=kind.encode(),
        )


#: The begin of the display id of a card.
CARD_PREFIX = "nbddp-card-"
_TITLE = re.compile(r"^\w[\w ]*:")
_RANKS = re.compile(r"^( +(?:> )?)((?:odd |even )?ranks? [\d,-]+)(?= )")


class TerminalSink:
    """A terminal, a pipe or a file: text, and the plain form of bundles."""

    def __init__(self) -> None:
        self._live_width = 0

    def text(self, stream: Stream, text: str) -> None:
        """See `Sink.text`."""
        self.live(Live())
        file = sys.stdout if stream == "stdout" else sys.stderr
        file.write(text)
        file.flush()

    def display(self, data: Bundle, metadata: Bundle, display_id: str | None, update: bool) -> None:
        """See `Sink.display`."""
        plain = data.get("text/plain")
        if isinstance(plain, str):
            text = harmless(plain).rstrip("\n")
            is_card = display_id is not None and display_id.startswith(CARD_PREFIX)
            self.text("stdout", f"{_coloured(text) if is_card and _has_colours() else text}\n")

    def clear(self) -> None:
        """Do nothing: a terminal keeps its text."""

    def live(self, live: Live) -> None:
        """Show the last live line, if the terminal can overwrite a line; see `Sink.live`."""
        lines = live.status or live.open_lines
        if not sys.stderr.isatty() or not (lines or self._live_width):
            return
        line = clean(lines[-1][:120]) if lines else ""
        sys.stderr.write("\r" + " " * self._live_width + "\r" + line)
        sys.stderr.flush()
        self._live_width = len(line)


def _has_colours() -> bool:
    """Whether the terminal shows colours, and the user wants them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _coloured(card: str) -> str:
    """The text of a card with its first word in red, and the ranks of its rows bold."""
    headline, *rows = card.split("\n")
    headline = _TITLE.sub("\x1b[1;31m\\g<0>\x1b[0m", headline)
    return "\n".join([headline, *(_RANKS.sub("\\1\x1b[1m\\2\x1b[0m", row) for row in rows)])


def strip_bundle(live: Live) -> dict[str, str]:
    """The row of ranks with one line below it, as a MIME bundle: its height never changes."""
    # A notice is more important than the progress, whose end may be cut.
    line = clean(" | ".join(reversed(live.status)) if live.end is None else live.end)
    shown = "  |  ".join(filter(None, (live.legend, line)))
    # At the right it does not look like a line that the program has printed.
    style = f"{_LIVE_STYLE};text-align:right" if live.is_well else _LIVE_STYLE
    return {
        "text/plain": "" if live.is_well else line,
        "text/html": (
            f'<div title="{html.escape(line)}">{live.strip}'
            f"{preformatted(html.escape(shown) or '&nbsp;', style)}</div>"
        ),
    }


def live_bundle(live: Live) -> dict[str, str]:
    """The live lines as a MIME bundle; without a height if there are none."""
    if not live:
        return {"text/plain": ""}
    lines = [clean(line) for line in (*live.status, *live.open_lines)]
    padded = [*lines, *[" "] * (live.height - len(lines))]
    if live.status and live.legend:
        padded[0] = f"{live.legend}  |  {padded[0]}"
    return {
        "text/plain": "\n".join(lines),
        "text/html": live.strip * bool(live.status)
        + preformatted(html.escape("\n".join(padded)), _LIVE_STYLE),
    }
