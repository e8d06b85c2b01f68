"""The answer of ``%ddp catchup``: its last line says what works now, and what to do."""

from typing import Any

import pytest

from nbddp.controller.catch_up import LeftOut, Reason
from nbddp.controller.pool import CatchUp
from nbddp.notebook.magics.catch_up_verb import describe
from nbddp.wire.rank_set import RankSet


def lines(**facts: Any) -> list[str]:
    """The lines for rank 1 of four."""
    given: dict[str, Any] = {"cells": (2, 3), **facts}
    return describe(CatchUp(RankSet.of([1]), RankSet.of([0, 2, 3]), 0, **given)).splitlines()


def test_all_is_well():
    assert lines(aside=RankSet.of([0, 2, 3]), synced=("model", "opt")) == [
        "rank 1 ran cells [2], [3] again, with what they write and print; ranks 0,2-3 ran along, "
        "and their variables are as before",
        "model and opt have the state of rank 0",
        "All 4 ranks have model and opt: run the training cell again.",
    ]
    assert lines(copied=("step",), deleted=("tmp",)) == [
        "rank 1 ran cells [2], [3] again, with what they write and print",
        "step has the value of rank 0, which the other ranks have, too",
        "deleted again, as on the other ranks: tmp",
        "All 4 ranks have the variables of these cells: run the next cell.",
    ]
    assert lines(cells=()) == ["rank 1 lacks no variable of rank 0. Next: run the next cell"]


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            {"alike_random": ("torch", "numpy"), "seeding": (2,)},
            "random numbers (torch and numpy) go on as on rank 0: all other ranks are at that "
            "point, too",
        ),
        ({"seeding": (2,)}, "random numbers: rank 1 draws its own, from the seed in cell [2]"),
    ],
)
def test_random_numbers(facts: dict[str, Any], line: str):
    assert lines(**facts)[1] == line


@pytest.mark.parametrize(
    ("facts", "problem", "end"),
    [
        (
            {"synced": ("model",), "not_synced": (("opt", "rank 1 raised ValueError: bad"),)},
            "opt did not get the state of rank 0: rank 1 raised ValueError: bad. Next: run the "
            "cell again that changed opt: %ddp catchup -r 1 --cells CELL",
            "All 4 ranks have model; rank 1 still differs in opt: do what stands above, then run "
            "the training cell again.",
        ),
        (
            {"failed": ((3, "rank 1 raised FileNotFoundError: data.csv"),)},
            "cell [3] failed now: rank 1 raised FileNotFoundError: data.csv. Next: give it what "
            "the cell needs, then %ddp catchup -r 1",
            "Cell [3] failed: do what stands above, then run the next cell.",
        ),
        (
            {"left_out": (LeftOut(("x", "y"), Reason.FAILS_NOW, 2),)},
            "not made again: x and y: cell [2], which defines this, failed now. Next: correct it "
            "and run it on all ranks",
            "Rank 1 still differs in x and y: do what stands above, then run the next cell.",
        ),
        (
            {"left_out": (LeftOut(("x",), Reason.NEEDS, 2),)},
            "not made again: x: cell [2] uses names that were not made again. Next: %ddp catchup "
            "-r 1 --cells 2, when these are there",
            "Rank 1 still differs in x: do what stands above, then run the next cell.",
        ),
        (
            {"different": ("mine",)},
            "equal on the other ranks, and not here: mine. Next: %ddp diff mine",
            "Rank 1 still differs in mine: do what stands above, then run the next cell.",
        ),
    ],
)
def test_problems_have_a_next_step_and_the_last_line_points_to_it(
    facts: dict[str, Any], problem: str, end: str
):
    said = lines(**facts)
    assert said[-2:] == [problem, end]


FAILED = (
    LeftOut(("os", "signal"), Reason.FAILED, 4),
    LeftOut(("peer", "mine"), Reason.FAILED, 7),
)


def test_names_of_cells_that_had_failed_do_not_hide_that_all_is_well():
    assert lines(cells=(2,), synced=("model", "opt"), left_out=FAILED) == [
        "rank 1 ran cell [2] again, with what it writes and prints",
        "model and opt have the state of rank 0",
        "not made again, since their cells had failed: os, signal, peer and 1 more "
        "(cells [4], [7])",
        "Rank 1 has model and opt again, as rank 0 has them: run the training cell again.",
    ]
    assert lines(cells=(2, 3), left_out=(LeftOut(("x",), Reason.FAILED, 4),))[-2:] == [
        "not made again, since its cell had failed: x (cell [4])",
        "Rank 1 has the variables of cells [2], [3] again: run the next cell.",
    ]
    assert lines(cells=(), left_out=FAILED[:1]) == [
        "not made again, since their cell had failed: os and signal (cell [4])",
        "Rank 1 lacks no other variable of rank 0: run the next cell.",
    ]


def test_names_of_cells_that_had_failed_are_no_part_of_a_problem():
    assert lines(left_out=(*FAILED, LeftOut(("x",), Reason.NO_CELL)))[1:] == [
        "not made again: x: no cell defines this. Next: %ddp push, if it came from the notebook",
        "not made again, since their cells had failed: os, signal, peer and 1 more "
        "(cells [4], [7])",
        "Rank 1 still differs in x: do what stands above, then run the next cell.",
    ]
