"""The messages of a pool that does not do what it was asked.

Runs in: the notebook's process, any thread. Pure.
"""

from collections.abc import Mapping, Sequence

from nbddp.controller.state import (
    GroupObstacle,
    PoolSnapshot,
    RanksRestarted,
    RankState,
    other_agents,
    silence_text,
    silent_steps,
)
from nbddp.wire.rank_set import NO_RANKS, RankSet


def busy_text(cell: str, inside: RankSet, wait: str) -> str:
    """Say which cell is running where, and what to do about it.

    Args:
        cell: its name.
        inside: the ranks that are inside it.
        wait: how the user waits for its end.
    """
    where = inside.describe() if inside else "this pool"
    return (
        f"{cell} is still running on {where}, and this has to wait until it has ended. "
        f"Next: {wait}, or %ddp interrupt"
    )


def broken_text(
    reason: str,
    ranks: RankSet,
    snapshot: PoolSnapshot,
    now: float,
    *,
    is_up: bool,
    is_plain: bool,
) -> str:
    """Say why ranks cannot be used, which ones can, and what to do.

    Args:
        reason: why not.
        ranks: that were asked for.
        snapshot: the state of the pool.
        now: monotonic time in seconds.
        is_up: whether the pool and its hub are well.
        is_plain: the pool cannot replace ranks.
    """
    idle = snapshot.in_state(RankState.IDLE) if is_up else NO_RANKS
    needed = RankSet.all(len(snapshot.ranks)) if snapshot.groups_wait else ranks
    silences = snapshot.silences(needed, now)
    heard = idle - RankSet.of(i.rank for i in snapshot.ranks if i.node in snapshot.silent_nodes)
    others = _usable(heard, snapshot) if ranks - idle or snapshot.groups_failure else ""
    if is_up and silences:
        return f"{reason}{others}: {silence_text(silences)}. Next: {silent_steps()}"
    if is_up and snapshot.groups_wait:
        return f"{reason}{others}. Next: the same again"
    missing = ranks - idle
    late = RankSet.of(set(missing).intersection(snapshot.in_state(RankState.BUSY)))
    if is_up and late == missing and late and not is_plain:
        return f"{reason}{others}{_late_steps(late, snapshot)}"
    first = f"{_pull_first(heard)}, then " if heard else ""
    next_step = f"{first}%ddp restart, which ends all ranks" if first else _FRESH_POOL
    if is_up and idle and missing and not is_plain and not snapshot.store_is_lost:
        lost = snapshot.lost_agents
        asks = f"asks for {other_agents(len(lost))}, and " if lost else ""
        next_step = f"%ddp restart -r {missing} {asks}keeps the variables of the other ranks"
    return f"{reason}{others}. Next: {next_step}"


def _late_steps(late: RankSet, snapshot: PoolSnapshot) -> str:
    """The steps if ranks have not left an old cell: they do so when the interrupt arrives."""
    nodes = {snapshot.ranks[rank].node for rank in late}
    behind = "; ".join(each.text for each in snapshot.behind if each.node in nodes)
    restart = "%ddp restart, which ends all ranks"
    if snapshot.in_state(RankState.IDLE) and not snapshot.store_is_lost:
        its = late.verb("its variables", "their variables")
        restart = f"%ddp restart -r {late}: {its} are gone then, those of the others are kept"
    return (
        f"{behind and ': '}{behind}. Next: the same again in some seconds. Then, if "
        f"{late.verb('it does', 'they do')} not leave the old cell: {restart}"
    )


_FRESH_POOL = "%ddp restart gives a fresh pool"


def _usable(ranks: RankSet, snapshot: PoolSnapshot) -> str:
    """`` (ranks 0-1 can still be used with -r)``; without whole groups: each of them alone."""
    if not ranks:
        return ""
    if snapshot.groups_failure and len(ranks) > 1:
        alone = f"each of {ranks.describe()} can still be used alone, as with -r {ranks.ranks[0]}"
        return f" ({alone})"
    return f" ({ranks.describe()} can still be used with -r{f' {ranks}' * (len(ranks) == 1)})"


def _pull_first(alive: RankSet) -> str:
    return f"pull what you need (x = %ddp pull x -r {alive})"


def not_alone_text(ranks: RankSet, obstacle: GroupObstacle, snapshot: PoolSnapshot) -> str:
    """Say why ranks cannot get fresh processes while others keep theirs, and what is possible.

    Args:
        ranks: that were asked for; no process was ended.
        obstacle: why not.
        snapshot: the state of the pool.
    """
    return (
        f"{ranks.describe()} cannot be replaced alone: {_OBSTACLES[obstacle]}. "
        f"Next: {_all_anew(snapshot)}"
    )


def _all_anew(snapshot: PoolSnapshot) -> str:
    """The next step if only all ranks together can get fresh processes."""
    alive = snapshot.in_state(RankState.IDLE, RankState.BUSY)
    first = f"{_pull_first(alive)}, then " if alive else ""
    puts = ", which puts other agents in the places of lost ones" if snapshot.lost_agents else ""
    return f"{first}%ddp restart{puts}"


def not_begun_text(ranks: RankSet) -> str:
    """Say that the user has interrupted a restart before it ended a process."""
    return (
        f"the restart of {ranks.describe()} was interrupted before a process was ended: all ranks "
        "keep their variables. Next: %ddp status shows whether all nodes are heard; the same "
        "command tries again"
    )


def not_replaced_text(
    ranks: RankSet, failure: str, snapshot: PoolSnapshot, *, is_plain: bool
) -> str:
    """Say why ranks did not get fresh processes, and what to do.

    Args:
        ranks: that were asked for.
        failure: why not; empty: their fresh processes have ended.
        snapshot: the state of the pool now. Perhaps a node or the store was lost meanwhile.
        is_plain: the pool cannot replace ranks.
    """
    process = ranks.verb("its fresh process", "their fresh processes")
    failure = failure or f"{process} ended before {ranks.verb('it was', 'they were')} ready"
    output = ranks.verb("its output", "their output")
    keeps = "and keeps the variables of the other ranks"
    lost = {snapshot.ranks[rank].node for rank in ranks} & snapshot.lost_agents
    step = f"%ddp log {ranks} shows the end of {output}; the same command tries again, {keeps}; "
    step += _FRESH_POOL
    if is_plain:
        step = _FRESH_POOL
    elif snapshot.obstacle(ranks):
        step = _all_anew(snapshot)
    elif lost:
        step = f"the same command asks for {other_agents(len(lost))}, {keeps}; {_FRESH_POOL}"
    return f"{ranks.describe()} could not be replaced: {failure}. Next: {step}"


def unanswered_text(ranks: RankSet, nodes: Sequence[int], snapshot: PoolSnapshot) -> str:
    """Say that nodes gave no sign of life when ranks were to get fresh processes.

    Args:
        ranks: that were asked for; no process was ended.
        nodes: that did not answer.
        snapshot: the state of the pool.
    """
    names = " and ".join(
        f"node {node} ({snapshot.nodes[node].host})"
        if node < len(snapshot.nodes)
        else f"node {node}"
        for node in nodes
    )
    does = "does" if len(nodes) == 1 else "do"
    return (
        f"{ranks.describe()} {ranks.verb('was', 'were')} not restarted, since fresh ranks form "
        f"their groups with all others, and {names} {does} not answer: no process was ended. "
        "Next: the same command tries again; %ddp restart ends all ranks"
    )


def silent_text(ranks: RankSet, done: RanksRestarted) -> str:
    """Say that ranks did not get fresh processes, or perhaps did, since nodes are silent.

    Args:
        ranks: that were asked for.
        done: the answer of the hub.
    """
    silences = silence_text(done.silent)
    if not done.has_begun:
        return (
            f"{ranks.describe()} {ranks.verb('was', 'were')} not restarted, since fresh ranks form "
            f"their groups with all others: {silences}. Next: {silent_steps()}"
        )
    if set(ranks) <= set(done.ended):
        process = ranks.verb("its old process has", "their old processes have")
        gone = ranks.verb("its variables are", "their variables are")
        fresh = ranks.verb("The fresh one forms its", "The fresh ones form their")
        waits = "wait until the node is heard again or given up: the groups are formed then"
        return (
            f"{ranks.describe()} {ranks.verb('was', 'were')} restarted, but cannot be used with "
            f"others yet: {process} ended, and {gone} gone. {fresh} process groups with all "
            f"others, and {silences}. Next: {silent_steps(waits=waits)}"
        )
    process = ranks.verb("its process was", "their processes were")
    they = ranks.verb("it is a fresh process", "they are fresh processes")
    waits = f"wait: %ddp status shows whether {they} when the node is heard again or given up"
    return (
        f"perhaps {ranks.describe()} {ranks.verb('was', 'were')} restarted: {process} asked to "
        f"end, and now {silences}. Next: {silent_steps(waits=waits)}"
    )


_OBSTACLES: Mapping[GroupObstacle, str] = {
    "store-lost": "the store of the process groups was lost, and fresh ranks need it to form "
    "groups with the others",
    "groups-unknown": "no rank would be left that knows the process groups, which fresh ranks form "
    "again with the others",
}
