"""The verbs of ``%ddp`` about pools that outlive their kernel: ``detach``, ``attach``, ``pools``.

Runs in: the notebook's process, thread of the running cell.
"""

import os
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.pool import LeftCell, Pool, note_ended_jobs
from nbddp.controller.state import JobEnd, RunOutcome, gone_text
from nbddp.durations import write_duration
from nbddp.errors import CellError
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook import attachment, front_end_request, let_go_pools, session
from nbddp.notebook.magics.async_handle import CellHandle
from nbddp.notebook.render import status_table
from nbddp.notebook.render.pools_table import moment, pools_table, until_text
from nbddp.settings import POOLS_DIR_ENV
from nbddp.system import kept_pools, pool_folder
from nbddp.system.kept_pools import KnownPool

#: More pools are not named in one sentence.
_NAMED = 4


def detach(shell: InteractiveShell, *, keep: float | None) -> None:
    """Let the pool go on without this kernel.

    Args:
        shell: not used.
        keep: seconds; None: as the pool was started, or 2 hours.

    Raises:
        BadOptionError: the time is not legal, or the agents end with this kernel.
        NoPoolError: no pool is running.
        PoolAttachError: the pool cannot be let go now.
    """
    pool = session.pool()
    running, count = pool.running_cell, status_table.count_ranks(pool)
    exited = gone_text(pool.snapshot)
    gone = f" ({exited})" if exited else ""
    job_end = pool.snapshot.last_job_end
    keep_s = pool.detach(keep)
    let_go_pools.note(pool, None if running is None else running[1].run_id)
    own = pool_folder.own_parent()
    kernels = f"on this machine with {POOLS_DIR_ENV}={own}" if own else "on this machine"
    goes_on = "" if running is None else f"; {running[0]} goes on"
    print(
        with_line_breaks(
            f"detached: pool {pool.pool_id}, {count}{gone}{goes_on}. It is kept until "
            f"{_until(keep_s, job_end)}, then it ends with all variables. "
            f"Next: %ddp attach {pool.pool_id}, in any kernel {kernels}, takes it back"
        )
    )


def attach(shell: InteractiveShell, *, name: str | None, wait: bool) -> CellHandle | None:
    """Take back a pool, and show the cell that ran when its last kernel ended.

    Args:
        shell: has the names of the user.
        name: of the pool, or its beginning; None: the only one.
        wait: show that cell in the foreground, until it ends.

    Returns:
        The cell, if one ran and is not waited for.

    Raises:
        BadOptionError: there is no such pool without a kernel.
        CellError: the cell failed, and was waited for.
        PoolAttachError: the pool does not answer.
        PoolExistsError: this kernel has a pool.
    """
    pool = attachment.attach(name)
    print(
        with_line_breaks(
            f"attached: pool {pool.pool_id}, {status_table.headline(pool)}. {_states(pool)}"
            f"{kept_text(pool)}"
        )
    )
    left = pool.left_cell
    if left is None:
        return None
    of = "this kernel" if let_go_pools.has_begun(left.run.run_id) else "the last kernel"
    # Another thread shows the output, which would come before text that waits in a buffer.
    print(f"{left.name} of {of}, with the output that was kept:", flush=True)
    if wait:
        _wait_for(pool, left)
        return None
    with pool.given_up_on_failure(left.run):
        view = session.make_view(pool, left.run, background=True, cell=left.execute.execution_count)
        when = partial(when_text, left, time.monotonic())
        handle = CellHandle(pool, left.run, view, left.name, when)
    number = front_end_request.execution_count(shell)
    left.how_to_wait = lambda: how_to_wait(handle, number, shell.user_ns, pool.pool_id)
    return handle


def how_to_wait(handle: object, number: int, names: Mapping[str, Any], pool_id: str) -> str:
    """Return what waits for the end of a cell that was taken back.

    Args:
        handle: of that cell.
        number: of the cell that has given the handle.
        names: the variables of the notebook.
        pool_id: names the pool, since others may wait for a kernel.
    """
    if names.get("_oh", {}).get(number) is handle:
        return f"Out[{number}].wait()"
    for name, value in names.items():
        if value is handle and not name.startswith("_"):
            return f"{name}.wait()"
    return f"%ddp detach, then %ddp attach {pool_id} --wait"


def pools(shell: InteractiveShell) -> None:
    """List the pools of this user on this machine."""
    note_ended_jobs()
    known = kept_pools.known_pools()
    if not known:
        print(f"no pool of yours is {pool_folder.where()}")
        return
    print(pools_table(known, kept_pools.now(), os.getpid()))


def kept_text(pool: Pool) -> str:
    """Say for how long the pool goes on after its kernel; empty: it ends with it."""
    if not pool.options.keep:
        return ""
    keep_s, end, now = pool.options.keep, pool.snapshot.last_job_end, kept_pools.now()
    goes_on = f"goes on for {write_duration(keep_s)} after the end of this kernel"
    if end is not None:
        at = _on_clock(end, now)
        job_ends = f"until {moment(at, now)}, when {end.name} ends"
        if at < now + keep_s:
            goes_on = f"goes on after the end of this kernel {job_ends}"
        else:
            goes_on += f", but only {job_ends}"
    return f"Pool {pool.pool_id} {goes_on}: %ddp attach takes it back."


def others_text() -> str:
    """Name the pools of the user that go on without a kernel; empty: there is none."""
    note_ended_jobs()
    now = kept_pools.now()
    # Of one whose time is over the agents end, and nothing says when.
    waiting = [p for p in kept_pools.detached_pools() if p.until is None or p.until > now]
    if len(waiting) > 1:
        named = ", ".join(pool.pool_id for pool in waiting[:_NAMED])
        more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
        return (
            f"Pools {named}{more} go on without a kernel, as %ddp pools says: %ddp stop, then %ddp "
            "attach NAME takes one back."
        )
    return "".join(
        f"Pool {pool.pool_id} ({pool.described}) goes on without a kernel"
        f"{_until_of(pool, now)}: %ddp stop, then "
        f"%ddp attach {pool.pool_id} takes it back."
        for pool in waiting
    )


def end_text(
    left: LeftCell,
    outcome: RunOutcome,
    attached: float,
    now: float,
    clock: float,
    *,
    has_error: bool = False,
) -> str:
    """Say how and when a cell of the last kernel ended, and after how long.

    Args:
        left: the cell.
        outcome: its end.
        attached: when the pool was taken back, by the same clock as ``left.began``.
        now: the present, by that clock.
        clock: the present, in seconds since 1970.
        has_error: an error is shown for it, perhaps of a mismatch on ranks that have finished it.
    """
    if outcome.ended_by:
        verb = "was ended"
    elif outcome.interrupted:
        verb = "was interrupted"
    else:
        verb = "failed" if has_error or outcome.ranks("ok") != left.run.ranks else "was done"
    at, is_before = _time_of_end(left, outcome, attached, now, clock)
    before = ", before this %ddp attach" if is_before else ""
    return f"{left.name} {verb} {at}, after {outcome.elapsed_s:.1f} s{before}"


def when_text(left: LeftCell, attached: float, outcome: RunOutcome) -> str:
    """Say when a cell of the last kernel ended, if that was before the attach; else empty.

    Args:
        left: the cell.
        attached: when the pool was taken back, by `time.monotonic`.
        outcome: the end of the cell.
    """
    at, is_before = _time_of_end(left, outcome, attached, time.monotonic(), kept_pools.now())
    return f" {at}, before this %ddp attach," if is_before and not outcome.ended_by else ""


def _time_of_end(
    left: LeftCell, outcome: RunOutcome, attached: float, now: float, clock: float
) -> tuple[str, bool]:
    """``at 14:02``, and whether that was before the attach; for the arguments, see `end_text`."""
    ended = left.began + outcome.elapsed_s
    return f"at {moment(clock - (now - ended), clock)}", ended < attached


def _wait_for(pool: Pool, left: LeftCell) -> None:
    attached, has_error = time.monotonic(), False
    try:
        pool.rejoin()
    except CellError:
        has_error = True
        raise
    finally:
        if (outcome := left.run.outcome) is not None:
            now = time.monotonic()
            clock = kept_pools.now()
            text = end_text(left, outcome, attached, now, clock, has_error=has_error)
            print(with_line_breaks(text))


def _states(pool: Pool) -> str:
    """Say what the ranks do; those of a cell tell its end, which may have been before."""
    states = pool.snapshot
    if pool.left_cell is None:
        return f"Now: {states.summary()}. "
    exited = gone_text(states)
    return f"{exited[:1].upper()}{exited[1:]}. " if exited else ""


def _until(keep_s: float, job_end: JobEnd | None) -> str:
    """``08:46 (4h)``, or ``04:48, when Slurm job 8 ends, and not for 4h``."""
    now = kept_pools.now()
    at = now + keep_s
    if job_end is not None and (job_ends_at := _on_clock(job_end, now)) < at:
        until = until_text(at, job_end.name, job_ends_at, now)
        return f"{until}, and not for {write_duration(keep_s)}"
    return f"{moment(at, now)} ({write_duration(keep_s)})"


def _until_of(pool: KnownPool, now: float) -> str:
    if pool.until is None:
        return ""
    return f" until {until_text(pool.until, pool.job, pool.job_ends_at, now)}"


def _on_clock(end: JobEnd, now: float) -> float:
    """Return the end of a job in seconds since 1970; now is such a number, too."""
    return now + end.ends_at - time.monotonic()
