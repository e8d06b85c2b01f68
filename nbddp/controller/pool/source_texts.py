"""The source of cells and files that the ranks run, for the diagnosis.

Runs in: the notebook's process; cells are added in the thread that runs them, and read in the hub
thread.
"""

import tokenize
from pathlib import Path

from nbddp.controller.diagnosis import Code
from nbddp.wire.flight_recorder import Site

#: Cells whose source is kept: a cell may call functions that an earlier one has defined.
_CELLS = 1000
#: Syntax trees that are kept, because a cell is looked at again and again while it waits.
_TREES = 4
_FILE_BYTES = 1 << 20


class SourceTexts:
    """Gives the code that has a line: of cells, and of files that can be read here."""

    def __init__(self) -> None:
        self._cells: dict[int, tuple[str, int]] = {}  # by execution count: text and first line
        self._codes: dict[tuple[str, int], Code] = {}  # by text and first line

    def add_cell(self, number: int, text: str, first_line: int) -> None:
        """Remember the source of a cell; 0 is no number of a cell."""
        if number > 0:
            self._cells.pop(number, None)
            self._cells[number] = text, first_line
            if len(self._cells) > _CELLS:
                del self._cells[next(iter(self._cells))]

    def __call__(self, site: Site) -> Code | None:
        """Return the code with a line; None: it is not known."""
        source = self._cells.get(site.cell) if site.cell else (_text(site.file), 1)
        if source is None or not source[0]:
            return None
        code = self._codes.get(source)
        if code is None:
            code = self._codes[source] = Code(*source)
            if len(self._codes) > _TREES:
                del self._codes[next(iter(self._codes))]
        # A file may have changed since the ranks have read it.
        is_same = site.cell or code.source(site.line).strip() == site.source
        return code if is_same else None


def _text(file: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        path = Path(file)
        if not path.is_file() or path.stat().st_size > _FILE_BYTES:
            return ""
        with tokenize.open(path) as opened:
            return opened.read()
    except (OSError, SyntaxError, ValueError):
        return ""
