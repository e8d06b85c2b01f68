"""Breaks long lines of nbddp's own sentences at blanks, for front ends that break inside words.

Runs in: every process. Pure.
"""

import re
import textwrap

#: A blank in a command, which stays in one line: ``Next: %ddp restart -r 1``.
_COMMAND = re.compile(r"(?<=%ddp) | (?=%ddp)|(?<= -\w) |(?<=Next:) ")
#: JupyterLab breaks longer lines, also inside words, on a projector at 150 %.
WIDTH = 82


def with_line_breaks(text: str, indent: int = 2) -> str:
    """Break lines that are longer than `WIDTH` at blanks, but not inside a command.

    Args:
        text: sentences, without codes of a terminal.
        indent: blanks at the begin of each line that a break has made.

    >>> print(with_line_breaks("x " * 45 + "Next: %ddp push x"))
    x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x
      x x x x Next: %ddp push x
    """
    return "\n".join(
        line if len(line) <= WIDTH else _broken(line, indent) for line in text.split("\n")
    )


def _broken(line: str, indent: int) -> str:
    lines = textwrap.wrap(
        _COMMAND.sub("\0", line),
        WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")
