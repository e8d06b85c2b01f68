"""The state of a pool for other threads: a snapshot that never changes.

Runs in: the hub thread makes it, any thread reads it. Pure.

    PoolMachine, RecoveryMachine --hub thread--> PoolSnapshot --> Pool, status, start and restart
"""

from collections import Counter
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from nbddp.controller.state.job_ends import JobEnd, last_end
from nbddp.controller.state.node_clocks import NodeClock, clock_by_rank
from nbddp.controller.state.rank_state import Phase, RankInfo, RankState
from nbddp.controller.state.silent_nodes import BehindNode, Silence, SilentNode
from nbddp.wire.mesh_ranks import MeshesByRank
from nbddp.wire.message_types import LostAgent, NodeFacts
from nbddp.wire.rank_set import NO_RANKS, RankSet

#: Why fresh ranks could form no groups with the others: the store is lost, or, while nodes are, no
#: rank would be left that knows the groups.
GroupObstacle: TypeAlias = Literal["store-lost", "groups-unknown"]

#: The step of a repair: old processes end, fresh ones start, the others are asked for their groups,
#: all make the groups again. Empty: there is none, or it has not begun.
Repair: TypeAlias = Literal["", "ends", "starts", "looks", "forms"]


class PoolSnapshot(msgspec.Struct, frozen=True):
    """A pool at one moment."""

    phase: Phase
    generation: int  #: counts restarts of the whole pool
    ranks: tuple[RankInfo, ...]  #: in order
    run_id: str | None  #: the run of the cell that ranks are in
    active_run_id: str | None  #: the same, also while the pool is repaired after the cell
    joining: RankSet  #: fresh ranks without groups, since other members are still in a cell
    lost_agents: frozenset[int]  #: nodes whose agents have ended
    store_is_lost: bool  #: existing groups still work; new ones cannot be made
    #: Why the process groups could not be formed again: no cell can run on several ranks.
    groups_failure: str = ""
    groups_wait: bool = False  #: the same: they are formed when the silent nodes are heard
    #: The machines of the nodes, in order, once all have joined; empty: all are this machine.
    nodes: tuple[NodeFacts, ...] = ()
    silent: tuple[SilentNode, ...] = ()  #: nodes of which nothing is heard now
    behind: tuple[BehindNode, ...] = ()  #: nodes that are not silent, and answer late
    clocks: tuple[NodeClock, ...] = ()  #: of the nodes that have answered so far
    job_ends: tuple[JobEnd, ...] = ()  #: of the jobs of the nodes, as far as they are known
    #: While agents of other machines are awaited: how many have come, and what the engine waits
    #: for, or what the user has to do, in some lines.
    joined: int = 0
    waits_for: str = ""
    is_taken_back: bool = False  #: those agents have served another notebook before
    repair: Repair = ""  #: what is done now
    replacing: RankSet = NO_RANKS  #: set for the progress of a restart of some ranks: these
    lost: tuple[LostAgent, ...] = ()  #: the same nodes as in `lost_agents`, and why

    @property
    def is_running(self) -> bool:
        """Whether a cell is running, or the pool is repaired after one."""
        return self.active_run_id is not None

    @property
    def silent_nodes(self) -> frozenset[int]:
        """The numbers of the nodes of which nothing is heard now."""
        return frozenset(each.node for each in self.silent)

    @property
    def log_path_by_rank(self) -> dict[int, str]:
        """The paths of the logs; those on other machines begin with the name of the host.

        Empty: it is not known, as that of a rank whose node was lost before this notebook came.
        """
        hosts = [f"{facts.host}:" for facts in self.nodes]
        return {
            info.rank: f"{hosts[info.node]}{info.log_path}"
            if hosts and info.log_path
            else info.log_path
            for info in self.ranks
        }

    def silences(self, ranks: RankSet, now: float) -> list[Silence]:
        """The silent nodes that have living ones of these ranks."""
        living = [i for i in self.ranks if i.rank in ranks and i.state is not RankState.EXITED]
        silences = [
            each.at(now, RankSet.of(info.rank for info in living if info.node == each.node))
            for each in self.silent
        ]
        return [each for each in silences if each.ranks]

    @property
    def offset_by_rank(self) -> Mapping[int, int]:
        """The clocks of ranks minus that of the notebook, in ns; absent: one clock, or unknown."""
        return {rank: clock.offset_ns for rank, clock in self.clock_by_rank.items()}

    @property
    def clock_by_rank(self) -> Mapping[int, NodeClock]:
        """The clocks of the ranks' nodes; absent: it is the notebook's, or not known."""
        return clock_by_rank(self.clocks, self.ranks)

    @property
    def living_job_ends(self) -> tuple[JobEnd, ...]:
        """The ends of the jobs that still have a node."""
        jobs = {facts.job for facts in self._living_nodes}
        return tuple(end for end in self.job_ends if end.job in jobs)

    @property
    def last_job_end(self) -> JobEnd | None:
        """The end that no living node outlives; None: no such end is known."""
        return last_end(self._living_nodes, self.job_ends)

    @property
    def _living_nodes(self) -> list[NodeFacts]:
        return [f for node, f in enumerate(self.nodes) if node not in self.lost_agents]

    def in_state(self, *states: RankState) -> RankSet:
        """The ranks in one of these states."""
        return RankSet.of(info.rank for info in self.ranks if info.state in states)

    @property
    def unfinished(self) -> RankSet:
        """The ranks that are inside the running cell."""
        if self.run_id is None:
            return NO_RANKS
        return RankSet.of(info.rank for info in self.ranks if info.run_id == self.run_id)

    @property
    def meshes(self) -> MeshesByRank:
        """The device meshes that the variables of each rank hold."""
        return {info.rank: info.meshes for info in self.ranks}

    def obstacle(self, ranks: RankSet) -> GroupObstacle | None:
        """Why fresh processes of these ranks could form no groups with the others; None: they can.

        If no other rank has anything to keep, the whole pool starts again, with another store. That
        needs all nodes.
        """
        gone = {*ranks, *self.in_state(RankState.EXITED), *self.joining}
        keeps_none = len(gone) == len(self.ranks)
        if self.store_is_lost and (self.lost_agents or not keeps_none):
            return "store-lost"
        return "groups-unknown" if self.lost_agents and keeps_none else None

    def summary(self) -> str:
        """The number of ranks in each state: ``2 idle, 1 exited, 1 lost``."""
        counts = Counter(
            "lost"
            if info.state is RankState.EXITED and info.exited and info.exited.was_lost
            else info.state.name.lower()
            for info in self.ranks
        )
        return ", ".join(f"{count} {state}" for state, count in counts.items())
