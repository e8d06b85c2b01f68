"""A notebook on a terminal, as a reader would see it, while it runs.

Runs in: the process of `notebooks.execute`.
"""

import asyncio
import json
import os
import re
import time
from typing import Any, TextIO

from nbformat import NotebookNode

SHOWN_SOURCE_LINES = 16
UPDATE_EVERY_S = 1.0  # a display that changes more often is printed this often
STATUS_EVERY_S = 0.25  # on a terminal
SILENT_STATUS_EVERY_S = 10.0  # in a log: only while a cell prints nothing

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class View:
    """Prints cells and outputs; keeps a status line at the bottom of a terminal."""

    def __init__(self, out: TextIO, n_cells: int) -> None:
        self.out = out
        self.n_cells = n_cells
        self.is_terminal = out.isatty()
        self.has_colour = self.is_terminal and "NO_COLOR" not in os.environ
        self._index = 0
        self._began = time.monotonic()
        self._cell_began = self._last_print = self._began
        self._at_line_start = True
        self._has_status = False
        self._unfinished = ""  # in a log, the last line waits for its end: it may be written over
        self._update_text: dict[str, str] = {}  # by display id: what was printed last
        self._pending_update: dict[str, str] = {}  # by display id: what was not printed yet
        self._last_update_s = 0.0

    def begin_cell(self, cell: NotebookNode, index: int, execution_count: int) -> None:
        """Show the source of a cell."""
        self._index = index + 1
        self._cell_began = time.monotonic()
        lines = cell.source.splitlines()
        if len(lines) > SHOWN_SOURCE_LINES:
            hidden = len(lines) - SHOWN_SOURCE_LINES + 1
            lines = [*lines[: SHOWN_SOURCE_LINES - 1], f"... ({hidden} more lines)"]
        self._start_line()
        self._write("\n")
        if cell.cell_type != "code":
            self._write("".join(f"{line}\n" for line in lines))
            return
        prompt = f"In [{execution_count}]: "
        for number, line in enumerate(lines):
            lead = self._paint(prompt, "32") if number == 0 else " " * len(prompt)
            self._write(f"{lead}{self._paint(line, '2')}\n")

    def end_cell(self) -> None:
        """Print what was held back."""
        self._print_updates()
        self._start_line()

    def text(self, text: str) -> None:
        """Text of stdout or stderr."""
        self._print_updates()
        if self.is_terminal:
            self._write(text)
            return
        lines, newline, self._unfinished = (self._unfinished + text).rpartition("\n")
        self._write(collapse_carriage_returns(lines + newline))

    def bundle(self, data: dict[str, Any], prompt: str = "") -> None:
        """A display or a result."""
        self._print_updates()
        text = describe_bundle(data)
        if text:
            self._start_line()
            self._write(f"{self._paint(prompt, '31')}{text}\n")

    def remember(self, display_id: str, data: dict[str, Any]) -> None:
        """A display that may be updated was printed."""
        self._update_text[display_id] = describe_bundle(data)

    def update(self, display_id: str, data: dict[str, Any]) -> None:
        """A display has new content."""
        self._pending_update[display_id] = describe_bundle(data)
        if time.monotonic() - self._last_update_s >= UPDATE_EVERY_S:
            self._print_updates()

    def clear(self) -> None:
        """The output of the cell was cleared: what was not printed yet never will be."""
        self._pending_update.clear()

    def error(self, traceback: list[str]) -> None:
        """A traceback."""
        self._print_updates()
        self._start_line()
        self._write("\n".join(traceback) + "\n")

    def note(self, text: str) -> None:
        """A line of our own."""
        self._start_line()
        self._write(text + "\n")

    async def tick(self) -> None:
        """Show that a cell is still running, until cancelled."""
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            self.show_status()

    def show_status(self) -> None:
        """Say which cell runs and for how long, where it does not disturb the output."""
        now = time.monotonic()
        text = (
            f"[cell {self._index}/{self.n_cells}, {now - self._cell_began:.1f} s"
            f" of {now - self._began:.1f} s]"
        )
        if self.is_terminal:
            if self._at_line_start:
                self.out.write(f"\r\x1b[K{self._paint(text, '2')}")
                self.out.flush()
                self._has_status = True
        elif now - self._last_print >= SILENT_STATUS_EVERY_S:
            self._write(text + "\n")

    def _print_updates(self) -> None:
        for display_id, text in self._pending_update.items():
            if text and text != self._update_text.get(display_id):
                self._start_line()
                self._write(text + "\n")
            self._update_text[display_id] = text
        if self._pending_update:
            self._last_update_s = time.monotonic()
            self._pending_update.clear()

    def _start_line(self) -> None:
        unfinished, self._unfinished = self._unfinished, ""
        self._write(collapse_carriage_returns(unfinished))
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._has_status:
            self.out.write("\r\x1b[K")
            self._has_status = False
        self.out.write(text if self.has_colour else ANSI.sub("", text))
        self.out.flush()
        self._at_line_start = text.endswith("\n")
        self._last_print = time.monotonic()

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.has_colour and text else text


def describe_bundle(data: dict[str, Any]) -> str:
    """A MIME bundle as text: pictures by size, all else by its text/plain."""
    for mime, content in data.items():
        if mime.startswith("image/"):
            return f"[image: {mime.removeprefix('image/')}, {_size(content)}]"
    if "text/plain" in data:
        return str(data["text/plain"]).rstrip("\n")
    return ", ".join(f"[{mime}, {_size(content)}]" for mime, content in data.items() if content)


def _size(content: object) -> str:
    n_bytes = len(content if isinstance(content, str) else json.dumps(content))
    return f"{n_bytes} B" if n_bytes < 1000 else f"{n_bytes / 1000:.0f} kB"


def collapse_carriage_returns(text: str) -> str:
    """What a terminal would show in the end of lines that were written over."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
