"""Descriptions of one value by several ranks are compared, then blocks of tensors that differ."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from msgspec import structs

from nbddp.controller.values import compare
from nbddp.controller.values.descriptions import Descriptions
from nbddp.controller.values.result import Detail, Difference
from nbddp.errors import BadOptionError
from nbddp.notebook.render import diff_report as page
from nbddp.rank.values import tensor_hash
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import (
    BLOCK_BYTES,
    Blocks,
    BlocksOf,
    BytesByPath,
    ContentsOf,
    Leaf,
    TensorBlocks,
    Tree,
    TreeOf,
    ValueQuestion,
)


def tree(**values: object) -> Tree:
    """Leaves by path; a tensor is written as its digest."""
    return Tree(
        leaves=tuple(
            Leaf(path=f".{path}", what="float32 (2,)", digest=value, is_tensor=True)
            if isinstance(value, str)
            else Leaf(path=f".{path}", what="int", digest=repr(value), value=repr(value))
            for path, value in values.items()
        )
    )


def compared(*trees: Tree) -> Difference:
    return compare.compare("model", dict(enumerate(trees)))


def verdict(*trees: Tree) -> str:
    return page.verdict(compared(*trees))


# --- groups of equal ranks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("aaaa", "equal on ranks 0-3"),
        ("abaa", "ranks 0,2-3 agree; rank 1 differs"),
        ("aabb", "ranks 0-1 agree; ranks 2-3 agree on something else"),
        ("abcd", "different on each of ranks 0-3"),
        ("aabc", "ranks 0-1 agree; 2 ranks differ, each in another way: 2,3"),
        ("aaabbc", "ranks 0-2 agree; ranks 3-4 agree on something else; rank 5 differs"),
        ("ab", "ranks 0 and 1 differ"),
        ("a", "nothing to compare with: it was read on rank 0 only"),
    ],
)
def test_verdict(weights: str, said: str):
    assert verdict(*(tree(weight=digest) for digest in weights)) == said


def test_groups_agree_everywhere_and_not_only_at_one_place():
    comparison = compared(tree(a="x", b=1), tree(a="y", b=1), tree(a="x", b=2))
    assert [str(group) for group in comparison.groups] == ["0", "1", "2"]
    assert [each.path for each in comparison.differences] == [".a", ".b"]
    assert not comparison.is_equal


def test_a_place_that_some_ranks_do_not_have():
    comparison = compared(tree(a="x"), tree(a="x", b=1))
    (difference,) = comparison.differences
    assert (difference.path, str(difference.missing)) == (".b", "0")
    assert "nothing" in page.bundle(comparison)["text/plain"]


def test_another_shape_is_told():
    other = Leaf(path=".a", what="float32 (3,)", digest="x", is_tensor=True)
    comparison = compared(tree(a="x"), Tree(leaves=(other,)))
    assert [has for _, has in comparison.differences[0].groups] == ["float32 (2,)", "float32 (3,)"]


def test_ranks_without_a_value():
    comparison = compared(
        tree(a=1), Tree(error="NameError: name 'model' is not defined"), tree(a=1)
    )
    assert not comparison.is_equal
    assert page.verdict(comparison) == "only on ranks 0,2: equal on ranks 0,2"
    assert "no value on rank 1: NameError" in page.bundle(comparison)["text/plain"]


def sharded(digest: str, part: str) -> Tree:
    leaf = Leaf(
        path=".w",
        what="float32 (8, 2)",
        digest=digest,
        is_tensor=True,
        part=part,
        sharding="Shard(0) on mesh dp=2",
    )
    return Tree(leaves=(leaf,))


def test_shards_of_different_ranks_are_not_different():
    comparison = compared(sharded("a", "dp 0 of 2"), sharded("b", "dp 1 of 2"))
    assert comparison.is_equal
    assert "only equal shards are compared" in page.bundle(comparison)["text/plain"]


def test_replicas_of_one_shard_are_compared():
    halves = [sharded("a", "dp 0 of 2"), sharded("b", "dp 1 of 2")]
    assert compared(*halves, *halves).is_equal
    comparison = compared(*halves, halves[0], sharded("c", "dp 1 of 2"))
    assert [str(group) for group in comparison.groups] == ["0-2", "3"]
    assert comparison.differences[0].part == "dp 1 of 2"


def test_a_place_that_cannot_be_told_is_named():
    unknown = Tree(leaves=(Leaf(path=".m", what="float32 (2,)", digest="", is_tensor=True),))
    comparison = compared(unknown, unknown)
    assert comparison.unknown == (".m",)
    said = "not compared, its content cannot be read"
    assert page.bundle(comparison)["text/plain"].splitlines()[0] == f"model: {said}"
    both = Tree(leaves=(*unknown.leaves, *tree(a=1).leaves))
    lines = page.bundle(compared(both, both))["text/plain"].splitlines()
    assert lines[0] == "model: equal on ranks 0-1 as far as compared"
    assert lines[-1] == "not compared, its content cannot be read: model.m"


def test_many_differences_are_cut():
    def many(offset: int) -> Tree:
        return tree(**{f"p{i}": i + offset for i in range(100)})

    text = page.bundle(compared(many(0), many(1)))["text/plain"]
    assert "they differ in 100 places, of which the first 12 are shown" in text
    assert len(text.splitlines()) < 40


def test_plain_data_holds_what_was_found():
    comparison = compared(tree(a="x"), tree(a="y")).to_dict()
    assert comparison["equal"] is False
    assert comparison["groups"] == [[0], [1]]
    assert comparison["differences"][0]["path"] == ".a"


# --- questions to ranks ---------------------------------------------------------------------------


class FakeRanks(Descriptions):
    """Ranks that tell of a tensor each, as `nbddp.rank.values.fingerprints` does."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors
        self.asked: list[str] = []
        self.moved = 0

    def ask(self, question: ValueQuestion, kind: type[Any]) -> list[Any]:
        self.asked.append(type(question).__name__)
        answers = [self.answer(rank, question) for rank in range(len(self.tensors))]
        assert all(isinstance(answer, kind) for answer in answers)
        return answers

    def contents(self, question: ContentsOf) -> list[BytesByPath]:
        self.asked.append("ContentsOf")
        return [self.bytes_of(rank, question) for rank in range(len(self.tensors))]

    def forget(self) -> None:
        self.asked.append("forget")

    def answer(self, rank: int, question: ValueQuestion) -> Any:
        match question:
            case TreeOf(expression="x"):
                return self.tree(rank)
            case BlocksOf():
                found = Blocks(tuple(tensor_hash.blocks(self.tensors[rank])), 1.0)
                by_path = question.ranks_by_path
                return TensorBlocks({path: found for path in by_path if rank in by_path[path]})
            case _:
                raise AssertionError(question)

    def tree(self, rank: int) -> Tree:
        tensor = self.tensors[rank]
        leaf = Leaf(
            path="",
            what=str(tuple(tensor.shape)),
            digest=tensor_hash.of_tensor(tensor).hex(),
            is_tensor=True,
            shape=tuple(tensor.shape),
            dtype="float32",
        )
        return Tree(leaves=(leaf,))

    def bytes_of(self, rank: int, wanted: ContentsOf) -> BytesByPath:
        pieces = tensor_hash.as_bytes(self.tensors[rank]).split(BLOCK_BYTES)
        found = {
            path: {number: pieces[number].numpy().tobytes() for number in asked.numbers}
            for path, asked in wanted.blocks_by_path.items()
            if rank in asked.ranks
        }
        self.moved += sum(len(piece) for each in found.values() for piece in each.values())
        return found


def test_only_the_blocks_that_differ_move():
    tensor = torch.zeros(4, 1 << 18)  # blocks of 1 MiB
    other = tensor.clone()
    other[2, 5] = 0.5
    ranks = FakeRanks([tensor, other, tensor])
    comparison = compare.diff_values(ranks, "x", RankSet.all(3))
    (detail,) = comparison.differences[0].details
    assert (detail.index, detail.max_abs, detail.is_exact) == ((2, 5), 0.5, True)
    assert ranks.moved == 2 * BLOCK_BYTES
    assert ranks.asked == ["TreeOf", "BlocksOf", "ContentsOf", "forget"]


def test_a_few_blocks_are_enough_for_a_tensor_that_differs_everywhere():
    tensor = torch.zeros(10, 1 << 18)
    ranks = FakeRanks([tensor, tensor + 1])
    (difference,) = compare.diff_values(ranks, "x", RankSet.all(2)).differences
    assert not difference.details[0].is_exact
    assert ranks.moved == 2 * 4 * BLOCK_BYTES
    text = page.bundle(compare.diff_values(ranks, "x", RankSet.all(2)))["text/plain"]
    assert "max abs difference  norms" in text
    assert "at least 1  1 and 1" in text


def test_nothing_moves_where_all_is_equal():
    ranks = FakeRanks([torch.ones(3), torch.ones(3)])
    assert compare.diff_values(ranks, "x", RankSet.all(2)).is_equal
    assert ranks.asked == ["TreeOf", "forget"]


def test_a_value_that_no_rank_has_is_an_error():
    class Nowhere(FakeRanks):
        def tree(self, rank: int) -> Tree:
            return Tree(error="NameError: name 'x' is not defined")

    ranks = Nowhere([torch.ones(1)] * 2)
    with pytest.raises(BadOptionError, match="'x' has no value on any rank"):
        compare.diff_values(ranks, "x", RankSet.all(2))
    assert ranks.asked == ["TreeOf", "forget"]


# --- properties and tables ------------------------------------------------------------------------


def test_random_trees_equal_only_themselves():
    source = random.Random(0)
    for _ in range(50):
        values = {f"p{i}": source.randrange(3) for i in range(source.randrange(1, 8))}
        changed = dict(values)
        name = source.choice(list(values))
        changed[name] += 1
        assert compared(tree(**values), tree(**values)).is_equal
        comparison = compared(tree(**values), tree(**changed), tree(**values))
        assert [each.path for each in comparison.differences] == [f".{name}"]
        assert [str(group) for group in comparison.groups] == ["0,2", "1"]


def test_a_wide_table_keeps_its_differences():
    deep = ".".join(["encoder", "layers", "11", "self_attention", "in_projection_of_queries"])
    leaves_of = [
        Tree(leaves=(Leaf(path=f".{deep}.weight", what="float32 (1024, 4096, 3)", digest=digest,
                          is_tensor=True),))
        for digest in "aab"
    ]  # fmt: skip
    comparison = compared(*leaves_of)
    groups = comparison.differences[0].groups
    detail = Detail(
        one=groups[0][0], other=groups[1][0], index=(1023, 4095, 2),
        values=("-0.46684736013412476", "-0.46584737300872803"), max_abs=0.00123, is_exact=False,
        norms=(123456.7, 123456.8),
    )  # fmt: skip
    wide = replace(comparison, differences=(replace(comparison.differences[0], details=(detail,)),))
    lines = page.bundle(wide)["text/plain"].splitlines()
    assert max(map(len, lines)) <= 100
    assert "max abs difference  norms" in lines[1]
    assert "at least 0.00123  1234" in lines[3]
    assert "[1023, 4095, 2]" in lines[3]
    assert "s.weight " in lines[2]  # the end of the path
    assert lines[2].startswith("mo")


def test_values_that_were_not_compared_are_not_called_equal():
    same = tree(a="x")
    unknown = Tree(leaves=(*same.leaves, Leaf(path=".lock", what="lock", digest="")))
    comparison = compared(unknown, unknown)
    assert comparison.is_equal is None
    assert comparison.to_dict()["equal"] is None
    assert not comparison.differs
    assert compared(unknown, Tree(leaves=tree(a="y").leaves)).is_equal is False
    assert compared(same, same).is_equal is True
    assert compared(same, structs.replace(same, is_cut=True)).is_equal is None
