"""Compares a value between ranks, and finds the places where it is not equal.

    ranks --Tree: fingerprints--> compare --which blocks?--> ranks --bytes of a few--> Difference

The value stays on its ranks: they send fingerprints of its tensors, and then a few blocks of 1 MiB
of the first tensors that differ. No collective is used: the ranks may be out of step.

Runs in: the thread of the caller. All but `diff_values` is pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from nbddp.controller.values import details
from nbddp.controller.values.descriptions import Descriptions
from nbddp.controller.values.result import Difference, LeafDifference, grouped, largest_first
from nbddp.errors import BadOptionError
from nbddp.wire.rank_set import RankSet, ranks_by
from nbddp.wire.values.value_questions import (
    BlockNumbers,
    BlocksOf,
    ContentsOf,
    Leaf,
    TensorBlocks,
    Tree,
    TreeOf,
)

_NEXT = "%ddp vars lists the variables of all ranks"


def diff_values(
    descriptions: Descriptions, expression: str, ranks: RankSet, next_step: str = _NEXT
) -> Difference:
    """Compare a value on some ranks.

    Args:
        descriptions: the questions to these ranks.
        expression: any expression; ``rng`` is the state of the random number generators.
        ranks: the ranks that are asked.
        next_step: what to do if no rank has the value.

    Raises:
        BadOptionError: the expression has a value on none of the ranks.
        NbddpError: see `Descriptions.ask`; nothing has changed.
    """
    try:
        trees = dict(zip(ranks, descriptions.ask(TreeOf(expression), Tree), strict=True))
        difference = compare(expression, trees)
        if len(difference.errors) and not (ranks - _ranks_with_errors(difference)):
            reasons = "; ".join(
                f"{failed.describe()}: {text}" for text, failed in difference.errors.items()
            )
            raise BadOptionError(
                f"{expression!r} has no value on any rank that can be compared ({reasons}). "
                f"Next: {next_step}"
            )
        ranks_by_path = details.ranks_to_compare(difference)
        if not ranks_by_path:
            return difference
        answers = descriptions.ask(BlocksOf(ranks_by_path), TensorBlocks)
        blocks = _merged(ranks, [answer.by_path for answer in answers])
        numbers = details.differing_blocks(ranks_by_path, blocks)
        blocks_by_path = {
            path: BlockNumbers(ranks_by_path[path], numbers[path]) for path in numbers
        }
        contents = _merged(ranks, descriptions.contents(ContentsOf(blocks_by_path)))
        return details.with_details(difference, trees, blocks, contents)
    finally:
        descriptions.forget()


def _ranks_with_errors(difference: Difference) -> RankSet:
    return RankSet.of(rank for ranks in difference.errors.values() for rank in ranks)


def _merged(ranks: RankSet, answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, Any]]:
    """Return the answers by path and rank."""
    merged: dict[str, dict[int, Any]] = {}
    for rank, answer in zip(ranks, answers, strict=True):
        for path, value in answer.items():
            merged.setdefault(path, {})[rank] = value
    return merged


def compare(expression: str, trees: Mapping[int, Tree]) -> Difference:
    """Find the places that differ between ranks; different shards of a tensor are no difference.

    Args:
        expression: the source of the value, for the answer.
        trees: the value's fingerprints, by rank.
    """
    difference = _compare(expression, trees)
    with_value = {rank: tree for rank, tree in trees.items() if not tree.error}
    if not any(leaf.is_tensor for tree in with_value.values() for leaf in tree.gradients):
        return difference
    gradients = {rank: Tree(leaves=tree.gradients) for rank, tree in with_value.items()}
    return replace(difference, gradients=_compare(expression, gradients))


def _compare(expression: str, trees: Mapping[int, Tree]) -> Difference:
    leaves_by_rank = {
        rank: {leaf.path: leaf for leaf in tree.leaves} for rank, tree in trees.items()
    }
    ranks = RankSet.of(trees)
    with_value = [rank for rank in ranks if not trees[rank].error]
    labels: dict[int, list[object]] = {rank: [trees[rank].error] for rank in ranks}
    differences = _compare_outlines(
        {rank: trees[rank] for rank in with_value},
        {rank: leaves_by_rank[rank] for rank in with_value},
        labels,
    )
    unknown: list[str] = []
    for path in dict.fromkeys(path for rank in with_value for path in leaves_by_rank[rank]):
        leaves = {rank: leaves_by_rank[rank].get(path) for rank in with_value}
        if any(leaf is None and path in trees[rank].kinds for rank, leaf in leaves.items()):
            continue  # one rank has a value with parts there: `_compare_outlines` reports it
        if not all(leaf.digest for leaf in leaves.values() if leaf is not None):
            unknown.append(path)
        differences += _at_path(path, leaves, labels)
    first = next((leaves_by_rank[rank] for rank in with_value), {})
    sharding: dict[str, int] = {}
    for leaf in first.values():
        if leaf.sharding:
            sharding[leaf.sharding] = sharding.get(leaf.sharding, 0) + 1
    return Difference(
        expression=expression,
        ranks=ranks,
        groups=grouped({rank: tuple(own_labels) for rank, own_labels in labels.items()}),
        differences=tuple(differences),
        n_tensors=sum(leaf.is_tensor for leaf in first.values()),
        n_values=sum(not leaf.is_tensor for leaf in first.values()),
        nbytes=sum(leaf.nbytes for leaf in first.values()),
        sharding=sharding,
        unknown=tuple(unknown),
        errors=ranks_by((tree.error, rank) for rank, tree in sorted(trees.items()) if tree.error),
        is_cut=any(tree.is_cut for tree in trees.values()),
    )


def _at_path(
    path: str, leaves: Mapping[int, Leaf | None], labels: dict[int, list[object]]
) -> list[LeafDifference]:
    """Compare one place, and label each rank with its group at this place."""
    missing = [rank for rank, leaf in leaves.items() if leaf is None]
    kinds: dict[object, list[int]] = {}
    by_part: dict[str, dict[object, list[int]]] = {}
    for rank, leaf in leaves.items():
        if leaf is None:
            labels[rank].append("missing")
            continue
        kinds.setdefault((leaf.what, leaf.sharding), []).append(rank)
        by_part.setdefault(leaf.part, {}).setdefault((leaf.what, leaf.digest), []).append(rank)
    if missing or len(kinds) > 1:
        # Values of different kinds or shapes cannot be compared element by element.
        by_kind = by_part[""] if len(by_part) == 1 and "" in by_part else kinds
        groups = sorted(by_kind.values(), key=largest_first)
        for number, group in enumerate(groups):
            for rank in group:
                labels[rank].append(number)
        types = {leaf.what for leaf in leaves.values() if leaf is not None and not leaf.is_tensor}
        has = [_has(leaves[group[0]], with_type=len(types) > 1) for group in groups]
        has_by_group = tuple(zip(map(RankSet.of, groups), has, strict=True))
        is_tensor = all(leaf is None or leaf.is_tensor for leaf in leaves.values())
        return [LeafDifference(path, has_by_group, RankSet.of(missing), is_tensor)]
    differences = []
    for part, by_digest in by_part.items():
        groups = sorted(by_digest.values(), key=largest_first)
        for number, group in enumerate(groups):
            for rank in group:
                labels[rank].append(number)
        if len(groups) > 1:
            firsts = [leaf for group in groups if (leaf := leaves[group[0]]) is not None]
            has = [_has(leaf) for leaf in firsts]
            if len(set(has)) == 1 and firsts[0].size:  # they differ after the short text
                has = [leaf.size for leaf in firsts]
            has_by_group = tuple(zip(map(RankSet.of, groups), has, strict=True))
            is_tensor = firsts[0].is_tensor
            is_text = all(leaf.dtype == "text" for leaf in firsts)
            differences.append(
                LeafDifference(path, has_by_group, RankSet(()), is_tensor, part, is_text=is_text)
            )
    return differences


def _has(leaf: Leaf | None, *, with_type: bool = False) -> str:
    """Return a short text for the value of a rank at a place."""
    if leaf is None:
        return "nothing"
    if leaf.is_tensor:
        return leaf.what
    return f"{leaf.value} ({leaf.what})" if with_type else leaf.value


# --- types and modes -----------------------------------------------------------------------------


def _compare_outlines(
    trees: Mapping[int, Tree],
    leaves_by_rank: Mapping[int, Mapping[str, Leaf]],
    labels: Mapping[int, list[object]],
) -> list[LeafDifference]:
    """Compare types and modes, and label each rank with its own where they differ."""
    differences = []
    for path in dict.fromkeys(path for tree in trees.values() for path in tree.kinds):
        kinds = {}
        for rank, tree in trees.items():
            leaf = leaves_by_rank[rank].get(path)
            kind = tree.kinds.get(path) or (leaf.what if leaf else None)
            if kind is not None:
                kinds[rank] = kind
        differences += _differing("type", path, kinds, labels)
    differing_modes: dict[str, dict[int, str]] = {}
    for path in dict.fromkeys(path for tree in trees.values() for path in tree.modes):
        modes = {
            rank: "train mode" if tree.modes[path] else "eval mode"
            for rank, tree in trees.items()
            if path in tree.modes
        }
        above = path.rpartition(".")[0]
        if len(set(modes.values())) > 1:
            differing_modes[path] = modes
            # A module whose parent differs in the same way is not reported again.
            if differing_modes.get(above) != modes or not path:
                differences += _differing("mode", path, modes, labels)
    return differences


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
