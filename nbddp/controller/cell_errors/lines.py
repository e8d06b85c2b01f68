"""Lines of an error's text: those of nbddp break where they are long, those of user code stay.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nbddp.line_breaks import with_line_breaks
from nbddp.printable import harmless, without_colours

_RED, _OFF = "\x1b[31m", "\x1b[0m"
_LABEL_WIDTH = 9


@dataclass(frozen=True)
class Line:
    """A line, or several if it is never broken.

    >>> print(Line("ranks 0-3 waited in all_reduce and were freed", name="CellError").plain)
    CellError: ranks 0-3 waited in all_reduce and were freed
    """

    text: str
    indent: int | None = 4  #: blanks in front of the parts of a long line; None: it is never broken
    name: str = ""  #: of the error, in front of its headline; empty: it is another line

    @property
    def plain(self) -> str:
        """The line for programs: whole."""
        return f"{self.name}: {self.text}" if self.name else self.text

    @property
    def displayed(self) -> str:
        """The line that IPython shows: harmless, the name in colour, broken where it is long."""
        text = harmless(self.plain)
        if self.indent is not None:
            text = with_line_breaks(without_colours(text), self.indent)
        return f"{_RED}{self.name}{_OFF}{text.removeprefix(self.name)}" if self.name else text


def labelled(label: str, text: str) -> Line:
    """A fact of nbddp with its label: ``  kept      every variable is kept``."""
    return Line(f"  {label:<{_LABEL_WIDTH}} {text}", _LABEL_WIDTH + 3)


def quoted(text: str, label: str = "") -> Line:
    """Text that is not nbddp's own, such as a traceback or a path."""
    return Line(f"  {label:<{_LABEL_WIDTH}} {text}" if label else text, None)


def plain_text(lines: Iterable[Line]) -> str:
    """The text for programs."""
    return "\n".join(line.plain for line in lines).strip("\n")


def displayed_text(lines: Iterable[Line]) -> str:
    """The text that IPython shows."""
    return "\n".join(line.displayed for line in lines).strip("\n")
