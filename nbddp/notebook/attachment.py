"""Pools that outlive their notebook: `attach` takes one back.

Runs in: the notebook's process.
"""

from nbddp.controller.pool import KeptPool, Pool, find_kept
from nbddp.errors import PoolExistsError
from nbddp.notebook import session


def attach(name: str | None = None) -> Pool:
    """Take back a pool of this user on this machine that has no notebook.

    It has its ranks, their variables and groups, and the cell that ran when the last notebook
    ended: `Pool.rejoin` shows its output. From now on it is the pool of this process.

    Args:
        name: of the pool, or its beginning; default: the only one.

    Returns:
        The pool.

    Raises:
        BadOptionError: there is no such pool, or it has a notebook; the message names the others.
        PoolAttachError: the pool does not answer, or another process takes it back.
        PoolBusyError: another thread starts a pool.
        PoolExistsError: this process has a pool.
        PoolInterruptedError: the user interrupted the call; the pool goes on without a notebook.

    Example:
        >>> keep_s = pool.detach("10min")
        >>> pool = nbddp.attach(pool.pool_id)
        >>> pool
        <Pool -n 2 --keep 10min: 2 idle>
    """
    session.await_start()
    living = session.current_pool()
    if living is not None:
        raise _exists(living)
    noted = session.failed_start.noted("nbddp.attach", lambda: session.current_pool() is not None)
    with noted, find_kept(name) as kept:
        return _take(kept)


def _take(kept: KeptPool) -> Pool:
    display = session.start_display()
    try:
        pool, is_fresh = session.make_current(kept.options, display.show, kept=kept)
    finally:
        display.end("")
    if not is_fresh:
        raise _exists(pool)
    return pool


def _exists(pool: Pool) -> PoolExistsError:
    return PoolExistsError(
        f"this kernel has a pool ({pool.options.describe()}). Next: %ddp stop, or %ddp detach, and "
        "then attach"
    )
