"""Lines of the user's code: which cell they are of, and their text.

Runs in: the rank process, any thread.
"""

import linecache
import types
from collections.abc import Callable
from itertools import islice

from nbddp.stack_text import cell_number
from nbddp.wire.flight_recorder import CONSOLE, Site, shortened


def _by_name(file: str) -> int:
    number = cell_number(file)
    return 0 if number is None else number or CONSOLE


#: The shell's function, which also knows the file names that a debugger uses for cells.
_known: list[Callable[[str], int]] = []


def know_cells(cell_of: Callable[[str], int]) -> None:
    """Set the function that recognises the file names of cells; see `cell_of`."""
    _known[:] = [cell_of]


def cell_of(file: str) -> int:
    """Return the execution count of the cell with a file name, or `CONSOLE`; 0: it is no cell."""
    return next((number for known in _known if (number := known(file))), 0) or _by_name(file)


def site_at(code: types.CodeType, line: int, cell: int) -> Site:
    """Return a line of code; ``cell`` is the execution count of its cell, or 0."""
    return Site(
        file=shortened(code.co_filename, 1000),
        line=line,
        function=shortened(code.co_name),
        source=shortened(_source(code.co_filename, line), 500),
        cell=cell,
    )


def call_text(code: types.CodeType, instruction: int, source: str) -> str:
    """Return the text of the call that an instruction makes, ``loss.backward()``, or ``source``.

    Args:
        code: the code.
        instruction: offset of the instruction in it, as in `frame.f_lasti`.
        source: the text of its line, stripped.
    """
    positions = islice(code.co_positions(), instruction // 2, None)
    line, last_line, begin, end = next(positions, (None, None, None, None))
    if line is None or line != last_line or begin is None or end is None:
        return source
    whole = _line(code.co_filename, line).encode()  # positions count bytes
    return shortened(whole[begin:end].decode(errors="replace").strip(), 500) or source


def innermost_in_cell(traceback: types.TracebackType | None) -> Site | None:
    """Return the innermost line of a cell in a traceback; None: there is none."""
    innermost: types.TracebackType | None = None
    while traceback is not None:
        if cell_of(traceback.tb_frame.f_code.co_filename):
            innermost = traceback
        traceback = traceback.tb_next
    if innermost is None:
        return None
    code = innermost.tb_frame.f_code
    return site_at(code, innermost.tb_lineno, cell_of(code.co_filename))


def _source(file: str, line: int) -> str:
    """Return the text of a line without its indentation."""
    return _line(file, line).strip()


def _line(file: str, line: int) -> str:
    """Return the text of a line, in the I/O thread while the main thread may fill the cache."""
    try:
        return linecache.getline(file, line)
    except (TypeError, IndexError, KeyError):
        return ""  # the cache was changed at this moment
