"""The words of an engine about what it waits for, and whether the wait may never end.

Runs in: the notebook's process. Pure.
"""

from typing import Self


class EngineState(str):
    """The event that an engine waits for: ``Slurm job 4711: PENDING (Priority)``.

    It is a text, as `EngineEnd` is one: engines of packages return a plain text.

    Args:
        words: for the user.
        may_never_start: perhaps no agent ever starts with these options.

    >>> EngineState("Slurm job 6: PENDING (BadConstraints)", may_never_start=True).may_never_start
    True
    """

    __slots__ = ("may_never_start",)

    may_never_start: bool

    def __new__(cls, words: str, *, may_never_start: bool = False) -> Self:
        """Make the text, with that fact."""
        state = super().__new__(cls, words)
        state.may_never_start = may_never_start
        return state
