"""The words of an engine about an agent that has ended, with the advice apart.

Runs in: the notebook's process. Pure.
"""

import re
from typing import Self

_NEXT = re.compile(r"\.\s+Next: ")


class EngineEnd(str):
    """The reason of an end, and the user's next step: ``srun ended. Next: try `srun hostname```.

    It is a text, since `Engine.end` returns one: engines of packages return a plain text, and those
    of nbddp mostly pass on the words of another process, such as ssh or a driver. So nothing
    changes for engines, and only `of` splits a text.

    Args:
        what: the reason.
        advice: for the user; empty: there is none.

    >>> EngineEnd("srun ended", "try `srun hostname`")
    'srun ended. Next: try `srun hostname`'
    """

    __slots__ = ("advice", "what")

    what: str
    advice: str

    def __new__(cls, what: str, advice: str = "") -> Self:
        """Make the text of both."""
        end = super().__new__(cls, f"{what}. Next: {advice}" if advice else what)
        end.what, end.advice = what, advice
        return end

    @classmethod
    def of(cls, text: str, advice: str = "") -> "EngineEnd":
        """Split a text.

        Args:
            text: of an engine, or of another process, which may have an advice of its own: what
                has said it knows more.
            advice: where the text has none; it is dropped if the text has its own.

        >>> EngineEnd.of("ssh ended and said: a is full. Next: empty it", "try `ssh a`").advice
        'empty it'
        """
        if isinstance(text, EngineEnd):
            return text
        what, *rest = _NEXT.split(text, maxsplit=1)
        return cls(what, rest[0] if rest else text and advice)
