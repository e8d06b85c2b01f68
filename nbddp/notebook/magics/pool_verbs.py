"""The verbs of ``%ddp`` about the life of a pool: ``start``, ``interrupt``, ``restart``, ``stop``.

They tell how a cell in the background ended that they end.

Runs in: the notebook's process, thread of the running cell.
"""

from typing import Any, TypeAlias

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.hub.run import Run
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.outcome import RunOutcome
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import CellInterruptedError, PoolInterruptedError
from nbddp.notebook import session
from nbddp.notebook.render import status_table
from nbddp.wire.rank_set import RankSet

#: The name of a cell that runs, and its run.
Running: TypeAlias = tuple[str, Run]


def start(shell: InteractiveShell, **options: Any) -> None:
    """Start a pool with these options of `nbddp.start`. Raises as that."""
    before = session.current_pool()
    pool = session.start(**options)
    print(("there already: " if pool is before else "") + status_table.headline(pool))


def stop(shell: InteractiveShell) -> None:
    """End the pool, if there is one. Raises `PoolInterruptedError` when all has ended."""
    pool = session.current_pool()
    if pool is None:
        print("no pool is running")
        return
    running = pool.running_cell
    try:
        session.stop(pool)
    except KeyboardInterrupt:  # raised when everything has ended
        raise PoolInterruptedError(
            "%ddp stop was interrupted, and has ended all processes all the same: no pool is "
            "running"
        ) from None
    print(f"{_ended(pool, running)}stopped: {pool.world_size} ranks")


def restart(shell: InteractiveShell, *, ranks: str | None) -> None:
    """Fresh processes for these ranks; None: for all. Raises as `Pool.restart`."""
    pool = session.pool()
    running = pool.running_cell
    if ranks is None:
        pool.restart()
        said = f"fresh ranks: {status_table.headline(pool)}"
    else:
        pool.expect_idle_beside(pool.rank_set(ranks))
        said = pool.restart(ranks)
    print(_ended(pool, running) + said)


def interrupt(shell: InteractiveShell) -> None:
    """Interrupt the running cell, and wait some time for its end; tells how it ended."""
    print(_interrupt(session.pool()))


def _interrupt(pool: Pool) -> str:
    running = pool.running_cell
    in_callback = pool.interrupt()
    if running is None:
        return status_table.nothing_running(pool, in_callback)
    name, run = running
    outcome = _end_of(pool, run)
    if outcome is not None:
        return _how_it_ended(pool, name, outcome)
    inside = pool.unfinished
    if run.outcome is not None:  # since a moment ago
        return _how_it_ended(pool, name, run.outcome)
    return _not_yet(name, inside)


def _not_yet(name: str, inside: RankSet) -> str:
    if not inside:  # the wait is then for a rebuild
        return (
            f"{name} was interrupted, and all ranks have left it; the process groups are still "
            "being made again. Next: wait, the next cell does so too"
        )
    are = inside.verb("is", "are")
    return (
        f"{name} was sent an interrupt and has not ended yet: {inside.describe()} {are} still "
        "inside it. Next: %ddp stacks shows where each rank is"
    )


def _ended(pool: Pool, running: Running | None) -> str:
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
        busy = {info.rank for info in pool.ranks() if info.state is RankState.BUSY}
        inside = RankSet.of(busy.intersection(outcome.ranks("unfinished")))  # others came since
        left = f"; {inside.describe()} did not leave it. Next: %ddp restart -r {inside}"
        return f"{name} was interrupted {after}{left if inside else ''}"
    return f"{name} has failed {after}: {type(error).__name__}"
