"""The error of a cell whose ranks were freed: the verdict, or the error that freed them."""

from dataclasses import replace

import pytest

from nbddp.controller.cell_errors import at_end, with_all_raised
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb
from nbddp.controller.diagnosis.report import PerRank
from nbddp.controller.state import VerdictReached
from nbddp.controller.state.outcome import RankResult, RunOutcome
from nbddp.errors import CellError, DeadlockError
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import RankSet
from tests.support.cell_errors import (
    cell_error,
    freed,
    ok,
    raised,
    rendered,
    report,
    site,
    text,
)


def test_a_deadlock_that_the_timeout_of_the_cell_ended():
    error = cell_error(
        ok(1), freed(0), report=report(), is_plain=False, timed_out=True, timeout_s=6.0,
        raised_before=RankSet.of([0]),
    )  # fmt: skip
    assert type(error) is DeadlockError
    assert "  ended     the cell ran longer than its --timeout of 6 s\n" in text(error)


def test_ranks_that_nobody_freed_have_waited_until_the_end():
    waits = PerRank(0, "running", Predicate(RankVerb.WAITS, " in barrier #1"), since_s=0.25)
    stuck = replace(report(), ranks={0: waits})
    for result, acted, since_s in (
        (RankResult(0, "unfinished", 8.0), False, 6.25),
        (RankResult(0, "error", 5.0), False, 4.25),  # it left the cell 4 s after the verdict
        (RankResult(0, "ok", 0.5), False, 0.25),
        (RankResult(0, "exited", 8.0, left_s=3.0), False, 2.25),
        (RankResult(0, "error", 1.5), True, 0.25),
    ):
        outcome = RunOutcome("r", {0: result}, 7.0)
        verdict = VerdictReached("r", stuck, acted=acted, views={})
        judged = at_end(verdict, outcome, judged_s=1.0, now_s=7.0)
        assert judged.report.ranks[0].since_s == since_s


@pytest.mark.parametrize(("since_s", "waited_s"), [(1.25, 5.0), (6.0, 12.0)])
def test_a_wait_ends_with_the_timeout_of_its_operation(since_s: float, waited_s: float):
    # The rank took the error, and stayed in the cell. A wait beyond its timeout has no known limit.
    waits = PerRank(
        0, "running", Predicate(RankVerb.WAITS, " in barrier #1"), since_s=since_s, limit_s=5.0
    )
    verdict = VerdictReached("r", replace(report(), ranks={0: waits}), acted=False, views={})
    outcome = RunOutcome("r", {0: RankResult(0, "ok", 8.0)}, 9.0)
    judged = at_end(verdict, outcome, judged_s=2.0, now_s=9.0)
    assert judged.report.ranks[0].since_s == waited_s


def test_a_deadlock():
    error = cell_error(freed(0), ok(1), freed(2), report=report(), is_plain=False)
    assert type(error) is DeadlockError
    assert text(error) == (
        "ranks 0,2 waited in all_reduce #17 (cell [7], line 5) and were freed\n"
        "rank 1 finished\n"
        "DeadlockError: Rank 1 never called all_reduce #17; ranks 0,2 wait for it\n"
        "  rank 1    has finished the cell; its last operation was all_reduce #16\n"
        "  rank 0    waits in all_reduce #17, at cell [7], line 5: `dist.all_reduce(x)`\n"
        "  rank 2    waits in all_reduce #17, at cell [7], line 5: `dist.all_reduce(x)`\n"
        "  kept      every variable is kept; the process groups are ready again\n"
        "  next      Call it on all ranks."
    )
    assert error.by_rank == dict.fromkeys((0, 2), ("CollectiveAbortedError", "freed"))


def test_a_deadlock_in_init_process_group_leaves_no_default_group():
    waits = report("store-wait")
    findings = (replace(waits.findings[0], op="init_process_group"),)
    error = cell_error(freed(0), ok(1), report=replace(waits, findings=findings), is_plain=False)
    assert (
        "  kept      every variable is kept; there is no default process group until "
        "init_process_group succeeds\n" in text(error)
    )


def test_an_error_below_a_card_is_brief():
    error = cell_error(freed(0), ok(1), freed(2), report=report(), is_plain=False)
    assert rendered(error) == (
        "DeadlockError: Rank 1 never called all_reduce #17; ranks 0,2 wait for it\n"
        "  next      Call it on all ranks."
    )


@pytest.mark.parametrize(
    "other",
    [
        raised(2, "ValueError", "in finally", at_ns=200),
        RankResult(2, "unfinished", elapsed_s=4.0, stuck="a lock of libfoo"),
    ],
    ids=["raised something else", "does not come out"],
)
def test_an_error_that_says_more_than_the_card_is_shown_in_full(other: RankResult):
    error = cell_error(freed(0), ok(1), other, report=report(), is_plain=False)
    assert rendered(error).split() == text(error).split()  # long lines are broken


def test_a_deadlock_after_which_the_groups_are_not_ready():
    error = cell_error(
        freed(0), ok(1), freed(2), report=report(), rebuild_failure="rank 0: no", is_plain=False
    )
    assert type(error) is DeadlockError
    assert text(error).endswith(
        "  pool      the process groups could not be formed again: rank 0: no\n"
        "  next      %ddp restart   (variables can still be pulled)"
    )
    assert "ready again" not in text(error)


def test_a_deadlock_that_a_rank_does_not_leave():
    stuck = RankResult(2, "unfinished", elapsed_s=4.0, stuck="a lock of libfoo")
    error = cell_error(freed(0), ok(1), stuck, report=report(), is_plain=False)
    assert type(error) is DeadlockError
    assert (
        "rank 2 is still inside the cell (a lock of libfoo); "
        "if it does not come back: %ddp restart -r 2 (the others keep their variables)\n"
    ) in text(error)
    assert "ready again" not in text(error)


def test_errors_that_came_after_a_deadlock_are_told_too():
    """The user's code raised another error when it was freed."""
    error = cell_error(
        freed(0), ok(1), raised(2, "ValueError", "in finally", at_ns=200), report=report()
    )
    assert type(error) is DeadlockError
    assert text(error).startswith("rank 2\n<traceback of ValueError: in finally>\n\nrank 0 waited")


def test_a_timeout_of_the_user_is_the_error_and_the_proven_cause_stands_below():
    """The verdict was shown, then the timeout of the operation ended the wait."""
    error = cell_error(
        raised(0, "RuntimeError", "Timed out", at_ns=1), ok(1), ok(2), report=report()
    )
    assert type(error) is CellError
    assert text(error).endswith(
        "CellError: rank 0 raised RuntimeError: Timed out\n"
        "  proven    Rank 1 never called all_reduce #17; ranks 0,2 wait for it\n"
        "  next      Call it on all ranks."
    )


def test_the_first_error_is_that_of_the_cell_and_the_others_were_freed():
    error = cell_error(
        freed(0), raised(1, at_ns=1), freed(2), report=report("first-error"), is_plain=False
    )
    assert type(error) is CellError
    assert text(error) == (
        "rank 1\n<traceback of ValueError: bad>\n\n"
        "ranks 0,2 waited in all_reduce #17 (cell [7], line 5) and were freed\n"
        "CellError: rank 1 raised ValueError: bad"
    )


@pytest.mark.parametrize("place", [PerRank(2, "running", Predicate(RankVerb.RUNS)), None])
def test_a_rank_that_came_to_the_wait_after_the_verdict_has_the_same_line(place: PerRank | None):
    """Whether a rank came just before the verdict, or just after, is chance."""
    early = report("first-error")
    places = {rank: early.ranks[rank] for rank in (0, 1)} | ({2: place} if place else {})
    late = replace(
        early,
        ranks=places,
        findings=(replace(early.findings[0], waiting=RankSet.of([0]), ranks=places),),
    )
    results = freed(0), raised(1, at_ns=1), freed(2)
    told = text(cell_error(*results, report=early))
    assert text(cell_error(*results, report=late)) == told
    elsewhere = text(cell_error(*results[:2], freed(2, 8), report=late))
    assert "rank 2 waited (cell [7], line 8) and was freed" in elsewhere


def test_the_wait_of_an_asynchronous_operation_has_its_own_line():
    """Also on a rank that came to the wait after the verdict."""
    early = report("first-error")
    waits = Predicate(RankVerb.WAITS, " in reduce #1", aside=(" (wait() in line 7)",) * 2)
    places = {0: PerRank(0, "running", waits, site(5), 1.5, site(7))} | {1: early.ranks[1]}
    finding = replace(early.findings[0], waiting=RankSet.of([0]), ranks=places)
    verdict = replace(early, ranks=places, findings=(finding,))
    message = text(cell_error(freed(0, 7), raised(1, at_ns=1), freed(2, 7), report=verdict))
    assert "ranks 0,2 waited in reduce #1 (cell [7], line 5; wait() in line 7) and were" in message


def test_freed_ranks_have_their_line_from_the_traceback_where_there_is_no_report():
    message = text(cell_error(freed(0, 5), raised(1, at_ns=1), freed(2, 8)))
    assert "rank 0 waited (cell [7], line 5) and was freed\n" in message
    assert "rank 2 waited (cell [7], line 8) and was freed\n" in message


def test_an_error_that_a_freed_rank_raised_in_turn_is_told():
    """The rank raised in an ``except`` block of the user."""
    verdict = report("first-error")
    results = freed(0, 8, "NameError"), raised(1, at_ns=1), freed(2, 8, "NameError")
    message = text(cell_error(*results, report=verdict))
    assert (
        "ranks 0,2 waited in all_reduce #17 (cell [7], line 5) and were freed, "
        "and raised NameError: freed (cell [7], line 8) in turn\n"
    ) in message
    assert "in turn" not in text(cell_error(freed(0, 8), results[1], results[1], report=verdict))


def test_freed_ranks_without_a_known_place():
    info = ErrorInfo(ename="E", evalue="", traceback=[])
    result = RankResult(0, "error", error=info, was_freed=True)
    error = cell_error(result, ok(1), interrupted=True)
    assert text(error) == (
        "rank 0 was freed\nrank 1 finished\nCellInterruptedError: cell [7] was interrupted\n"
        "  kept      every variable is kept\n"
        "  next      run the next cell, or this one again"
    )


def test_the_reason_for_freeing_is_told_without_a_report():
    message = text(cell_error(freed(0, ename="CollectiveAbortedError"), is_plain=False))
    assert "CellError: cell [7] was ended by nbddp: " in message


def test_ranks_that_raised_after_the_first_error_belong_to_it():
    """Whether a rank raises just before the others are freed, or just after, is luck."""
    first = report("first-error")
    results = {result.rank: result for result in (freed(0), raised(1), raised(2))}
    ended = with_all_raised(first, RunOutcome("r", results, 1.0))
    [finding] = ended.findings
    assert (finding.culprits, finding.waiting) == (RankSet.of([1, 2]), RankSet.of([0]))
    nobody_waited = {rank: raised(rank) for rank in range(3)}
    assert with_all_raised(first, RunOutcome("r", nobody_waited, 1.0)) == first
    missing = report()
    assert with_all_raised(missing, RunOutcome("r", results, 1.0)) == missing
