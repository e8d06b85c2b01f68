"""Whether a value is equal on all ranks, and where it is not.

    ranks --Tree: fingerprints--> compare --which blocks?--> ranks --bytes of a few--> Difference

The value stays where it is: fingerprints of its tensors come first, and only of the first tensors
that differ a few blocks of 1 MiB. No collective is used: the ranks may be out of step.

Runs in: the thread that asks. All but `find` is pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from nbddp.controller.values import details
from nbddp.controller.values.descriptions import Descriptions
from nbddp.controller.values.result import Difference, LeafDifference, grouped, largest_first
from nbddp.errors import BadOptionError
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.fingerprints import (
    BlockNumbers,
    BlocksOf,
    ContentsOf,
    Leaf,
    TensorBlocks,
    Tree,
    TreeOf,
)


def find(asked: Descriptions, expression: str, ranks: RankSet) -> Difference:
    """Compare a value on some ranks.

    Args:
        asked: tells of their values.
        expression: any value; ``rng`` is the state of the generators of random numbers.
        ranks: which.

    Raises:
        BadOptionError: the expression has a value on none of them.
        NbddpError: what ``asked`` raises; nothing has changed.
    """
    try:
        trees = dict(zip(ranks, asked.ask(TreeOf(expression), Tree), strict=True))
        found = compare(expression, trees)
        if len(found.errors) and not (ranks - _ranks_with_errors(found)):
            reasons = "; ".join(f"{who.describe()}: {text}" for text, who in found.errors.items())
            raise BadOptionError(
                f"{expression!r} has no value on any rank ({reasons}). "
                "Next: %ddp vars lists the variables of all ranks"
            )
        wanted = details.wanted_blocks(found)
        if not wanted:
            return found
        blocks = asked.ask(BlocksOf(wanted), TensorBlocks)
        told = _merged(ranks, [each.by_path for each in blocks])
        numbers = details.differing_blocks(wanted, told)
        which = {path: BlockNumbers(wanted[path], numbers[path]) for path in numbers}
        contents = _merged(ranks, asked.contents(ContentsOf(which)))
        return details.with_details(found, trees, told, contents)
    finally:
        asked.forget()


def _ranks_with_errors(found: Difference) -> RankSet:
    return RankSet.of(rank for ranks in found.errors.values() for rank in ranks)


def _merged(ranks: RankSet, answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, Any]]:
    """By path and rank."""
    found: dict[str, dict[int, Any]] = {}
    for rank, answer in zip(ranks, answers, strict=True):
        for path, each in answer.items():
            found.setdefault(path, {})[rank] = each
    return found


def compare(expression: str, trees: Mapping[int, Tree]) -> Difference:
    """Find the places that are not the same on all ranks that should have the same there."""
    found = _compare(expression, trees)
    able = {rank: tree for rank, tree in trees.items() if not tree.error}
    if not any(leaf.is_tensor for tree in able.values() for leaf in tree.gradients):
        return found
    gradients = {rank: Tree(leaves=tree.gradients) for rank, tree in able.items()}
    return replace(found, gradients=_compare(expression, gradients))


def _compare(expression: str, trees: Mapping[int, Tree]) -> Difference:
    leaves_by_rank = {
        rank: {leaf.path: leaf for leaf in tree.leaves} for rank, tree in trees.items()
    }
    ranks = RankSet.of(trees)
    errors: dict[str, list[int]] = {}
    for rank, tree in sorted(trees.items()):
        if tree.error:
            errors.setdefault(tree.error, []).append(rank)
    able = [rank for rank in ranks if not trees[rank].error]
    labels: dict[int, list[object]] = {rank: [trees[rank].error] for rank in ranks}
    differences = _compare_outlines(
        {rank: trees[rank] for rank in able}, {rank: leaves_by_rank[rank] for rank in able}, labels
    )
    unknown: list[str] = []
    for path in dict.fromkeys(path for rank in able for path in leaves_by_rank[rank]):
        leaves = {rank: leaves_by_rank[rank].get(path) for rank in able}
        if any(leaf is None and path in trees[rank].kinds for rank, leaf in leaves.items()):
            continue  # it has parts there, and other ranks do not have those
        if not all(leaf.digest for leaf in leaves.values() if leaf is not None):
            unknown.append(path)
        differences += _at_path(path, leaves, labels)
    first = next((leaves_by_rank[rank] for rank in able), {})
    sharding: dict[str, int] = {}
    for leaf in first.values():
        if leaf.sharding:
            sharding[leaf.sharding] = sharding.get(leaf.sharding, 0) + 1
    return Difference(
        expression=expression,
        ranks=ranks,
        groups=grouped({rank: tuple(each) for rank, each in labels.items()}),
        differences=tuple(differences),
        n_tensors=sum(leaf.is_tensor for leaf in first.values()),
        n_values=sum(not leaf.is_tensor for leaf in first.values()),
        nbytes=sum(leaf.nbytes for leaf in first.values()),
        sharding=sharding,
        unknown=tuple(unknown),
        errors={text: RankSet.of(found) for text, found in errors.items()},
        is_cut=any(tree.is_cut for tree in trees.values()),
    )


def _at_path(
    path: str, leaves: Mapping[int, Leaf | None], labels: dict[int, list[object]]
) -> list[LeafDifference]:
    """Compare one place; notes for each rank with whom it agrees there."""
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
        # Of another kind or shape: then there is nothing to compare element by element.
        by_kind = by_part[""] if len(by_part) == 1 and "" in by_part else kinds
        groups = sorted(by_kind.values(), key=largest_first)
        for number, group in enumerate(groups):
            for rank in group:
                labels[rank].append(number)
        types = {leaf.what for leaf in leaves.values() if leaf is not None and not leaf.is_tensor}
        has = [_has(leaves[group[0]], with_type=len(types) > 1) for group in groups]
        told = tuple(zip(map(RankSet.of, groups), has, strict=True))
        is_tensor = all(leaf is None or leaf.is_tensor for leaf in leaves.values())
        return [LeafDifference(path, told, RankSet.of(missing), is_tensor)]
    found = []
    for part, by_digest in by_part.items():
        groups = sorted(by_digest.values(), key=largest_first)
        for number, group in enumerate(groups):
            for rank in group:
                labels[rank].append(number)
        if len(groups) > 1:
            ofs = [leaf for group in groups if (leaf := leaves[group[0]]) is not None]
            has = [_has(leaf) for leaf in ofs]
            if len(set(has)) == 1 and ofs[0].size:  # they differ behind what is told
                has = [leaf.size for leaf in ofs]
            told = tuple(zip(map(RankSet.of, groups), has, strict=True))
            is_text = all(leaf.dtype == "text" for leaf in ofs)
            found.append(
                LeafDifference(path, told, RankSet(()), ofs[0].is_tensor, part, is_text=is_text)
            )
    return found


def _has(leaf: Leaf | None, *, with_type: bool = False) -> str:
    """What a rank has at a place, in short."""
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
