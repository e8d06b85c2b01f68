"""Lines of the user's code that explain a finding, with the ranks in the margin.

Runs in: the notebook's process. Pure.

    cell [3]
           3  if rank == 0:
    [0]  > 4      dist.all_reduce(loss)
"""

from collections.abc import Iterator, Sequence

from nbddp.controller.diagnosis import CodeLine
from nbddp.notebook.render.html import FAINT_LINE, WIDTH, escape, one_line, shorten
from nbddp.wire.flight_recorder import Site, cell_name

_MAX_SOURCE = 100
_FIELD = "text-align:left;border:none;padding:0 10px 0 0;vertical-align:top;white-space:pre"
_MARGIN = f"{_FIELD};text-align:right"


def text(lines: Sequence[CodeLine]) -> list[str]:
    """The lines as a terminal shows them; none for none."""
    rows = list(_rows(lines))
    margin = max((len(ranks) for _, ranks, _, _ in rows), default=0)
    numbers = max((len(number) for _, _, number, _ in rows), default=0)
    shown: list[str] = []
    for title, ranks, number, source in rows:
        if title:
            shown.append(f"    {title}")
        mark = ">" if ranks else " "
        whole = f"      {ranks:>{margin}} {mark} {number:>{numbers}}  {source}"
        shown.append(shorten(whole, WIDTH))
    return shown


def html(lines: Sequence[CodeLine]) -> str:
    """The lines as a table; empty for none."""
    rows = []
    for title, ranks, number, source in _rows(lines):
        if title:
            rows.append(heading(title, 3, _FIELD))
        fields = (
            f'<td style="{_MARGIN}"><b>{escape(ranks)}</b></td>'
            f'<td style="{_MARGIN};opacity:0.7">{number}</td>'
            f'<td style="{_FIELD}">{f"<b>{code(source)}</b>" if ranks else code(source)}</td>'
        )
        rows.append(f'<tr style="background-color:transparent">{fields}</tr>')
    return table(rows) if rows else ""


def table(rows: Sequence[str]) -> str:
    """A table of code from its rows, which are HTML."""
    return (
        f'<table style="border-collapse:collapse;border:none;border-left:{FAINT_LINE};'
        'margin:6px 0;font-size:100%;font-family:monospace"><tbody>'
        f"{''.join(rows)}</tbody></table>"
    )


def heading(title: str, columns: int, style: str) -> str:
    """A row that names a cell or file."""
    return (
        f'<tr style="background-color:transparent"><th colspan="{columns}" scope="colgroup" '
        f'style="{style};font-weight:normal;opacity:0.7">{escape(title)}</th></tr>'
    )


def code(source: str) -> str:
    """A line of code in a field."""
    return f'<code style="background:none;padding:0">{escape(source)}</code>'


def _rows(lines: Sequence[CodeLine]) -> Iterator[tuple[str, str, str, str]]:
    """Title of a new cell or file, else empty; ranks; number; source without common indentation."""
    previous: Site | None = None
    for line in lines:
        site = line.site
        is_new = previous is None or (previous.file, previous.cell) != (site.file, site.cell)
        title = (cell_name(site.cell) if site.cell else one_line(site.file)) if is_new else ""
        if not is_new and previous is not None and site.line > previous.line + 1:
            yield "", "", "", f"{_indent(site.source)}..."
        ranks = f"[{line.ranks}]" if line.ranks else ""
        yield title, ranks, str(site.line), shown_source(site.source)
        previous = site


def _indent(source: str) -> str:
    return source[: len(source) - len(source.lstrip())]


def shown_source(source: str) -> str:
    """A line with its indentation, without control characters, shortened."""
    return shorten(_indent(source).expandtabs(4) + one_line(source.strip()), _MAX_SOURCE)
