"""The state of a pool as other threads read it.

Runs in: the hub thread. Pure.
"""

from nbddp.controller.state import PoolMachine, PoolSnapshot
from nbddp.wire.rank_set import RankSet


def snapshot_of(
    pool: PoolMachine,
    active_run_id: str | None,
    joining: RankSet,
    groups_failure: str = "",
    *,
    groups_wait: bool = False,
) -> PoolSnapshot:
    """Return the state of a pool, with what only its recovery knows.

    Args:
        pool: the pool.
        active_run_id: the cell that is running, or after which the pool is repaired.
        joining: fresh ranks without groups.
        groups_failure: why groups could not be formed again; empty: they are whole.
        groups_wait: the same: they wait for silent nodes.
    """
    return PoolSnapshot(
        phase=pool.phase,
        generation=pool.spec.generation,
        ranks=pool.ranks.infos,
        run_id=pool.active_run_id,
        active_run_id=active_run_id,
        joining=joining,
        lost_agents=frozenset(pool.lost_agents),
        lost=tuple(lost for _, lost in sorted(pool.lost_agents.items())),
        store_is_lost=pool.store_is_lost,
        groups_failure=groups_failure,
        groups_wait=groups_wait,
    )
