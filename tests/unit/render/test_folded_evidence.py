"""The parts of a card that are open, and those that are one click away."""

import re
from typing import Any

from nbddp.controller.diagnosis.report import ChangedLine, CodeChange, CodeLine, Report
from nbddp.notebook.render.diagnosis_card import card
from nbddp.wire.rank_set import RankSet
from tests.support.findings import CALL, missing, verdict

CHANGE = CodeChange(4, "c", (ChangedLine("added", 0, "new()"),))


def html(report: Report, **options: Any) -> str:
    return card(report, **options)["text/html"]


def open_part(page: str) -> str:
    """The HTML without what is folded."""
    return re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)


def summaries(page: str) -> list[str]:
    return re.findall(r"<summary[^>]*>(.*?)</summary>", page)


def test_the_answer_is_open_and_the_evidence_is_folded():
    code = (CodeLine(CALL, RankSet.of([0])),)
    parts = ("Next:", "new()", "<b>rank 2</b>", "[0]", "Proven:", "Now:")

    def seen_of(**options: Any) -> tuple[bool, ...]:
        page = open_part(html(verdict(missing(**options))))
        return tuple(part in page for part in parts)

    assert seen_of(change=CHANGE, code=code) == (True, True, False, False, False, True)
    assert seen_of(code=code) == (True, False, False, True, False, True)
    assert seen_of(code=code * 6) == (True, False, True, False, False, True)
    assert seen_of() == (True, False, True, False, False, True)


def test_above_an_error_only_the_evidence_is_open():
    code = (CodeLine(CALL, RankSet.of([0])),)
    why = missing(change=CHANGE, code=code)
    for bundle in (
        card(verdict(why), acted=True),
        card(verdict(missing(change=CHANGE, code=code, is_error=True))),
    ):
        page = open_part(bundle["text/html"])
        assert "[0]" in page
        assert "Next:" not in page + bundle["text/plain"]
        assert "new()" not in page + bundle["text/plain"]
        assert "new()" in bundle["text/html"]


def test_all_of_it_is_in_the_text_and_one_click_away():
    code = (CodeLine(CALL, RankSet.of([0])),)
    why = missing(change=CHANGE, code=code, suspicions=("rank 2 took another branch",))
    bundle = card(verdict(why))
    for shown in bundle.values():
        for part in ("new()", "rank 2", "[0]", "Proven:", "Perhaps:", "Now:"):
            assert part in shown


def test_a_summary_says_what_is_inside():
    page = html(verdict(missing(change=CHANGE)))
    assert summaries(page) == ["Where each rank is (4 ranks, 2 places)", "Why"]
    page = html(verdict(missing(change=CHANGE)), acted=True)
    assert summaries(page) == ["Why, and what now"]


def test_a_card_without_an_error_below_it_says_how_to_go_on():
    page = open_part(html(verdict(missing())))
    assert "The stop button frees" in page
    assert "Proven:" not in page
    waits = missing(kind="straggler", proven=False)
    assert "<details" not in html(Report("run", (waits,)))


def test_what_else_is_wrong_is_open():
    follows = missing(headline="In all_reduce #3, its result is mixed.", is_consequence=True)
    page = open_part(html(verdict(missing(change=CHANGE), follows), acted=True))
    assert "Also:</span> in all_reduce #3, its result is mixed" in page


def test_other_findings_are_folded_below_their_titles():
    page = html(verdict(missing(), missing(headline="other", next_step="wait!")), acted=True)
    assert '<b role="heading" aria-level="4">Deadlock: other</b>' in summaries(page)
    assert "wait!" not in open_part(page)
    assert "wait!" in page
