"""The lines of ``%ddp status`` about ranks that are still inside a cell that was given up.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Callable, Collection

from nbddp.controller.state import Diagnosed, PoolSnapshot, RankState
from nbddp.notebook.render.node_lines import unanswered_nodes
from nbddp.wire.rank_set import NO_RANKS, RankSet


def old_cell_notes(
    snapshot: PoolSnapshot, diagnosed: Diagnosed, restart_of: Callable[[RankSet], str]
) -> list[str]:
    """Return the lines.

    Args:
        snapshot: the state of the pool.
        diagnosed: the answers of all ranks.
        restart_of: returns the command that gives ranks fresh processes.
    """
    notes = []
    late_nodes = {each.node for each in snapshot.behind} | unanswered_nodes(snapshot, diagnosed)
    stuck, late, silent = inside_old_cells(snapshot, late_nodes)
    if stuck:
        notes.append(
            f"{stuck.describe()} still inside a cell that was given up. Next: "
            f"{restart_of(stuck)}, if {stuck.verb('it does', 'they do')} not come back"
        )
    if late:
        notes.append(
            f"{late.describe()} perhaps still inside an old cell, and perhaps the interrupt is "
            "still on its way. Next: %ddp status again in some seconds"
        )
    if silent:  # no rank can be restarted meanwhile
        notes.append(
            f"{silent.describe()} not heard since an old cell, perhaps still inside it. Next: "
            "wait until the node is heard again or given up"
        )
    return notes


def inside_old_cells(
    snapshot: PoolSnapshot, late_nodes: Collection[int] = ()
) -> tuple[RankSet, RankSet, RankSet]:
    """The ranks inside a cell that has ended for the user.

    Args:
        snapshot: the state of the pool.
        late_nodes: nodes that do not answer now.

    Returns:
        Those that are inside, those of the late nodes, which perhaps are, and of silent nodes.
    """
    if snapshot.is_running:
        return NO_RANKS, NO_RANKS, NO_RANKS
    inside = snapshot.in_state(RankState.BUSY)
    silent = (info.rank for info in snapshot.ranks if info.node in snapshot.silent_nodes)
    unheard = RankSet.of(set(inside).intersection(silent))
    on_late = (info.rank for info in snapshot.ranks if info.node in late_nodes)
    late = RankSet.of(set(inside - unheard).intersection(on_late))
    return inside - unheard - late, late, unheard
