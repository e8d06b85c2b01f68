"""The verbs of ``%ddp`` that show what ranks do: status, diagnose, stacks, trace, timeline.

Runs in: the notebook's process, thread of the running cell.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from nbddp.controller.pool import Pool
from nbddp.controller.trace import TraceRow, chrome_trace, select
from nbddp.errors import BadOptionError
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook import session
from nbddp.notebook.render import (
    diagnosis_card,
    stacks,
    status_table,
    timeline,
    trace_table,
)
from nbddp.notebook.render.html import escape
from nbddp.notebook.render.timeline_text import missing_records


def status(shell: InteractiveShell, *, live: str) -> None:
    """Show the status of each rank.

    Args:
        shell: not used.
        live: ``on``: show a live table; ``off``: end the live table; empty: show a table once.

    Raises:
        NoPoolError: no pool is running.
        PoolBrokenError: the pool was stopped, or its hub has ended.
    """
    if live == "off":
        print(session.end_panel())
    elif live == "on":
        session.begin_panel()
    else:
        _show(status_table.survey(session.pool()).bundle())


def diagnose(shell: InteractiveShell) -> None:
    """Show which rank waits for which.

    Raises:
        BadOptionError: the pool was started with ``--plain``.
        NoPoolError: no pool is running.
        PoolBrokenError: the pool was stopped, or its hub has ended.
    """
    _refuse_plain("diagnose")
    _show(diagnosis(session.pool()))


def diagnosis(pool: Pool, means: str = "`%ddp interrupt`") -> dict[str, str]:
    """The card of ``%ddp diagnose``.

    Args:
        pool: the pool.
        means: interrupts the cell; the default reaches cells with ``--async``, too.
    """
    diagnosed = pool.observe()
    return diagnosis_card.card(
        diagnosed.report,
        views=diagnosed.views,
        means=means,
        own_timeout_s=pool.settings.own_timeout_s,
    )


def show_stacks(shell: InteractiveShell, *, ranks: str | None) -> None:
    """Show the Python stacks of these ranks; None: of all.

    Raises:
        BadOptionError: a rank does not exist.
        NoPoolError: no pool is running.
        PoolBrokenError: the pool was stopped, or its hub has ended.
    """
    _show(stacks.stacks(session.pool().stacks(ranks).views))


def show_summary(pool: Pool, cell: int) -> None:
    """Show the line of ``%%ddp --trace``; nothing if the pool is stopped or plain.

    Args:
        pool: the pool of the cell.
        cell: the number of the cell.
    """
    if pool.is_stopped or pool.options.plain:
        return
    rows = pool.trace_rows()
    cell_rows = select(rows, cell=cell)
    text = trace_table.summary(cell_rows) + trace_table.not_kept(cell_rows)
    _show({"text/plain": text, "text/html": f'<div style="opacity:0.7">{escape(text)}</div>'})


def trace(
    shell: InteractiveShell, *, cell: int | None, ranks: str | None, last: int, save: str | None
) -> None:
    """Show the last operations, or save all of them in a file.

    Args:
        shell: not used.
        cell: the number of the cell whose operations are shown; None: all cells.
        ranks: only operations in which one of these takes part; None: all.
        last: the maximum number of operations in the table.
        save: the path of a file that gets all operations as JSON; None: show the table.

    Raises:
        BadOptionError: the file cannot be written, a rank does not exist, or the pool was started
            with ``--plain``.
        NoPoolError: no pool is running.
    """
    _refuse_plain("trace")
    pool = session.pool()
    chosen_ranks = None if ranks is None else pool.rank_set(ranks)
    rows = pool.trace_rows()
    if save is None:
        lack = _lack(pool, select(rows, cell=cell, ranks=chosen_ranks))
        _show(trace_table.table(rows, cell=cell, ranks=chosen_ranks, last=last, lack=lack))
        return
    selected_rows = select(rows, cell=cell, ranks=chosen_ranks)
    lack = _lack(pool, selected_rows)
    path = Path(save).expanduser()
    try:
        path.write_text(
            json.dumps(chrome_trace(selected_rows, chosen_ranks, lack)), encoding="utf-8"
        )
    except OSError as error:
        raise BadOptionError(
            f"%ddp trace --save: {path} cannot be written: {error}. Next: another path"
        ) from None
    count = len(selected_rows)
    operations = "1 operation" if count == 1 else f"{count} operations"
    saved = f"{operations} saved in {path}{f'; {lack}' if lack else ''}"
    print(with_line_breaks(f"{saved}. Next: open it in https://ui.perfetto.dev"))


def show_timeline(shell: InteractiveShell, *, cell: int | None, ranks: str | None) -> None:
    """Show the operations of a cell along time.

    Args:
        shell: not used.
        cell: the number of the cell; None: the last one that issued operations.
        ranks: the ranks that have a row; None: all.

    Raises:
        BadOptionError: a rank does not exist, or the pool was started with ``--plain``.
        NoPoolError: no pool is running.
    """
    _refuse_plain("timeline")
    pool = session.pool()
    chosen_ranks = None if ranks is None else pool.rank_set(ranks)
    rows = pool.trace_rows()
    number, run_id = cell, None
    if cell is None:
        newest = select([row for row in rows if row.run_ids], ranks=chosen_ranks, last=1)
        run_id = newest[0].run_ids[-1] if newest else "none"
        number = max((part.cell for row in newest for part in row.parts.values()), default=None)
    cell_rows = select(rows, cell=cell, run_id=run_id, ranks=chosen_ranks)
    if not cell_rows:
        where = f"of cell [{cell}]" if cell else "of a cell"
        with_ranks = "" if chosen_ranks is None else f" with {chosen_ranks.describe()}"
        text = f"timeline: no operations {where}{with_ranks} are known"
        _show({"text/plain": text, "text/html": f"<div>{escape(text)}</div>"})
        return
    rest = trace_table.not_kept(cell_rows)
    headline = timeline.headline_of(cell_rows, number, trace_table.counts(cell_rows), rest)
    lack = _lack(pool, cell_rows)
    _show(timeline.timeline(cell_rows, headline, chosen_ranks, pool.snapshot.clocks, lack))


def _lack(pool: Pool, rows: Sequence[TraceRow]) -> str:
    return missing_records(rows, pool.snapshot, time.monotonic())


def _refuse_plain(verb: str) -> None:
    if session.pool().options.plain:
        raise BadOptionError(
            f"%ddp {verb}: the pool was started with --plain, so nothing is recorded. "
            "Next: %ddp stop, then %ddp start without --plain"
        )


def _show(bundle: dict[str, str]) -> None:
    display(bundle, raw=True)
