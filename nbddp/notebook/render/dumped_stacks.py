"""Stacks that `faulthandler` wrote, as the reader of a notebook wants them.

Runs in: the notebook's process. Pure.

`faulthandler` writes every frame of a thread, the innermost first: the user's, then those that run
cells. Readers see the user's frames only, with cells named as everywhere else.
"""

import re
from pathlib import PurePath

from nbddp import stack_text
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.messages import StackDumped

_LIBRARY = re.compile(r".*(?:/site-packages|/lib/python3[^/]*)/(?P<name>.*)")
#: Files of the frames below a cell; an idle rank has no other frames.
_CELL_RUNNER = re.compile(r"/nbddp/rank/(?:server|cells/executor|main)\.py\Z")
#: Files of nbddp, and the string in which the process itself begins.
_OWN = re.compile(r"/nbddp/|\A<string>\Z")


class DumpedFrame(stack_text.Frame):
    """One frame, as readers see it."""

    @property
    def is_own(self) -> bool:
        """Whether the frame is in nbddp."""
        return _OWN.search(self.file) is not None

    @property
    def is_library(self) -> bool:
        """Whether the frame is neither in a cell nor in one of the user's files."""
        return bool(self.is_own or _LIBRARY.match(self.file) or self.file.startswith("<frozen"))

    @property
    def place(self) -> str:
        """``cell [3], line 4``; a frame in a file gives the same text as `str`."""
        return str(self) if self.cell is None else f"{cell_name(self.cell)}, line {self.line}"

    def __str__(self) -> str:
        """``cell [3], line 4, in step``, ``torch/nn/functional.py, line 10, in relu``."""
        if self.cell is not None:
            return self.place + ("" if self.function.startswith("<") else f", in {self.function}")
        library = _LIBRARY.match(self.file)
        name = library["name"] if library is not None else PurePath(self.file).name
        return f"{name}, line {self.line}, in {self.function}"


def frames(text: str) -> list[DumpedFrame]:
    """All frames, the innermost first."""
    parsed = stack_text.frames(text)
    return [DumpedFrame(frame.file, frame.line, frame.function) for frame in parsed]


def user_lines(text: str) -> list[str] | None:
    """The user's part of a stack, a line for each frame, the innermost first.

    Returns:
        An empty list if no cell runs; None if `faulthandler` did not write ``text``.
    """
    stack = frames(text)
    if not stack:
        return None
    in_cells = [number for number, frame in enumerate(stack) if frame.cell is not None]
    if in_cells:
        inside = stack[: in_cells[-1] + 1]
        return [str(frame) for frame in inside if not frame.is_own]
    if any(_CELL_RUNNER.search(frame.file) for frame in stack):
        return []
    return [str(frame) for frame in stack]


# --- one line about a rank -----------------------------------------------------------------------


#: States of a process as Linux has them, see proc(5).
_STATES = {"R": "computes", "S": "sleeps", "D": "waits for a disk"}


def is_stopped(dump: StackDumped | None) -> bool:
    """Whether SIGSTOP or a debugger has stopped the process."""
    return dump is not None and dump.process_state == "T"


def state(dump: StackDumped | None) -> str:
    """The state of a rank that runs a cell: ``in a cell, sleeps``."""
    process_state = _STATES.get(dump.process_state) if dump is not None else None
    return f"in a cell, {process_state}" if process_state else "in a cell"


def place(stack_text: str) -> str:
    """The innermost line of the user's code: ``cell [4], line 5``."""
    return next((frame.place for frame in frames(stack_text) if not frame.is_library), "")
