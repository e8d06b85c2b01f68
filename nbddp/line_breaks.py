"""Breaks long lines of nbddp's own sentences at blanks, for front ends that break inside words.

Runs in: every process. Pure. A command to copy stays in one line, however long it is.
"""

import re
import textwrap
from typing import Final

#: Verbs of ``%ddp`` whose next word belongs to the command.
_WITH_WORD: Final = "attach|auto|break|clear|config|diff|help|log|output|pull|push|vars"
#: Commands such as ``%ddp catchup -r 1 --cells 3``, with the word in front, and code in backticks.
_COMMAND: Final = re.compile(
    rf"""
    (?<![\w`])`(?=\S)[^`\n]{{1,80}}(?<=\S)`
    | (?: (?:(?<![^\s`])\S+[ ])?%ddp | %%ddp )  # from its begin: each letter would read a long word
      (?:[ ](?:(?:{_WITH_WORD})[ ](?:line[ ])?[^\s-]\S* | [a-z]+))?
      (?:[ ](?:\#\d+\S* | --?[a-z]\S*(?<![,.;:)])[ ](?:'[^'\n]*'|[^\s-]\S*) | --?[a-z]\S*))*
    """,
    re.VERBOSE,
)
#: JupyterLab breaks longer lines, also inside words, on a projector at 150 %.
WIDTH = 84


def with_line_breaks(text: str, indent: int = 2) -> str:
    """Break lines that are longer than `WIDTH` at blanks, but not inside a command.

    Args:
        text: sentences, without codes of a terminal.
        indent: blanks at the begin of each line that a break has made.

    >>> print(with_line_breaks("x " * 40 + "Next: %ddp catchup -r 1 --cells 3, then go on"))
    x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x
      Next: %ddp catchup -r 1 --cells 3, then go on
    """
    return "\n".join(
        line if len(line) <= WIDTH else "\n".join(wrapped(line, WIDTH, indent=indent))
        for line in text.split("\n")
    )


def wrapped(text: str, width: int, *, indent: int, first_indent: int = 0) -> list[str]:
    """Return the lines of a sentence, broken at blanks that are in no command.

    Args:
        text: a sentence.
        width: the maximum length of a line; a word or a command may be longer.
        indent: blanks at the begin of each line but the first.
        first_indent: blanks at the begin of the first line.
    """
    lines = textwrap.wrap(
        _COMMAND.sub(lambda match: match[0].replace(" ", "\0"), text),
        width,
        initial_indent=" " * first_indent,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]
