"""What is known of each rank of a pool, and the moves that are legal.

Runs in: the hub thread. Pure; a part of `nbddp.controller.state.pool_machine`.
"""

from collections import Counter
from collections.abc import Iterable

from nbddp.controller.state.rank_state import LEGAL_MOVES, RankInfo, RankState
from nbddp.errors import InvalidTransitionError
from nbddp.wire.message_types import PoolSpec
from nbddp.wire.rank_set import Rank, RankSet

_STORY_LENGTH = 20


class RankTable:
    """The ranks of a pool and their states."""

    def __init__(self, spec: PoolSpec) -> None:
        self.ranks = {
            rank: RankInfo(rank=rank, node=rank // spec.nproc_per_node)
            for rank in range(spec.world_size)
        }
        self.held_agents: set[int] = set()  #: they stand still, and do not go on

    def in_state(self, *states: RankState) -> RankSet:
        """The ranks in one of these states."""
        return RankSet.of(rank for rank, info in self.ranks.items() if info.state in states)

    def by_node(self, ranks: Iterable[Rank]) -> dict[int, tuple[Rank, ...]]:
        """These ranks by the node on which they are."""
        found: dict[int, list[Rank]] = {}
        for rank in ranks:
            found.setdefault(self.ranks[rank].node, []).append(rank)
        return {node: tuple(on_node) for node, on_node in found.items()}

    def held_reason(self, ranks: Iterable[Rank]) -> str:
        """Why these ranks cannot be reached; empty if they can."""
        held = self.held_agents.intersection(self.by_node(ranks))
        return f"the agent of node {min(held)} stands still" if held else ""

    def will_restart(self, ranks: Iterable[Rank]) -> None:
        """The user wants other processes in the places of these."""
        for rank in ranks:
            self.ranks[rank].is_unwanted = True

    def _move(self, info: RankInfo, to: RankState, why: str) -> None:
        info.story.append(f"{info.state.name} -> {to.name} ({why})")
        del info.story[:-_STORY_LENGTH]
        if (info.state, to) not in LEGAL_MOVES:
            story = "\n  ".join(info.story)
            raise InvalidTransitionError(f"rank {info.rank}: illegal move; its story:\n  {story}")
        info.state = to

    def summary(self) -> str:
        """For example ``3 idle, 1 exited``."""
        counts = Counter(info.state.name.lower() for info in self.ranks.values())
        return ", ".join(f"{count} {state}" for state, count in counts.items())
