"""The last operations of a stepped cell: ranks are columns, and each row fills rank by rank.

Runs in: the notebook's process. Pure.

    ranks          0  1  2  3
    all_reduce #6  ✓  ✓  ✓  ✓  cell [3], line 4: `dist.all_reduce(x)`
    all_reduce #7  ◌  ●  ◌  ◌  cell [3], line 5: `dist.all_reduce(y)`
"""

from collections.abc import Sequence

from nbddp.controller.diagnosis import place
from nbddp.controller.prompts import OperationRow, Progress, progress_in
from nbddp.notebook.render.html import FAINT, FAINT_LINE, escape
from nbddp.notebook.render.tables import Cell, Column, Table
from nbddp.wire.rank_set import Rank, RankSet

#: More ranks than this have one column for neighbours whose fields are equal.
_MAX_COLUMNS = 16
_LOOKS = {
    Progress.BEFORE: ("●", "rgba(80,140,220,0.35)"),
    Progress.RUNS: ("▸", ""),
    Progress.WAITS: ("◌", "rgba(200,160,0,0.22)"),
    Progress.PASSED: ("✓", "rgba(60,160,80,0.20)"),
    Progress.SKIPPED: ("↷", "rgba(128,128,128,0.20)"),
    Progress.FAILED: ("✗", "rgba(220,50,60,0.35)"),
}
_HEAD = f"padding:1px 6px;text-align:center;border-bottom:{FAINT_LINE};font-weight:normal;{FAINT}"
_ROW_HEAD = "padding:1px 12px 1px 0;text-align:left;white-space:nowrap;font-weight:normal"
_FIELD = f"padding:1px 6px;text-align:center;border:{FAINT_LINE}"
_PLACE = f"padding:1px 0 1px 12px;text-align:left;white-space:nowrap;{FAINT}"


def bundle(rows: Sequence[OperationRow], world_size: int) -> dict[str, str]:
    """The operations as a MIME bundle.

    Args:
        rows: the oldest first.
        world_size: number of ranks of the pool.
    """
    columns = _columns(rows, world_size)
    return {"text/plain": _text(rows, columns), "text/html": _html(rows, columns)}


def _columns(rows: Sequence[OperationRow], world_size: int) -> list[RankSet]:
    """The ranks of each column."""
    if world_size <= _MAX_COLUMNS:
        return [RankSet.of((rank,)) for rank in range(world_size)]
    columns: list[list[Rank]] = []
    before: list[Progress | None] | None = None
    for rank in range(world_size):
        fields = [row.by_rank.get(rank) for row in rows]
        if fields != before:
            columns.append([])
        columns[-1].append(rank)
        before = fields
    return [RankSet.of(column) for column in columns]


def _text(rows: Sequence[OperationRow], columns: Sequence[RankSet]) -> str:
    heads = [Column("ranks"), *(Column(str(ranks)) for ranks in columns), Column("", cut="end")]
    fields = [
        [
            Cell(row.label),
            *(Cell(_sign(row.by_rank.get(min(ranks)))) for ranks in columns),
            Cell(place(row.site)),
        ]
        for row in rows
    ]
    return "\n".join(filter(None, (Table(heads, fields).text(), _legend(rows))))


def _html(rows: Sequence[OperationRow], columns: Sequence[RankSet]) -> str:
    head = "".join(f'<th scope="col" style="{_HEAD}">{ranks}</th>' for ranks in columns)
    body = "".join(
        f'<tr><th scope="row" style="{_ROW_HEAD}">{escape(row.label)}</th>'
        + "".join(_field(ranks, row.by_rank.get(min(ranks))) for ranks in columns)
        + f'<td style="{_PLACE}">{escape(place(row.site))}</td></tr>'
        for row in rows
    )
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;border:none;'
        'font-family:monospace;font-size:12px;margin:4px 0"><thead><tr>'
        f'<th scope="col" style="{_ROW_HEAD};{FAINT}">ranks</th>{head}<td></td></tr></thead>'
        f'<tbody>{body}</tbody></table></div><div style="font-size:12px;{FAINT}">'
        f"{escape(_legend(rows))}</div>"
    )


def _field(ranks: RankSet, progress: Progress | None) -> str:
    if progress is None:
        return f'<td style="{_FIELD}"></td>'
    colour = _LOOKS[progress][1]
    tint = f";background-color:{colour}" if colour else ""
    title = f"{ranks.describe()}: {progress.value}"
    return f'<td style="{_FIELD}{tint}" title="{escape(title)}">{_sign(progress)}</td>'


def _sign(progress: Progress | None) -> str:
    return "" if progress is None else _LOOKS[progress][0]


def _legend(rows: Sequence[OperationRow]) -> str:
    """The signs that are shown, in words."""
    return "   ".join(f"{_sign(progress)} {progress.value}" for progress in progress_in(rows))
