"""The verbs of ``%ddp`` that show what ranks do: status, diagnose, stacks, trace, timeline.

Runs in: the notebook's process, thread of the running cell.
"""

import json
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from nbddp.controller.pool.pool import Pool
from nbddp.controller.trace.export import chrome_trace
from nbddp.controller.trace.rows import select
from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.render import (
    diagnosis_card,
    stacks,
    status_table,
    timeline,
    trace_table,
)
from nbddp.notebook.render.html import escape


def status(shell: InteractiveShell, *, live: str) -> None:
    """Show where each rank is.

    Args:
        shell: not used.
        live: ``on``: in a table that changes; ``off``: that stays as it is now; empty: once.
    """
    if live == "off":
        print(session.end_panel())
    elif live == "on":
        session.begin_panel()
    else:
        _show(status_table.survey(session.pool()).bundle())


def diagnose(shell: InteractiveShell) -> None:
    """Show who waits for whom."""
    _refuse_plain("diagnose")
    found = session.pool().observe()
    # A cell that runs meanwhile has ``--async``: the stop button does not reach it.
    _show(diagnosis_card.card(found.report, views=found.views, means="`%ddp interrupt`"))


def show_stacks(shell: InteractiveShell, *, ranks: str | None) -> None:
    """Show the Python stacks of these ranks; None: of all."""
    _show(stacks.stacks(session.pool().stacks(ranks).views))


def show_summary(pool: Pool, cell: int) -> None:
    """The line of ``%%ddp --trace``."""
    if pool.is_stopped or pool.options.plain:
        return
    rows = pool.trace_rows()
    chosen = select(rows, cell=cell)
    text = trace_table.summary(chosen) + trace_table.not_kept(rows, chosen)
    _show({"text/plain": text, "text/html": f'<div style="opacity:0.7">{escape(text)}</div>'})


def trace(
    shell: InteractiveShell, *, cell: int | None, ranks: str | None, last: int, save: str | None
) -> None:
    """Show the last operations, or save all of them in a file.

    Args:
        shell: not used.
        cell: the number of a cell: only its operations.
        ranks: operations in which these take part; None: all.
        last: so many at most.
        save: a path.

    Raises:
        BadOptionError: the file cannot be written.
    """
    _refuse_plain("trace")
    pool = session.pool()
    chosen_ranks = None if ranks is None else pool.rank_set(ranks)
    rows = pool.trace_rows()
    if save is None:
        _show(trace_table.table(rows, cell=cell, ranks=chosen_ranks, last=last))
        return
    chosen = select(rows, cell=cell, ranks=chosen_ranks)
    path = Path(save).expanduser()
    try:
        path.write_text(json.dumps(chrome_trace(chosen, chosen_ranks)), encoding="utf-8")
    except OSError as error:
        raise BadOptionError(
            f"%ddp trace --save: {path} cannot be written: {error}. Next: another path"
        ) from None
    print(f"{len(chosen)} operations saved in {path}. Next: open it in https://ui.perfetto.dev")


def show_timeline(shell: InteractiveShell, *, cell: int | None, ranks: str | None) -> None:
    """Show the operations of a cell along time.

    Args:
        shell: not used.
        cell: its number; None: the last one that issued operations.
        ranks: a row for each of these; None: for all.
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
    chosen = select(rows, cell=cell, run_id=run_id, ranks=chosen_ranks)
    if not chosen:
        where = f"of cell [{cell}]" if cell else "of a cell"
        who = "" if chosen_ranks is None else f" with {chosen_ranks.describe()}"
        text = f"timeline: no operations {where}{who} are known"
        _show({"text/plain": text, "text/html": f"<div>{escape(text)}</div>"})
        return
    rest = trace_table.not_kept(rows, chosen)
    headline = timeline.headline_of(chosen, number, trace_table.counts(chosen), rest)
    _show(timeline.timeline(chosen, headline, chosen_ranks))


def _refuse_plain(verb: str) -> None:
    if session.pool().options.plain:
        raise BadOptionError(
            f"%ddp {verb}: the pool was started with --plain, so nothing is recorded. "
            "Next: %ddp stop, then %ddp start without --plain"
        )


def _show(bundle: dict[str, str]) -> None:
    display(bundle, raw=True)
