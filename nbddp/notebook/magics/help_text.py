"""The text of ``%ddp help``, made from the parsers.

Runs in: the notebook's process. Pure.
"""

import textwrap
from collections.abc import Iterable, Iterator

from nbddp.notebook.magics.arg_parser import option_text
from nbddp.notebook.magics.verb import Line

#: The columns at which explanations begin and end, and the indent of options.
_COLUMN = 37
_WIDTH = 100
_INDENT = "    "


def render(sections: Iterable[Iterable[Line]], ending: str) -> str:
    """The help about lines of ``%ddp``.

    Args:
        sections: groups of lines, with an empty line between groups.
        ending: the paragraph at the end.
    """
    texts = ["\n".join(row for line in section for row in _rows(line)) for section in sections]
    return "\n\n".join([*texts, textwrap.fill(ending, _WIDTH)])


def _rows(line: Line) -> Iterator[str]:
    yield _row(line.usage or line.parser.usage_line(), line.summary)
    for action in line.parser.arguments():
        if action.option_strings and action.help:
            yield _row(_INDENT + option_text(action, is_long=True), action.help)
    for usage, explanation in line.rows:
        yield _row(usage, explanation)


def _row(usage: str, explanation: str) -> str:
    first, *rest = textwrap.wrap(explanation, _WIDTH - _COLUMN, break_on_hyphens=False)
    return "\n".join([f"{usage:<{_COLUMN}}{first}", *(" " * _COLUMN + text for text in rest)])
