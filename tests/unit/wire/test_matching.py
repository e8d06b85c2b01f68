"""Two operations of different ranks match or not: the rules of each collective."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbddp.wire.flight_recorder.matching import (
    RULES,
    compare,
    compare_message,
    full_key,
    hard_key,
    is_uneven,
)
from nbddp.wire.flight_recorder.schema import OperationKind, Signature
from tests.support.looks import signature

Fields = dict[str, Any]


def both(op: str, mine: Fields, theirs: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Errors and warnings, which do not depend on who is asked."""
    one, other = signature("collective", op, **mine), signature("collective", op, **theirs)
    found = compare(one, other, me=0, other=1, size=2)
    back = compare(other, one, me=1, other=0, size=2)
    assert (found.hard, found.soft) == (back.hard, back.soft)
    assert bool(found) == bool(found.all)
    return found.hard, found.soft


def sizes(*shapes: tuple[int, ...]) -> Fields:
    return {"input_sizes": shapes}


# --- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "reduce", "all_gather", "gather"])
def test_equal_amounts(op: str):
    assert both(op, sizes((2, 3)), sizes((2, 3))) == ((), ())
    assert both(op, sizes((2, 3)), sizes((3, 2))) == ((), ("input_sizes",))
    assert both(op, sizes((2, 3)), sizes((6,))) == ((), ("input_sizes",))
    assert both(op, sizes((2, 3)), sizes((2, 4))) == (("input_sizes",), ())
    assert both(op, sizes(()), sizes((1,))) == ((), ("input_sizes",))


def test_another_operation_is_all_that_is_told():
    one, other = signature("collective", "all_reduce"), signature("collective", "barrier")
    assert compare(one, other).hard == ("op",)


@pytest.mark.parametrize(
    ("mine", "theirs", "blocking", "wrong"),
    [
        ("float32", "float64", ("input_dtypes",), ()),
        ("float32", "int32", (), ("input_dtypes",)),
        ("bfloat16", "float16", (), ("input_dtypes",)),
        ("bool", "uint8", (), ("input_dtypes",)),
        ("float8_e4m3fn", "int8", (), ("input_dtypes",)),
        ("float32", "bfloat16", ("input_dtypes",), ()),
    ],
)
def test_dtypes(mine: str, theirs: str, blocking: tuple[str, ...], wrong: tuple[str, ...]):
    """Dtypes of equal width let the operation complete with wrong numbers: an error as well."""
    one = signature("collective", "all_reduce", input_dtypes=(mine,))
    found = compare(one, signature("collective", "all_reduce", input_dtypes=(theirs,)))
    assert (found.blocking, found.wrong, found.soft) == (blocking, wrong, ())


def test_roots_and_reduce_ops():
    assert both("broadcast", {"root": 0}, {"root": 1}) == (("root",), ())
    assert both("all_reduce", {"reduce_op": "SUM"}, {"reduce_op": "MAX"}) == (("reduce_op",), ())
    mine, theirs = {"root": 0, "reduce_op": "SUM"}, {"root": 1, "reduce_op": "MAX"}
    assert both("reduce", mine, theirs) == (("root", "reduce_op"), ())
    found = compare(
        signature("collective", "reduce", **mine), signature("collective", "reduce", **theirs)
    )
    assert (found.blocking, found.wrong) == (("root",), ("reduce_op",))


def test_barriers_bring_nothing():
    assert both("barrier", {}, {}) == ((), ())
    assert both("monitored_barrier", {}, {}) == ((), ())


def test_scatter_compares_what_is_taken():
    at_root = {"input_sizes": ((4,), (4,)), "output_sizes": ((4,),), "root": 0}
    elsewhere = {"input_sizes": (), "input_dtypes": (), "output_sizes": ((4,),), "root": 0}
    assert both("scatter", at_root, elsewhere) == ((), ())
    assert both("scatter", at_root, {**elsewhere, "output_sizes": ((5,),)}) == (
        ("output_sizes",),
        (),
    )
    wrong = {**at_root, "output_dtypes": ("float32",)}
    assert both("scatter", wrong, {**elsewhere, "output_dtypes": ("float64",)}) == (
        ("output_dtypes",),
        (),
    )


def test_gather_lets_only_the_root_take():
    at_root = {"output_sizes": ((4,), (4,)), "root": 0}
    assert both("gather", at_root, {"root": 0}) == ((), ())


def test_uneven_all_gather_is_legal_if_all_know_of_it():
    outputs = {"output_sizes": ((4,), (6,))}
    mine, theirs = {**outputs, **sizes((4,))}, {**outputs, **sizes((6,))}
    assert both("all_gather", mine, theirs) == ((), ())
    alone = {"output_sizes": ((4,), (4,)), **sizes((4,))}
    assert both("all_gather", alone, theirs) == (("input_sizes",), ())


def test_reduce_scatter():
    assert both("reduce_scatter", sizes((4,), (4,)), sizes((4,), (4,))) == ((), ())
    assert both("reduce_scatter", sizes((4,), (4,)), sizes((4,), (6,))) == (("input_sizes",), ())
    assert both("reduce_scatter_tensor", sizes((8,)), sizes((6,))) == (("input_sizes",), ())


def test_coalesced_operations():
    assert both("all_reduce_coalesced", sizes((4,), (4,)), sizes((4,))) == (("tensors",), ())
    one, other = (
        signature("collective", "all_reduce_coalesced", input_sizes=shapes)
        for shapes in (((4,), (4,)), ((2,), (6,)))
    )
    assert compare(one, other).wrong == ("input_sizes",)  # Gloo adds them as one flat buffer


def test_more_tensors_than_are_told():
    many = {"input_sizes": ((4,),) * 16, "tensors": 20}
    op = "all_reduce_coalesced"
    assert both(op, {**many, "nbytes": 320}, {**many, "nbytes": 320}) == ((), ())
    assert both(op, {**many, "nbytes": 320}, {**many, "nbytes": 324}) == (("input_sizes",), ())


@pytest.mark.parametrize(
    ("mine", "theirs", "differ"),
    [
        (((2, 2), (2, 2)), ((2, 2), (2, 2)), False),
        (((1, 3), (1, 2)), ((2, 2), (3, 2)), False),
        (((1, 3), (1, 2)), ((2, 2), (1, 2)), True),  # 0 gives 3, 1 takes 1
        (((1, 3), (1, 1)), ((2, 2), (3, 2)), True),  # 1 gives 2, 0 takes 1
    ],
)
def test_split_sizes(mine: Any, theirs: Any, differ: bool):
    """Input and output splits of rank 0, then of rank 1."""

    def fields(splits: Any) -> Fields:
        given, taken = splits
        return {
            "input_splits": given,
            "output_splits": taken,
            "input_sizes": ((sum(given), 5),),
            "output_sizes": ((sum(taken), 5),),
        }

    expected = ("input_splits", "output_splits") if differ else ()
    assert both("all_to_all_single", fields(mine), fields(theirs)) == (expected, ())


def test_even_and_uneven_exchange():
    def even(size: int) -> Fields:
        return {"input_sizes": ((size,),), "output_sizes": ((size,),)}

    assert both("all_to_all_single", even(8), even(8)) == ((), ())
    assert both("all_to_all_single", even(8), even(6)) == (("input_sizes",), ())
    uneven = {**even(8), "input_splits": (4, 4), "output_splits": (4, 4)}
    assert both("all_to_all_single", even(8), uneven) == ((), ())


def test_all_to_all_with_lists():
    mine = {"input_sizes": ((1,), (2,)), "output_sizes": ((1,), (3,))}
    theirs = {"input_sizes": ((3,), (4,)), "output_sizes": ((2,), (4,))}
    assert both("all_to_all", mine, theirs) == ((), ())
    wrong = {**theirs, "output_sizes": ((9,), (4,))}
    assert both("all_to_all", mine, wrong) == (("input_sizes",), ())


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "reduce", "scatter"])
def test_the_order_in_memory(op: str):
    turned = {"strides": ((1, 2),)}
    assert both(op, turned, turned) == ((), ())
    assert both(op, turned, {}) == (("strides",), ())
    assert both("all_gather", turned, {}) == ((), ())  # these are copied first


def test_an_unknown_operation_is_compared_by_name_and_dtype_only():
    assert both("all_mingle", sizes((4,)), sizes((5,))) == ((), ())


def test_messages():
    sent = signature("send", "send", input_sizes=((4,),))
    assert not compare_message(sent, signature("recv", "recv", input_sizes=((2, 2),)))
    found = compare_message(sent, signature("recv", "recv", input_sizes=((5,),)))
    assert (found.wrong, found.all) == (("input_sizes",), ("input_sizes",))
    found = compare_message(sent, signature("recv", "recv", input_dtypes=("int32",)))
    assert (found.wrong, found.all) == (("input_dtypes",), ("input_dtypes",))


# --- one table -----------------------------------------------------------------------------------

_SHAPES = st.lists(st.sampled_from([(), (2,), (4,), (2, 2), (3,)]), min_size=1, max_size=3)
_DTYPES = st.sampled_from(["float32", "int32", "float64", "bool", "uint8"])


@st.composite
def _signatures(draw: st.DrawFn, kind: OperationKind, op: str) -> Signature:
    """An operation of a rank; small enough that two of them are often equal."""
    shapes = draw(_SHAPES)
    outputs = draw(_SHAPES)
    splits = draw(st.sampled_from([(), (1, 1)]))
    return Signature(
        kind=kind,
        op=op,
        input_sizes=tuple(shapes),
        input_dtypes=(draw(_DTYPES),) * len(shapes),
        output_sizes=tuple(outputs),
        output_dtypes=(draw(_DTYPES),) * len(outputs),
        tensors=draw(st.sampled_from([len(shapes), len(shapes), 20])),
        nbytes=draw(st.integers(1, 2)) * 4,
        reduce_op=draw(st.sampled_from(["SUM", "MAX"])),
        root=draw(st.integers(0, 1)),
        input_splits=splits,
        strides=draw(st.sampled_from([(), ((1, 2),)])),
        places=draw(st.sampled_from([(), ("sparse_coo",), ("meta",)])),
    )


_COLLECTIVES = st.sampled_from([op for op in [*RULES, "all_mingle"] if "all_to_all" not in op])


@given(st.data())
def test_fingerprints_differ_where_there_is_a_difference(data: st.DataObject):
    ops = [data.draw(_COLLECTIVES)] * 2 if data.draw(st.booleans()) else ["barrier", "reduce"]
    one, other = (data.draw(_signatures("collective", op)) for op in ops)
    found = compare(one, other, me=0, other=1, size=2)
    assert (hard_key(one) != hard_key(other)) == bool(found.hard)
    assert (full_key(one) != full_key(other)) == bool(found)


@given(_signatures("send", "send"), _signatures("recv", "recv"))
def test_fingerprints_of_messages_differ_where_there_is_a_difference(
    sent: Signature, received: Signature
):
    found = compare_message(sent, received)
    assert (hard_key(sent) != hard_key(received)) == bool(found.hard)
    assert (full_key(sent) != full_key(received)) == bool(found)


@given(st.data(), st.sampled_from(["all_to_all", "all_to_all_single"]))
def test_fingerprints_of_exchanges_say_all_where_these_are_even(data: st.DataObject, op: str):
    one, other = (data.draw(_signatures("collective", op)) for _ in range(2))
    found = compare(one, other, me=0, other=1, size=2)
    if hard_key(one) == hard_key(other) and not is_uneven(one):
        assert not set(found.hard) & {"input_dtypes", "input_splits"}
    if set(found.hard) & {"input_dtypes"}:
        assert hard_key(one) != hard_key(other)


def test_each_field_that_is_compared_has_a_row_in_the_documentation():
    text = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text()
    fields = {rule.field for rules in RULES.values() for rule in rules}
    assert all(f"| `{field}`" in text for field in fields), fields
