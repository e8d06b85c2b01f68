"""The answer of ``%ddp catchup``: what a rank has again, what it lacks, and what to do."""

from typing import Any

import pytest

from nbddp.controller.catch_up import LeftOut, Reason
from nbddp.controller.pool import CatchUp
from nbddp.notebook.magics.catch_up_verb import answer
from nbddp.notebook.render.answer import Answer
from nbddp.wire.rank_set import RankSet


def said(**facts: Any) -> Answer:
    """The answer for rank 1 of four."""
    given: dict[str, Any] = {"cells": (2, 3), **facts}
    return answer(CatchUp(RankSet.of([1]), RankSet.of([0, 2, 3]), 0, **given))


def test_all_is_well():
    whole = said(aside=RankSet.of([0, 2, 3]), synced=("model", "opt"), regained=("opt", "DDP"))
    assert whole.lines == [
        "Rank 1 has again: model, opt and DDP (from cells [2], [3]).",
        "Next: run the next cell, or the interrupted one again.",
    ]
    assert whole.details == [
        "rank 1 ran cells [2], [3] again, with what they write and print; ranks 0,2-3 ran along, "
        "and their variables are as before",
        "model and opt have the state of rank 0",
    ]
    copied = said(copied=("step",), deleted=("tmp",), regained=("step", "load"))
    assert copied.lines == [
        "Rank 1 has again: load (from cells [2], [3]); step (from rank 0).",
        "Next: run the next cell, or the interrupted one again.",
    ]
    assert copied.details[1:] == [
        "step has the value of rank 0, which all other ranks have, or which was pushed to all",
        "deleted again, as on the other ranks: tmp",
    ]
    assert said(cells=()).text() == (
        "Rank 1 lacks no variable of rank 0.\n"
        "Next: run the next cell, or the interrupted one again."
    )
    assert said(cells=(4,)).lines[0] == "Rank 1 ran cell [4] again."


def test_names_that_are_lacking_come_before_the_sentence_on_all_others():
    lost = LeftOut(("v",), Reason.NO_CELL_SINCE_ATTACH)
    why = "no cell since %ddp attach defines this, and cells before it are not known here. Next: "
    assert said(cells=(), left_out=(lost, *FAILED[:1]), passed_over=RankSet.of([3])).lines == [
        f"Rank 1 still lacks v: {why}run those cells again, on all ranks. This sets the values of "
        "ranks 0,2-3 back, too",
        "Not made again, since their cell had failed: os and signal (cell [4]).",
        "Rank 1 lacks no other variable of rank 0.",
        "Rank 3 lacks names, too, and has values of cells that ran since it was replaced: nothing "
        "was changed there. Next: %ddp catchup -r 3",
        "Then: run the next cell, or the interrupted one again, if it does not use os and signal; "
        "the NameError of a cell that does says how to make them.",
    ]


def test_names_that_the_rank_alone_had_are_no_variables_of_the_source():
    assert said(cells=(), left_out=(LeftOut(("x",), Reason.ALONE, 4),)).lines[:2] == [
        "Rank 1 still lacks x, which cell [4] made on rank 1 alone. Next: %ddp catchup -r 1 "
        "--cells 4, to run it again",
        "Rank 1 lacks no variable of rank 0.",
    ]


def test_a_cell_that_failed_has_changed_names_since():
    given = {"regained": ("a", "q"), "makers_by_name": (("a", (2,)), ("q", (3,)))}
    result = said(overtaken=(("q", 4),), **given)
    assert result.lines == [
        "Rank 1 has again: a (from cell [2]).",
        "q is as cell [3] made it; cell [4], which did not run again, has perhaps changed it "
        "since on other ranks. Next: %ddp vars q, then set it in a cell that begins with %%ddp -r "
        "1",
        "Then: run the next cell.",
    ]


def test_a_name_of_a_cell_that_failed_is_not_said_to_be_there_again():
    failed = ((4, "rank 1 raised OSError: bad"),)
    one = said(regained=("a", "w"), failed=failed, doubtful=(("w", 4),))
    assert one.lines[:2] == [
        "Rank 1 has again: a (from cells [2], [3]).",
        "cell [4] failed now: rank 1 raised OSError: bad; w has a value, perhaps not the right "
        "one. Next: give it what the cell needs, then %ddp catchup -r 1",
    ]
    two = said(cells=(4, 5), regained=("v", "w"), failed=failed, doubtful=(("v", 4), ("w", 4)))
    assert two.lines[0] == "Rank 1 ran cells [4], [5] again."
    assert "; v and w have values, perhaps not the right ones. Next: " in two.lines[1]


def test_the_cells_of_a_name_are_not_those_of_names_that_are_told_apart():
    made = (("u", (9,)), ("v", (3,)))
    lines = said(cells=(3, 9), regained=("u", "v"), initial=("v",), makers_by_name=made).lines
    assert lines[0] == "Rank 1 has again: u (from cell [9])."


def test_names_of_cells_of_other_ranks_are_not_said_to_be_there():
    assert said(cells=(), elsewhere=(("keep", 3),)).lines == [
        "Rank 1 lacks no variable of its cells: keep is of cell [3], which ran on other ranks "
        "only.",
        "Next: run cell [3] on rank 1, too, if it needs keep; then the next cell, or the "
        "interrupted one again.",
    ]
    many = said(cells=(), elsewhere=(("a", 3), ("b", 5)), left_out=FAILED[:1]).lines
    assert many[0].startswith("Not made again, since their cell had failed")
    assert many[1] == (
        "Rank 1 lacks no other variable of its cells: a and b are of cells [3], [5], which ran on "
        "other ranks only."
    )
    assert said(cells=(2,), regained=("x",), elsewhere=(("keep", 3),)).lines == [
        "Rank 1 has again: x (from cell [2]).",
        "Next: run the next cell, or the interrupted one again.",
    ]


def test_random_numbers_that_go_on_are_a_detail():
    whole = said(alike_random=("torch", "numpy"), seeding=(2,))
    assert whole.details[1] == (
        "random numbers (torch and numpy) go on as on rank 0: all other ranks are at that point, "
        "too"
    )
    assert len(whole.lines) == 2


def test_random_numbers_that_are_drawn_again_are_told():
    again = said(seeding=(2,)).lines
    assert again[1] == "Its random numbers begin again at the seed in cell [2]."
    part = said(alike_random=("torch",), seeding=(2,), reseeded=("random",)).lines
    assert part[1] == "Its random numbers (random) begin again at the seed in cell [2]."


@pytest.mark.parametrize(
    ("facts", "problem", "end"),
    [
        (
            {"synced": ("model",), "not_synced": (("opt", "rank 1 raised ValueError: bad"),)},
            "opt did not get the state of rank 0: rank 1 raised ValueError: bad. Next: run the "
            "cell again that changed opt: %ddp catchup -r 1 --cells CELL",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"failed": ((3, "rank 1 raised FileNotFoundError: data.csv"),)},
            "cell [3] failed now: rank 1 raised FileNotFoundError: data.csv. Next: give it what "
            "the cell needs, then %ddp catchup -r 1",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {
                "failed": ((2, "rank 1 raised OSError: bad"),),
                "left_out": (LeftOut(("x", "y"), Reason.FAILS_NOW, 2),),
            },
            "It still lacks x and y: cell [2] failed now: rank 1 raised OSError: bad. Next: give "
            "it what the cell needs, then %ddp catchup -r 1",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"left_out": (LeftOut(("x",), Reason.NEEDS, 2),)},
            "It still lacks x: cell [2] uses names that were not made again. Next: %ddp catchup "
            "-r 1 --cells 2, when these are there",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"left_out": (LeftOut(("x",), Reason.NEEDS, 5, uses=("y",), loops=(2, 3)),)},
            "It still lacks x: cell [5] uses y, for which cells [2], [3] would have to run again, "
            "loops with collectives. Next: %ddp catchup -r 1 --cells 2,3, to run them again",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"left_out": (LeftOut(("x",), Reason.GONE, 4),)},
            "It still lacks x: no rank has it any more. Next: run cell [4] again, which made it",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"left_out": (LeftOut(("x", "y"), Reason.GONE),)},
            "It still lacks x and y: no cell defines them, and no rank has them any more. Next: "
            "%ddp push x y -r 1, if it came from the notebook",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"left_out": (LeftOut(("x",), Reason.ALONE, 4),)},
            "It still lacks x, which cell [4] made on rank 1 alone. Next: %ddp catchup -r 1 "
            "--cells 4, to run it again",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"left_out": (LeftOut(("x",), Reason.LOOP, 2),)},
            "It still lacks x: cell [2] runs a loop with collectives, and makes no model or "
            "function. Next: %ddp catchup -r 1 --cells 2, to run it again",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"left_out": (LeftOut(("x",), Reason.NO_CELL_SINCE_ATTACH),)},
            "It still lacks x: no cell since %ddp attach defines this, and cells before it are not "
            "known here. Next: run those cells again, on all ranks. This sets the values of ranks "
            "0,2-3 back, too",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {
                "left_out": (
                    LeftOut(
                        ("x", "m", "opt"),
                        Reason.NO_CELL_SINCE_ATTACH,
                        with_state=frozenset(("m", "opt")),
                    ),
                )
            },
            "It still lacks x, m and opt: no cell since %ddp attach defines this, and cells before "
            "it are not known here. Next: run those cells again, on all ranks. This sets the "
            "values of ranks 0,2-3 back, too. To keep the old values: before that, kept = "
            "m.state_dict(), opt.state_dict() in a cell that begins with %%ddp -r 0; after it, "
            "m.load_state_dict(kept[0]); opt.load_state_dict(kept[1]) in a cell that begins with "
            "%%ddp -r 0, then nbddp.sync(m, opt, src=0) in one on all ranks",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"left_out": (LeftOut(("m", "x"), Reason.NO_CELL, joint=frozenset(("m",))),)},
            "It still lacks m and x: no cell defines this. Next: make it in a cell on all ranks, "
            "with what is made from it: only all ranks together can make m",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"left_out": (LeftOut(("opt",), Reason.NO_CELL),)},
            "It still lacks opt: no cell defines this. Next: make it in a cell that begins with "
            "%%ddp -r 1; then nbddp.sync in one on all ranks, for a module or an optimizer",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"initial": ("history", "steps")},
            "history and steps are at their initial values, as the cells make them; ranks 0,2-3 "
            "have others, each its own. Next: %ddp vars history steps, then set them in a cell "
            "that begins with %%ddp -r 1",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"passed_over": RankSet.of([3])},
            "Rank 3 lacks names, too, and has values of cells that ran since it was replaced: "
            "nothing was changed there. Next: %ddp catchup -r 3",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"left_out": (LeftOut(("x",), Reason.LOOP, 2, RankSet.of([1])),)},
            "Rank 1 still lacks x: cell [2] runs a loop with collectives, and makes no model or "
            "function. Next: %ddp catchup -r 1 --cells 2, to run it again",
            "Then: run the next cell, or the interrupted one again.",
        ),
        (
            {"different": ("mine",)},
            "mine: equal on the other ranks, and not here. Next: %ddp diff mine",
            "Then: run the next cell, or the interrupted one again.",
        ),
    ],
)
def test_problems_have_a_next_step(facts: dict[str, Any], problem: str, end: str):
    assert said(**facts).lines[1:] == [problem, end]


def test_cells_that_ran_for_others_are_told_apart():
    whole = said(cells=(1, 2, 3, 4), regained=("x",), makers_by_name=(("x", (2, 4)),))
    assert whole.lines[0] == "Rank 1 has again: x (from cells [2], [4])."
    assert whole.details == [
        "rank 1 ran cells [1], [2], [3], [4] again, with what they write and print",
        "cells [1], [3] ran for the others: what they use, or a seed of random numbers",
    ]


def test_a_name_that_a_part_of_the_ranks_has_is_told_with_these():
    part = (("boss", RankSet.of([0])), ("worker", RankSet.of([2])))
    given: dict[str, Any] = {"cells": (2,), "regained": ("a", "boss", "worker")}
    made = CatchUp(RankSet.of([0, 2]), RankSet.of([1]), 1, regained_in_part=part, **given)
    assert answer(made).lines[0] == (
        "Ranks 0,2 have again: a, boss (on rank 0) and worker (on rank 2) (from cell [2])."
    )


def test_a_name_that_is_there_but_wrong_is_not_said_to_be_there_again():
    facts = {"regained": ("opt", "x", "y"), "different": ("x",)}
    said_of = said(**facts, not_synced=(("opt", "rank 1 raised ValueError"),))
    assert said_of.lines[0] == "Rank 1 has again: y (from cells [2], [3])."


FAILED = (
    LeftOut(("os", "signal"), Reason.FAILED, 4),
    LeftOut(("peer", "mine"), Reason.FAILED, 7),
)


def test_a_cell_that_was_repaired_at_its_prompt_fails_again():
    failed = ((2, "rank 1 raised OSError: bad"),)
    line = next(each for each in said(failed=failed, prompted=(2,)).lines if "failed now" in each)
    assert line == (
        "cell [2] failed now: rank 1 raised OSError: bad. When it ran first, the user changed it: "
        "changes by `run`, `retry`, `skip` or a debugger at the prompt are not repeated. Next: "
        "correct the cell, and run it again on all ranks"
    )


def test_names_of_a_cell_that_was_changed_at_its_prompt_are_not_said_to_be_there_again():
    unrepeated = (("a", 2), ("c", 3))
    text = said(regained=("a", "c", "y"), prompted=(2, 3), unrepeated=unrepeated)
    assert text.lines[:2] == [
        "Rank 1 has again: y (from cells [2], [3]).",
        "a and c have values, perhaps not the right ones: in cells [2], [3] changes by `run`, "
        "`retry`, `skip` or a debugger at the prompt are not repeated. Next: %ddp vars a c, then "
        "set them in a cell that begins with %%ddp -r 1",
    ]
    assert text.lines[-1] == "Then: run the next cell, or the interrupted one again."


def test_names_of_a_cell_in_which_a_fault_struck_are_not_said_to_be_there_again():
    text = said(regained=("a", "y"), struck=(3,), unrepeated=(("a", 3),))
    assert text.lines[:2] == [
        "Rank 1 has again: y (from cells [2], [3]).",
        "a has a value, perhaps not the right one: in cell [3] a fault on purpose struck, which is "
        "not repeated. Next: %ddp vars a, then set it in a cell that begins with %%ddp -r 1",
    ]
    both = said(prompted=(2,), struck=(2, 3), unrepeated=(("a", 2), ("b", 3)))
    assert "in cell [2] changes by `run`," in both.lines[1]
    assert "are not repeated; in cell [3] a fault on purpose struck, which is" in both.lines[1]
    failed = said(failed=((2, "rank 1 raised OSError: bad"),), struck=(2,))
    assert failed.lines[1] == (
        "cell [2] failed now: rank 1 raised OSError: bad. When it ran first, a fault on purpose "
        "struck, which is not repeated. Next: run it again on all ranks"
    )


def test_a_cell_that_lacks_a_pushed_name_needs_a_push():
    failed = ((3, "rank 1 raised NameError: name 'n' is not defined"),)
    assert said(failed=failed, to_push=(("n", 3), ("m", 4))).lines[1] == (
        "cell [3] failed now: rank 1 raised NameError: name 'n' is not defined. Next: %ddp push n "
        "-r 1, if this notebook has it, then %ddp catchup -r 1"
    )


def test_a_cell_that_failed_aside_only_is_a_detail():
    whole = said(regained=("opt",), failed_aside=((2, "rank 0 raised NameError: lr"),))
    assert whole.lines[0] == "Rank 1 has again: opt (from cells [2], [3])."
    assert "cell [2] failed where it ran along, with no effect: rank 0 raised NameError: lr" in (
        whole.details
    )


def test_a_value_at_its_beginning_is_not_said_to_be_there_again():
    lines = said(regained=("opt", "steps"), initial=("steps",)).lines
    assert lines[0] == "Rank 1 has again: opt (from cells [2], [3])."


def test_names_of_cells_that_had_failed_do_not_hide_that_all_is_well():
    assert said(cells=(2,), synced=("model", "opt"), left_out=FAILED).lines == [
        "Rank 1 has again: model and opt (from cell [2]).",
        "Not made again, since their cells had failed: os, signal, peer and 1 more "
        "(cells [4], [7]).",
        "Next: run the next cell, or the interrupted one again, if it does not use os, signal, "
        "peer and 1 more; the NameError of a cell that does says how to make them.",
    ]
    # The folded lines have all of them.
    assert said(cells=(2,), left_out=FAILED).details[:2] == [
        "not made again, since cell [4] had failed: os and signal",
        "not made again, since cell [7] had failed: peer and mine",
    ]
    assert not [each for each in said(left_out=FAILED[:1]).details if "not made again" in each]
    assert said(cells=(), left_out=FAILED[:1]).lines == [
        "Not made again, since their cell had failed: os and signal (cell [4]).",
        "Rank 1 lacks no other variable of rank 0.",
        "Next: run the next cell, or the interrupted one again, if it does not use os and signal; "
        "the NameError of a cell that does says how to make them.",
    ]
    one = LeftOut(("z",), Reason.FAILED, 4)
    assert (
        said(left_out=(one,))
        .lines[-1]
        .endswith("if it does not use z; the NameError of a cell that does says how to make it.")
    )


def test_modules_and_optimizers_of_cells_that_had_failed_come_first():
    names, states = ("h", "hs", "loss", "net", "o"), frozenset(("net", "o"))
    left = LeftOut(names, Reason.FAILED, 4, with_state=states)
    assert said(cells=(), left_out=(left,)).lines[0] == (
        "Not made again, since their cell had failed: net, o, h and 2 more (cell [4])."
    )


def test_the_answer_is_short_and_folds_what_was_done():
    left = LeftOut(("x",), Reason.NO_CELL, copyable=frozenset(("x",)))
    made = said(synced=("model",), left_out=(left,)).bundle()
    assert made["text/plain"].splitlines() == [
        "Rank 1 has again: model (from cells [2], [3]).",
        "It still lacks x: no cell defines this. Next: %ddp push, if it came from the",
        "  notebook",
        "Then: run the next cell, or the interrupted one again.",
    ]
    folded, shown = made["text/html"].split("</details>")  # what to do comes last
    assert "<b>Next:</b> %ddp push, if it came" in shown
    assert "the state of rank 0" in folded


def test_generators_in_variables_and_values_without_a_seed_are_told():
    assert said(restarted=("g",), drawn=("perm", "xs")).lines[1:3] == [
        "Its generator g begins again, as its cell makes it.",
        "perm and xs may have other random numbers than before: no seed comes before them.",
    ]
    assert said(restarted=("g", "h")).lines[1] == (
        "Its generators g and h begin again, as their cells make them."
    )
