"""How a rank has ended, as part of a sentence.

Runs in: the notebook's process. Pure.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ExitPhrase:
    """The predicate of a sentence about a rank that has ended.

    >>> str(ExitPhrase("exited with SIGKILL (signal 9)"))
    'exited with SIGKILL (signal 9)'
    >>> str(ExitPhrase(": node 1 was given up", was_lost=True))
    'was lost: node 1 was given up'
    """

    rest: str  #: the whole predicate, or what follows ``was lost``
    was_lost: bool = False  #: with its node: perhaps its process still runs

    def __str__(self) -> str:
        return f"was lost{self.rest}" if self.was_lost else self.rest


#: Of a rank of whose end no more is known.
EXITED = ExitPhrase("exited")
