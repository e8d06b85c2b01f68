"""A rank as its agent sees it: the state of its process, and its stack.

Runs in: the notebook's process. Pure.
"""

from nbddp.notebook import outside
from nbddp.wire.messages import Peeked

#: States of a process as Linux has them, see proc(5).
_STATES = {"R": "computes", "S": "sleeps", "D": "waits for a disk"}


def is_stopped(peeked: Peeked | None) -> bool:
    """By SIGSTOP, or by a debugger."""
    return peeked is not None and peeked.process_state == "T"


def state(peeked: Peeked | None) -> str:
    """Of a rank that runs a cell: ``in a cell, sleeps``."""
    how = _STATES.get(peeked.process_state) if peeked is not None else None
    return f"in a cell, {how}" if how else "in a cell"


def place(stack_text: str) -> str:
    """The innermost line of the user's code: ``cell [4], line 5``."""
    frames = outside.frames(stack_text)
    return next((frame.place for frame in frames if not frame.is_library), "")
