"""Tables, as text and as HTML.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal

from nbddp.notebook.render.html import (
    FAINT_LINE,
    WIDTH,
    clean,
    escape,
    shorten,
    shorten_inside,
)

_BAR = "rgba(80,140,220,0.30)"
_MAX_CELL = 120
_MIN_CUT = 8  #: characters; a narrower field is of no use


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
