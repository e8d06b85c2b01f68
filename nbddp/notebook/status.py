"""The pool in words.

Runs in: the notebook's process.
"""

from nbddp.controller.pool import Pool
from nbddp.controller.states import RankState
from nbddp.wire.ranks import RankSet


def headline(pool: Pool) -> str:
    """One line: ranks, devices, backend."""
    infos = pool.ranks()
    devices = sorted({info.device for info in infos if info.device})
    backend = next((info.backend for info in infos if info.backend), "")
    group = f"process group {backend}" if backend else "no process group yet (--init none)"
    if pool.options.plain:
        group += ", stock (--plain)"
    ranks = "1 rank" if pool.world_size == 1 else f"{pool.world_size} ranks"
    nodes = f" on {pool.options.nnodes} nodes" if pool.options.nnodes > 1 else ""
    notes = sorted({info.note for info in infos if info.note})
    return "; ".join([f"{ranks}{nodes} on {', '.join(devices)}, {group}", *notes])


def describe(pool: Pool) -> str:
    """The headline and a table, one row per rank."""
    rows = [("rank", "state", "pid", "node", "device", "log")]
    for info in pool.ranks():
        state = info.state.name.lower()
        if info.state is RankState.EXITED and info.exited is not None:
            state += f" ({info.exited.exit_code})"
        rows.append(
            (str(info.rank), state, str(info.pid), str(info.node), info.device, info.log_path)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    gone = RankSet.of(i.rank for i in pool.ranks() if i.state is RankState.EXITED)
    if gone:
        lines.append(f"{gone.describe()} exited. Next: %ddp restart")
    stuck = _stuck(pool)
    if stuck and not pool.is_running:
        lines.append(
            f"{stuck.describe()} still inside a cell that was given up. Next: %ddp restart, if "
            "they do not come back"
        )
    if pool.hub.machine.store_is_lost:
        lines.append(
            "the store process exited: groups that exist work on, new ones cannot be made. "
            "Next: %ddp restart"
        )
    return "\n".join([headline(pool), *lines])


def nothing_running(pool: Pool) -> str:
    """Why ``%ddp interrupt`` had nothing to do."""
    stuck = _stuck(pool)
    if stuck:
        return f"{stuck.describe()} did not stop when interrupted. Next: %ddp restart"
    return "no cell is running"


def _stuck(pool: Pool) -> RankSet:
    return RankSet.of(info.rank for info in pool.ranks() if info.state is RankState.BUSY)
