"""Numbers with units, and tables as text and as HTML.

Runs in: the notebook's process. Pure.

The HTML uses only tags and styles that an untrusted notebook lets through: inline styles from
JupyterLab's list (no variables, no ``ch``, no ``currentColor``). It fixes no colour of text or
page, so that it is readable in light and dark themes, and without any style at all, as on GitHub.
"""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal

#: Width of texts, in characters of a terminal.
WIDTH = 100
#: Style of borders: a grey that shows on white and on black.
FAINT_LINE = "1px solid rgba(128,128,128,0.35)"
#: Style of what is beside the point.
FAINT = "opacity:0.7"
_BAR = "rgba(80,140,220,0.30)"
_MAX_CELL = 120
_MIN_CUT = 8  #: characters; a narrower field is of no use
_BLANK_LINE = re.compile(r"^([^\S\n]*)\n", re.MULTILINE)
_NUMBERS = re.compile(r"\d+(?:[-,]\d+)*")
_MAX_NUMBERS = 40  #: characters of those of one place
#: Behind a comma, a dot that is in no number, or a bracket, except before another sign.
_BREAKS = re.compile(r"(?<=,)(?=\S)|(?<=[.(\[{)\]}])(?=[\w\"'(\[{*-])(?<!\.(?=\d))")


@dataclass(frozen=True)
class Column:
    """The head of a column, and the layout of its fields."""

    title: str
    align: Literal["left", "right"] = "left"
    min_px: int = 0  #: so that bars of several columns can be compared
    row_px: int = 0  #: minimum height of all rows, so that they do not move
    wraps: bool = False  #: long fields wrap and the table stays narrow: paper cannot scroll
    #: The part of a field that is left out where the text is too wide.
    cut: Literal["no", "end", "middle"] = "no"


@dataclass(frozen=True)
class Cell:
    """One field of a table."""

    text: str
    code: str = ""  #: source code, behind the text
    mark: str = ""  #: a sign in front, in the text form only
    is_bold: bool = False
    bar: float = 0.0  #: the part of the field that is filled, 0 to 1
    style: str = ""  #: of the text, such as a tint; it never carries information alone


@dataclass(frozen=True)
class Table:
    """Columns and rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def of_used(cls, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> "Table":
        """Make a table without the columns that say nothing."""
        used = [any(row[at].text for row in rows) for at in range(len(columns))]
        return cls(list(compress(columns, used)), [list(compress(row, used)) for row in rows])

    def text(self, width: int = WIDTH) -> str:
        """The table as text, aligned with spaces and cut at ``width`` characters."""
        lines = self._fields()
        widths = self._fit([max(map(len, column)) for column in zip(*lines, strict=True)], width)
        lines = [
            [
                (shorten_inside if column.cut == "middle" else shorten)(field, size)
                for field, size, column in zip(line, widths, self.columns, strict=True)
            ]
            for line in lines
        ]
        return "\n".join(
            shorten(
                "  ".join(
                    field.rjust(size) if column.align == "right" else field.ljust(size)
                    for field, size, column in zip(line, widths, self.columns, strict=True)
                ).rstrip(),
                width,
            )
            for line in lines
        )

    def _fit(self, widths: list[int], width: int) -> list[int]:
        """Return ``widths``, with the widest columns that can be cut narrowed until all fits."""
        widths = list(widths)
        cuttable = [number for number, column in enumerate(self.columns) if column.cut != "no"]
        while sum(widths) + 2 * (len(widths) - 1) > width:
            widest = max(cuttable, key=widths.__getitem__, default=None)
            if widest is None or widths[widest] <= _MIN_CUT:
                break
            widths[widest] -= 1
        return widths

    def text_width(self, cut_last: int = 0) -> int:
        """The width of the text, in characters.

        Args:
            cut_last: the maximum width of the last column; 0: it is not cut.
        """
        widths = [max(map(len, column)) for column in zip(*self._fields(), strict=True)]
        if cut_last:
            widths[-1] = min(widths[-1], cut_last)
        return sum(widths) + 2 * (len(widths) - 1)

    def _fields(self) -> list[list[str]]:
        heads = [Cell(column.title) for column in self.columns]
        return [[_plain(cell) for cell in row] for row in [heads, *self.rows]]

    def html(self) -> str:
        """The table as HTML; it scrolls sideways where it is too wide."""
        head = "".join(
            f'<th scope="col" style="{_field_style(column)};border-bottom:{FAINT_LINE};'
            f'font-weight:normal;opacity:0.7">{escape(column.title)}</th>'
            for column in self.columns
        )
        body = "".join(
            "<tr>"
            + "".join(
                _field(cell, column, is_head=number == 0)
                for number, (cell, column) in enumerate(zip(row, self.columns, strict=True))
            )
            + "</tr>"
            for row in self.rows
        )
        return (
            '<div style="overflow-x:auto"><table style="border-collapse:collapse;border:none;'
            f'margin:4px 0"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )


def _field(cell: Cell, column: Column, *, is_head: bool) -> str:
    """A field of a row; the first one names the row, for screen readers."""
    style, content = _field_style(column, cell), _html(cell, column)
    if is_head:
        return f'<th scope="row" style="{style};font-weight:normal">{content}</th>'
    return f'<td style="{style}">{content}</td>'


def escape(text: str) -> str:
    """Escape a text for HTML; a character that does not print becomes a space."""
    return html.escape(clean(text))


def clean(text: str) -> str:
    """Replace control characters: a source line must not move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def preformatted(text: str, style: str) -> str:
    """A ``<pre>`` of HTML whose lines also survive Markdown.

    Markdown ends an HTML block at a blank line and reads the text below as Markdown: the output of
    a cell would become headings and lists. So these line ends are written as entities.

    Args:
        text: HTML.
        style: inline CSS.
    """
    first = "\n" if text.startswith("\n") else ""  # the first line end of a <pre> does not count
    text = _BLANK_LINE.sub(r"\1&#10;", text)
    return f'<pre style="{style}">{first}{text}</pre>'


def one_line(text: str) -> str:
    """The text in one line, without control characters."""
    return " ".join(clean(text).split())


def without_numbers(text: str) -> str:
    """Replace numbers: texts that differ in numbers only become equal, ``send to rank …``."""
    return _NUMBERS.sub("…", text)


def with_all_numbers(texts: Sequence[str]) -> str:
    """One text for texts that differ in numbers only, with the first numbers of each place.

    >>> with_all_numbers(["recv from rank 1", "recv from rank 0", "recv from rank 3"])
    'recv from rank 1,0,3'
    """
    places = zip(*map(_NUMBERS.findall, texts), strict=True)
    lists = (",".join(dict.fromkeys(place)) for place in places)
    return _NUMBERS.sub(lambda _: _first_numbers(next(lists)), texts[0])


def _first_numbers(numbers: str) -> str:
    if len(numbers) <= _MAX_NUMBERS:
        return numbers
    return f"{numbers[: numbers.rindex(',', 0, _MAX_NUMBERS)]},…"


def breakable(text: str, limit: int) -> str:
    """Escape source code or a list; beyond ``limit`` characters its lines also break in words.

    They do so behind a comma, a dot or a bracket, never within a name.
    """
    return "<wbr>".join(map(escape, _BREAKS.split(text) if len(text) > limit else [text]))


def shorten(text: str, limit: int) -> str:
    """Cut the text at ``limit`` characters; an ellipsis marks the cut."""
    return text if len(text) <= limit else text[: max(1, limit - 1)].rstrip() + "…"


def shorten_inside(text: str, limit: int) -> str:
    """Cut the text in the middle: the end of a path says more than its beginning."""
    if len(text) <= limit:
        return text
    head = max(0, limit - 1) // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def duration(ns: float) -> str:
    """``0.2 ms``, ``31 ms``, ``1.3 s``, ``2:05 min``."""
    if ns < 995_000:  # 0.99 ms
        return f"{ns / 1e6:.2f} ms" if ns < 95_000 else f"{ns / 1e6:.1f} ms"
    if ns < 9_950_000:
        return f"{ns / 1e6:.1f} ms"
    if ns < 999_500_000:
        return f"{ns / 1e6:.0f} ms"
    seconds = ns / 1e9
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def size(nbytes: float) -> str:
    """``512 B``, ``4.2 MB``: powers of 1000, as for network links."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    value = nbytes / 1000
    units = ["kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.1f} {units[0]}" if value < 9.95 else f"{value:.0f} {units[0]}"


def words(parts: Iterable[str]) -> str:
    """``a, b and c``."""
    *front, last = parts
    return f"{', '.join(front)} and {last}" if front else last


def _plain(cell: Cell) -> str:
    return shorten(clean(f"{cell.mark}{cell.text} {cell.code}".strip()), _MAX_CELL)


def _html(cell: Cell, column: Column) -> str:
    text = escape(shorten(cell.text, _MAX_CELL))
    if cell.style:
        text = f'<span style="{cell.style}">{text}</span>'
    if cell.is_bold:
        text = f"<b>{text}</b>"
    code = (
        f' <code style="{_space(column)}">{escape(shorten(cell.code, _MAX_CELL))}</code>'
        if cell.code
        else ""
    )
    return text + code


def _space(column: Column) -> str:
    return f"white-space:{'normal;overflow-wrap:anywhere' if column.wraps else 'nowrap'}"


def _field_style(column: Column, cell: Cell | None = None) -> str:
    style = f"text-align:{column.align};padding:2px 8px 2px 4px;border:none;{_space(column)}"
    if column.min_px:
        style += f";min-width:{column.min_px}px"
    if column.row_px:
        style += f";height:{column.row_px}px"
    percent = 0 if cell is None else min(100, round(cell.bar * 100))
    if percent > 0:
        style += (
            f";background-image:linear-gradient(to right,{_BAR} {percent}%,transparent {percent}%)"
        )
    return style


#: Style of printed text. JupyterLab lets all of it through in untrusted notebooks.
PRE_STYLE = (
    "margin:0;padding:0 0 0 8px;border:none;background:none;white-space:pre-wrap;line-height:1.3;"
    "font-family:monospace;font-size:13px"
)


SUMMARY_STYLE = "cursor:pointer;opacity:0.7;padding-left:8px;font-size:13px"


_ANSI_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")


def details(summary: str, body: str) -> str:
    """Folded HTML; ``summary`` is text."""
    return f'<details><summary style="{SUMMARY_STYLE}">{escape(summary)}</summary>{body}</details>'


def without_codes(text: str) -> str:
    """Remove colours and other codes of terminals."""
    return _ANSI_CODES.sub("", text) if "\x1b" in text else text
