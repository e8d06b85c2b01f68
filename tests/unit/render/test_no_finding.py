"""The headline of a card without findings."""

from typing import Any

from nbddp.controller.diagnosis.report import Report
from nbddp.notebook.render.diagnosis_card import card
from tests.support.looks import Ranks


def text(report: Report, **options: Any) -> str:
    return card(report, **options)["text/plain"]


def test_what_silent_ranks_do_is_not_known():
    pool = Ranks(4)
    for state in (pool[0], pool[1]):
        state.raised("KeyboardInterrupt")
    for state in (pool[2], pool[3]):
        state.silent().more.update(unheard="nothing has been heard of node 1 (h12) for 10 s")
    views = {state.rank: state.view() for state in pool}
    first = text(pool.diagnose(), views=views).splitlines()[0]
    assert first == "No rank that answers waits for another; nothing is known of ranks 2-3"


def test_ranks_that_form_their_groups_again_are_named():
    pool = Ranks(4)
    for state in pool:
        state.reforming()
    assert text(pool.diagnose()).splitlines() == [
        "Ranks 0-3 make their groups again: cells wait until that is done",
        "    ranks 0-3 make their groups again",
    ]
