"""Compares what holds the leaves of a value together: types, and the modes of modules.

Runs in: the thread that asks. Pure.
"""

from collections.abc import Mapping
from typing import Literal

from nbddp.controller.unequal import LeafDifference, grouped
from nbddp.wire.ranks import RankSet
from nbddp.wire.told import Leaf, Tree


def compare(
    trees: Mapping[int, Tree],
    leaves_by_rank: Mapping[int, Mapping[str, Leaf]],
    labels: Mapping[int, list[object]],
) -> list[LeafDifference]:
    """Find the places; notes for each rank with whom it agrees there."""
    found = []
    for path in dict.fromkeys(path for tree in trees.values() for path in tree.kinds):
        kinds = {}
        for rank, tree in trees.items():
            leaf = leaves_by_rank[rank].get(path)
            kind = tree.kinds.get(path) or (leaf.what if leaf else None)
            if kind is not None:
                kinds[rank] = kind
        found += _differing("type", path, kinds, labels)
    told: dict[str, dict[int, str]] = {}
    for path in dict.fromkeys(path for tree in trees.values() for path in tree.modes):
        modes = {
            rank: "train mode" if tree.modes[path] else "eval mode"
            for rank, tree in trees.items()
            if path in tree.modes
        }
        above = path.rpartition(".")[0]
        if len(set(modes.values())) > 1:
            told[path] = modes
            if told.get(above) != modes or not path:  # else it goes with the module it is in
                found += _differing("mode", path, modes, labels)
    return found


def _differing(
    kind: Literal["type", "mode"],
    path: str,
    has_by_rank: Mapping[int, str],
    labels: Mapping[int, list[object]],
) -> list[LeafDifference]:
    if len(set(has_by_rank.values())) < 2:
        return []
    for rank, has in has_by_rank.items():
        labels[rank].append(has)
    groups = tuple((group, has_by_rank[group.ranks[0]]) for group in grouped(has_by_rank))
    return [LeafDifference(path, groups, RankSet(()), is_tensor=False, kind=kind)]
