"""A change of the user's code as the marked lines of a small diff.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from nbddp.controller.diagnosis.report import ChangedLine

_MARKS: Final[Mapping[Literal["same", "removed", "added"], str]] = {
    "same": " ",
    "removed": "-",
    "added": "+",
}


def marked_lines(lines: Sequence[ChangedLine]) -> list[tuple[str, str]]:
    """``-``, ``+`` or a blank, and the source, of each line, without their common indentation."""
    sources = [_clean(line.source) for line in lines]
    common = min((_depth(source) for source in sources if source.strip()), default=0)
    return [
        (_MARKS[line.change], source[common:]) for line, source in zip(lines, sources, strict=True)
    ]


def _clean(source: str) -> str:
    """The source with blanks only: a control character must not move a terminal's cursor."""
    text = source.expandtabs(4)
    shown = "".join(char if char.isprintable() else " " for char in text)
    return " " * _depth(shown) + " ".join(shown.split())


def _depth(source: str) -> int:
    return len(source) - len(source.lstrip())
