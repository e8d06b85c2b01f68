"""The source of cells and files that the ranks run, for the diagnosis.

Runs in: the notebook's process; cells are added in the thread that runs them, and read in the hub
thread.
"""

import linecache

from nbddp.controller.diagnosis import Code
from nbddp.wire.flight_recorder import Site

#: Cells whose source is kept: a cell may call functions that an earlier one has defined.
_CELLS = 1000
_FILES = 100


class SourceTexts:
    """Gives the code that has a line: of cells, and of files that can be read here."""

    def __init__(self) -> None:
        self._cells: dict[int, tuple[str, int]] = {}  # by execution count: text and first line
        self._codes: dict[tuple[str, int], tuple[str, Code]] = {}

    def add_cell(self, number: int, text: str, first_line: int) -> None:
        """Remember the source of a cell; 0 is no number of a cell."""
        if number > 0:
            self._cells.pop(number, None)
            self._cells[number] = text, first_line
            for old in list(self._cells)[:-_CELLS]:
                self._cells.pop(old, None)

    def __call__(self, site: Site) -> Code | None:
        """Return the code with a line; None: it is not known."""
        if site.cell:
            text, first_line = self._cells.get(site.cell, ("", 1))
        else:
            text, first_line = "".join(linecache.getlines(site.file)), 1
        if not text:
            return None
        known = self._codes.get((site.file, site.cell))
        if known is None or known[0] != text:
            known = self._codes[site.file, site.cell] = text, Code(text, first_line)
            for old in list(self._codes)[:-_FILES]:
                del self._codes[old]
        code = known[1]
        # A file may have changed since the ranks have read it.
        is_same = site.cell or code.source(site.line).strip() == site.source
        return code if is_same else None
