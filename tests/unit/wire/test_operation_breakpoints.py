"""Break points before operations: what is read, and what they match."""

import pytest
from msgspec import structs

from nbddp.errors import BadOptionError
from nbddp.wire.flight_recorder import GroupInfo, Operation, Signature, Site
from nbddp.wire.operation_breakpoints import read_breakpoint

TP = GroupInfo(pg_id="1:abc", name="1", desc="tp", ranks=(0, 1))
SUM = Operation(
    record_id=0,
    pg_id="1:abc",
    signature=Signature(kind="collective", op="all_reduce"),
    state="scheduled",
    collective_seq_id=17,
    site=Site(file="<cell>", line=7, cell=3),
)


def matches(*words: str, rank: int = 1, **options: object) -> bool:
    return read_breakpoint(words, 1, **options).matches(SUM, TP, rank)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words", [["all_reduce"], ["#17"], ["line", "7"], ["all_reduce", "#17", "line", "7"]]
)
def test_an_operation_with_all_properties_matches(words: list[str]):
    assert matches(*words)


@pytest.mark.parametrize(
    "words", [["broadcast"], ["#16"], ["line", "8"], ["all_reduce", "#16"], ["barrier", "#17"]]
)
def test_an_operation_without_one_of_them_does_not(words: list[str]):
    assert not matches(*words)


def test_ranks_and_groups_choose():
    assert matches(group="tp")
    assert matches(group="1")
    assert not matches(group="dp")
    assert matches("all_reduce", ranks=(1, 3))
    assert not matches("all_reduce", ranks=(0, 2))


def test_a_line_of_a_file_is_no_line_of_a_cell():
    at = structs.replace(SUM, site=Site(file="a.py", line=7))
    assert not read_breakpoint(["line", "7"], 1).matches(at, TP, 0)


@pytest.mark.parametrize(
    "words", [["all_reduce"], ["#17"], ["line", "7"], ["all_reduce", "#17", "line", "7"]]
)
def test_it_is_shown_in_the_words_that_are_read(words: list[str]):
    point = read_breakpoint(words, 2, ranks=(0, 2, 3), group="tp", condition="x > 1", nan=True)
    assert str(point) == f"{' '.join(words)} -r 0,2-3 --group tp --if 'x > 1' --nan"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["allreduce"], "Did you mean all_reduce?"),
        (["lines", "7"], "Did you mean line?"),
        (["line"], "'line' is no place to stop at"),
        (["line", "0"], "'line' is no place to stop at"),
        (["line", "x"], "'line' is no place to stop at"),
        (["17"], "'17' is no place to stop at"),
        (["#"], "'#' is no place to stop at"),
        (["#0"], "'#0' is no place to stop at"),
        (["all_reduce", "broadcast"], "'broadcast' is no place to stop at"),
        ([], "needs a place to stop at"),
    ],
)
def test_other_words_are_refused_and_the_legal_ones_are_named(words: list[str], hint: str):
    with pytest.raises(BadOptionError, match="Legal: an operation") as caught:
        read_breakpoint(words, 1)
    assert hint in str(caught.value)


@pytest.mark.parametrize("condition", ["x =", "x = 1", "import os", "\0"])
def test_a_condition_is_an_expression(condition: str):
    with pytest.raises(BadOptionError, match="is no expression of Python"):
        read_breakpoint([], 1, condition=condition)
