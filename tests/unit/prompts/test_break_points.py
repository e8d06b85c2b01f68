"""The break points of a pool: how they are set, listed, counted and removed."""

from typing import Any

import msgspec
import pytest

from nbddp.controller.prompts.break_points import BreakPoints, passed
from nbddp.errors import BadOptionError
from nbddp.wire.flight_recorder import GroupInfo, Operation, Signature
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import RankSet


def request(rank: int, at: tuple[int, ...], created_ns: int = 5) -> InputRequest:
    """The question of a rank that has stopped."""
    stop = Operation(
        record_id=0, pg_id="0", signature=Signature("collective", "all_reduce"),
        state="scheduled", time_created_ns=created_ns,
    )  # fmt: skip
    return InputRequest(
        run_id="r", rank=rank, question=1, prompt="", password=False, stop=stop, break_points=at
    )


@pytest.mark.parametrize(
    ("words", "text"),
    {
        "all_reduce": "all_reduce",
        "#17": "#17",
        "all_reduce #17": "all_reduce #17",
        "line 7": "each operation at line 7",
        "line 7 send": "send at line 7",
    }.items(),
)
def test_a_place_in_words(words: str, text: str):
    assert str(BreakPoints().add(words.split())) == text


def test_options_in_words():
    point = BreakPoints().add(
        ["line", "7"], ranks=RankSet.of([0, 2]), group="tp", condition="loss > 1", has_nan=True,
        cell=3,
    )  # fmt: skip
    assert str(point) == (
        "each operation at line 7 of cell [3] of group tp on ranks 0,2 with NaN or Inf if loss > 1"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    {
        "": "legal: an operation such as all_reduce",
        "all_reduced": "Did you mean all_reduce; legal",
        "lines 7": "Did you mean line; legal",
        "17": "'17' is unknown. Did you mean #17, or `line 17`; legal",
        "isend": "Did you mean send; legal",
        "backward": "The operations are all_gather, ",
        "==": "'==' is unknown; legal",
        "line": "'line' needs a whole number above 0",
        "line seven": "'line' needs a whole number above 0",
        "#0": "'#0' needs a whole number above 0",
        "#": "'#' needs a whole number above 0",
        "send recv": "second place of its kind",
    }.items(),
)
def test_a_place_that_is_none_says_what_is_legal(words: str, text: str):
    points = BreakPoints()
    with pytest.raises(BadOptionError, match="%ddp break") as caught:
        points.add(words.split())
    assert text in str(caught.value)
    assert not points


@pytest.mark.parametrize("condition", ["x =", "x = 1", "import os", "\0"])
def test_a_condition_must_be_an_expression(condition: str):
    with pytest.raises(BadOptionError, match="is not an expression") as caught:
        BreakPoints().add([], condition=condition)
    assert "unknown" not in str(caught.value)  # it names no file


def test_a_group_is_place_enough():
    assert str(BreakPoints().add([], group="tp")) == "each operation of group tp"


def test_a_cell_needs_a_line():
    with pytest.raises(BadOptionError, match="add `line 7`"):
        BreakPoints().add(["send"], cell=3)


def test_stops_are_counted_once_and_listed():
    points = BreakPoints()
    points.add(["all_reduce"])
    points.add([], has_nan=True)
    for rank in (0, 1):
        points.note(request(rank, (1,)))
    points.note(request(1, (1,)))  # it asks again
    points.note(request(1, (1, 9), created_ns=6))
    points.note(request(1, ()))
    assert points.listing() == (
        "no.  ranks stop before               hits\n"
        "1    all_reduce                      1 on rank 0, 2 on rank 1\n"
        "2    each operation with NaN or Inf  none"
    )


def test_a_deadlock_counts_once_and_a_number_that_has_passed_says_so():
    points = BreakPoints()
    points.add([], on="deadlock")
    points.add(["#3"])
    for rank in (0, 1):
        points.note(msgspec.structs.replace(request(rank, ()), is_stuck=True))
    assert [row.split("  ")[-1].strip() for row in points.listing([2]).splitlines()[1:]] == [
        "1",
        "none; its number has passed",
    ]


def test_numbers_are_not_used_again():
    points = BreakPoints()
    points.add(["send"])
    points.add(["recv"])
    assert [point.number for point in points.clear([2])] == [2]
    assert points.add(["barrier"]).number == 3
    with pytest.raises(BadOptionError, match=r"no break point 2; legal: 1, 3\. Next: "):
        points.clear([1, 2])
    assert [point.number for point in points.of_cell()] == [1, 3]
    assert len(points.clear()) == 2
    assert points.listing() == "no break points are set. Next: %ddp break all_reduce"


def seen(*numbers: int) -> dict[int, list[GroupInfo]]:
    """The default group of each rank, and a group of the first two, which is at #4."""
    ranks = tuple(range(len(numbers)))
    tp = GroupInfo.of("1:b", "1", "tp", ranks=(0, 1), collective_seq_id=4)
    default = GroupInfo.of("0:a", "0", "default_pg", ranks=ranks)
    return {
        rank: [msgspec.structs.replace(default, collective_seq_id=number), *[tp][: rank < 2]]
        for rank, number in enumerate(numbers)
    }


@pytest.mark.parametrize(
    ("words", "options", "text"),
    [
        (
            "#17",
            {},
            "#17 has passed already: the default group is at #23, and numbers only grow; other "
            "groups may still come to it. Next: %ddp break #24, or a higher number",
        ),
        (
            "all_reduce #3",
            {},
            "#3 has passed already: the default group is at #23, group 'tp' (ranks 0-1) is at #4, "
            "and numbers only grow. Next: %ddp break all_reduce #24, or a higher number",
        ),
        ("#18", {}, ""),  # rank 2 may still come to it
        (
            "#18",
            {"ranks": RankSet.of([0])},
            "#18 has passed already: the default group is at #23, and numbers only grow; other "
            "groups may still come to it. Next: %ddp break #24, or a higher number",
        ),
        ("#5", {"group": "tp"}, ""),
        (
            "#4",
            {"group": "tp"},
            "#4 has passed already: group 'tp' (ranks 0-1) is at #4, and numbers only grow. Next: "
            "%ddp break #5 --group tp, or a higher number",
        ),
        ("all_reduce", {}, ""),
    ],
)
def test_a_number_that_has_passed(words: str, options: dict[str, Any], text: str):
    assert passed(BreakPoints().add(words.split(), **options), seen(23, 23, 17)) == text
