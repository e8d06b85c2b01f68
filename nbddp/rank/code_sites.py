"""Lines of the user's code: which cell they are of, and their text.

Runs in: the rank process, any thread.
"""

import linecache
import types
from collections.abc import Callable

from nbddp.stack_text import cell_number
from nbddp.wire.flight_recorder.schema import CONSOLE, Site, shortened


def _by_name(file: str) -> int:
    number = cell_number(file)
    return 0 if number is None else number or CONSOLE


#: Of the shell, which knows cells under other names, too: those of a debugger.
_known: list[Callable[[str], int]] = []


def know_cells(cell_of: Callable[[str], int]) -> None:
    """Let ``cell_of`` tell which file names stand for cells; see `cell_of`."""
    _known[:] = [cell_of]


def cell_of(file: str) -> int:
    """The execution count of the cell that a file name stands for, or `CONSOLE`; 0: it is none."""
    return next((number for known in _known if (number := known(file))), 0) or _by_name(file)


def site_at(code: types.CodeType, line: int, cell: int) -> Site:
    """Return a line of some code, which is that of a cell or of none (0)."""
    return Site(
        file=shortened(code.co_filename, 1000),
        line=line,
        function=shortened(code.co_name),
        source=shortened(_source(code.co_filename, line), 500),
        cell=cell,
    )


def innermost_in_cell(traceback: types.TracebackType | None) -> Site | None:
    """Return the innermost line of a cell in a traceback; None: there is none."""
    found: types.TracebackType | None = None
    while traceback is not None:
        if cell_of(traceback.tb_frame.f_code.co_filename):
            found = traceback
        traceback = traceback.tb_next
    if found is None:
        return None
    code = found.tb_frame.f_code
    return site_at(code, found.tb_lineno, cell_of(code.co_filename))


def _source(file: str, line: int) -> str:
    """Return the text of a line. The I/O thread asks while the main thread may fill the cache."""
    try:
        return linecache.getline(file, line).strip()
    except (TypeError, IndexError, KeyError):
        return ""  # the cache was changed at this moment
