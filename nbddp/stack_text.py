"""Files and frames as Python and `faulthandler` write them.

Runs in: every process. Pure; below everything else, as `nbddp.printable`.
"""

import re
from dataclasses import dataclass
from typing import Final

#: The file name that IPython gives a cell: its number is the execution count.
_CELL_FILE: Final = r"<ipython-input-(\d+)-\w+>"
_CELL: Final = re.compile(_CELL_FILE)
_QUOTED_CELL: Final = re.compile(rf'File "{_CELL_FILE}", line')
_FRAME: Final = re.compile(
    r'^ *File "(?P<file>[^"\n]*)", line (?P<line>\d+) in (?P<function>\S+)$', re.MULTILINE
)


@dataclass(frozen=True)
class Frame:
    """One frame."""

    file: str
    line: int
    function: str

    @property
    def cell(self) -> int | None:
        """The number of the cell whose code it is; None: it is no cell's."""
        return cell_number(self.file)


def cell_number(file: str) -> int | None:
    """The number of the cell that a file name stands for; None: it is no cell.

    >>> cell_number("<ipython-input-3-5f1c9e>"), cell_number("train.py")
    (3, None)
    """
    found = _CELL.fullmatch(file)
    return int(found[1]) if found is not None else None


def with_named_cells(line: str) -> str:
    """A line of a traceback as Python writes it, with cells named as IPython names them.

    >>> with_named_cells('  File "<ipython-input-3-5f1c9e>", line 2, in f')
    '  Cell In[3], line 2, in f'
    """
    return _QUOTED_CELL.sub(
        lambda found: f"Cell In[{found[1]}], line" if int(found[1]) else "Console cell, line", line
    )


def frames(text: str) -> list[Frame]:
    r"""The frames that `faulthandler` has written, the innermost first.

    >>> frames('Stack (most recent call first):\n  File "train.py", line 7 in step\n')
    [Frame(file='train.py', line=7, function='step')]
    """
    return [
        Frame(found["file"], int(found["line"]), found["function"])
        for found in _FRAME.finditer(text)
    ]
