"""The notebook's answers to a rank that has stopped before an operation.

Runs in: the notebook, the rank. Pure. They travel as the text of an `InputReply`.
"""

from dataclasses import dataclass
from enum import Enum


class StepVerb(Enum):
    """An action of a stopped rank."""

    STEP = "step"  #: do the operation, and stop before a later one
    CONTINUE = "continue"  #: do it, and stop no more in this cell
    RUN = "run"  #: run code in the user's frame, and ask again
    WHERE = "where"  #: print the user's stack, and ask again
    DEBUG = "debug"  #: open a debugger in the user's frame, and ask again


@dataclass(frozen=True)
class StepReply:
    """One answer."""

    verb: StepVerb
    count: int = 1  #: of `StepVerb.STEP`: the operations until the next stop
    code: str = ""  #: of `StepVerb.RUN`

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        match self.verb:
            case StepVerb.STEP:
                return f"step {self.count}"
            case StepVerb.RUN:
                return f"run {self.code}"
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
        if verb is StepVerb.STEP:
            return cls(verb, count=int(rest))
        return cls(verb, code=rest)
