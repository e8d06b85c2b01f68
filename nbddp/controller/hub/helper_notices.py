"""What the user is told of the processes behind the ranks: agents, fork servers, the store.

Runs in: the hub thread. Pure.
"""

from nbddp.controller.state.actions import TellUser
from nbddp.controller.state.exit_text import describe_code, store_end
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import Phase
from nbddp.controller.state.stimuli import AgentExited, Stimulus
from nbddp.wire.messages import HelperStopped, StoreExited
from nbddp.wire.rank_set import RankSet

AGENT = "the agent"


def told(stimulus: Stimulus, pool: PoolMachine) -> list[TellUser]:
    """What is said of an end; ``pool`` has not heard of it yet.

    An end while the pool starts or stops is told there.
    """
    if pool.phase is not Phase.UP:
        return []
    match stimulus:
        case StoreExited():
            return [TellUser(None, _store_text(stimulus))]
        case AgentExited():
            return _agent_ended(stimulus, pool)
        case _:
            return []


def _store_text(exited: StoreExited) -> str:
    return (
        f"{store_end(exited)}: process groups that exist work on and variables are kept; new "
        "groups cannot be made, and ranks that exit cannot be replaced. Next: save what you need "
        "(x = %ddp pull x), then %ddp restart"
    )


def _agent_ended(exited: AgentExited, pool: PoolMachine) -> list[TellUser]:
    ranks = RankSet.of(rank for rank, info in pool.ranks.items() if info.node == exited.node)
    if pool.run is not None and set(ranks).intersection(pool.run.unfinished):
        return []  # the error of the cell tells it
    others = RankSet.of(pool.ranks) - ranks
    kept = f"; {others.describe()} can still be used with -r {others}" if others else ""
    are = ranks.verb("is", "are")
    return [
        TellUser(
            None,
            f"the agent of node {exited.node} ended ({describe_code(exited.exit_code)}): "
            f"{ranks.describe()} {are} gone with all variables{kept}. Next: %ddp restart",
        )
    ]


def see_stop(stopped: HelperStopped, pool: PoolMachine) -> list[TellUser]:
    """A process stood still. Remembers agents that do not go on."""
    was_held = stopped.node in pool.ranks.held_agents
    if stopped.name == AGENT:
        (pool.ranks.held_agents.discard if stopped.goes_on else pool.ranks.held_agents.add)(
            stopped.node
        )
    who = f"{stopped.name} of node {stopped.node} (pid {stopped.pid})"
    if stopped.goes_on:
        now = "goes on again" if was_held else "was stopped (SIGSTOP?) and told to go on"
        return [TellUser(None, f"{who} {now}: nothing is lost, and there is nothing to do")]
    return [
        TellUser(
            None,
            f"{who} stands still and does not go on; does a debugger hold it? "
            f"{_MEANS[stopped.name]}. Next: let it go, or %ddp restart",
        )
    ]


_MEANS = {
    AGENT: "Its ranks cannot be reached",
    "the fork server": "Cells run, but ranks that exit cannot be replaced",
    "the store": "Cells run, but new process groups cannot be made",
}
