"""A rank as its agent sees it: the state of its process, and its stack.

Runs in: the notebook's process. Pure.
"""

import re
from pathlib import PurePath

from nbddp.wire.messages import Peeked

#: States of a process as Linux has them, see proc(5).
_STATES = {"R": "computes", "S": "sleeps", "D": "waits for a disk"}
#: A line of a stack as `faulthandler` writes it, and the name of a cell in it.
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>\S+)')
_CELL_FILE = re.compile(r"<ipython-input-(\d+)-")
#: The process itself begins in a ``<string>``.
_LIBRARY = re.compile(r"/(?:site-packages|lib/python3[^/]*)/|^<frozen|^<string>|/nbddp/")


def is_stopped(peeked: Peeked | None) -> bool:
    """By SIGSTOP, or by a debugger."""
    return peeked is not None and peeked.process_state == "T"


def state(peeked: Peeked | None) -> str:
    """Of a rank that runs a cell: ``in a cell, sleeps``."""
    how = _STATES.get(peeked.process_state) if peeked is not None else None
    return f"in a cell, {how}" if how else "in a cell"


def place(stack_text: str) -> str:
    """The innermost line of the user's code: ``cell [4], line 5``."""
    frames = list(_FRAME.finditer(stack_text))
    for frame in frames:
        cell = _CELL_FILE.search(frame["file"])
        if cell is not None:
            return f"cell [{cell[1]}], line {frame['line']}"
        if not _LIBRARY.search(frame["file"]):
            return f"{PurePath(frame['file']).name}, line {frame['line']}, in {frame['function']}"
    return ""
