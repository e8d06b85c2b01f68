"""The state of a pool as other threads read it.

Runs in: the hub thread. Pure.
"""

from nbddp.controller.recovery.ranks_to_replace import RankRestarts
from nbddp.controller.recovery.rebuild import PoolRebuild
from nbddp.controller.state import PoolMachine, PoolSnapshot, Repair
from nbddp.wire.rank_set import NO_RANKS


def snapshot_of(
    pool: PoolMachine,
    active_run_id: str | None,
    rebuild: PoolRebuild | None,
    restarts: RankRestarts | None = None,
) -> PoolSnapshot:
    """Return the state of a pool, with what only its recovery knows.

    Args:
        pool: the pool.
        active_run_id: the cell that is running, or after which the pool is repaired.
        rebuild: knows the ranks and groups that are not whole; None: all are.
        restarts: knows whether old processes are being ended; None: none are.
    """
    return PoolSnapshot(
        phase=pool.phase,
        generation=pool.spec.generation,
        ranks=pool.ranks.infos,
        run_id=pool.active_run_id,
        active_run_id=active_run_id,
        joining=NO_RANKS if rebuild is None else rebuild.joining,
        lost_agents=frozenset(pool.lost_agents),
        lost=tuple(lost for _, lost in sorted(pool.lost_agents.items())),
        store_is_lost=pool.store_is_lost,
        groups_failure="" if rebuild is None else rebuild.failure,
        repair=_repair(rebuild, restarts),
        groups_wait=rebuild is not None and rebuild.waits_for_silent,
    )


def _repair(rebuild: PoolRebuild | None, restarts: RankRestarts | None) -> Repair:
    if restarts is not None and restarts.is_killing:
        return "ends"
    return "" if rebuild is None else rebuild.repair
