"""What is known of each rank of a pool, and the moves that are legal.

Runs in: the hub thread. Pure; `nbddp.controller.state.pool_machine.PoolMachine` owns it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from nbddp.controller.state.rank_state import LEGAL_MOVES, RankInfo, RankState
from nbddp.errors import InvalidTransitionError
from nbddp.wire.message_types import PoolSpec
from nbddp.wire.rank_set import Rank, RankSet

_STORY_LENGTH = 20


class RankTable(Mapping[Rank, RankInfo]):
    """The ranks of a pool and their states: by rank, in order."""

    def __init__(self, spec: PoolSpec) -> None:
        self._info_by_rank = {
            rank: RankInfo(rank=rank, node=rank // spec.nproc_per_node)
            for rank in range(spec.world_size)
        }
        self._infos: tuple[RankInfo, ...] | None = None  #: of all ranks, since the last change
        self.held_agents: set[int] = set()  #: they stand still, and do not go on

    def __getitem__(self, rank: Rank) -> RankInfo:
        return self._info_by_rank[rank]

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._info_by_rank)

    def __len__(self) -> int:
        return len(self._info_by_rank)

    @property
    def infos(self) -> tuple[RankInfo, ...]:
        """What is known of each rank, in order; the same object until something changes."""
        if self._infos is None:
            self._infos = tuple(self._info_by_rank.values())
        return self._infos

    def put(self, info: RankInfo) -> None:
        """Something else is known of a rank; its state is changed by `move` alone."""
        self._info_by_rank[info.rank] = info
        self._infos = None

    def in_state(self, *states: RankState) -> RankSet:
        """The ranks in one of these states."""
        infos = self._info_by_rank.values()
        return RankSet.of(info.rank for info in infos if info.state in states)

    def by_node(self, ranks: Iterable[Rank]) -> dict[int, tuple[Rank, ...]]:
        """These ranks by the node on which they are."""
        found: dict[int, list[Rank]] = {}
        for rank in ranks:
            found.setdefault(self._info_by_rank[rank].node, []).append(rank)
        return {node: tuple(on_node) for node, on_node in found.items()}

    def held_reason(self, ranks: Iterable[Rank]) -> str:
        """Why these ranks cannot be reached; empty if they can."""
        held = self.held_agents.intersection(self.by_node(ranks))
        return f"the agent of node {min(held)} stands still" if held else ""

    def will_restart(self, ranks: Iterable[Rank]) -> None:
        """The user wants other processes in the places of these."""
        for rank in ranks:
            self.put(replace(self._info_by_rank[rank], is_unwanted=True))

    def move(self, rank: Rank, to: RankState, why: str, **known: Any) -> None:
        """A rank is in another state now.

        Args:
            rank: which.
            to: its state.
            why: for its story.
            known: other fields of its `RankInfo` that change with the state.

        Raises:
            InvalidTransitionError: there is no such move; with the rank's story.
        """
        info = self._info_by_rank[rank]
        story = (*info.story, f"{info.state.name} -> {to.name} ({why})")[-_STORY_LENGTH:]
        if (info.state, to) not in LEGAL_MOVES:
            self.put(replace(info, story=story))
            lines = "\n  ".join(story)
            raise InvalidTransitionError(f"rank {rank}: illegal move; its story:\n  {lines}")
        self.put(replace(info, state=to, story=story, **known))
