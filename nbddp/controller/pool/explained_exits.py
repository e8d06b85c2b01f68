"""Adds the report on ranks that exited to the outcome of a cell.

Runs in: the notebook's process. Pure.
"""

from dataclasses import replace

from nbddp.controller.catch_up import CellHistory
from nbddp.controller.cell_errors import exit_calls, exit_report, freed_ranks
from nbddp.controller.diagnosis import Code
from nbddp.controller.state import RunOutcome


def explained(history: CellHistory, world_size: int, outcome: RunOutcome) -> RunOutcome:
    """Return the outcome, with a report on ranks that exited."""
    exited = outcome.ranks("exited")
    if not exited or outcome.ended_by:
        return outcome
    history.end(outcome)
    history.note_freed(outcome.run_id, freed_ranks(outcome)[0])
    if (cell := history.last) is not None:
        calls = exit_calls(outcome, Code(cell.code, cell.first_line), world_size)
        outcome = replace(outcome, exit_calls=calls)
    outcome = replace(
        outcome,
        knows_cells=not history.is_partial,
        leaves_loops=history.leaves_loops(outcome.fresh) if outcome.fresh else False,
    )
    report = exit_report(outcome, history.lost_names(exited, world_size))
    caused = outcome.injected, outcome.left_out, outcome.typed
    return replace(outcome, report=report.with_injected(*caused))
