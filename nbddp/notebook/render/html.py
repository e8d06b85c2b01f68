"""Numbers with units, and tables as text and as HTML.

Runs in: the notebook's process. Pure.

The HTML keeps to what an untrusted notebook lets through: inline styles from JupyterLab's list (no
variables, no ``ch``, no ``currentColor``), no fixed colours of text or page, so that it is readable
in light and dark themes, and without any style at all, as on GitHub.
"""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from nbddp.wire.rank_set import RankSet

#: Text is for terminals of this width.
WIDTH = 100
#: Lines and fills: a grey that shows on white and on black.
FAINT_LINE = "1px solid rgba(128,128,128,0.35)"
_BAR = "rgba(80,140,220,0.30)"
_MAX_CELL = 120
_MIN_CUT = 8  #: narrower, a field says nothing
_BLANK_LINE = re.compile(r"^([^\S\n]*)\n", re.MULTILINE)
_NUMBERS = re.compile(r"\d+(?:[-,]\d+)*")


@dataclass(frozen=True)
class Column:
    """Head of a column."""

    title: str
    align: Literal["left", "right"] = "left"
    min_px: int = 0  #: so that bars of several columns can be compared
    row_px: int = 0  #: least height of all rows, so that they stay where they are
    wraps: bool = False  #: rather than make the table wider than its place: paper cannot scroll
    #: What goes first where the text is too wide: the end of its fields, or their middle.
    cut: Literal["no", "end", "middle"] = "no"


@dataclass(frozen=True)
class Cell:
    """One field of a table."""

    text: str
    code: str = ""  #: source, behind the text
    mark: str = ""  #: in the text form, in front
    is_bold: bool = False
    bar: float = 0.0  #: part of the field that is filled, 0 to 1
    colour: str = ""  #: of the text; never all that tells a thing


@dataclass(frozen=True)
class Table:
    """Columns and rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def text(self, width: int = WIDTH) -> str:
        """Aligned with spaces, cut at ``width``."""
        lines = self._fields()
        widths = self._fitting([max(map(len, each)) for each in zip(*lines, strict=True)], width)
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

    def _fitting(self, widths: list[int], width: int) -> list[int]:
        """``widths``, of which the widest that can be cut are made narrower until all fits."""
        widths = list(widths)
        able = [number for number, column in enumerate(self.columns) if column.cut != "no"]
        while sum(widths) + 2 * (len(widths) - 1) > width:
            widest = max(able, key=widths.__getitem__, default=None)
            if widest is None or widths[widest] <= _MIN_CUT:
                break
            widths[widest] -= 1
        return widths

    def text_width(self, cut_last: int = 0) -> int:
        """How wide the text would be; with ``cut_last``: if the last column were that wide."""
        widths = [max(map(len, column)) for column in zip(*self._fields(), strict=True)]
        if cut_last:
            widths[-1] = min(widths[-1], cut_last)
        return sum(widths) + 2 * (len(widths) - 1)

    def _fields(self) -> list[list[str]]:
        heads = [Cell(column.title) for column in self.columns]
        return [[_plain(cell) for cell in row] for row in [heads, *self.rows]]

    def html(self) -> str:
        """A ``<table>``; it scrolls sideways where it is too wide."""
        head = "".join(
            f'<th style="{_field_style(column)};border-bottom:{FAINT_LINE};font-weight:normal;'
            f'opacity:0.7">{escape(column.title)}</th>'
            for column in self.columns
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="{_field_style(column, cell)}">{_html(cell, column)}</td>'
                for cell, column in zip(row, self.columns, strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        return (
            '<div style="overflow-x:auto"><table style="border-collapse:collapse;border:none;'
            f'margin:4px 0"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )


def escape(text: str) -> str:
    """For HTML; what does not print becomes a space."""
    return html.escape(clean(text))


def clean(text: str) -> str:
    """Without control characters: a source line must not move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def preformatted(text: str, style: str) -> str:
    """HTML that keeps its lines; ``text`` is HTML.

    For Markdown an HTML block ends at a blank line, and what follows would be its own: the
    output of a cell would become headings and lists. So these line ends are written as entities.
    """
    first = "\n" if text.startswith("\n") else ""  # the first line end of a <pre> does not count
    text = _BLANK_LINE.sub(r"\1&#10;", text)
    return f'<pre style="{style}">{first}{text}</pre>'


def one_line(text: str) -> str:
    """Without line ends and control characters."""
    return " ".join(clean(text).split())


def without_numbers(text: str) -> str:
    """Equal for texts that differ in numbers only: ``send to rank …``."""
    return _NUMBERS.sub("…", text)


def shorten(text: str, limit: int) -> str:
    """Cut at ``limit`` characters, with a sign that it was."""
    return text if len(text) <= limit else text[: max(1, limit - 1)].rstrip() + "…"


def shorten_inside(text: str, limit: int) -> str:
    """Cut in the middle: the end of a path tells more than its beginning."""
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
    """``512 B``, ``4.2 MB``: powers of 1000, as of network links."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    value = nbytes / 1000
    units = ["kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.1f} {units[0]}" if value < 9.95 else f"{value:.0f} {units[0]}"


def name_ranks(ranks: RankSet, limit: int = 40) -> str:
    """``ranks 0-1,3``; of many that lie apart the first and their number."""
    word = ranks.verb("rank", "ranks")
    return f"{word} {rank_numbers(ranks, limit - len(word) - 1)}"


def rank_numbers(ranks: RankSet, limit: int) -> str:
    """``0-1,3``; likewise."""
    text = str(ranks)
    if len(text) <= limit:
        return text
    return f"{text[: text.rindex(',', 0, limit)]},… ({len(ranks)} ranks)"


def words(parts: Iterable[str]) -> str:
    """``a, b and c``."""
    *front, last = parts
    return f"{', '.join(front)} and {last}" if front else last


def _plain(cell: Cell) -> str:
    return shorten(clean(f"{cell.mark}{cell.text} {cell.code}".strip()), _MAX_CELL)


def _html(cell: Cell, column: Column) -> str:
    text = escape(shorten(cell.text, _MAX_CELL))
    if cell.colour:
        text = f'<span style="color:{cell.colour}">{text}</span>'
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


#: Like printed text. JupyterLab lets all of it through in untrusted notebooks.
PRE_STYLE = (
    "margin:0;padding:0 0 0 8px;border:none;background:none;white-space:pre-wrap;line-height:1.3;"
    "font-family:monospace;font-size:13px"
)


SUMMARY_STYLE = "cursor:pointer;opacity:0.7;padding-left:8px;font-size:13px"


_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")


def details(summary: str, body: str) -> str:
    """Folded HTML; ``summary`` is text."""
    return f'<details><summary style="{SUMMARY_STYLE}">{escape(summary)}</summary>{body}</details>'


def without_codes(text: str) -> str:
    """Without colours and other codes of terminals."""
    return _CODES.sub("", text) if "\x1b" in text else text
