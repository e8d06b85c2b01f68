"""A suggested change of the user's code, as a small diff.

Runs in: the notebook's process. Pure.

    cell [3], for example
      - if rank == 0:
      -     dist.all_reduce(loss)
      + dist.all_reduce(loss)
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from nbddp.controller.diagnosis import ChangedLine, CodeChange
from nbddp.notebook.render.code_excerpt import code, heading, shown_source, table
from nbddp.notebook.render.html import WIDTH, one_line, shorten
from nbddp.wire.flight_recorder import cell_name

_MARKS: Mapping[Literal["same", "removed", "added"], str] = {
    "same": " ",
    "removed": "-",
    "added": "+",
}
_COLOURS: Mapping[str, str] = {
    "-": "background-color:rgba(220,60,60,.16)",
    "+": "background-color:rgba(40,160,80,.18)",
    " ": "background-color:transparent",
}
_FIELD = "text-align:left;border:none;padding:0 10px 0 4px;white-space:pre"


def text(change: CodeChange | None) -> list[str]:
    """The change as a terminal shows it; none for None."""
    if change is None:
        return []
    shown = [f"{mark} {source}".rstrip() for mark, source in _rows(change.lines)]
    return [f"    {_title(change)}", *(shorten(f"      {line}", WIDTH) for line in shown)]


def html(change: CodeChange | None) -> str:
    """The change as a table; empty for None."""
    if change is None:
        return ""
    rows = [
        f'<tr style="{_COLOURS[mark]}"><td style="{_FIELD}">{mark}</td><td style="{_FIELD}">'
        f"{code(source)}</td></tr>"
        for mark, source in _rows(change.lines)
    ]
    return table([heading(_title(change), 2, _FIELD), *rows])


def _title(change: CodeChange) -> str:
    place = cell_name(change.cell) if change.cell else one_line(change.file)
    return f"{place}, for example"


def _rows(lines: Sequence[ChangedLine]) -> list[tuple[str, str]]:
    """Mark and source of each line, without the indentation that all have."""
    sources = [line.source.expandtabs(4) for line in lines]
    common = min((len(s) - len(s.lstrip()) for s in sources if s.strip()), default=0)
    return [
        (_MARKS[line.change], shown_source(source[common:]))
        for line, source in zip(lines, sources, strict=True)
    ]
