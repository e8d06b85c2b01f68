"""The ranks that a line chooses by ``-r`` and ``--mesh``, also before there is a pool.

Runs in: the notebook's process.
"""

from nbddp.controller.options import PoolOptions
from nbddp.notebook import session
from nbddp.wire.mesh_ranks import read_ranks
from nbddp.wire.rank_set import RankSet


def chosen_ranks(text: str | None, world_size: int = 0) -> RankSet:
    """Read the ranks of a line.

    Args:
        text: the choice; None: all ranks.
        world_size: the number of ranks; 0: that of the pool, or of the one that would start.

    Raises:
        BadOptionError: the text has another form, or there is no such rank, mesh or index.
    """
    pool = session.current_pool()
    options = (session.last_options() or PoolOptions()) if pool is None else pool.options
    meshes = {} if pool is None else pool.snapshot.meshes
    return read_ranks("all" if text is None else text, world_size or options.world_size, meshes)
