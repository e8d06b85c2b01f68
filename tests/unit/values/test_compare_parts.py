"""Differences other than tensors: types, modes, gradients, long texts."""

import pytest
from torch import nn

from nbddp.controller.values import blocks, compare
from nbddp.controller.values.result import Difference
from nbddp.errors import BadOptionError
from nbddp.notebook.magics.verbs import VERBS
from nbddp.notebook.render import diff_report as page
from nbddp.rank.values import traversal
from nbddp.wire.values.value_questions import Leaf, Tree


def weight(digest: str, path: str = ".w") -> Leaf:
    return Leaf(path=path, what="float32 (2,)", digest=digest, is_tensor=True, nbytes=8)


def compared(*trees: Tree) -> Difference:
    return compare.compare("model", dict(enumerate(trees)))


def lines(*trees: Tree) -> list[str]:
    return page.bundle(compared(*trees))["text/plain"].splitlines()


# --- types and modes ------------------------------------------------------------------------------


def outline(value: object) -> traversal.Outline:
    found = traversal.Outline()
    list(traversal.walk(value, found))
    return found


def test_types_of_what_has_parts():
    assert outline({"a": [1, (2,)], "b": 3}).kinds == {
        "": "dict",
        "['a']": "list",
        "['a'][1]": "tuple",
    }


def test_types_and_modes_of_modules():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model[1].eval()
    found = outline({"model": model})
    assert found.kinds["['model'].1"] == "Dropout"
    assert found.modes == {"['model']": True, "['model'].0": True, "['model'].1": False}
    assert outline(nn.Dropout()).modes == {"": True}, "also where there is nothing else"


def test_a_list_is_no_tuple():
    leaf = Leaf(path="[0]", what="int", digest="1", value="1")
    found = lines(
        Tree(leaves=(leaf,), kinds={"": "list"}), Tree(leaves=(leaf,), kinds={"": "tuple"})
    )
    assert found[0] == "model: values equal; type differs: list / tuple"
    assert [line.split() for line in found[2:4]] == [["model", "0", "list"], ["1", "tuple"]]


def test_a_value_in_the_place_of_a_list_is_told_once():
    comparison = compared(
        Tree(leaves=(Leaf(path="[0]", what="int", digest="1", value="1"),), kinds={"": "list"}),
        Tree(leaves=(Leaf(path="", what="int", digest="1", value="1"),)),
    )
    assert [(each.path, each.kind) for each in comparison.differences] == [
        ("", "type"),
        ("[0]", "value"),
    ]


def test_values_that_look_alike_are_told_with_their_types():
    one, other = (Leaf(path="", what=kind, digest="1", value="empty") for kind in ("list", "dict"))
    assert [has for _, has in compared(Tree((one,)), Tree((other,))).differences[0].groups] == [
        "empty (list)",
        "empty (dict)",
    ]


def modes(*values: bool) -> Tree:
    paths = ["", ".0", ".0.a", ".1"]
    return Tree(leaves=(weight("x"),), modes=dict(zip(paths, values, strict=True)))


def test_a_mode_is_told_of_the_outermost_module_only():
    comparison = compared(modes(True, True, True, True), modes(False, False, False, True))
    assert [each.path for each in comparison.differences] == [""]
    assert page.verdict(comparison) == "weights equal; train or eval mode differs: ranks 0 | 1"
    comparison = compared(modes(True, False, False, True), modes(True, True, True, True))
    assert [(each.path, each.groups[0][1]) for each in comparison.differences] == [
        (".0", "eval mode")
    ]


# --- gradients ------------------------------------------------------------------------------------


def with_gradient(value: str, gradient: str | None) -> Tree:
    none = Leaf(path=".w.grad", what="NoneType", digest="none", value="None")
    leaf = none if gradient is None else weight(gradient, ".w.grad")
    return Tree(leaves=(weight(value),), gradients=(leaf,))


@pytest.mark.parametrize(
    ("gradients", "said"),
    [
        (["a", "a", "b", "b"], "weights equal on ranks 0-3; gradients differ: ranks 0-1 | 2-3"),
        (["a", None, "a", "a"], "weights equal on ranks 0-3; gradients differ: ranks 0,2-3 | 1"),
        (["a", "a", "a", "a"], "equal on ranks 0-3"),
        ([None, None, None, None], "equal on ranks 0-3"),
    ],
)
def test_gradients_are_a_part_of_their_own(gradients: list[str | None], said: str):
    comparison = compared(*(with_gradient("x", gradient) for gradient in gradients))
    assert comparison.is_equal
    assert page.verdict(comparison) == said
    assert (comparison.gradients is None) == (not any(gradients))


def test_weights_and_gradients_may_both_differ():
    found = lines(with_gradient("x", "a"), with_gradient("y", "b"))
    assert found[0] == "model: ranks 0 and 1 differ; gradients differ: ranks 0 | 1"
    assert [line.split()[0] for line in found[2:6:2]] == ["model.w", "model.w.grad"]
    assert found[-1] == (
        "1 tensor and 1 gradient on each rank, 16 B; "
        "they differ in 1 place; the gradients differ in 1 place"
    )


def test_a_gradient_that_one_rank_does_not_have_is_not_counted_on_each():
    found = lines(with_gradient("x", "a"), with_gradient("x", None))
    assert found[-1].startswith("1 tensor on each rank, ")
    assert [line.split()[-1] for line in found[2:4]] == ["(2,)", "None"]


# --- long texts -----------------------------------------------------------------------------------


def first(one: str, other: str, block: int = 1 << 20) -> tuple[int | None, tuple[str, str]]:
    pieces = [
        {at // block: coded[at : at + block] for at in range(0, len(coded), block)}
        for coded in (one.encode("utf-32-le"), other.encode("utf-32-le"))
    ]
    found = blocks.compare_texts(block, (len(one), len(other)), pieces[0], pieces[1])
    return found.element, found.values


def test_the_first_character_that_differs_is_told_with_its_neighbours():
    text = "grün" * 30
    assert first(f"{text}a\n{text}", f"{text}a {text}") == (
        121,
        (r"…'rüngrüngrüna\ngrüngrüngrüngrü'…", "…'rüngrüngrüna grüngrüngrüngrü'…"),
    )


def test_a_text_that_ends_earlier():
    assert first("a" * 20, "a" * 20 + "b") == (20, ("…'aaaaaaaaaaaa'", "…'aaaaaaaaaaaab'"))
    assert first("ab", "abc", block=8) == (2, ("", ""))


def test_a_text_that_differs_in_a_later_block():
    found = first("a" * 9 + "b", "a" * 9 + "c", block=16)
    assert found == (9, ("…'ab'", "…'ac'"))


# --- lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('"model"', """"model" is a text, which is the same everywhere. Next: %ddp diff model"""),
        ("'model' -r 0", "'model' is a text, .* Next: %ddp diff model, without the quotes"),
        ('"a b"', "Next: %ddp diff a b, without the quotes"),
        ('model "loss"', "Next: %ddp diff loss, without the quotes"),
        ('""', "Next: %ddp diff model, without the quotes"),
    ],
)
def test_a_text_in_quotes_is_told_as_one(line: str, told: str):
    with pytest.raises(BadOptionError, match=told):
        VERBS["diff"].parser.read(line)


def test_a_text_within_an_expression_is_none_of_that():
    found = VERBS["diff"].parser.read("state['a'] cfg[\"b\"]")
    assert found.expressions == ["state['a']", 'cfg["b"]']
