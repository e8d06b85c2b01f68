"""The ranks of a pool with their states, which change by legal moves only.

Runs in: the hub thread. Pure; `nbddp.controller.state.pool_machine.PoolMachine` owns it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from nbddp.controller.state.rank_state import LEGAL_MOVES, RankInfo, RankState
from nbddp.errors import InvalidTransitionError
from nbddp.wire.message_types import PoolSpec
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

_HISTORY_LENGTH = 20


class RankTable(Mapping[Rank, RankInfo]):
    """The ranks of a pool and their states, by rank, in order."""

    def __init__(self, spec: PoolSpec) -> None:
        self._info_by_rank = {
            rank: RankInfo(rank=rank, node=rank // spec.nproc_per_node)
            for rank in range(spec.world_size)
        }
        self._counts = Counter({RankState.ABSENT: spec.world_size})
        self._infos: tuple[RankInfo, ...] | None = None  #: None: something has changed since
        self.stopped_agents: set[int] = set()  #: nodes whose agents are stopped, and do not resume
        #: Nodes whose agents took the places of lost ones, and have no ready rank yet.
        self.fresh_agents: set[int] = set()

    def __getitem__(self, rank: Rank) -> RankInfo:
        return self._info_by_rank[rank]

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._info_by_rank)

    def __len__(self) -> int:
        return len(self._info_by_rank)

    @property
    def infos(self) -> tuple[RankInfo, ...]:
        """The knowledge about each rank, in order; the same object until something changes."""
        if self._infos is None:
            self._infos = tuple(self._info_by_rank.values())
        return self._infos

    def put(self, info: RankInfo) -> None:
        """Replace the knowledge about a rank; only `move` changes its state."""
        self._counts[self._info_by_rank[info.rank].state] -= 1
        self._counts[info.state] += 1
        self._info_by_rank[info.rank] = info
        self._infos = None

    def are_all(self, state: RankState) -> bool:
        """Whether all ranks are in this state."""
        return self._counts[state] == len(self._info_by_rank)

    def in_state(self, *states: RankState, among: Iterable[Rank] | None = None) -> RankSet:
        """The ranks in one of these states, of all or of some."""
        if not any(self._counts[state] for state in states):
            return NO_RANKS
        infos = self._info_by_rank.values()
        ranks = tuple(info.rank for info in infos if info.state in states)
        return RankSet(ranks) if among is None else RankSet.of(set(ranks).intersection(among))

    def by_node(self, ranks: Iterable[Rank]) -> dict[int, tuple[Rank, ...]]:
        """These ranks, grouped by their node."""
        ranks_by_node: dict[int, list[Rank]] = {}
        for rank in ranks:
            ranks_by_node.setdefault(self._info_by_rank[rank].node, []).append(rank)
        return {node: tuple(on_node) for node, on_node in ranks_by_node.items()}

    def stopped_agent_reason(self, ranks: Iterable[Rank]) -> str:
        """The reason why these ranks cannot be reached: a stopped agent; empty if they can."""
        if not self.stopped_agents:
            return ""
        stopped = self.stopped_agents.intersection(self.by_node(ranks))
        return f"the agent of node {min(stopped)} is stopped" if stopped else ""

    def mark_for_restart(self, ranks: Iterable[Rank]) -> None:
        """Note that the user wants fresh processes in the places of these ranks."""
        for rank in ranks:
            self.put(replace(self._info_by_rank[rank], is_unwanted=True))

    def move(self, rank: Rank, to: RankState, why: str, **known: Any) -> None:
        """Move a rank to another state; see `move_all`."""
        self.move_all((rank,), to, why, **known)

    def move_all(self, ranks: Iterable[Rank], to: RankState, why: str, **known: Any) -> None:
        """Move ranks to another state.

        Args:
            ranks: the ranks that move.
            to: their new state.
            why: for their history.
            known: other fields of their `RankInfo` that change with the state.

        Raises:
            InvalidTransitionError: the move of a rank is not legal; the text has its history.
        """
        before: RankInfo | None = None
        history: tuple[str, ...] = ()
        infos, counts = self._info_by_rank, self._counts
        self._infos = None
        for rank in ranks:
            info = infos[rank]
            # Ranks that move together have one history.
            is_alike = before is not None and info.state is before.state
            if not is_alike or before is None or info.history != before.history:
                step = f"{info.state.name} -> {to.name} ({why})"
                history = (*info.history, step)[-_HISTORY_LENGTH:]
            if (info.state, to) not in LEGAL_MOVES:
                self.put(replace(info, history=history))
                lines = "\n  ".join(history)
                raise InvalidTransitionError(f"rank {rank}: illegal move; its history:\n  {lines}")
            infos[rank] = replace(info, state=to, history=history, **known)
            counts[info.state] -= 1
            counts[to] += 1
            if self.fresh_agents and to is RankState.IDLE:
                self.fresh_agents.discard(info.node)
            before = info
