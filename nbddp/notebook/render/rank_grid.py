"""Figures, tables and HTML of several ranks, side by side, in the order of ranks.

Runs in: the notebook's process. Pure.

The grid is an HTML table: it is also one where styles are removed, as on GitHub.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nbddp.notebook.render.colours import tint_of
from nbddp.notebook.render.html import details, escape
from nbddp.wire.rank_set import RankSet

_MAX_COLUMNS = 4
#: Slots beyond these are folded.
_MAX_OPEN = 16
_TABLE_STYLE = "width:100%;table-layout:fixed;border-collapse:collapse;border:none;margin:0"
_ROW_STYLE = "background:none;border:none"
_SLOT_STYLE = "vertical-align:top;text-align:left;white-space:normal;border:none;padding:0 8px 8px"


@dataclass(frozen=True)
class Slot:
    """The output of one rank, or of several ranks with equal output."""

    ranks: RankSet
    html: str
    plain: str


def bundle(slots: Sequence[Slot]) -> dict[str, str]:
    """Return a grid as a MIME bundle: up to four slots in a row, and the others folded."""
    columns = min(_MAX_COLUMNS, math.ceil(math.sqrt(len(slots))))
    shown, folded = slots[:_MAX_OPEN], slots[_MAX_OPEN:]
    html = _table(shown, columns)
    if folded:
        ranks = RankSet.of(rank for slot in folded for rank in slot.ranks)
        html += details(f"{ranks.describe()}: {len(folded)} more", _table(folded, columns))
    return {"text/plain": "\n".join(map(_plain, slots)), "text/html": html}


def _table(slots: Sequence[Slot], columns: int) -> str:
    rows = "".join(
        f'<tr style="{_ROW_STYLE}">{"".join(map(_field, slots[first : first + columns]))}</tr>'
        for first in range(0, len(slots), columns)
    )
    return f'<table role="presentation" style="{_TABLE_STYLE}"><tbody>{rows}</tbody></table>'


def _field(slot: Slot) -> str:
    style = f"font-family:monospace;font-size:13px;{tint_of(slot.ranks)}".rstrip(";")
    label = f'<div><b style="{style}">[{escape(str(slot.ranks))}]</b></div>'
    content = f'<div style="overflow-x:auto">{slot.html}</div>'
    return f'<td style="{_SLOT_STYLE}">{label}{content}</td>'


def _plain(slot: Slot) -> str:
    space = "\n" if "\n" in slot.plain else " "
    return f"[{slot.ranks}]{space}{slot.plain}".rstrip()
