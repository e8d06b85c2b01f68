"""Lines of the user's code: those that explain a finding, and a suggested change.

Runs in: the notebook's process. Pure.

    cell [3]                            cell [3], for example
           3  if rank == 0:               - if rank == 0:
    [0]  > 4      dist.all_reduce(loss)   -     dist.all_reduce(loss)
                                          + dist.all_reduce(loss)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nbddp.controller.diagnosis import ChangedLine, CodeChange, CodeLine, marked_lines
from nbddp.notebook.render.html import FAINT_LINE, WIDTH, escape, one_line, shorten
from nbddp.wire.flight_recorder import Site, cell_name

_MAX_SOURCE = 100
_MAX_RANKS = 24  #: characters
_FIELD = "text-align:left;border:none;padding:0 10px 0 0;vertical-align:top;white-space:pre"
_MARGIN = f"{_FIELD};text-align:right"
_COLOURS: Mapping[str, str] = {
    "-": "background-color:rgba(220,60,60,.16)",
    "+": "background-color:rgba(40,160,80,.18)",
    " ": "background-color:transparent",
}
_NAMES: Mapping[str, str] = {"-": ' aria-label="removed"', "+": ' aria-label="added"', " ": ""}
_CHANGE_FIELD = "text-align:left;border:none;padding:0 10px 0 4px;white-space:pre"


# --- lines with the ranks in the margin ----------------------------------------------------------


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
            rows.append(_title_row(title, 3, _FIELD))
        code = _code(source)
        fields = (
            f'<td style="{_MARGIN}"><b>{escape(ranks)}</b></td>'
            f'<th scope="row" style="{_MARGIN};font-weight:normal;opacity:0.7">{number}</th>'
            f'<td style="{_FIELD}">{f"<b>{code}</b>" if ranks else code}</td>'
        )
        rows.append(f'<tr style="background-color:transparent">{fields}</tr>')
    return _table(rows) if rows else ""


def _rows(lines: Sequence[CodeLine]) -> Iterator[tuple[str, str, str, str]]:
    """Title of a new cell or file, else empty; ranks; number; source without common indentation."""
    previous: Site | None = None
    for line in lines:
        site = line.site
        is_new = previous is None or (previous.file, previous.cell) != (site.file, site.cell)
        title = _place(site.cell, site.file) if is_new else ""
        if not is_new and previous is not None and site.line > previous.line + 1:
            yield "", "", "", f"{_indent(site.source)}..."
        ranks = f"[{line.ranks.numbers(_MAX_RANKS)}]" if line.ranks else ""
        yield title, ranks, str(site.line), shorten(_clean(site.source), _MAX_SOURCE)
        previous = site


# --- a small diff --------------------------------------------------------------------------------


def change_text(change: CodeChange | None) -> list[str]:
    """The change as a terminal shows it; none for None."""
    if change is None:
        return []
    shown = [f"{mark} {source}".rstrip() for mark, source in _change_rows(change.lines)]
    return [f"    {_title(change)}", *(shorten(f"      {line}", WIDTH) for line in shown)]


def change_html(change: CodeChange | None) -> str:
    """The change as a table; empty for None."""
    if change is None:
        return ""
    rows = [
        f'<tr style="{_COLOURS[mark]}"><th scope="row"{_NAMES[mark]} '
        f'style="{_CHANGE_FIELD};font-weight:normal">{mark}</th>'
        f'<td style="{_CHANGE_FIELD}">{_code(source)}</td></tr>'
        for mark, source in _change_rows(change.lines)
    ]
    return _table([_title_row(_title(change), 2, _CHANGE_FIELD), *rows])


def _title(change: CodeChange) -> str:
    return f"{_place(change.cell, change.file)}, for example"


def _change_rows(lines: Sequence[ChangedLine]) -> list[tuple[str, str]]:
    return [(mark, shorten(source, _MAX_SOURCE)) for mark, source in marked_lines(lines)]


# --- parts of both -------------------------------------------------------------------------------


def _table(rows: Iterable[str]) -> str:
    return (
        f'<table style="border-collapse:collapse;border:none;border-left:{FAINT_LINE};'
        'margin:6px 0;font-size:100%;line-height:1.3;font-family:monospace"><tbody>'
        f"{''.join(rows)}</tbody></table>"
    )


def _title_row(title: str, columns: int, style: str) -> str:
    return (
        f'<tr style="background-color:transparent"><th colspan="{columns}" scope="colgroup" '
        f'style="{style};font-weight:normal;opacity:0.7">{escape(title)}</th></tr>'
    )


def _code(source: str) -> str:
    return f'<code style="background:none;padding:0">{escape(source)}</code>'


def _place(cell: int, file: str) -> str:
    return cell_name(cell) if cell else one_line(file)


def _indent(source: str) -> str:
    return source[: len(source) - len(source.lstrip())]


def _clean(source: str) -> str:
    return _indent(source).expandtabs(4) + one_line(source.strip())
