"""Ranks without progress and without proof: when they are looked at, and which notice they give."""

from dataclasses import replace

import pytest

from nbddp.controller.diagnosis.report import Report
from nbddp.controller.state.actions import NoticeChanged
from nbddp.wire.messages import AbortOperations, DumpStack
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import (
    NOTHING,
    Pool,
    agent_requests,
    finding,
    kinds,
    notice,
    outcome_of,
    requests,
    seen,
    verdict,
)
from tests.support.recovery_scenes import judged, stuck_pool

# --- notices -------------------------------------------------------------------------------------


def test_a_notice_interrupts_nothing_and_disappears_when_the_cell_continues():
    pool, run_id = stuck_pool()
    pool.report = notice()
    assert pool.answer_looks(pool.quiet(0, 2)) == [NoticeChanged(run_id, pool.report)]
    assert pool.answer_looks(pool.tick(after_s=0.1)) == [NoticeChanged(run_id, pool.report)]
    assert pool.tick(after_s=0.65) == []
    assert pool.tick(after_s=0.1) == [NoticeChanged(run_id, None)]
    assert pool.tick(after_s=100) == []


def test_an_empty_notice_comes_only_after_another():
    pool, run_id = stuck_pool()
    pool.report = NOTHING
    assert pool.answer_looks(pool.quiet(0, 2)) == []
    pool.report = notice()
    assert pool.answer_looks(pool.quiet(0, 2, after_s=0.5)) == [NoticeChanged(run_id, pool.report)]
    pool.report = NOTHING
    assert pool.answer_looks(pool.quiet(0, 2, after_s=0.5)) == [NoticeChanged(run_id, None)]


def test_silent_ranks_are_peeked_at_for_the_notice():
    pool = Pool(2, nnodes=2)
    pool.run()
    pool.report = notice()
    pool.looks = {0: seen(0)}
    pool.answer_looks(pool.quiet(0))
    peeks = pool.tick(after_s=0.4)
    assert [(node, peek.ranks) for node, peek in agent_requests(peeks, DumpStack)] == [
        (0, (1,)),
        (1, (2, 3)),
    ]
    again = pool.answer_peeks(peeks)
    assert kinds(again) == ["DescribeRank 0"]
    assert kinds(pool.answer_looks(again)) == ["NoticeChanged"]
    assert pool.views[-1][3].stack_text == "stack"
    assert pool.views[-1][3].state == "silent"


def test_an_agent_that_does_not_answer_delays_nothing():
    pool, run_id = _with_silent_rank(NOTHING)
    assert pool.quiet(0, after_s=0.35) == []
    peek = pool.tick(after_s=0.06)
    assert kinds(peek) == ["DumpStack 2"]
    assert pool.quiet(0, after_s=0.35) == []
    again = pool.tick(after_s=0.06)
    assert kinds(again) == ["DescribeRank 0"]
    assert pool.answer_looks(again)[0] == NoticeChanged(run_id, pool.report)


def _with_silent_rank(before: Report) -> tuple[Pool, str]:
    """A cell whose ranks were looked at; rank 2 does not answer the look that has begun now."""
    pool, run_id = stuck_pool()
    pool.report = before
    pool.answer_looks(pool.quiet(0, 2))
    pool.answer_looks(pool.tick(after_s=0.1))
    pool.report = notice()
    del pool.looks[2]
    pool.answer_looks(pool.quiet(0, 2, after_s=0.5))
    return pool, run_id


@pytest.mark.parametrize("had_notice", [False, True])
def test_a_late_look_does_not_tell_of_a_wait_that_is_over(had_notice: bool):
    """Its answers are older than the end of the wait, and no report would take the notice back."""
    pool, run_id = _with_silent_rank(notice() if had_notice else NOTHING)
    assert kinds(pool.tick(after_s=0.4)) == ["DumpStack 2"]
    pool.put_off_answers(0.2)
    nothing = [NoticeChanged(run_id, None)] if had_notice else []
    assert pool.tick(after_s=0.45) == nothing  # the ranks are not quiet any more
    assert pool.tick(after_s=0.2) == []
    assert pool.tick(after_s=100) == []


def test_ranks_that_are_quiet_again_are_looked_at_again_before_a_notice():
    pool, run_id = _with_silent_rank(NOTHING)
    pool.tick(after_s=0.4)
    pool.put_off_answers(0.2)
    pool.tick(after_s=0.45)
    pool.looks[2] = seen(2)
    assert pool.quiet(0, 2, after_s=0.05) == []  # the peek is still open
    looks = pool.tick(after_s=0.15)
    assert kinds(looks) == ["DescribeRank 0-2"]
    assert pool.answer_looks(looks) == [NoticeChanged(run_id, pool.report)]


@pytest.mark.parametrize("had_notice", [False, True])
def test_a_wait_that_ends_while_a_silent_rank_is_asked_gives_no_notice(had_notice: bool):
    pool, run_id = _with_silent_rank(notice() if had_notice else NOTHING)
    again = pool.answer_peeks(pool.tick(after_s=0.4))
    pool.looks[0] = seen(0, version=2)
    assert pool.answer_looks(again) == ([NoticeChanged(run_id, None)] if had_notice else [])
    assert kinds(pool.tick(after_s=0.1)) == ["DescribeRank 0-2"]


def test_a_waiting_rank_that_falls_silent_leaves_the_notice_as_it_was():
    pool, _ = _with_silent_rank(notice())
    again = pool.answer_peeks(pool.tick(after_s=0.4))
    assert kinds(again) == ["DescribeRank 0"]
    pool.quiet(0, after_s=0.3)
    assert pool.tick(after_s=0.11) == []
    assert kinds(pool.tick(after_s=0.1)) == ["DescribeRank 0-2"]


def test_a_notice_without_quiet_ranks_is_looked_at_again():
    """A rank has raised: the others are looked at before their wait is long enough to be quiet."""
    pool = Pool(2)
    run_id = pool.run()
    pool.looks[0] = seen(0)
    pool.report = notice()
    pool.finished(1, run_id, "ValueError")
    assert kinds(pool.answer_looks(pool.tick(after_s=0.02))) == ["NoticeChanged"]
    assert kinds(pool.answer_looks(pool.tick(after_s=0.08))) == ["NoticeChanged"]
    pool.report = NOTHING
    assert pool.answer_looks(pool.tick(after_s=0.5)) == [NoticeChanged(run_id, None)]
    assert pool.tick(after_s=100) == []


def test_looks_come_at_most_twice_a_second_while_nothing_changes():
    pool, _ = stuck_pool()
    pool.report = notice()
    pool.answer_looks(pool.quiet(0, 2))
    pool.answer_looks(pool.tick(after_s=0.1))
    assert pool.quiet(0, 2, after_s=0.3) == []
    assert pool.machine.next_deadline() == pytest.approx(pool.now + 0.2)
    assert kinds(pool.tick(after_s=0.2)) == ["DescribeRank 0-2"]


def test_ranks_that_have_changed_are_looked_at_twice():
    """Two looks show whether a thread sleeps in C++: the second one proves the deadlock."""
    pool, _ = stuck_pool()
    proven, pool.report = pool.report, NOTHING
    assert pool.answer_looks(pool.quiet(0, 2)) == []
    assert pool.machine.next_deadline() == pytest.approx(pool.now + 0.08)
    pool.report = proven
    again = pool.answer_looks(pool.tick(after_s=0.08))
    assert kinds(pool.answer_looks(again)) == ["VerdictReached", "AbortOperations arm 0-2"]


def test_more_quiet_ranks_are_looked_at_soon():
    pool, _ = stuck_pool()
    pool.report = notice()
    pool.answer_looks(pool.quiet(0))
    assert pool.quiet(0, 2, after_s=0.05) == []
    assert kinds(pool.tick(after_s=0.05)) == ["DescribeRank 0-2"]


def test_quiet_while_ranks_are_looked_at_adds_no_look():
    pool, _ = stuck_pool()
    pool.report = notice()
    looks = pool.quiet(0)
    assert pool.quiet(0, 2) == []
    assert kinds(pool.answer_looks(looks)) == ["NoticeChanged"]
    assert kinds(pool.tick(after_s=0.1)) == ["DescribeRank 0-2"]


def test_quiet_of_no_cell_or_of_plain_groups_is_ignored():
    assert Pool(2).quiet(0) == []
    plain = Pool(2, plain=True)
    plain.run()
    assert plain.quiet(0) == []


def test_the_end_of_a_rank_leads_to_a_look_while_others_make_no_progress():
    pool = Pool(3)
    run_id = pool.run()
    pool.looks[0] = seen(0)
    pool.report = notice()
    pool.answer_looks(pool.quiet(0))
    assert pool.finished(1, run_id) == []
    assert kinds(pool.tick(after_s=0.02)) == ["DescribeRank 0-2"]


def test_an_error_leads_to_a_look_without_waiting_for_the_agents():
    pool = Pool(2)
    run_id = pool.run()
    assert pool.finished(1, run_id, "ValueError") == []
    pool.looks[0] = seen(0)
    pool.report = verdict(kind="first-error")
    again = pool.answer_looks(pool.tick(after_s=0.02))
    actions = pool.answer_looks(again)
    assert kinds(actions) == ["VerdictReached", "AbortOperations arm 0-1"]
    assert requests(actions, AbortOperations)[0][1].reason == "error"


# --- verdicts that are only shown ----------------------------------------------------------------


def test_a_verdict_is_only_shown_with_on_deadlock_report():
    pool, run_id = stuck_pool()
    pool.configure(on_deadlock="report")
    first = judged(pool)
    assert kinds(first) == ["NoticeChanged", "VerdictReached only"]
    assert first[0] == NoticeChanged(run_id, pool.report)
    assert judged(pool, after_s=0.5) == [NoticeChanged(run_id, pool.report)]
    pool.report = replace(pool.report, findings=(finding(culprits=RankSet.of([2])),))
    assert kinds(judged(pool, after_s=0.5)) == ["NoticeChanged", "VerdictReached only"]
    pool.configure(on_deadlock="abort")
    assert kinds(judged(pool, after_s=0.5)) == ["VerdictReached", "AbortOperations arm 0-2"]


def test_a_verdict_that_was_shown_is_in_the_outcome_too():
    pool, run_id = stuck_pool()
    pool.configure(on_deadlock="report")
    judged(pool)
    pool.finished(0, run_id)
    outcome = outcome_of(pool.finished(2, run_id))
    assert outcome.report == pool.report
