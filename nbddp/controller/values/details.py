"""Looks into a few of the tensors and long texts that differ: where first, and by how much.

Runs in: the thread that asks. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nbddp.controller.values import blocks
from nbddp.controller.values.result import Detail, Difference, LeafDifference
from nbddp.wire.values.fingerprints import Blocks, Leaf, Tree

#: Of the tensors that differ, so many are looked into, and of each so many blocks.
_MAX_DETAILED, _MAX_BLOCKS = 8, 4
#: As in `nbddp.rank.values.tensor_hash`.
BLOCK_BYTES = 1 << 20


def _is_comparable(difference: LeafDifference) -> bool:
    if difference.is_text:
        return True
    kinds = {has for _, has in difference.groups}
    return difference.is_tensor and len(kinds) == 1 and len(difference.groups) > 1


def wanted_blocks(found: Difference) -> dict[str, tuple[int, ...]]:
    """Of the first tensors that differ, a rank of each group: two groups, or few more."""
    gradients = () if found.gradients is None else found.gradients.differences
    return {**_wanted(found.differences), **_wanted(gradients)}


def _wanted(differences: Sequence[LeafDifference]) -> dict[str, tuple[int, ...]]:
    wanted: dict[str, tuple[int, ...]] = {}
    for difference in differences:
        if len(wanted) == _MAX_DETAILED and difference.path not in wanted:
            break
        if _is_comparable(difference):
            ranks = (group.ranks[0] for group, _ in difference.groups[:_MAX_BLOCKS])
            wanted[difference.path] = (*wanted.get(difference.path, ()), *ranks)
    return wanted


def differing_blocks(
    wanted: Mapping[str, Sequence[int]], told: Mapping[str, Mapping[int, Blocks]]
) -> dict[str, tuple[int, ...]]:
    """The first blocks of each tensor in which any two ranks differ."""
    found: dict[str, tuple[int, ...]] = {}
    for path, by_rank in told.items():
        digests = [by_rank[rank].digests for rank in wanted[path] if rank in by_rank]
        numbers = [
            number
            for number, column in enumerate(zip(*digests, strict=False))
            if len(set(column)) > 1
        ]
        found[path] = tuple(numbers[:_MAX_BLOCKS])
    return found


def with_details(
    found: Difference,
    trees: Mapping[int, Tree],
    told: Mapping[str, Mapping[int, Blocks]],
    contents: Mapping[str, Mapping[int, Mapping[int, bytes]]],
) -> Difference:
    """The same, told in detail where its blocks are there."""
    leaves: dict[str, dict[int, Leaf]] = {path: {} for path in contents}
    for rank, tree in trees.items():
        for leaf in (*tree.leaves, *tree.gradients):
            if leaf.path in leaves:
                leaves[leaf.path][rank] = leaf
    differences = [
        replace(each, details=_details(each, leaves[each.path], told[each.path], contents))
        if each.path in contents and _is_comparable(each)
        else each
        for each in found.differences
    ]
    gradients = found.gradients
    if gradients is not None:
        gradients = with_details(gradients, trees, told, contents)
    return replace(found, differences=tuple(differences), gradients=gradients)


def _details(
    difference: LeafDifference,
    leaves: Mapping[int, Leaf],
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
        one_by_number = {number: blocks_by_rank[first][number] for number in seen}
        other_by_number = {number: blocks_by_rank[second][number] for number in seen}
        leaf = leaves[first]
        if difference.is_text:
            lengths = leaf.shape[0], leaves[second].shape[0]
            result = blocks.compare_texts(
                BLOCK_BYTES,
                lengths,
                one_by_number,
                other_by_number,
                repr if leaf.what == "str" else str,
            )
        else:
            result = blocks.compare(leaf.dtype, BLOCK_BYTES, one_by_number, other_by_number)
        index = None
        if result.element is not None and not difference.is_text:
            index = blocks.index_of(result.element, leaf.shape)
        elif result.element is not None and leaf.what == "str":  # else of its `repr`
            index = (result.element,)
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
