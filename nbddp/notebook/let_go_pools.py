"""The pools that this kernel has let go of, with the cells that they have run for it.

Runs in: the notebook's process, thread of the running cell.
"""

from nbddp.controller.catch_up import CellHistory
from nbddp.controller.pool import Pool
from nbddp.system import kept_pools

_histories_by_pool: dict[str, list[CellHistory]] = {}
#: The runs of the cells that went on; several notebooks may take a pool back in turn.
_own_runs: set[str] = set()


def note(pool: Pool, run_id: str | None = None) -> None:
    """Note that this kernel has let go of a pool.

    Args:
        pool: which one.
        run_id: of the cell that goes on, whichever kernel has begun it; None: none does.
    """
    if run_id is not None and (pool.left_cell is None or pool.left_cell.run.run_id != run_id):
        _own_runs.add(run_id)
    # At the end, since `owner` looks at the last one first.
    _histories_by_pool[pool.pool_id] = [*_histories_by_pool.pop(pool.pool_id, []), pool.history]


def has_begun(run_id: str) -> bool:
    """Whether this kernel has begun that run, and let it go."""
    return run_id in _own_runs


def owner(name: str) -> tuple[int, str] | None:
    """Find the pool that waits for a kernel and has run a cell of this one that binds a name.

    Returns:
        The number of the cell, and the name of the pool, the last one if there are several.
    """
    if not _histories_by_pool:
        return None
    waiting = {pool.pool_id for pool in kept_pools.detached_pools() if not pool.is_over}
    for pool_id, histories in reversed(_histories_by_pool.items()):
        cell = max(history.origin(name) for history in histories)
        if cell and pool_id in waiting:
            return cell, pool_id
    return None
