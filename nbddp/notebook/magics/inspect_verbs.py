"""The verbs of ``%ddp`` that ask and show: ``status``, ``trace``, ``vars``, ``diff`` and others.

Runs in: the notebook's process, thread of the running cell.
"""

import json
from pathlib import Path

from IPython.display import display

from nbddp.controller.hub.transfer import told_when_stopped
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.config import LEGAL_CONFIG
from nbddp.controller.trace.export import chrome_trace
from nbddp.controller.trace.rows import select
from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.magics import command_line
from nbddp.notebook.render import (
    diagnosis_card,
    diff_report,
    stacks,
    status_table,
    timeline,
    trace_table,
    variables_table,
)
from nbddp.notebook.render.html import escape

VERBS = ("status", "diagnose", "stacks", "trace", "timeline", "config")
#: Verbs whose lines hold expressions: their quotes are Python's.
VALUE_VERBS = ("vars", "diff")


def run(verb: str, words: list[str]) -> None:
    """Do what one of `VERBS` says. Raises what the pool raises."""
    match verb:
        case "status":
            _status(command_line.parse_status(words))
        case "diagnose":
            command_line.expect_nothing(verb, words)
            _refuse_plain(verb)
            found = session.pool().observe()
            # A cell that runs meanwhile has ``--async``: the stop button does not reach it.
            _show(diagnosis_card.card(found.report, views=found.views, means="`%ddp interrupt`"))
        case "stacks":
            ranks = command_line.parse_stacks(words).ranks
            _show(stacks.stacks(session.pool().stacks(ranks).views))
        case "trace":
            _refuse_plain(verb)
            _trace(command_line.parse_trace(words))
        case "timeline":
            _refuse_plain(verb)
            _timeline(command_line.parse_timeline(words))
        case _:
            _configure(command_line.parse_config(words))


def show_summary(pool: Pool, cell: int) -> None:
    """The line of ``%%ddp --trace``."""
    if pool.is_stopped or pool.options.plain:
        return
    rows = pool.trace_rows()
    chosen = select(rows, cell=cell)
    text = trace_table.summary(chosen) + trace_table.not_kept(rows, chosen)
    _show({"text/plain": text, "text/html": f'<div style="opacity:0.7">{escape(text)}</div>'})


def _status(command: command_line.StatusCommand) -> None:
    if command.live == "off":
        print(session.end_panel())  # noqa: T201 - for the reader of the notebook
    elif command.live == "on":
        session.begin_panel()
    else:
        _show(status_table.survey(session.pool()).bundle())


def _trace(command: command_line.TraceCommand) -> None:
    pool = session.pool()
    ranks = None if command.ranks is None else pool.rank_set(command.ranks)
    rows = pool.trace_rows()
    if command.save is None:
        _show(trace_table.table(rows, cell=command.cell, ranks=ranks, last=command.last))
        return
    chosen = select(rows, cell=command.cell, ranks=ranks)
    path = Path(command.save).expanduser()
    try:
        path.write_text(json.dumps(chrome_trace(chosen, ranks)), encoding="utf-8")
    except OSError as error:
        raise BadOptionError(f"%ddp trace --save: {path} cannot be written: {error}") from None
    print(  # noqa: T201 - for the reader of the notebook
        f"{len(chosen)} operations saved in {path}. Next: open it in https://ui.perfetto.dev"
    )


def _timeline(command: command_line.TimelineCommand) -> None:
    pool = session.pool()
    ranks = None if command.ranks is None else pool.rank_set(command.ranks)
    rows = pool.trace_rows()
    cell, run_id = command.cell, None
    if cell is None:
        newest = select([row for row in rows if row.run_ids], ranks=ranks, last=1)
        run_id = newest[0].run_ids[-1] if newest else "none"
        cell = max((part.cell for row in newest for part in row.parts.values()), default=None)
    chosen = select(rows, cell=command.cell, run_id=run_id, ranks=ranks)
    if not chosen:
        where = f"of cell [{cell}]" if command.cell else "of a cell"
        who = "" if ranks is None else f" with {ranks.describe()}"
        text = f"timeline: no operations {where}{who} are known"
        _show({"text/plain": text, "text/html": f"<div>{escape(text)}</div>"})
        return
    rest = trace_table.not_kept(rows, chosen)
    headline = timeline.headline_of(chosen, cell, trace_table.counts(chosen), rest)
    _show(timeline.timeline(chosen, headline, ranks))


def _configure(command: command_line.ConfigCommand) -> None:
    pool = session.pool()
    config = pool.configure(**command.changes) if command.changes else pool.config
    for name, legal in LEGAL_CONFIG.items():
        value = getattr(config, name)
        print(f"{f'{name}={value}':<20} legal: {', '.join(legal)}")  # noqa: T201 - for the reader


def _refuse_plain(verb: str) -> None:
    if session.pool().options.plain:
        raise BadOptionError(
            f"%ddp {verb}: the pool was started with --plain, so nothing is recorded. "
            "Next: %ddp stop, then %ddp start without --plain"
        )


def _show(bundle: dict[str, str]) -> None:
    display(bundle, raw=True)


# --- values --------------------------------------------------------------------------------------


def is_on_values(line: str) -> bool:
    """Whether this line of ``%ddp`` is one of ours; the quotes in its expression are Python's."""
    return line.split(maxsplit=1)[:1] in ([verb] for verb in VALUE_VERBS)


def run_on_values(line: str) -> None:
    """Do what it says. Raises what the pool raises."""
    verb, _, rest = line.strip().partition(" ")
    with told_when_stopped(f"%ddp {verb}"):
        if verb == "vars":
            names, ranks = command_line.parse_vars(rest)
            pool = session.pool()
            told = pool.told_variables(names, ranks=ranks)
            display(variables_table.bundle(told, tuple(names), pool.world_size), raw=True)
            return
        wanted, ranks = command_line.parse_diff(rest)
        for expression in wanted:
            found = session.pool().diff(expression, ranks=ranks)
            display(diff_report.bundle(found), raw=True)
