"""Compares the contents of a few tensors and long texts that differ: first place, and distance.

Runs in: the thread of the caller. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nbddp.controller.values import blocks
from nbddp.controller.values.result import Detail, Difference, LeafDifference
from nbddp.wire.values.value_questions import BLOCK_BYTES, Blocks, Leaf, Tree

#: Number of different tensors whose contents are compared, and of blocks of each.
_MAX_DETAILED, _MAX_BLOCKS = 8, 4


def _is_comparable(difference: LeafDifference) -> bool:
    if difference.is_text:
        return True
    kinds = {has for _, has in difference.groups}
    return difference.is_tensor and len(kinds) == 1 and len(difference.groups) > 1


def ranks_to_compare(difference: Difference) -> dict[str, tuple[int, ...]]:
    """Return, for the first tensors that differ, one rank of each group, by path."""
    gradients = () if difference.gradients is None else difference.gradients.differences
    return {**_ranks_by_path(difference.differences), **_ranks_by_path(gradients)}


def _ranks_by_path(differences: Sequence[LeafDifference]) -> dict[str, tuple[int, ...]]:
    ranks_by_path: dict[str, tuple[int, ...]] = {}
    for difference in differences:
        if len(ranks_by_path) == _MAX_DETAILED and difference.path not in ranks_by_path:
            break
        if _is_comparable(difference):
            ranks = (group.ranks[0] for group, _ in difference.groups[:_MAX_BLOCKS])
            ranks_by_path[difference.path] = (*ranks_by_path.get(difference.path, ()), *ranks)
    return ranks_by_path


def differing_blocks(
    ranks_by_path: Mapping[str, Sequence[int]], blocks: Mapping[str, Mapping[int, Blocks]]
) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the first blocks of each tensor in which any two ranks differ.

    Args:
        ranks_by_path: see `ranks_to_compare`.
        blocks: fingerprints by path and rank.
    """
    numbers_by_path: dict[str, tuple[int, ...]] = {}
    for path, by_rank in blocks.items():
        digests = [by_rank[rank].digests for rank in ranks_by_path[path] if rank in by_rank]
        numbers = [
            number
            for number, column in enumerate(zip(*digests, strict=False))
            if len(set(column)) > 1
        ]
        numbers_by_path[path] = tuple(numbers[:_MAX_BLOCKS])
    return numbers_by_path


def with_details(
    difference: Difference,
    trees: Mapping[int, Tree],
    fingerprints: Mapping[str, Mapping[int, Blocks]],
    contents: Mapping[str, Mapping[int, Mapping[int, bytes]]],
) -> Difference:
    """Return the difference with details for the places whose blocks are known.

    Args:
        difference: without details.
        trees: the value's fingerprints, by rank.
        fingerprints: fingerprints of blocks, by path and rank.
        contents: bytes of blocks, by path, rank and number.
    """
    leaves: dict[str, dict[int, Leaf]] = {path: {} for path in contents}
    for rank, tree in trees.items():
        for leaf in (*tree.leaves, *tree.gradients):
            if leaf.path in leaves:
                leaves[leaf.path][rank] = leaf
    differences = [
        replace(leaf, details=_details(leaf, leaves[leaf.path], fingerprints[leaf.path], contents))
        if leaf.path in contents and _is_comparable(leaf)
        else leaf
        for leaf in difference.differences
    ]
    gradients = difference.gradients
    if gradients is not None:
        gradients = with_details(gradients, trees, fingerprints, contents)
    return replace(difference, differences=tuple(differences), gradients=gradients)


def _details(
    difference: LeafDifference,
    leaves: Mapping[int, Leaf],
    fingerprints: Mapping[int, Blocks],
    contents: Mapping[str, Mapping[int, Mapping[int, bytes]]],
) -> tuple[Detail, ...]:
    """Compare the largest group with each of the others."""
    one = difference.groups[0][0]
    first = one.ranks[0]
    blocks_by_rank = contents[difference.path]
    details = []
    for other, _ in difference.groups[1:_MAX_BLOCKS]:
        second = other.ranks[0]
        if first not in blocks_by_rank or second not in blocks_by_rank:
            continue
        pairs = zip(fingerprints[first].digests, fingerprints[second].digests, strict=False)
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
        elif result.element is not None and leaf.what == "str":  # else it is an index of a `repr`
            index = (result.element,)
        details.append(
            Detail(
                one=one,
                other=other,
                index=index,
                values=result.values,
                max_abs=result.max_abs,
                is_exact=seen == differing,
                norms=(fingerprints[first].norm, fingerprints[second].norm),
            )
        )
    return tuple(details)
