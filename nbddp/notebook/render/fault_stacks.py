"""Stacks that were taken from outside, as a reader of the notebook wants them.

Runs in: the notebook's process. Pure.

`faulthandler` writes every frame of a thread, the innermost first: the user's, then those that run
cells. Only the user's are of interest, with cells named as everywhere else.
"""

import re
from pathlib import PurePath

from nbddp import stack_text
from nbddp.wire.flight_recorder.schema import cell_name
from nbddp.wire.messages import StackDumped

_LIBRARY = re.compile(r".*(?:/site-packages|/lib/python3[^/]*)/(?P<name>.*)")
#: What lies below a cell, and all that an idle rank has.
_MACHINERY = re.compile(r"/nbddp/rank/(?:server|cells/executor|main)\.py\Z")
#: Ours, and the string in which the process itself begins.
_OWN = re.compile(r"/nbddp/|\A<string>\Z")


class FaultFrame(stack_text.Frame):
    """One frame, as it is shown."""

    @property
    def is_own(self) -> bool:
        """It is nbddp's."""
        return _OWN.search(self.file) is not None

    @property
    def is_library(self) -> bool:
        """It is neither a cell's nor in a file of the user's."""
        return bool(self.is_own or _LIBRARY.match(self.file) or self.file.startswith("<frozen"))

    @property
    def place(self) -> str:
        """``cell [3], line 4``; as `str`, of a file."""
        return str(self) if self.cell is None else f"{cell_name(self.cell)}, line {self.line}"

    def __str__(self) -> str:
        """``cell [3], line 4, in step``, ``torch/nn/functional.py, line 10, in relu``."""
        if self.cell is not None:
            return self.place + ("" if self.function.startswith("<") else f", in {self.function}")
        library = _LIBRARY.match(self.file)
        name = library["name"] if library is not None else PurePath(self.file).name
        return f"{name}, line {self.line}, in {self.function}"


def frames(text: str) -> list[FaultFrame]:
    """All frames, the innermost first."""
    found = stack_text.frames(text)
    return [FaultFrame(frame.file, frame.line, frame.function) for frame in found]


def lines_of_user(text: str) -> list[str] | None:
    """The user's part of a stack; empty if no cell runs; None if it is none of `faulthandler`'s."""
    found = frames(text)
    if not found:
        return None
    below = [number for number, frame in enumerate(found) if frame.cell is not None]
    if below:
        inside = found[: below[-1] + 1]
        return [str(frame) for frame in inside if not frame.is_own]
    if any(_MACHINERY.search(frame.file) for frame in found):
        return []
    return [str(frame) for frame in found]


# --- one line of a stack -------------------------------------------------------------------------


#: States of a process as Linux has them, see proc(5).
_STATES = {"R": "computes", "S": "sleeps", "D": "waits for a disk"}


def is_stopped(peeked: StackDumped | None) -> bool:
    """By SIGSTOP, or by a debugger."""
    return peeked is not None and peeked.process_state == "T"


def state(peeked: StackDumped | None) -> str:
    """Of a rank that runs a cell: ``in a cell, sleeps``."""
    how = _STATES.get(peeked.process_state) if peeked is not None else None
    return f"in a cell, {how}" if how else "in a cell"


def place(stack_text: str) -> str:
    """The innermost line of the user's code: ``cell [4], line 5``."""
    found = frames(stack_text)
    return next((frame.place for frame in found if not frame.is_library), "")
