"""What is told of a cell in the background that ``%ddp interrupt``, ``restart`` or ``stop`` ends.

Runs in: the notebook's process, thread of the running cell.
"""

from typing import TypeAlias

from nbddp.controller.pool import Pool
from nbddp.controller.runs import Run
from nbddp.controller.states import RunOutcome
from nbddp.errors import CellInterruptedError
from nbddp.notebook import status

#: The name of a cell that runs, and its run.
Running: TypeAlias = tuple[str, Run]


def interrupt(pool: Pool) -> str:
    """Interrupt the running cell, and wait some time for its end; tells how it ended."""
    running = pool.running_cell
    in_callback = pool.interrupt()
    if running is None:
        return status.nothing_running(pool, in_callback)
    name, run = running
    outcome = _end_of(pool, run)
    if outcome is not None:
        return _how_it_ended(pool, name, outcome)
    ranks = pool.unfinished
    inside = ""
    if ranks:
        is_one = len(ranks) == 1
        inside = f": {ranks.describe()} {'is' if is_one else 'are'} still inside it"
    return (
        f"{name} was sent an interrupt and has not ended yet{inside}. "
        "Next: %ddp stacks shows where each rank is"
    )


def note(pool: Pool, running: Running | None) -> str:
    """A line about the cell that was running before its ranks were ended; empty: there was none."""
    if running is None:
        return ""
    name, run = running
    outcome = _end_of(pool, run)
    ended = outcome.ranks("error", "exited", "unfinished") if outcome is not None else None
    return f"{name} was running, and was ended on {ended.describe()}\n" if ended else ""


def _end_of(pool: Pool, run: Run) -> RunOutcome | None:
    try:
        return run.wait_for_end(pool.settings.interrupt_wait_s)
    except KeyboardInterrupt:
        return run.outcome


def _how_it_ended(pool: Pool, name: str, outcome: RunOutcome) -> str:
    error = pool.error_of(outcome, name)
    after = f"after {outcome.elapsed_s:.1f} s"
    if error is None:
        return f"{name} has ended well {after}"
    if isinstance(error, CellInterruptedError):
        inside = outcome.ranks("unfinished")
        left = f"; {inside.describe()} did not leave it. Next: %ddp restart -r {inside}"
        return f"{name} was interrupted {after}{left if inside else ''}"
    return f"{name} has failed {after}: {type(error).__name__}"
