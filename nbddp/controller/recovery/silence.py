"""The ranks on nodes of which nothing is heard: nothing that the user waits for waits for them.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.

A silent node may be heard again, so its ranks are not ended. But a cell that the user has
interrupted, or whose other ranks have lost their connections, ends without them. Fresh ranks are
refused, and a rebuild that needs them fails at once and is repeated when they are heard again.
"""

from collections.abc import Collection

from nbddp.controller.state import (
    BehindNode,
    CellRun,
    PoolMachine,
    RankState,
    Silence,
    SilentNode,
)
from nbddp.wire.rank_set import NO_RANKS, RankSet


class SilentRanks:
    """The silent nodes of a pool, and their ranks."""

    def __init__(self, pool: PoolMachine) -> None:
        self._pool = pool
        self._nodes: dict[int, SilentNode] = {}
        self._behind: frozenset[int] = frozenset()

    def note(self, nodes: tuple[SilentNode, ...]) -> None:
        """Take the nodes that are silent from now on."""
        self._nodes = {each.node: each for each in nodes}

    def note_behind(self, nodes: tuple[BehindNode, ...]) -> None:
        """Take the nodes that answer late from now on."""
        self._behind = frozenset(each.node for each in nodes)

    @property
    def ranks(self) -> RankSet:
        """The living ranks of silent nodes."""
        return self._on(self._nodes)

    @property
    def behind(self) -> RankSet:
        """The living ranks of nodes that are not silent, and have perhaps not got what was sent."""
        return self._on(self._behind.difference(self._nodes))

    @property
    def unheard(self) -> RankSet:
        """The ranks of both: nothing is known of them now."""
        return self._on(self._behind.union(self._nodes))

    def _on(self, nodes: Collection[int]) -> RankSet:
        if not nodes:
            return NO_RANKS
        return RankSet.of(
            info.rank
            for info in self._pool.ranks.values()
            if info.node in nodes and info.state is not RankState.EXITED
        )

    def among(self, ranks: RankSet, now: float) -> tuple[Silence, ...]:
        """Return the silent nodes that have living ones of these ranks."""
        on_node = self._pool.ranks.by_node(set(ranks).intersection(self.ranks))
        return tuple(
            self._nodes[node].at(now, RankSet.of(found)) for node, found in sorted(on_node.items())
        )

    def holds_up(self, run: CellRun | None) -> bool:
        """Return whether a cell waits for silent ranks only, and its end is wanted or near.

        The user or a timeout has interrupted it, or the others have lost the connections to them.
        """
        if run is None or not self._nodes:
            return False
        if not (run.interrupted or run.timed_out or run.has_lost_connection):
            return False
        return bool(run.unfinished) and set(run.unfinished) <= set(self.ranks)
