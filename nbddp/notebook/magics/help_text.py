"""What ``%ddp help`` prints, made of what the parsers know.

Runs in: the notebook's process. Pure.
"""

import textwrap
from collections.abc import Iterable, Iterator

from nbddp.notebook.magics.arg_parser import in_words
from nbddp.notebook.magics.verb import Line

#: Where explanations begin, and where they end.
_COLUMN = 37
_WIDTH = 100
_INDENT = "    "


def render(sections: Iterable[Iterable[Line]], ending: str) -> str:
    """The help about these lines, an empty line between sections."""
    texts = ["\n".join(row for line in section for row in _rows(line)) for section in sections]
    return "\n\n".join([*texts, textwrap.fill(ending, _WIDTH)])


def _rows(line: Line) -> Iterator[str]:
    yield _row(line.usage or line.parser.usage_line(), line.summary)
    for action in line.parser.arguments():
        if action.option_strings and action.help:
            yield _row(_INDENT + in_words(action, is_long=True), action.help)
    for what, explanation in line.rows:
        yield _row(what, explanation)


def _row(what: str, explanation: str) -> str:
    first, *rest = textwrap.wrap(explanation, _WIDTH - _COLUMN, break_on_hyphens=False)
    return "\n".join([f"{what:<{_COLUMN}}{first}", *(" " * _COLUMN + text for text in rest)])
