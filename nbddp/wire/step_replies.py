"""The notebook's answers to a rank that has stopped before an operation.

Runs in: the notebook, the rank. Pure. They travel as the text of an `InputReply`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class StepVerb(Enum):
    """An action of a stopped rank."""

    STEP = "step"  #: do the operation, and stop before a later one
    UNTIL = "until"  #: do it, and stop before a collective of its group, or at a break point
    CONTINUE = "continue"  #: do it, and stop at break points only
    LEAVE = "leave"  #: do it, and stop no more in this cell
    SKIP = "skip"  #: do not issue it, and stop before the next one
    RETRY = "retry"  #: make its call again, and stop before the operation of that one
    RUN = "run"  #: run code in the user's frame, print its value if it has one, and ask again
    PRINT = "print"  #: the same, and print None, too
    UP = "up"  #: look from a line further out, and ask again
    DOWN = "down"  #: the other way, and ask again
    WHERE = "where"  #: print the user's stack, and ask again
    DEBUG = "debug"  #: open a debugger in the user's frame, and ask again


#: The actions that run code.
RUNS: Final = (StepVerb.RUN, StepVerb.PRINT)
#: The actions whose answer is a word and a number.
COUNTED = frozenset({StepVerb.STEP, StepVerb.UNTIL, StepVerb.UP, StepVerb.DOWN})


@dataclass(frozen=True)
class StepReply:
    """One answer."""

    verb: StepVerb
    #: Of `StepVerb.UP` and `DOWN`: the lines; of `STEP`: the operations until the next stop; of
    #: `UNTIL`: the collective's number; of `RUNS`: the number of the command, equal on all ranks.
    count: int = 1
    code: str = ""  #: of `RUNS`; of `RETRY`: another call, or empty

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.verb in COUNTED:
            return f"{self.verb.value} {self.count}"
        match self.verb:
            case StepVerb.RUN | StepVerb.PRINT:
                return f"{self.verb.value} {self.count} {self.code}"
            case StepVerb.RETRY:
                return f"retry {self.code}"
            case _:
                return str(self.verb.value)

    @classmethod
    def parse(cls, text: str) -> "StepReply":
        """Read a text that `str` gave.

        Raises:
            ValueError: it is none.
        """
        word, _, rest = text.partition(" ")
        verb = StepVerb(word)
        if verb in COUNTED:
            return cls(verb, count=int(rest))
        if verb in RUNS:
            count, _, code = rest.partition(" ")
            return cls(verb, count=int(count), code=code)
        if verb is StepVerb.RETRY:
            return cls(verb, code=rest)
        return cls(verb)
