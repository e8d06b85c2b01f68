"""The line about the end of a cell that ran while its pool had no kernel."""

import re
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nbddp.controller.pool import LeftCell
from nbddp.controller.state import RankResult, RunOutcome
from nbddp.notebook.magics.keep_verbs import end_text, when_text
from nbddp.wire.rank_set import RankSet

#: 17:02 of some day, here.
NOW = time.mktime((2026, 11, 25, 17, 2, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("status", "ends", "attached", "words"),
    [
        ("ok", {}, 1000.0, "was done at 16:46, after 60.0 s, before this %ddp attach"),
        ("ok", {}, 90.0, "was done at 16:46, after 60.0 s"),
        ("error", {}, 90.0, "failed at 16:46, after 60.0 s"),
        ("error", {"interrupted": True}, 90.0, "was interrupted at 16:46, after 60.0 s"),
        ("unfinished", {"ended_by": "%ddp stop"}, 90.0, "was ended at 16:46, after 60.0 s"),
    ],
)
def test_the_line_says_how_and_when_it_ended(
    status: Any, ends: dict[str, Any], attached: float, words: str
):
    left = cast(
        "LeftCell",
        SimpleNamespace(name="cell [9]", began=80.0, run=SimpleNamespace(ranks=RankSet.of([0]))),
    )
    outcome = RunOutcome("r", {0: RankResult(0, status, 60.0)}, 60.0, **ends)
    assert end_text(left, outcome, attached, 1100.0, NOW) == f"cell [9] {words}"


@pytest.mark.parametrize("attached_s", [50.0, 200.0])
def test_the_handle_says_when_a_cell_ended_before_the_attach(attached_s: float):
    began = time.monotonic()
    left = cast("LeftCell", SimpleNamespace(began=began))
    outcome = RunOutcome("r", {0: RankResult(0, "ok", 60.0)}, 60.0)
    words = when_text(left, began + attached_s, outcome)
    says = re.fullmatch(r" at .*\d\d:\d\d, before this %ddp attach,", words)
    assert bool(says) == (attached_s > outcome.elapsed_s)
    assert bool(words) == bool(says)


def test_a_cell_with_an_error_has_failed_though_all_ranks_have_finished_it():
    left = cast(
        "LeftCell",
        SimpleNamespace(name="cell [9]", began=80.0, run=SimpleNamespace(ranks=RankSet.of([0]))),
    )
    outcome = RunOutcome("r", {0: RankResult(0, "ok", 60.0)}, 60.0)
    text = end_text(left, outcome, 90.0, 1100.0, NOW, has_error=True)
    assert text == "cell [9] failed at 16:46, after 60.0 s"
