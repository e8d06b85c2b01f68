"""Reads file names and frames as Python and `faulthandler` write them.

Runs in: every process. Pure; it imports no other module of nbddp.
"""

import re
from dataclasses import dataclass
from typing import Final

#: The file name that IPython gives a cell; the number in it is the execution count.
_CELL_FILE: Final = r"<ipython-input-(\d+)-\w+>"
_CELL: Final = re.compile(_CELL_FILE)
_QUOTED_CELL: Final = re.compile(rf'File "{_CELL_FILE}", line')
_FRAME: Final = re.compile(
    r'^ *File "(?P<file>[^"\n]*)", line (?P<line>\d+) in (?P<function>\S+)$', re.MULTILINE
)


@dataclass(frozen=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    function: str

    @property
    def cell(self) -> int | None:
        """The number of the cell that has the code; None: no cell has it."""
        return cell_number(self.file)


def cell_number(file: str) -> int | None:
    """The number of the cell with this file name; None: it is not the name of a cell.

    >>> cell_number("<ipython-input-3-5f1c9e>"), cell_number("train.py")
    (3, None)
    """
    match = _CELL.fullmatch(file)
    return int(match[1]) if match is not None else None


def with_named_cells(line: str) -> str:
    """Rewrite a line of Python's traceback: cells get the names that IPython shows.

    >>> with_named_cells('  File "<ipython-input-3-5f1c9e>", line 2, in f')
    '  Cell In[3], line 2, in f'
    """
    return _QUOTED_CELL.sub(
        lambda match: f"Cell In[{match[1]}], line" if int(match[1]) else "Console cell, line", line
    )


def frames(text: str) -> list[Frame]:
    r"""The frames that `faulthandler` has written, the innermost first.

    >>> frames('Stack (most recent call first):\n  File "train.py", line 7 in step\n')
    [Frame(file='train.py', line=7, function='step')]
    """
    return [
        Frame(match["file"], int(match["line"]), match["function"])
        for match in _FRAME.finditer(text)
    ]
