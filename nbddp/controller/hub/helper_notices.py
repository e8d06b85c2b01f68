"""The notices to the user about processes behind the ranks: agents, fork servers, the store.

Runs in: the hub thread. Pure.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from nbddp.controller.state import (
    AgentExited,
    NotifyUser,
    Phase,
    PoolMachine,
    RankState,
    Stimulus,
    describe_agent_exit,
    describe_store_exit,
)
from nbddp.wire.messages import AgentHello, HelperStopped, StoreExited
from nbddp.wire.rank_set import RankSet

AGENT = "the agent"


def notices(
    stimulus: Stimulus,
    pool: PoolMachine,
    awaited: Collection[int] = (),
    jobs: Mapping[int, str] = MappingProxyType({}),
) -> list[NotifyUser]:
    """The notices about the end of a process, or about an agent that has come for a lost one.

    Args:
        stimulus: any; only those about the store and agents get a notice.
        pool: before it handles ``stimulus``. While it starts or stops it reports ends itself.
        awaited: nodes whose agents a thread waits for, which reports them: a restart has given them
            up, and gives all ranks, or theirs, fresh processes.
        jobs: the jobs of nodes: those of one that ends are used no longer.
    """
    if pool.phase is not Phase.UP:
        return []
    match stimulus:
        case StoreExited():
            return [NotifyUser(None, _store_text(stimulus))]
        case AgentExited(node=node) if node not in awaited:
            return _agent_ended(stimulus, pool, jobs)
        case AgentHello(node=node) if node in pool.lost_agents and node not in awaited:
            return _agent_came(stimulus, pool)
        case _:
            return []


def _store_text(exited: StoreExited) -> str:
    return (
        f"{describe_store_exit(exited)}: existing process groups still work and variables are "
        "kept; new groups cannot be made, and ranks that exit cannot be replaced. Next: save what "
        "you need (x = %ddp pull x), then %ddp restart"
    )


def _agent_ended(
    exited: AgentExited, pool: PoolMachine, jobs: Mapping[int, str]
) -> list[NotifyUser]:
    ranks = _ranks_of(exited.node, pool)
    if pool.run is not None and set(ranks).intersection(pool.run.unfinished):
        return []  # the error of the cell reports it
    leaving = {node for node, job in jobs.items() if exited.end.is_of_job(job)}
    others = RankSet.of(
        rank
        for rank in pool.ranks.in_state(RankState.IDLE, RankState.BUSY, RankState.STARTING) - ranks
        if pool.ranks[rank].node not in leaving
    )
    kept = f"; {others.describe()} can still be used with -r {others}" if others else ""
    are = ranks.verb("is", "are")
    step = "%ddp restart"
    if others:
        step = (
            f"pull what you need (x = %ddp pull x -r {others}), then %ddp restart, which ends "
            f"{others.describe()}, too"
        )
    if others and exited.node != 0 and not pool.store_is_lost and not pool.spec.plain:
        step = f"%ddp restart -r {ranks} asks for another agent"
    return [
        NotifyUser(
            None,
            f"{describe_agent_exit(exited)}: "
            f"{ranks.describe()} {are} gone with all variables{kept}. Next: {step}",
        )
    ]


def _agent_came(hello: AgentHello, pool: PoolMachine) -> list[NotifyUser]:
    ranks = _ranks_of(hello.node, pool)
    return [
        NotifyUser(
            None,
            f"another agent has come for node {hello.node} ({hello.host}). Next: %ddp restart -r "
            f"{ranks} starts {ranks.verb('its rank', 'its ranks')}",
        )
    ]


def _ranks_of(node: int, pool: PoolMachine) -> RankSet:
    return RankSet.of(rank for rank, info in pool.ranks.items() if info.node == node)


def record_stop(stopped: HelperStopped, pool: PoolMachine) -> list[NotifyUser]:
    """The notice about a process that was stopped; notes agents that do not resume.

    Args:
        stopped: the message about the process.
        pool: its ``ranks.stopped_agents`` is updated.
    """
    was_stopped = stopped.node in pool.ranks.stopped_agents
    if stopped.name == AGENT:
        (pool.ranks.stopped_agents.discard if stopped.goes_on else pool.ranks.stopped_agents.add)(
            stopped.node
        )
    process = f"{stopped.name} of node {stopped.node} (pid {stopped.pid})"
    if stopped.goes_on:
        now = "runs again" if was_stopped else "was stopped (SIGSTOP?) and was resumed"
        return [NotifyUser(None, f"{process} {now}: nothing is lost, and there is nothing to do")]
    return [
        NotifyUser(
            None,
            f"{process} is stopped and does not resume; does a debugger hold it? "
            f"{_EFFECTS[stopped.name]}. Next: resume it, or %ddp restart",
        )
    ]


_EFFECTS = {
    AGENT: "Its ranks cannot be reached",
    "the fork server": "Cells run, but ranks that exit cannot be replaced",
    "the store": "Cells run, but new process groups cannot be made",
}
