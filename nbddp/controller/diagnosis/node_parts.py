"""The nodes of the ranks that a finding is about: all ranks of one node have one cause, perhaps.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbddp.wire.rank_set import Rank, RankSet

#: More nodes are given by their numbers alone.
_MAX_NAMED = 3


@dataclass(frozen=True)
class NodePart:
    """Ranks of a finding that are on one node.

    Example:
        >>> from nbddp.controller.diagnosis import NodePart
        >>> part = NodePart(3, "n3", pool.rank_set("0-1"), is_whole=True)
        >>> part.to_dict()
        {'node': 3, 'host': 'n3', 'ranks': [0, 1], 'is_whole': True}
    """

    node: int
    host: str  #: name of the machine; empty: it is the notebook's own
    ranks: RankSet
    is_whole: bool  #: they are all ranks of the node

    def to_dict(self) -> dict[str, Any]:
        """Make plain data of it, which `json` can write.

        Example:
            >>> part.to_dict()["node"]
            3
        """
        return {
            "node": self.node,
            "host": self.host,
            "ranks": list(self.ranks),
            "is_whole": self.is_whole,
        }


@dataclass(frozen=True)
class PoolNodes:
    """The nodes of a pool."""

    ranks: Mapping[int, Collection[Rank]]  #: by node
    hosts: Mapping[int, str]  #: names, of those that are machines of their own

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.ranks.values()))

    def node_by_rank(self) -> dict[Rank, int]:
        """Return the node of each rank; empty: there is only one.

        >>> PoolNodes({0: (0, 1), 1: (2,)}, {}).node_by_rank()
        {0: 0, 1: 0, 2: 1}
        """
        if len(self.ranks) < 2:
            return {}
        return {rank: node for node, ranks in self.ranks.items() for rank in ranks}

    def parts(self, ranks: Iterable[Rank]) -> tuple[NodePart, ...]:
        """Return the nodes of these ranks; empty: that says nothing, as they are on all nodes.

        >>> nodes = PoolNodes({0: (0, 1), 1: (2, 3), 2: (4, 5)}, {2: "c"})
        >>> [(part.node, part.is_whole) for part in nodes.parts([2, 4, 5])]
        [(1, False), (2, True)]
        """
        if len(self.ranks) < 2:
            return ()
        wanted = set(ranks)
        parts = tuple(
            NodePart(node, self.hosts.get(node, ""), RankSet.of(here), len(here) == len(on_node))
            for node, on_node in sorted(self.ranks.items())
            if (here := wanted.intersection(on_node))
        )
        is_everywhere = len(parts) == len(self.ranks)
        if is_everywhere and (len(parts) > _MAX_NAMED or all(part.is_whole for part in parts)):
            return ()
        return parts


def node_sentence(parts: Sequence[NodePart]) -> str:
    """Return ``ranks 24-31 are all ranks of node 3 (n3)``; empty without parts."""
    if not parts:
        return ""
    ranks = RankSet.of(rank for part in parts for rank in part.ranks)
    if len(parts) > _MAX_NAMED:
        nodes = f"nodes {RankSet.of(part.node for part in parts).numbers()}"
    else:
        nodes = _joined(parts)
    if all(part.is_whole for part in parts) and len(ranks) > len(parts):
        return f"{ranks.describe()} are all ranks of {nodes}"
    if len(parts) == 1 or len(parts) > _MAX_NAMED:
        return f"{ranks.describe()} {ranks.verb('is', 'are')} on {nodes}"
    first, *others = parts
    verb = first.ranks.verb("is", "are")
    texts = [f"{first.ranks.describe()} {verb} on {_name(first)}"]
    texts += [f"{part.ranks.describe()} on {_name(part)}" for part in others]
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def _joined(parts: Sequence[NodePart]) -> str:
    names = [_name(part) for part in parts]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _name(part: NodePart) -> str:
    return f"node {part.node} ({part.host})" if part.host else f"node {part.node}"
