"""Whether a value is equal on all ranks, and where it is not.

    ranks --Tree: fingerprints--> compare --which blocks?--> ranks --bytes of a few--> Difference

The value stays where it is: fingerprints of its tensors come first, and only of the first tensors
that differ a few blocks of 1 MiB. No collective is used: the ranks may be out of step.

Runs in: the thread that asks. All but `find` is pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nbddp.controller import blockwise
from nbddp.errors import BadOptionError
from nbddp.wire.ranks import RankSet
from nbddp.wire.told import Blocks, Leaf, Tree

#: Of the tensors that differ, so many are looked into, and of each so many blocks.
_MAX_DETAILED, _MAX_BLOCKS = 8, 4
#: As in `nbddp.rank.digests`.
BLOCK_BYTES = 1 << 20
_TELLING = "__import__('nbddp.rank.telling', fromlist=['_'])"

Pull = Callable[[str], Sequence[Any]]


@dataclass(frozen=True)
class Detail:
    """How a tensor differs between two groups of ranks."""

    one: RankSet
    other: RankSet
    index: tuple[int, ...] | None  #: of the first element that differs
    values: tuple[str, str]
    max_abs: float | None
    is_exact: bool  #: whether all blocks that differ were looked at
    norms: tuple[float | None, float | None]


@dataclass(frozen=True)
class LeafDifference:
    """A place in the value that is not the same everywhere."""

    path: str
    groups: tuple[tuple[RankSet, str], ...]  #: ranks that agree, and what they have
    missing: RankSet  #: ranks that have nothing there
    is_tensor: bool
    part: str = ""  #: of a sharded tensor: which shard
    details: tuple[Detail, ...] = ()


@dataclass(frozen=True)
class Difference:
    """The answer to ``pool.diff(expression)``."""

    expression: str
    ranks: RankSet
    groups: tuple[RankSet, ...]  #: ranks that agree everywhere; the largest first
    differences: tuple[LeafDifference, ...]
    n_tensors: int
    n_values: int
    nbytes: int  #: of the tensors, on one rank
    sharding: Mapping[str, int] = field(default_factory=dict)  #: tensors by how they are sharded
    unknown: tuple[str, ...] = ()  #: places that cannot be compared
    errors: Mapping[str, RankSet] = field(default_factory=dict)  #: why ranks have no value
    is_cut: bool = False  #: there were more values than are looked at

    @property
    def is_equal(self) -> bool:
        """Whether nothing was found that differs."""
        return len(self.groups) == 1

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "expression": self.expression,
            "equal": self.is_equal,
            "groups": [list(group) for group in self.groups],
            "tensors": self.n_tensors,
            "values": self.n_values,
            "bytes": self.nbytes,
            "sharding": dict(self.sharding),
            "unknown": list(self.unknown),
            "cut": self.is_cut,
            "errors": {text: list(ranks) for text, ranks in self.errors.items()},
            "differences": [
                {
                    "path": each.path,
                    "groups": [{"ranks": list(ranks), "has": has} for ranks, has in each.groups],
                    "missing": list(each.missing),
                    "first": [
                        {
                            "ranks": [list(detail.one), list(detail.other)],
                            "index": None if detail.index is None else list(detail.index),
                            "values": list(detail.values),
                            "max_abs": detail.max_abs,
                            "exact": detail.is_exact,
                            "norms": list(detail.norms),
                        }
                        for detail in each.details
                    ],
                }
                for each in self.differences
            ],
        }


def find(pull: Pull, tell: Callable[[str], object], expression: str, ranks: RankSet) -> Difference:
    """Compare a value on some ranks.

    Args:
        pull: evaluates an expression on all of them; gives the values in the order of ranks.
        tell: likewise, but does not wait.
        expression: any value; ``rng`` is the state of the generators of random numbers.
        ranks: which.

    Raises:
        BadOptionError: the expression has a value on none of them.
        NbddpError: what ``pull`` raises; nothing has changed.
    """
    try:
        trees = dict(zip(ranks, pull(f"{_TELLING}.tree(globals(), {expression!r})"), strict=True))
        found = compare(expression, trees)
        if len(found.errors) and not (ranks - _ranks_with_errors(found)):
            reasons = "; ".join(f"{who.describe()}: {text}" for text, who in found.errors.items())
            raise BadOptionError(f"{expression!r} has no value on any rank ({reasons})")
        wanted = _wanted_blocks(found)
        if not wanted:
            return found
        told = _merged(ranks, pull(f"{_TELLING}.blocks({wanted!r})"))
        numbers = _differing_blocks(wanted, told)
        request = {path: (wanted[path], numbers[path]) for path in numbers}
        contents = _merged(ranks, pull(f"{_TELLING}.contents({request!r})"))
        return _with_details(found, trees, told, contents)
    finally:
        tell(f"{_TELLING}.forget()")


def _ranks_with_errors(found: Difference) -> RankSet:
    return RankSet.of(rank for ranks in found.errors.values() for rank in ranks)


def compare(expression: str, trees: Mapping[int, Tree]) -> Difference:
    """Find the places that are not the same on all ranks that should have the same there."""
    leaves_by_rank = {
        rank: {leaf.path: leaf for leaf in tree.leaves} for rank, tree in trees.items()
    }
    ranks = RankSet.of(trees)
    errors: dict[str, list[int]] = {}
    for rank, tree in sorted(trees.items()):
        if tree.error:
            errors.setdefault(tree.error, []).append(rank)
    able = [rank for rank in ranks if not trees[rank].error]
    paths = dict.fromkeys(path for rank in able for path in leaves_by_rank[rank])
    labels: dict[int, list[object]] = {rank: [trees[rank].error] for rank in ranks}
    differences: list[LeafDifference] = []
    unknown: list[str] = []
    for path in paths:
        leaves = {rank: leaves_by_rank[rank].get(path) for rank in able}
        present = [leaf for leaf in leaves.values() if leaf is not None]
        if not all(leaf.digest for leaf in present):
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
        groups=_grouped({rank: tuple(each) for rank, each in labels.items()}),
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
        groups = sorted(by_kind.values(), key=_largest_first)
        for number, group in enumerate(groups):
            for rank in group:
                labels[rank].append(number)
        told = tuple((RankSet.of(group), _has(leaves[group[0]])) for group in groups)
        is_tensor = all(leaf is None or leaf.is_tensor for leaf in leaves.values())
        return [LeafDifference(path, told, RankSet.of(missing), is_tensor)]
    found = []
    for part, by_digest in by_part.items():
        groups = sorted(by_digest.values(), key=_largest_first)
        for number, group in enumerate(groups):
            for rank in group:
                labels[rank].append(number)
        if len(groups) > 1:
            told = tuple((RankSet.of(group), _has(leaves[group[0]])) for group in groups)
            first = leaves[groups[0][0]]
            is_tensor = first is not None and first.is_tensor
            found.append(LeafDifference(path, told, RankSet(()), is_tensor, part))
    return found


def _has(leaf: Leaf | None) -> str:
    """What a rank has at a place, in short."""
    if leaf is None:
        return "nothing"
    return leaf.what if leaf.is_tensor else leaf.value


def _largest_first(ranks: Sequence[int]) -> tuple[int, int]:
    return -len(ranks), ranks[0]


def _grouped(label_by_rank: Mapping[int, object]) -> tuple[RankSet, ...]:
    groups: dict[object, list[int]] = {}
    for rank, label in label_by_rank.items():
        groups.setdefault(label, []).append(rank)
    return tuple(RankSet.of(group) for group in sorted(groups.values(), key=_largest_first))


# --- looking into a few tensors -------------------------------------------------------------------


def _is_comparable(difference: LeafDifference) -> bool:
    kinds = {has for _, has in difference.groups}
    return difference.is_tensor and len(kinds) == 1 and len(difference.groups) > 1


def _wanted_blocks(found: Difference) -> dict[str, list[int]]:
    """Of the first tensors that differ, a rank of each group: two groups, or few more."""
    wanted: dict[str, list[int]] = {}
    for difference in found.differences:
        if len(wanted) == _MAX_DETAILED and difference.path not in wanted:
            break
        if _is_comparable(difference):
            ranks = [group.ranks[0] for group, _ in difference.groups[:_MAX_BLOCKS]]
            wanted.setdefault(difference.path, []).extend(ranks)
    return wanted


def _merged(ranks: RankSet, answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, Any]]:
    """By path and rank."""
    found: dict[str, dict[int, Any]] = {}
    for rank, answer in zip(ranks, answers, strict=True):
        for path, each in answer.items():
            found.setdefault(path, {})[rank] = each
    return found


def _differing_blocks(
    wanted: Mapping[str, Sequence[int]], told: Mapping[str, Mapping[int, Blocks]]
) -> dict[str, list[int]]:
    """The first blocks of each tensor in which any two ranks differ."""
    found: dict[str, list[int]] = {}
    for path, by_rank in told.items():
        digests = [by_rank[rank].digests for rank in wanted[path] if rank in by_rank]
        numbers = [
            number
            for number, column in enumerate(zip(*digests, strict=False))
            if len(set(column)) > 1
        ]
        found[path] = numbers[:_MAX_BLOCKS]
    return found


def _with_details(
    found: Difference,
    trees: Mapping[int, Tree],
    told: Mapping[str, Mapping[int, Blocks]],
    contents: Mapping[str, Mapping[int, Mapping[int, bytes]]],
) -> Difference:
    leaves = {leaf.path: leaf for leaf in trees[found.groups[0].ranks[0]].leaves}
    leaves.update({leaf.path: leaf for tree in trees.values() for leaf in tree.leaves})
    differences = [
        replace(each, details=_details(each, leaves[each.path], told[each.path], contents))
        if each.path in contents and _is_comparable(each)
        else each
        for each in found.differences
    ]
    return replace(found, differences=tuple(differences))


def _details(
    difference: LeafDifference,
    leaf: Leaf,
    told: Mapping[int, Blocks],
    contents: Mapping[str, Mapping[int, Mapping[int, bytes]]],
) -> tuple[Detail, ...]:
    """The largest group beside each of the others."""
    one = difference.groups[0][0]
    first = one.ranks[0]
    blocks_by_rank = contents[difference.path]
    found = []
    for other, _ in difference.groups[1:_MAX_BLOCKS]:
        second = other.ranks[0]
        if first not in blocks_by_rank or second not in blocks_by_rank:
            continue
        pairs = zip(told[first].digests, told[second].digests, strict=False)
        differing = {number for number, pair in enumerate(pairs) if pair[0] != pair[1]}
        seen = differing & blocks_by_rank[first].keys() & blocks_by_rank[second].keys()
        result = blockwise.compare(
            leaf.dtype,
            BLOCK_BYTES,
            {number: blocks_by_rank[first][number] for number in seen},
            {number: blocks_by_rank[second][number] for number in seen},
        )
        index = None
        if result.element is not None:
            index = blockwise.index_of(result.element, leaf.shape)
        found.append(
            Detail(
                one=one,
                other=other,
                index=index,
                values=result.values,
                max_abs=result.max_abs,
                is_exact=seen == differing,
                norms=(told[first].norm, told[second].norm),
            )
        )
    return tuple(found)
