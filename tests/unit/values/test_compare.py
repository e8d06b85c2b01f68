"""Comparing what ranks tell of a value; no rank is needed for it."""

import math
import random
import struct
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import nn

from nbddp.controller.values import blocks as blockwise
from nbddp.controller.values import compare
from nbddp.controller.values.descriptions import Descriptions
from nbddp.controller.values.result import Detail, Difference
from nbddp.errors import BadOptionError
from nbddp.notebook.magics.verbs import VERBS
from nbddp.notebook.render import diff_report as page
from nbddp.notebook.render import variables_table
from nbddp.rank.values import tensor_hash, traversal
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.fingerprints import (
    Blocks,
    BlocksOf,
    BytesByPath,
    ContentsOf,
    Leaf,
    TensorBlocks,
    Tree,
    TreeOf,
    ValueQuestion,
    Variable,
    Variables,
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


# --- who agrees with whom -------------------------------------------------------------------------


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
    found = compared(tree(a="x", b=1), tree(a="y", b=1), tree(a="x", b=2))
    assert [str(group) for group in found.groups] == ["0", "1", "2"]
    assert [each.path for each in found.differences] == [".a", ".b"]
    assert not found.is_equal


def test_a_place_that_some_ranks_do_not_have():
    found = compared(tree(a="x"), tree(a="x", b=1))
    (difference,) = found.differences
    assert (difference.path, str(difference.missing)) == (".b", "0")
    assert "nothing" in page.bundle(found)["text/plain"]


def test_another_shape_is_told():
    other = Leaf(path=".a", what="float32 (3,)", digest="x", is_tensor=True)
    found = compared(tree(a="x"), Tree(leaves=(other,)))
    assert [has for _, has in found.differences[0].groups] == ["float32 (2,)", "float32 (3,)"]


def test_ranks_without_a_value():
    found = compared(tree(a=1), Tree(error="NameError: name 'model' is not defined"), tree(a=1))
    assert not found.is_equal
    assert page.verdict(found) == "only on ranks 0,2: equal on ranks 0,2"
    assert "no value on rank 1: NameError" in page.bundle(found)["text/plain"]


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
    found = compared(sharded("a", "dp 0 of 2"), sharded("b", "dp 1 of 2"))
    assert found.is_equal
    assert "only equal shards are compared" in page.bundle(found)["text/plain"]


def test_replicas_of_one_shard_are_compared():
    halves = [sharded("a", "dp 0 of 2"), sharded("b", "dp 1 of 2")]
    assert compared(*halves, *halves).is_equal
    found = compared(*halves, halves[0], sharded("c", "dp 1 of 2"))
    assert [str(group) for group in found.groups] == ["0-2", "3"]
    assert found.differences[0].part == "dp 1 of 2"


def test_a_place_that_cannot_be_told_is_named():
    unknown = Tree(leaves=(Leaf(path=".m", what="float32 (2,)", digest="", is_tensor=True),))
    found = compared(unknown, unknown)
    assert found.unknown == (".m",)
    said = "not compared, its content cannot be read"
    assert page.bundle(found)["text/plain"].splitlines()[0] == f"model: {said}"
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
    found = compared(tree(a="x"), tree(a="y")).to_dict()
    assert found["equal"] is False
    assert found["groups"] == [[0], [1]]
    assert found["differences"][0]["path"] == ".a"


# --- element by element ---------------------------------------------------------------------------


def one_block(dtype: str, first: torch.Tensor, second: torch.Tensor) -> blockwise.BlockDifference:
    one, other = (bytes(tensor_hash.as_bytes(each).tolist()) for each in (first, second))
    return blockwise.compare(dtype, 1 << 20, {0: one}, {0: other})


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    ],
    ids=str,
)
def test_the_first_element_that_differs(dtype: torch.dtype):
    first = torch.zeros(100, dtype=dtype)
    second = first.clone()
    second[57] = 1
    second[90] = 1
    found = one_block(str(dtype).removeprefix("torch."), first, second)
    assert (found.element, found.max_abs) == (57, 1)
    assert found.values[0] in ("0", "0.0", "False", "0j")


def test_the_largest_difference_and_not_the_first():
    first = torch.tensor([1.0, 2.0, 3.0])
    found = one_block("float32", first, torch.tensor([1.0, 2.5, 1.0]))
    assert (found.element, found.max_abs, found.values) == (1, 2.0, ("2", "2.5"))


def test_a_dtype_that_python_does_not_know_has_an_index_all_the_same():
    first = torch.ones(5).to(torch.float8_e4m3fn)
    second = torch.tensor([1.0, 1, 2, 1, 1]).to(torch.float8_e4m3fn)
    found = one_block("float8_e4m3fn", first, second)
    assert (found.element, found.max_abs) == (2, None)
    assert found.values == ("0x38", "0x40")


@pytest.mark.parametrize(
    ("first", "second", "max_abs"),
    [
        (0.0, -0.0, 0.0),
        (math.inf, math.inf, 0.0),
        (math.inf, 1.0, math.inf),
        (math.nan, 1.0, math.nan),
        (math.inf, -math.inf, math.inf),
    ],
)
def test_odd_numbers(first: float, second: float, max_abs: float):
    one, other = struct.pack("dd", first, 1.0), struct.pack("dd", second, 1.0)
    found = blockwise.compare("float64", 16, {0: one}, {0: other})
    assert found.max_abs is None or found.max_abs == max_abs or math.isnan(max_abs)
    assert (found.element is None) == (one == other)


def test_blocks_count_on():
    one = {3: bytes(8), 4: bytes(8)}
    other = {3: bytes(8), 4: bytes([0, 0, 0, 0, 1, 0, 0, 0])}
    assert blockwise.compare("int32", 8, one, other).element == 4 * 2 + 1


def test_index_of():
    shape = (3, 4, 5)
    for element in range(60):
        at = blockwise.index_of(element, shape)
        assert torch.arange(60).view(shape)[at] == element
    assert blockwise.index_of(0, ()) == ()


# --- what a value is made of ----------------------------------------------------------------------


@dataclass
class Config:
    lr: float
    layers: list[int]


class Plain:
    def __init__(self) -> None:
        self.weight = torch.ones(2)
        self.me = self


Pair = namedtuple("Pair", "first second")  # noqa: PYI024 - users have such


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (3, [""]),
        (torch.ones(2), [""]),
        ({"a": [1, {"b": 2}], 3: None}, ["['a'][0]", "['a'][1]['b']", "[3]"]),
        (Config(0.1, [1, 2]), [".lr", ".layers[0]", ".layers[1]"]),
        (Pair(1, 2), [".first", ".second"]),
        (nn.Linear(2, 2), [".weight", ".bias"]),
        (
            nn.BatchNorm1d(2, affine=False),
            [".running_mean", ".running_var", ".num_batches_tracked"],
        ),
        (Plain(), [".weight", ".me"]),
        ([], [""]),
        ({1, 2}, [""]),
        (list(range(1000)), [""]),
        (torch.Generator(), [".get_state()"]),
        (len, [""]),
        (Config, [""]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_leaves(value: object, paths: list[str]):
    assert [path for path, _ in traversal.walk(value)] == paths


def test_leaves_of_an_optimizer_are_its_state():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = dict(traversal.walk(optimizer))
    assert isinstance(found["['state'][0]['momentum_buffer']"], torch.Tensor)
    assert found["['param_groups'][0]['lr']"] == 0.1


def test_text_of_equal_things_is_equal():
    assert traversal.text_of({"b", "a"}) == traversal.text_of({"a", "b"})
    assert traversal.text_of(object()) == traversal.text_of(object()), "addresses do not count"
    assert traversal.text_of(1) != traversal.text_of(1.0)
    assert traversal.text_of(0.0) != traversal.text_of(-0.0)
    assert traversal.text_of(math.nan) == traversal.text_of(math.nan)


def test_functions_differ_where_their_code_does():
    def made(code: str) -> Any:
        names: dict[str, Any] = {}
        exec(code, names)
        return names["f"]

    first, same, other = made("f = lambda x: x + 1"), made("f = lambda x: x + 1"), made("f = abs")
    assert traversal.text_of(first) == traversal.text_of(same)
    assert traversal.text_of(first) != traversal.text_of(other)


def test_a_list_inside_of_itself_ends():
    value: list[Any] = [1]
    value.append(value)
    assert len(list(traversal.walk(value))) == 2


# --- the exchange ---------------------------------------------------------------------------------


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
        pieces = tensor_hash.as_bytes(self.tensors[rank]).split(tensor_hash.BLOCK_BYTES)
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
    found = compare.diff(ranks, "x", RankSet.all(3))
    (detail,) = found.differences[0].details
    assert (detail.index, detail.max_abs, detail.is_exact) == ((2, 5), 0.5, True)
    assert ranks.moved == 2 * tensor_hash.BLOCK_BYTES
    assert ranks.asked == ["TreeOf", "BlocksOf", "ContentsOf", "forget"]


def test_of_a_tensor_that_differs_everywhere_a_few_blocks_are_enough():
    tensor = torch.zeros(10, 1 << 18)
    ranks = FakeRanks([tensor, tensor + 1])
    (difference,) = compare.diff(ranks, "x", RankSet.all(2)).differences
    assert not difference.details[0].is_exact
    assert ranks.moved == 2 * 4 * tensor_hash.BLOCK_BYTES
    text = page.bundle(compare.diff(ranks, "x", RankSet.all(2)))["text/plain"]
    assert "max abs difference  norms" in text
    assert "at least 1  1 and 1" in text


def test_nothing_moves_where_all_is_equal():
    ranks = FakeRanks([torch.ones(3), torch.ones(3)])
    assert compare.diff(ranks, "x", RankSet.all(2)).is_equal
    assert ranks.asked == ["TreeOf", "forget"]


def test_a_value_that_no_rank_has_is_an_error():
    class Nowhere(FakeRanks):
        def tree(self, rank: int) -> Tree:
            return Tree(error="NameError: name 'x' is not defined")

    ranks = Nowhere([torch.ones(1)] * 2)
    with pytest.raises(BadOptionError, match="'x' has no value on any rank"):
        compare.diff(ranks, "x", RankSet.all(2))
    assert ranks.asked == ["TreeOf", "forget"]


# --- lines and tables -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expressions", "ranks"),
    [
        ("model", ["model"], None),
        ("cfg['a b'][0]  # why", ["cfg['a b'][0]"], None),
        (
            "[p.grad for p in model.parameters()] -r 0,2",
            ["[p.grad for p in model.parameters()]"],
            "0,2",
        ),
        ("-r 1-2 model", ["model"], "1-2"),
        ("--ranks=1-2 model", ["model"], "1-2"),
        ("model -r=0", ["model"], "0"),
    ],
)
def test_lines_of_diff(line: str, expressions: list[str], ranks: str | None):
    found = VERBS["diff"].parser.read(line)
    assert (found.expressions, found.ranks) == (expressions, ranks)


def told(*values: str | None) -> dict[int, Variables]:
    return {
        rank: Variables(
            variables=() if value is None else (Variable("x", "int", value=value, digest=value),)
        )
        for rank, value in enumerate(values)
    }


def table(*values: str | None) -> list[list[str]]:
    text = variables_table.bundle(told(*values), ("x",))["text/plain"]
    return [line.split() for line in text.splitlines()[1:]]


def test_equal_values_are_one_row():
    assert table("3", "3", "3") == [["x", "all", "int", "3"]]


def test_the_odd_rank_has_a_row_of_its_own():
    assert table("3", "4", "3") == [["x", "0,2", "int", "3"], ["1", "int", "4"]]
    html = variables_table.bundle(told("3", "4", "3"), ("x",))["text/html"]
    assert "<b>4</b>" in html
    assert "<b>3</b>" not in html


def test_where_all_differ_none_is_odd():
    assert "<b>" not in variables_table.bundle(told("1", "2", "3"), ("x",))["text/html"]
    assert len(table(*map(str, range(64)))) == 7
    assert table(*map(str, range(64)))[-1] == ["and", "58", "more", "ranks"]


def test_a_name_that_some_ranks_do_not_have():
    assert table("3", None, "3") == [["x", "0,2", "int", "3"], ["1", "not", "there"]]


def test_values_that_cannot_be_compared_are_not_called_different():
    meta = Variable("m", "Tensor", shape="(3,)", device="meta")
    text = variables_table.bundle({rank: Variables(variables=(meta,)) for rank in range(3)}, ("m",))
    assert "(not compared)" in text["text/plain"]
    assert "all" in text["text/plain"]


def test_values_that_look_alike_and_are_not():
    found = {
        rank: Variables(variables=(Variable("m", "Linear", value="train", digest=str(rank == 1)),))
        for rank in range(3)
    }
    text = variables_table.bundle(found, ("m",))["text/plain"]
    assert "other values than on ranks 0,2" in text


def test_random_trees_are_equal_to_themselves_only():
    source = random.Random(0)
    for _ in range(50):
        values = {f"p{i}": source.randrange(3) for i in range(source.randrange(1, 8))}
        changed = dict(values)
        name = source.choice(list(values))
        changed[name] += 1
        assert compared(tree(**values), tree(**values)).is_equal
        found = compared(tree(**values), tree(**changed), tree(**values))
        assert [each.path for each in found.differences] == [f".{name}"]
        assert [str(group) for group in found.groups] == ["0,2", "1"]


def test_vars_of_some_ranks_name_these():
    """Ranks that were not asked may have something else."""
    asked = {rank: each for rank, each in told("3", "4", "3").items() if rank != 1}
    lines = variables_table.bundle(asked, ("x",), 4)["text/plain"].splitlines()
    assert lines[1].split() == ["x", "0,2", "int", "3"]
    assert "all" in variables_table.bundle(asked, ("x",), 2)["text/plain"]


def test_of_a_wide_table_the_differences_stay():
    deep = ".".join(["encoder", "layers", "11", "self_attention", "in_projection_of_queries"])
    leaves_of = [
        Tree(leaves=(Leaf(path=f".{deep}.weight", what="float32 (1024, 4096, 3)", digest=digest,
                          is_tensor=True),))
        for digest in "aab"
    ]  # fmt: skip
    found = compared(*leaves_of)
    groups = found.differences[0].groups
    detail = Detail(
        one=groups[0][0], other=groups[1][0], index=(1023, 4095, 2),
        values=("-0.46684736013412476", "-0.46584737300872803"), max_abs=0.00123, is_exact=False,
        norms=(123456.7, 123456.8),
    )  # fmt: skip
    wide = replace(found, differences=(replace(found.differences[0], details=(detail,)),))
    lines = page.bundle(wide)["text/plain"].splitlines()
    assert max(map(len, lines)) <= 100
    assert "max abs difference  norms" in lines[1]
    assert "at least 0.00123  1234" in lines[3]
    assert "[1023, 4095, 2]" in lines[3]
    assert "s.weight " in lines[2]  # the end of the path
    assert lines[2].startswith("mo")


def test_what_was_not_compared_is_not_called_equal():
    same = tree(a="x")
    unknown = Tree(leaves=(*same.leaves, Leaf(path=".lock", what="lock", digest="")))
    found = compared(unknown, unknown)
    assert found.is_equal is None
    assert found.to_dict()["equal"] is None
    assert not found.differs
    assert compared(unknown, Tree(leaves=tree(a="y").leaves)).is_equal is False
    assert compared(same, same).is_equal is True
    assert compared(same, structs.replace(same, is_cut=True)).is_equal is None
