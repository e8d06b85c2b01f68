"""A pool that ran without a hub, as its agents tell of it.

Runs in: the notebook's process. Pure.

    AgentAttached of each agent --resumed_pool--> PoolMachine, whose cell goes on
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from nbddp.controller.state.cell_run import CellRun
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import RankState
from nbddp.settings import Settings
from nbddp.wire.message_types import KeptRank
from nbddp.wire.messages import AgentAttached, Execute
from nbddp.wire.rank_set import NO_RANKS, RankSet

_WHY = "taken back"


def resumed_pool(
    attached: Sequence[AgentAttached],
    execute: Execute | None,
    settings: Settings,
    now: float,
    *,
    host: str,
    port: int,
) -> PoolMachine:
    """Make the state machine of a pool whose ranks live already.

    Args:
        attached: what each living agent has said; at least one.
        execute: the cell that goes on, see `kept_cell`; None: there is none.
        settings: limits of time.
        now: `time.monotonic` of the caller.
        host: address on which a later store listens; empty: that of node 0.
        port: of that store; 0: any.
    """
    first = attached[0]
    machine = PoolMachine(first.pool, settings, now, host=host, port=port)
    machine.master = (first.master_addr, first.master_port)
    machine.store_is_lost = any(agent.store_is_lost for agent in attached)
    kept = {each.rank: each for agent in attached for each in agent.ranks}
    lost = _lost(machine, kept, {agent.node for agent in attached}, execute)
    for rank in machine.ranks:
        if execute is not None and rank in lost:
            _enter(machine, rank, execute.run_id)
        else:
            _put(machine, kept.get(rank) or KeptRank(rank=rank, pid=0))
    hosts = {each.node: each.facts.host for each in attached if each.facts is not None}
    addresses = [each.facts.address for each in attached if each.facts and each.node == 0]
    cell = _last_cell(machine, attached, execute, lost, now)
    machine.resume(cell, hosts, addresses[0] if addresses else "")
    return machine


def kept_cell(attached: Sequence[AgentAttached]) -> Execute | None:
    """Return the last cell whose end was not settled, the youngest if agents differ, or None.

    A notebook that is killed may have sent a cell to some agents only.
    """
    runs = [(agent.run_age_s, agent.run) for agent in attached if agent.run is not None]
    return min(runs, key=lambda each: each[0])[1] if runs else None


def joining_ranks(attached: Sequence[AgentAttached]) -> RankSet:
    """Return the ranks that have taken the places of others, and have no groups yet."""
    kept = [each for agent in attached for each in agent.ranks]
    return RankSet.of(each.rank for each in kept if each.joins and each.pid)


def _put(machine: PoolMachine, kept: KeptRank) -> None:
    rank, ranks = kept.rank, machine.ranks
    ranks.move(rank, RankState.STARTING, _WHY)
    known = replace(
        ranks[rank],
        pid=kept.pid,
        log_path=kept.log_path,
        is_replacement=kept.is_replacement,
        generation=int(kept.is_replacement),
        meshes=kept.meshes,
        device=kept.device,
        backend=kept.backend,
        note=kept.note,
    )
    ranks.put(known)
    if not kept.pid:
        ranks.move(rank, RankState.EXITED, _WHY)
        return
    if kept.is_ready:
        ranks.move(rank, RankState.IDLE, _WHY)
    if kept.is_ready and kept.run_id is not None:
        ranks.move(rank, RankState.BUSY, _WHY, run_id=kept.run_id)


def _lost(
    machine: PoolMachine,
    kept: Mapping[int, KeptRank],
    came: Collection[int],
    execute: Execute | None,
) -> RankSet:
    """The ranks that were sent a cell in which others are, and whose agents have not come.

    The loss of their agent ends it for them: its end there is not known.
    """
    if execute is None or not any(_is_inside(each, execute) for each in kept.values()):
        return NO_RANKS
    sent = execute.ranks or RankSet.all(machine.spec.world_size).ranks
    return RankSet.of(
        rank for rank in sent if machine.ranks[rank].node not in came and rank not in execute.dead
    )


def _is_inside(kept: KeptRank, execute: Execute) -> bool:
    return bool(kept.pid) and kept.is_ready and kept.run_id == execute.run_id


def _enter(machine: PoolMachine, rank: int, run_id: str) -> None:
    for state in (RankState.STARTING, RankState.IDLE):
        machine.ranks.move(rank, state, _WHY)
    machine.ranks.move(rank, RankState.BUSY, _WHY, run_id=run_id)


def _last_cell(
    machine: PoolMachine,
    attached: Sequence[AgentAttached],
    execute: Execute | None,
    lost: RankSet,
    now: float,
) -> CellRun | None:
    if execute is None:
        return None
    inside = [rank for rank, info in machine.ranks.items() if info.run_id == execute.run_id]
    if not inside:
        return None
    age_s = min(agent.run_age_s for agent in attached if agent.run is not None)
    return CellRun(
        execute.run_id,
        RankSet.of(inside),
        now - age_s,
        is_plain=machine.spec.plain,
        was_left=True,
        lost_before=lost,
        replacements=RankSet.of(r for r, info in machine.ranks.items() if info.is_replacement),
        asks_at_deadlock=any(point.on == "deadlock" for point in execute.break_points),
        execute=execute,
    )
