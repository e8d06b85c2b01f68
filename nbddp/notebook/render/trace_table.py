"""A trace as a table with the ranks side by side, and as one line under a cell.

Runs in: the notebook's process. Pure.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

from nbddp.controller.trace import RankPart, TraceRow, select
from nbddp.line_breaks import wrapped
from nbddp.notebook.render.html import WIDTH, duration, escape, size
from nbddp.notebook.render.tables import Cell, Column, Table
from nbddp.wire.flight_recorder import DEFAULT_GROUP, Site, cell_name
from nbddp.wire.rank_set import RankSet, ranks_by

#: Operations that ``%ddp trace`` shows.
DEFAULT_LAST = 20

#: A column for each rank up to this many; beyond, one for all of them.
_MAX_COLUMNS = 12
#: Columns of ranks beside which a page still shows the source.
_MAX_BESIDE_SOURCE = 2
#: The text form shows the source where it has this much room, in characters.
_MIN_SOURCE = 16
_MAX_GROUPS = 3
#: The maximum number of operations in `grid`.
_GRID_ROWS = 8
_LAST_MARK = "*"


def table(
    all_rows: Sequence[TraceRow],
    *,
    cell: int | None = None,
    ranks: RankSet | None = None,
    last: int = DEFAULT_LAST,
    lack: str = "",
) -> dict[str, str]:
    """The last operations as a MIME bundle.

    Args:
        all_rows: from `nbddp.controller.trace.rows.rows`.
        cell: only operations of this cell; None: of all cells.
        ranks: only rows in which one of them takes part, and only their columns; None: all.
        last: the maximum number of rows.
        lack: from `missing_records`.
    """
    matching_rows = [row for row in select(all_rows, cell=cell, ranks=ranks) if not _is_own(row)]
    rows = select(matching_rows, last=last)
    where = ("" if cell is None else f" of {cell_name(cell)}") + (
        "" if ranks is None else f" with {ranks.describe()}"
    )
    if not rows:
        text = f"trace: no operations{where} are known"
        return {"text/plain": text, "text/html": f"<div>{escape(text)}</div>"}
    column_ranks = ranks or RankSet.of(
        rank for row in matching_rows for rank in (*row.parts, *row.missing)
    )
    of = (
        f"{len(rows)} of {len(matching_rows)}" if len(rows) < len(matching_rows) else str(len(rows))
    )
    headline = f"trace: {of} operation{'' if len(matching_rows) == 1 else 's'}{where}"
    headline += not_kept(matching_rows)
    is_folded = len(column_ranks) > _MAX_COLUMNS
    legend = escape(_legend("bold", rows, is_folded=is_folded))
    below = "".join(f"\n{line}" for line in wrapped(lack, WIDTH, indent=2) if lack)
    return {
        "text/plain": f"{headline}\n{_text(rows, column_ranks)}{below}",
        "text/html": (
            f"<div><div><b>{escape(headline)}</b></div>"
            f"{_table(rows, column_ranks, is_folded=is_folded).html()}"
            f'<div style="opacity:0.7;font-size:90%">{legend}</div>'
            f"{f'<div>{escape(lack)}</div>' if lack else ''}</div>"
        ),
    }


def summary(rows: Sequence[TraceRow]) -> str:
    """One line: operations, bytes (of each operation once), the slowest wait, the last rank."""
    if not rows:
        return "trace: no operations"
    parts = [counts(rows)]
    total = sum(row.nbytes for row in rows)
    if total:
        parts.append(size(total))
    unfinished = sum(any(p.completed_ns is None for p in row.parts.values()) for row in rows)
    for ending in ("failed", "freed", "interrupted", "stopped"):
        count = sum(any(p.ending == ending for p in row.parts.values()) for row in rows)
        parts += [f"{count} {ending}"] if count else []
    parts += [f"{unfinished} not complete"] if unfinished else []
    slowest = max(rows, key=lambda row: row.waited_ns)
    if slowest.waited_ns:
        parts.append(_slowest_text(slowest))
    return f"trace: {'; '.join(parts)}"


def not_kept(shown_rows: Sequence[TraceRow]) -> str:
    """``; earlier operations are not kept``: the records of some rank begin among these rows."""
    is_cut = any(part.follows_lost for row in shown_rows for part in row.parts.values())
    return "; earlier operations are not kept" if is_cut else ""


def grid(rows: Sequence[TraceRow], pg_ids: Collection[str] = ()) -> Table | None:
    """A table of the state of each rank in the last operations.

    Args:
        rows: from `nbddp.controller.trace.rows.rows_seen`.
        pg_ids: only operations of these groups; empty: of all groups.

    Returns:
        None if no operation is known.
    """
    last_rows = select([row for row in rows if not pg_ids or row.pg_id in pg_ids], last=_GRID_ROWS)
    if not last_rows:
        return None
    ranks = RankSet.of(rank for row in last_rows for rank in (*row.parts, *row.missing))
    if len(ranks) > _MAX_COLUMNS:
        return Table(
            [Column("operation"), Column("ranks", min_px=120, wraps=True)],
            [[Cell(row.label), Cell(_states_text(row))] for row in last_rows],
        )
    return Table(
        [Column("operation"), *(Column(f"rank {rank}") for rank in ranks)],
        [[Cell(row.label), *(_grid_cell(row, rank) for rank in ranks)] for row in last_rows],
    )


def counts(rows: Sequence[TraceRow]) -> str:
    """``12 all_reduce, 2 broadcast on group 0``."""
    by_group: dict[str, Counter[str]] = {}
    for row in rows:
        by_group.setdefault(_group(row), Counter())[row.op] += 1
    texts = [
        ", ".join(f"{count} {op}" for op, count in counts.items())
        + (f" on group {group}" if group else "")
        for group, counts in list(by_group.items())[:_MAX_GROUPS]
    ]
    rest = list(by_group.values())[_MAX_GROUPS:]
    if rest:
        groups = "1 more group" if len(rest) == 1 else f"{len(rest)} more groups"
        texts.append(f"{sum(counts.total() for counts in rest)} on {groups}")
    return "; ".join(texts)


def _slowest_text(row: TraceRow) -> str:
    """The slowest wait; it names the ranks that waited as long as it says."""
    longest = duration(row.waited_ns)
    waited = RankSet.of(
        rank for rank, part in row.parts.items() if duration(part.waited_ns) == longest
    )
    site = row.parts[next(iter(waited))].site
    text = f"slowest wait {longest} on {waited.describe()} in {row.label}"
    text += f" ({site})" if site.line else ""
    spread = row.spread_ns
    if row.missing:
        return f"{text}, {row.missing.describe()} never came"
    if row.last_rank is None or spread is None:
        return text
    if spread * 2 >= row.waited_ns:
        though = "though " if row.last_rank in waited else ""
        return f"{text}, {though}rank {row.last_rank} came last"
    return f"{text}, though all came within {duration(spread + row.spread_error_ns)}"


def _group(row: TraceRow) -> str:
    """``0``; ``3 (dp)`` where the user gave it a name."""
    plain = row.pg_desc in ("", DEFAULT_GROUP, "undefined", row.pg_name)
    return row.pg_name if plain else f"{row.pg_name} ({row.pg_desc})"


def _is_own(row: TraceRow) -> bool:
    """Whether nbddp made the group of a row by itself, at the start or for fresh ranks."""
    return row.kind == "creation" and all(
        not part.run_id and not part.site.line for part in row.parts.values()
    )


# --- operations, rank by rank --------------------------------------------------------------------


def _grid_cell(row: TraceRow, rank: int) -> Cell:
    return Cell(_rank_state(row, rank), is_bold=_is_incomplete(row, rank))


def _rank_state(row: TraceRow, rank: int) -> str:
    part = row.parts.get(rank)
    if part is None:
        return "never came" if rank in row.missing else ""
    state: str = part.ending
    if state == "open":
        state = "open" if part.async_op and not part.is_waited_for else "waits"
    op = f"{part.op} " if " | " in row.op else ""
    return f"{op}{state} {_short(part.site) if part.site.line else ''}".rstrip()


def _is_incomplete(row: TraceRow, rank: int) -> bool:
    part = row.parts.get(rank)
    return rank in row.missing or (part is not None and part.completed_ns is None)


def _states_text(row: TraceRow) -> str:
    """``done [4]:5 0-61; never came 63``."""
    states = ranks_by((_rank_state(row, rank), rank) for rank in (*row.parts, *row.missing))
    texts = [f"{state}: {ranks}" for state, ranks in states.items()]
    more = f"; {len(texts) - 4} more" if len(texts) > 4 else ""
    return "; ".join(texts[:4]) + more


# --- the table -----------------------------------------------------------------------------------


def _legend(
    mark: str, rows: Sequence[TraceRow], *, is_folded: bool, has_spread: bool = True
) -> str:
    if is_folded:
        waits = "Waits: how long the ranks were blocked."
    else:
        waits = f"Under each rank: how long it was blocked; {mark}: came last."
    spread = " Spread: from the first arrival to the last." * has_spread
    has_gone = not is_folded and any(row.gone for row in rows if _is_awaited(row))
    is_unclear = any(row.is_order_unclear for row in rows)
    no_last = "No last rank" if is_folded else "No mark"
    return (
        f"{waits}{spread}"
        + "\nended: it ended the cell without the call." * has_gone
        + f"\n{no_last}: the clocks of the nodes do not tell which rank came last." * is_unclear
    )


def _text(rows: Sequence[TraceRow], ranks: RankSet) -> str:
    """The candidate form that fits, with its legend.

    The source is left out first, then the rate, then the columns of the ranks, then the spread.
    """
    for is_folded in (False, True) if len(ranks) <= _MAX_COLUMNS else (True,):
        for has_source, has_rate in ((True, True), (False, True), (False, False)):
            candidate = _table(
                rows, ranks, has_source=has_source, has_rate=has_rate, is_folded=is_folded
            )
            if candidate.text_width(cut_last=_MIN_SOURCE if has_source else 0) <= WIDTH:
                return f"{candidate.text()}\n{_legend(_LAST_MARK, rows, is_folded=is_folded)}"
    last = _table(rows, ranks, has_source=False, has_rate=False, has_spread=False, is_folded=True)
    return f"{last.text()}\n{_legend(_LAST_MARK, rows, is_folded=True, has_spread=False)}"


def _table(
    rows: Sequence[TraceRow],
    ranks: RankSet,
    *,
    has_source: bool = True,
    has_rate: bool = True,
    has_spread: bool = True,
    is_folded: bool = False,
) -> Table:
    has_groups = len({_group(row) for row in rows if row.pg_id}) > 1
    longest_ns = max((row.waited_ns for row in rows), default=0)
    cut: Literal["no", "end"] = "no" if has_source else "end"  # a source at the end is cut first
    columns = [Column("operation", cut=cut), Column("line")]
    columns += [Column("group", cut=cut)] if has_groups else []
    columns += [Column("bytes", "right")]
    columns += [Column("rate", "right")] if has_rate else []
    columns += [Column("spread", "right")] if has_spread else []
    if is_folded:
        columns += [Column("waits", "right", min_px=120), Column("last rank")]
    else:
        columns += [Column(f"rank {rank}", "right", min_px=52) for rank in ranks]
    # Behind many ranks the source is out of sight: wrapped there, it would only make rows high.
    has_room = is_folded or len(ranks) <= _MAX_BESIDE_SOURCE
    columns += [Column("source", min_px=120, wraps=has_room)] if has_source else []
    lines = []
    for row in rows:
        rate = row.bandwidth_bytes_per_s
        line = [Cell(row.label), Cell(_line(row))]
        line += [Cell(_group(row))] if has_groups else []
        line += [Cell(size(row.nbytes) if row.nbytes else "")]
        line += [Cell("" if rate is None else f"{size(rate)}/s")] if has_rate else []
        is_known = row.spread_ns is not None and not _is_awaited(row)
        spread = duration(row.spread_ns or 0) if is_known else ""
        line += [Cell(spread)] if has_spread else []
        if is_folded:
            line += _folded_cells(row, ranks, longest_ns)
        else:
            line += [_rank_cell(row, rank, longest_ns) for rank in ranks]
        line += [Cell("", code=row.site.source)] if has_source else []
        lines.append(line)
    return Table(columns, lines)


def _rank_cell(row: TraceRow, rank: int, longest_ns: int) -> Cell:
    part = row.parts.get(rank)
    if part is None:
        absent = "never"
        if _is_awaited(row):
            absent = "ended" if rank in row.gone else "not yet"
        return Cell(absent if rank in row.missing else "", is_bold=True)
    is_last = rank == row.last_rank
    return Cell(
        _wait_text(part),
        mark=_LAST_MARK if is_last else "",
        is_bold=is_last,
        bar=part.waited_ns / longest_ns if longest_ns else 0.0,
    )


def _is_awaited(row: TraceRow) -> bool:
    """Whether the cell still runs, so that missing ranks may yet come."""
    return bool(row.missing) and row.open_at_ns is not None


def _wait_text(part: RankPart) -> str:
    if part.state == "failed":
        return part.ending
    if part.completed_ns is None:
        since = part.open_at_ns
        return "open" if since is None else f"open {duration(since - part.created_ns)}"
    return "async" if part.async_op and not part.waited_ns else duration(part.waited_ns)


def _folded_cells(row: TraceRow, ranks: RankSet, longest_ns: int) -> list[Cell]:
    """The fields for pools of many ranks: the shortest and longest wait, and the last rank."""
    parts = [part for rank, part in row.parts.items() if rank in ranks]
    waits = sorted(part.waited_ns for part in parts if part.completed_ns is not None)
    text = "open"
    if waits:
        low, high = duration(waits[0]), duration(waits[-1])
        text = high if low == high else f"{low} to {high}"
        failed = {part.ending: None for part in parts if part.state == "failed"}
        text = f"{' or '.join(failed)} after {text}" if failed else text
    unfinished = RankSet.of(part.rank for part in parts if part.completed_ns is None)
    if row.missing:
        last = f"{row.missing.describe()} {'not yet' if _is_awaited(row) else 'never came'}"
    elif unfinished and waits:
        last = f"{unfinished.describe()} open"
    else:
        last = "" if row.last_rank is None else f"rank {row.last_rank}"
    bar = waits[-1] / longest_ns if waits and longest_ns else 0.0
    return [Cell(text, bar=bar), Cell(last, is_bold=bool(row.missing))]


def _line(row: TraceRow) -> str:
    """The line of the rank that came first, and the number of other lines."""
    sites = [site for site in row.sites if site.line]
    if not sites:
        return ""
    more = f" +{len(sites) - 1}" if len(sites) > 1 else ""
    return _short(row.site if row.site.line else sites[0]) + more


def _short(site: Site) -> str:
    """``[4]:6``, ``model.py:31``."""
    name = f"[{site.cell}]" if site.cell else site.file.rpartition("/")[2] or "?"
    if site.cell < 0:
        name = "console"
    return f"{name}:{site.line}"
