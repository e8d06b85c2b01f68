"""The card of a cell with faults on purpose: they come first, and nothing blames the code."""

from dataclasses import replace

from nbddp.controller.diagnosis.report import KINDS, CodeLine, Report
from nbddp.notebook.render.diagnosis_card import card
from nbddp.wire.flight_recorder.schema import Site
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import finding

FAULTS = [f"rank {rank} left out barrier #{rank}" for rank in range(5)]
BLAMED = replace(
    finding(),
    headline="Rank 2 never called all_reduce #17",
    next_step="call it on all ranks",
    suspicions=("a typing error",),
    code=(CodeLine(Site(file="c", line=3, source="if rank != 2:", cell=4), RankSet.of([2])),),
)


def test_faults_on_purpose_come_first():
    bundle = card(Report("run", (BLAMED,)).with_injected(FAULTS))
    lines = bundle["text/plain"].splitlines()
    assert lines[:5] == [
        "Fault on purpose: rank 0 left out barrier #0.",
        "Fault on purpose: rank 1 left out barrier #1.",
        "Fault on purpose: rank 2 left out barrier #2.",
        "and 2 more faults on purpose",
        "Deadlock: rank 2 never called all_reduce #17",
    ]
    assert lines[5].startswith("  Next: Nothing, if a fault on purpose is the cause.")
    page = bundle["text/html"]
    assert page.index("and 2 more faults on purpose") < page.index("Deadlock")


def test_nothing_blames_the_code():
    report = Report("run", (BLAMED,))
    before, after = (card(each)["text/plain"] for each in (report, report.with_injected(FAULTS)))
    for words in ("a typing error", "call it on all ranks", "if rank != 2:"):
        assert words in before
        assert words not in after
    assert report.with_injected([]) is report


def test_a_line_that_was_typed_at_the_prompt_comes_first_and_nothing_blames_the_code():
    typed = ["rank 0 got `run x = 5` at the prompt, cell [4], line 2"]
    report = Report("run", (BLAMED,)).with_injected((), (), typed)
    shown = card(report)["text/plain"]
    assert shown.splitlines()[0] == "Rank 0 got `run x = 5` at the prompt, cell [4], line 2."
    assert "Next: Nothing, if what was typed at the prompt is the cause." in shown
    assert "a typing error" not in shown
    assert report.to_dict()["typed"] == typed
    many = card(report.with_injected((), FAULTS[:2], typed * 3))["text/plain"]
    assert "and 2 more commands at the prompt" in many
    own = replace(BLAMED, kind="buffer-in-use", culprits=RankSet.of([2]))
    typed_before = Report("run", (own,)).with_injected((), (), typed, disturbed=())
    assert typed_before.findings[0].next_step != BLAMED.next_step


def test_a_mismatch_after_an_interrupt_blames_no_code():
    mismatch = replace(BLAMED, kind="mismatched-collective")
    missing, wrong = Report("run", (BLAMED, mismatch)).after_interrupt().findings
    assert missing == BLAMED
    assert wrong.next_step.startswith("Nothing, if the interrupt was meant.")
    assert (wrong.suspicions, wrong.code, wrong.change) == ((), (), None)
    told = replace(wrong, suspicions=("rank 1 was interrupted",))
    assert Report("run", (told,)).after_interrupt().findings == (told,)


def test_the_use_of_a_tensor_before_its_time_is_no_work_of_a_fault_on_other_ranks():
    found = replace(BLAMED, kind="buffer-in-use", culprits=RankSet.of([2]))
    for disturbed, is_kept in (((), True), ((1,), True), ((1, 2), False), (None, False)):
        report = Report("run", (found,)).with_injected(FAULTS, disturbed=disturbed)
        assert (report.findings[0].next_step == BLAMED.next_step) == is_kept
    notice = Report("run", (replace(found, proven=False),)).with_injected(FAULTS, disturbed=())
    assert notice.findings[0].next_step != BLAMED.next_step
    skipped = Report("run", (found,)).with_injected(FAULTS, ["barrier #2"], disturbed=())
    assert skipped.findings[0].next_step != BLAMED.next_step


def test_a_delay_causes_no_error_that_is_proven():
    report = Report("run", (BLAMED, replace(BLAMED, proven=False)))
    delayed = report.with_injected(["rank 1 was delayed 1 s"], disturbed=(), only_delays=True)
    assert delayed.findings[0] == BLAMED
    assert delayed.findings[1].next_step != BLAMED.next_step
    skipped = report.with_injected(["a delay"], ["barrier #2"], disturbed=(), only_delays=True)
    assert skipped.findings[0].next_step != BLAMED.next_step


def test_the_next_step_stays_where_it_is_about_the_pool():
    for kind in KINDS:
        report = Report("run", (replace(BLAMED, kind=kind),)).with_injected(FAULTS)
        is_kept = report.findings[0].next_step == BLAMED.next_step
        assert is_kept == (kind in {"dead-rank", "first-error", "left-debugger", "straggler"}), kind
