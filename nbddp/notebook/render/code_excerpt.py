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
            rows.append(
                f'<tr style="background-color:transparent"><th colspan="3" scope="colgroup" '
                f'style="{_FIELD};font-weight:normal;opacity:0.7">{escape(title)}</th></tr>'
            )
        fields = (
            f'<td style="{_MARGIN}"><b>{escape(ranks)}</b></td>'
            f'<th scope="row" style="{_MARGIN};font-weight:normal;opacity:0.7">{number}</th>'
            f'<td style="{_FIELD}">{_code(source, is_bold=bool(ranks))}</td>'
        )
        rows.append(f'<tr style="background-color:transparent">{fields}</tr>')
    if not rows:
        return ""
    return (
        f'<table style="border-collapse:collapse;border:none;border-left:{FAINT_LINE};'
        'margin:6px 0;font-size:100%;font-family:monospace"><tbody>'
        f"{''.join(rows)}</tbody></table>"
    )


def _code(source: str, *, is_bold: bool) -> str:
    text = f'<code style="background:none;padding:0">{escape(source)}</code>'
    return f"<b>{text}</b>" if is_bold else text


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
        yield title, ranks, str(site.line), shorten(_clean(site.source), _MAX_SOURCE)
        previous = site


def _indent(source: str) -> str:
    return source[: len(source) - len(source.lstrip())]


def _clean(source: str) -> str:
    return _indent(source).expandtabs(4) + one_line(source.strip())
