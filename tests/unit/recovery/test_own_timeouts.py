"""Operations with a timeout of the user: a short one is left to torch, then explained."""

from dataclasses import replace

import pytest

from nbddp.controller.diagnosis.phrases import Predicate, RankVerb
from nbddp.controller.diagnosis.report import PerRank
from nbddp.controller.state.actions import VerdictReached
from nbddp.settings import Settings
from nbddp.wire.flight_recorder.schema import Site
from nbddp.wire.messages import AbortOperations
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import Pool, finding, kinds, of_type, requests, seen, verdict, world
from tests.support.recovery_scenes import judged, stuck_pool


def test_a_short_timeout_may_end_the_wait_itself():
    pool, _ = stuck_pool()
    pool.report = replace(pool.report, earliest_timeout_ms=5_000, earliest_timeout_left_ms=3_000)
    assert kinds(judged(pool)) == ["NoticeChanged", "VerdictReached only"]
    for _ in range(7):
        pool.report = replace(pool.report, earliest_timeout_left_ms=0)
        assert kinds(judged(pool, after_s=0.5)) == ["NoticeChanged"]
    pool.tick(after_s=0.45)
    looks = pool.tick(after_s=0.05)  # by itself, a second after the timeout
    actions = pool.answer_looks(pool.answer_looks(looks))
    assert kinds(actions) == ["VerdictReached", "AbortOperations arm 0-2"]


def test_each_wait_of_a_retry_loop_may_reach_its_own_timeout():
    pool, _ = stuck_pool()
    for number in range(5):
        pool.looks[0] = seen(0, version=number, groups=(world(3, seq=1),))
        pool.report = replace(pool.report, earliest_timeout_ms=1_000, earliest_timeout_left_ms=900)
        assert "AbortOperations arm 0-2" not in kinds(judged(pool, after_s=1.0))


def test_a_long_timeout_is_not_waited_for():
    pool, _ = stuck_pool()
    pool.report = replace(pool.report, earliest_timeout_ms=60_001, earliest_timeout_left_ms=1_000)
    assert kinds(judged(pool)) == ["VerdictReached", "AbortOperations arm 0-2"]


@pytest.mark.parametrize(("left_ms", "acted"), [(2_000, False), (2_001, True)])
def test_only_a_near_timeout_is_waited_for_after_an_error(left_ms: int, acted: bool):
    pool, _ = stuck_pool()
    pool.report = replace(
        verdict((0, 2), (0, 1, 2), "first-error"),
        earliest_timeout_ms=30_000,
        earliest_timeout_left_ms=left_ms,
    )
    actions = judged(pool)
    assert any(isinstance(each, VerdictReached) and each.acted == acted for each in actions)


def test_the_limit_for_short_timeouts_is_a_setting():
    pool, _ = stuck_pool(settings=Settings(own_timeout_s=0))
    pool.report = replace(pool.report, earliest_timeout_ms=5_000, earliest_timeout_left_ms=5_000)
    assert kinds(judged(pool)) == ["VerdictReached", "AbortOperations arm 0-2"]


@pytest.mark.parametrize(("line", "is_told"), [(5, True), (6, False)])
def test_the_timeout_of_a_stuck_rank_is_no_error_of_its_own(line: int, is_told: bool):
    """The rank raises where it waits, or on another line after it has handled the timeout."""
    pool, run_id = stuck_pool()
    site = Site(line=5, cell=1)
    where = {0: PerRank(0, "running", Predicate(RankVerb.WAITS, " in all_reduce #1"), site)}
    pool.report = first = replace(
        pool.report, ranks=where, earliest_timeout_ms=5_000, earliest_timeout_left_ms=100
    )
    judged(pool)
    pool.finished(0, run_id, "RuntimeError", site=Site(line=line, cell=1))
    error = finding("first-error", culprits=RankSet.of([0]), headline="rank 0 raised RuntimeError")
    pool.report = replace(verdict((2,), (0, 1, 2)), findings=(error,))
    actions = pool.answer_looks(pool.answer_looks(pool.tick(after_s=0.2)))
    [shown] = of_type(actions, VerdictReached)
    [(_, arm)] = requests(actions, AbortOperations)
    assert shown.acted
    assert shown.timed_out == RankSet.of([0] if is_told else [])
    if is_told:
        assert shown.report is first
        assert (arm.reason, arm.text) == ("deadlock", "rank 0 waits for rank 1")
    else:
        assert shown.report is pool.report
        assert (arm.reason, arm.text) == ("error", "rank 0 raised RuntimeError")


def test_the_error_of_a_freed_rank_is_no_cause_for_one_that_comes_later():
    """Rank 2 had not yet reached the operation in which ranks 0 and 1 were stuck."""
    pool = Pool(3)
    run_id = pool.run()
    for rank in range(3):
        pool.looks[rank] = seen(rank, groups=(world(3, seq=1),))
    pool.report = verdict(stuck=(0, 1), involved=(0, 1, 2))
    pool.answer_free(pool.answer_free(judged(pool)))
    for rank in (0, 1):
        pool.finished(rank, run_id, "CollectiveAbortedError", was_freed=True)
    error = finding("first-error", culprits=RankSet.of([0, 1]), headline="rank 0 raised")
    pool.report = replace(verdict((2,), (0, 1, 2)), findings=(error,))
    actions = pool.answer_looks(pool.answer_looks(pool.tick(after_s=1.1)))
    assert kinds(actions) == ["AbortOperations arm 0-2"]
    [(_, arm)] = requests(actions, AbortOperations)
    assert (arm.reason, arm.text) == ("deadlock", "rank 0 waits for rank 1")


def test_the_error_of_another_rank_is_told_while_a_timeout_was_awaited():
    pool, run_id = stuck_pool()
    pool.report = replace(pool.report, earliest_timeout_ms=5_000, earliest_timeout_left_ms=100)
    judged(pool)
    pool.finished(0, run_id, "RuntimeError")
    culprits = RankSet.of([0, 1])
    pool.report = verdict((2,), (0, 1, 2))
    pool.report = replace(pool.report, findings=(finding("first-error", culprits=culprits),))
    [shown] = of_type(pool.answer_looks(pool.answer_looks(pool.tick(after_s=0.2))), VerdictReached)
    assert shown.report is pool.report
