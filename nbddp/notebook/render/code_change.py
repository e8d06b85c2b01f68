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
from nbddp.notebook.render.html import FAINT_LINE, WIDTH, escape, one_line, shorten
from nbddp.wire.flight_recorder import cell_name

_MAX_SOURCE = 100
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
_NAMES: Mapping[str, str] = {"-": ' aria-label="removed"', "+": ' aria-label="added"', " ": ""}
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
        f'<tr style="background-color:transparent"><th colspan="2" scope="colgroup" '
        f'style="{_FIELD};font-weight:normal;opacity:0.7">{escape(_title(change))}</th></tr>'
    ]
    rows += [
        f'<tr style="{_COLOURS[mark]}"><th scope="row"{_NAMES[mark]} style="{_FIELD};'
        f'font-weight:normal">{mark}</th><td style="{_FIELD}">'
        f'<code style="background:none;padding:0">{escape(source)}</code></td></tr>'
        for mark, source in _rows(change.lines)
    ]
    return (
        f'<table style="border-collapse:collapse;border:none;border-left:{FAINT_LINE};'
        'margin:6px 0;font-size:100%;font-family:monospace"><tbody>'
        f"{''.join(rows)}</tbody></table>"
    )


def _title(change: CodeChange) -> str:
    place = cell_name(change.cell) if change.cell else one_line(change.file)
    return f"{place}, for example"


def _rows(lines: Sequence[ChangedLine]) -> list[tuple[str, str]]:
    """Mark and source of each line, without the indentation that all have."""
    sources = [line.source.expandtabs(4) for line in lines]
    common = min((len(s) - len(s.lstrip()) for s in sources if s.strip()), default=0)
    return [
        (_MARKS[line.change], shorten(_clean(source[common:]), _MAX_SOURCE))
        for line, source in zip(lines, sources, strict=True)
    ]


def _clean(source: str) -> str:
    indentation = source[: len(source) - len(source.lstrip())]
    return indentation + one_line(source.strip())
