"""From ranks that make no progress to a verdict, and from there to a pool that is whole."""

from dataclasses import replace

import pytest

from nbddp.controller.diagnosis.phrases import Predicate, RankVerb
from nbddp.controller.diagnosis.report import Kind, PerRank
from nbddp.controller.state.actions import Action, Diagnosed, NoticeChanged, VerdictReached
from nbddp.controller.state.stimuli import AbandonRequested, DiagnoseRequested
from nbddp.settings import Settings
from nbddp.wire.flight_recorder.schema import (
    ExceptionLine,
    GroupMark,
    Mismatch,
    Operation,
    RankLook,
    Signature,
    Site,
)
from nbddp.wire.messages import (
    AbortOperations,
    DescribeRank,
    DumpStack,
    FreeReason,
    RankDescribed,
    RebuildGroups,
)
from nbddp.wire.rank_set import RankSet
from tests.support.examples import plain_example
from tests.support.recovering import (
    NOTHING,
    WORLD,
    Pool,
    agent_requests,
    finding,
    kinds,
    notice,
    of_type,
    outcome_of,
    requests,
    seen,
    statuses,
    verdict,
    world,
)

BROKEN = GroupMark(pg_id=WORLD, collective_seq_id=1, digest=1, is_broken=True)


def stuck_pool(**more: object) -> tuple[Pool, str]:
    """Rank 1 has finished the cell, ranks 0 and 2 wait for it."""
    pool = Pool(3, **more)  # type: ignore[arg-type]  # passed on
    run_id = pool.run()
    pool.finished(1, run_id)
    for rank in (0, 2):
        pool.looks[rank] = seen(rank, groups=(world(3, seq=1),))
    pool.report = verdict(stuck=(0, 2), involved=(0, 1, 2))
    return pool, run_id


def judged(pool: Pool, after_s: float = 0.0) -> list[Action]:
    """What follows from two rounds of looks that agree."""
    return pool.answer_looks(pool.answer_looks(pool.quiet(0, 2, after_s=after_s)))


# --- the ordinary ways ---------------------------------------------------------------------------


def test_the_whole_way_of_a_deadlock():
    pool, run_id = stuck_pool()
    looks = pool.quiet(0, 2)
    assert kinds(looks) == ["DescribeRank 0-2"]
    again = pool.answer_looks(looks)
    assert kinds(again) == ["DescribeRank 0-2"]
    found = pool.answer_looks(again)
    assert kinds(found) == ["VerdictReached", "AbortOperations arm 0-2"]
    [(_, arm)] = requests(found, AbortOperations)
    assert (arm.reason, arm.pg_ids, arm.text) == ("deadlock", (WORLD,), "rank 0 waits for rank 1")
    fire = pool.answer_free(found)
    assert kinds(fire) == ["AbortOperations fire 0-2"]
    assert requests(fire, AbortOperations)[0][1].number == arm.number
    assert pool.answer_free(fire) == []

    ends = [pool.finished(rank, run_id, "E", was_freed=True, marks=(BROKEN,)) for rank in (0, 2)]
    assert [kinds(end) for end in ends] == [[], ["DescribeRank 0-2"]]
    assert pool.active() == run_id
    pool.looks = {rank: pool.idle(rank) for rank in range(3)}
    pool.looks[2] = seen(2, is_running=False, groups=(world(3, seq=7),), group_count=4)
    reform = pool.answer_looks(ends[1])
    assert kinds(reform) == ["RebuildGroups 0-2"]
    [(_, request)] = requests(reform, RebuildGroups)
    assert request.groups == (world(3, seq=7),)
    assert (request.group_count, request.fresh) == (4, ())
    outcome = outcome_of(pool.answer_reform(reform))
    assert statuses(outcome) == {0: "error", 1: "ok", 2: "error"}
    assert outcome.report == pool.report
    assert outcome.results[0].was_freed
    assert outcome.rebuild_failure == ""
    assert pool.active() is None
    assert pool.machine.refusal(RankSet.all(3)) is None
    assert pool.machine.next_deadline() is None


def test_a_cell_that_goes_on_costs_nothing():
    pool = Pool(3)
    run_id = pool.run()
    assert pool.machine.next_deadline() is None
    assert pool.tick(after_s=1e6) == []
    good = GroupMark(pg_id=WORLD, collective_seq_id=9, digest=4)
    for rank in (0, 1):
        assert pool.finished(rank, run_id, marks=(good,)) == []
    assert kinds(pool.finished(2, run_id, marks=(good,))) == ["EndRun"]


def test_an_error_on_all_ranks_at_the_same_place_costs_nothing():
    pool = Pool(2)
    run_id = pool.run()
    good = GroupMark(pg_id=WORLD, collective_seq_id=9, digest=4)
    pool.finished(0, run_id, "ValueError", marks=(good,))
    assert kinds(pool.finished(1, run_id, "ValueError", marks=(good,))) == ["EndRun"]


def test_views_say_how_the_cell_has_ended_so_far():
    pool = Pool(4)
    run_id = pool.run("0-2")
    pool.finished(1, run_id)
    pool.finished(2, run_id, "ValueError")
    pool.looks[0] = seen(0)
    del pool.looks[3]
    pool.tick(after_s=0.01)
    pool.answer_looks(pool.quiet(0, after_s=0.02))
    pool.tick(after_s=0.4)
    [views] = pool.views
    states = {rank: view.state for rank, view in views.items()}
    assert states == {0: "running", 1: "finished", 2: "raised", 3: "silent"}
    assert views[2].error == ExceptionLine(name="ValueError")
    assert views[0].look == pool.looks[0]


# --- what is no proof ----------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_has_moved_between_the_looks_disproves_it(rank: int):
    pool, _ = stuck_pool()
    again = pool.answer_looks(pool.quiet(0, 2))
    pool.looks[rank] = replace_version(pool, rank, 2)
    first_again = pool.answer_looks(again)
    assert kinds(first_again) == ["DescribeRank 0-2"]  # from the beginning
    pool.report = notice()
    assert kinds(pool.answer_looks(first_again)) == ["NoticeChanged"]


def replace_version(pool: Pool, rank: int, version: int) -> RankLook:
    look = pool.looks[rank]
    return seen(
        rank,
        version,
        is_running=look.activity == "running",
        waits=rank != 1,
        groups=look.groups,
    )


def test_ranks_that_move_all_the_time_are_left_to_the_next_quiet():
    pool, _ = stuck_pool()
    looks = pool.quiet(0, 2)
    rounds = 0
    while requests(looks, DescribeRank):
        rounds += 1
        pool.looks[0] = replace_version(pool, 0, rounds)
        looks = pool.answer_looks(looks)
    assert rounds == 7  # four times a first look, three times a second one
    assert kinds(looks) == []
    assert kinds(pool.quiet(0, 2, after_s=0.5)) == ["DescribeRank 0-2"]


def test_a_rank_that_does_not_answer_again_disproves_it():
    pool, _ = stuck_pool()
    again = pool.answer_looks(pool.quiet(0, 2))
    pool.answer_looks(again, ranks=(0, 2))
    assert of_type(pool.done, VerdictReached) == []
    assert kinds(pool.tick(after_s=0.4)) == ["DescribeRank 0-2"]


def test_another_process_with_the_same_version_disproves_it():
    pool, _ = stuck_pool()
    again = pool.answer_looks(pool.quiet(0, 2))
    look = pool.looks[1]
    pool.looks[1] = look.__class__(
        rank=1, pid=look.pid + 1, activity=look.activity, version=look.version, time_ns=0
    )
    assert kinds(pool.answer_looks(again)) == ["DescribeRank 0-2"]


def test_only_those_involved_are_asked_again_and_the_others_may_be_silent():
    pool = Pool(4)
    run_id = pool.run()
    pool.finished(1, run_id)
    for rank in (0, 2):
        pool.looks[rank] = seen(rank)
    del pool.looks[3]
    pool.report = verdict(stuck=(0, 2), involved=(0, 1, 2))
    assert kinds(pool.answer_looks(pool.quiet(0, 2))) == []
    again = pool.tick(after_s=0.4)
    assert kinds(again) == ["DescribeRank 0-2"]
    assert kinds(pool.answer_looks(again)) == ["VerdictReached", "AbortOperations arm 0-3"]


def test_late_answers_are_ignored():
    pool, _ = stuck_pool()
    pool.report = notice()
    first = pool.quiet(0, 2)
    pool.answer_looks(first, ranks=(0, 1))
    peek = pool.tick(after_s=0.4)
    assert kinds(peek) == ["DumpStack 2"]
    [(_, look)] = requests(first, DescribeRank)
    assert pool.feed(RankDescribed(number=look.number, rank=2, look=pool.looks[2])) == []
    assert pool.feed(RankDescribed(number=999, rank=2, look=pool.looks[2])) == []
    assert kinds(pool.answer_peeks(peek)) == ["NoticeChanged"]
    assert pool.answer_peeks(peek) == []  # twice
    assert len(pool.views) == 2
    assert pool.views[1][2].look is None


def test_looks_of_a_cell_that_has_ended_are_ignored():
    pool, run_id = stuck_pool()
    looks = pool.quiet(0, 2)
    pool.finished(0, run_id)
    pool.finished(2, run_id)
    assert pool.active() is None
    assert pool.answer_looks(looks) == []
    assert pool.machine.next_deadline() is None


def test_a_rank_that_exits_while_it_is_looked_at_is_not_waited_for():
    pool, _ = stuck_pool()
    pool.report = notice()
    looks = pool.quiet(0, 2)
    pool.answer_looks(looks, ranks=(0, 2))
    pool.exited(1)
    assert [views[1].state for views in pool.views] == ["dead"]


# --- notices -------------------------------------------------------------------------------------


def test_a_notice_interrupts_nothing_and_goes_when_the_cell_goes_on():
    pool, run_id = stuck_pool()
    pool.report = notice()
    assert pool.answer_looks(pool.quiet(0, 2)) == [NoticeChanged(run_id, pool.report)]
    assert pool.answer_looks(pool.tick(after_s=0.1)) == [NoticeChanged(run_id, pool.report)]
    assert pool.tick(after_s=0.65) == []
    assert pool.tick(after_s=0.1) == [NoticeChanged(run_id, None)]
    assert pool.tick(after_s=100) == []


def test_nothing_to_tell_is_told_only_after_something_was():
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
    assert kinds(pool.answer_peeks(peeks)) == ["NoticeChanged"]
    assert pool.views[-1][3].stack_text == "stack"
    assert pool.views[-1][3].state == "silent"


def test_an_agent_that_does_not_answer_either_holds_up_nothing():
    pool, _ = stuck_pool()
    pool.report = notice()
    del pool.looks[2]
    pool.answer_looks(pool.quiet(0, 2))
    pool.tick(after_s=0.4)
    assert kinds(pool.tick(after_s=0.35)) == []
    assert "NoticeChanged" in kinds(pool.tick(after_s=0.06))


def test_looks_come_at_most_twice_a_second_while_nothing_changes():
    pool, _ = stuck_pool()
    pool.report = notice()
    pool.answer_looks(pool.quiet(0, 2))
    pool.answer_looks(pool.tick(after_s=0.1))
    assert pool.quiet(0, 2, after_s=0.3) == []
    assert pool.machine.next_deadline() == pytest.approx(pool.now + 0.2)
    assert kinds(pool.tick(after_s=0.2)) == ["DescribeRank 0-2"]


def test_what_has_changed_is_looked_at_twice():
    """Two looks see whether a thread sleeps in C++: a deadlock there is told by the second."""
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
    found = pool.answer_looks(again)
    assert kinds(found) == ["VerdictReached", "AbortOperations arm 0-1"]
    assert requests(found, AbortOperations)[0][1].reason == "error"


# --- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing-rank", "deadlock"),
        ("p2p-cycle", "deadlock"),
        ("store-wait", "deadlock"),
        ("mismatched-collective", "mismatch"),
        ("first-error", "error"),
        ("left-debugger", "error"),
        ("dead-rank", "death"),
    ],
)
def test_the_reason_that_ranks_are_told(kind: Kind, reason: FreeReason):
    pool, _ = stuck_pool()
    pool.report = verdict(stuck=(0, 2), involved=(0, 1, 2), kind=kind)
    [(_, free)] = requests(judged(pool), AbortOperations)
    assert free.reason == reason


def test_waits_for_the_store_are_named_by_the_empty_group():
    pool, _ = stuck_pool()
    pool.report = verdict((0, 2), (0, 2), "store-wait", (), waits_for_store=RankSet.of([0, 2]))
    assert pool.answer_looks(pool.quiet(0, 2)) == []
    told = _told_of_checks(pool, {0: 10, 2: 60})
    assert kinds(told) == ["VerdictReached", "AbortOperations arm 0,2"]
    [(ranks, free)] = requests(told, AbortOperations)
    assert ranks == (0, 2)
    assert free.pg_ids == ("",)


def _told_of_checks(pool: Pool, ages_ms: dict[int, int | None]) -> list[Action]:
    """What follows from the next second round, in which ranks tell when they saw no key."""
    deadline = pool.machine.next_deadline()
    assert deadline is not None
    second = pool.tick(after_s=deadline - pool.now)
    assert kinds(second) == ["DescribeRank 0,2"]
    for rank, age_ms in ages_ms.items():
        age_ns = None if age_ms is None else age_ms * 1_000_000
        pool.looks[rank] = seen(rank, groups=(world(3, seq=1),), key_check_age_ns=age_ns)
    return pool.answer_looks(second)


def _pool_that_waits_for_keys() -> Pool:
    pool, _ = stuck_pool()
    pool.report = verdict((0, 2), (0, 2), "store-wait", (), waits_for_store=RankSet.of([0, 2]))
    assert pool.answer_looks(pool.quiet(0, 2)) == []
    return pool


def test_a_look_into_the_store_before_the_first_round_proves_nothing():
    """Setting a key leaves no record: it may have been set since."""
    pool = _pool_that_waits_for_keys()
    assert _told_of_checks(pool, {0: 10, 2: 61}) == []
    assert _told_of_checks(pool, {0: 10, 2: 111}) == []
    assert kinds(_told_of_checks(pool, {0: 10, 2: 20})) == [
        "VerdictReached",
        "AbortOperations arm 0,2",
    ]


def test_ranks_that_do_not_tell_when_they_looked_into_the_store_are_given_time():
    pool = _pool_that_waits_for_keys()
    began = pool.now
    while not (told := _told_of_checks(pool, {0: 10, 2: None})):
        assert pool.now - began < 1
    assert kinds(told) == ["VerdictReached", "AbortOperations arm 0,2"]
    assert pool.now - began >= 0.4


def test_a_store_that_does_not_answer_proves_nothing():
    pool = _pool_that_waits_for_keys()
    began = pool.now
    told: list[Action] = []
    while not told:
        assert pool.now - began < 2
        assert pool.quiet(0, 2) == []
        age_ms = int((pool.now - began) * 1000) + 200
        told = _told_of_checks(pool, {0: 10, 2: age_ms})
    assert kinds(told) == ["DescribeRank 0-2"]  # from the beginning


def test_all_members_of_the_groups_are_armed_and_nobody_else():
    pool = Pool(5)
    pool.run("0,1,2")
    pair = world(5).__class__(pg_id="1@pair", name="1", ranks=(0, 3))
    for rank in (0, 3):
        pool.looks[rank] = seen(rank, is_running=rank == 0, groups=(world(5), pair))
    pool.report = verdict(stuck=(0,), involved=(0, 3), pg_ids=("1@pair",))
    found = pool.answer_looks(pool.answer_looks(pool.quiet(0)))
    assert kinds(found) == ["VerdictReached", "AbortOperations arm 0,3"]


def test_ranks_are_fired_at_only_when_all_are_armed():
    pool, _ = stuck_pool()
    found = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    assert pool.answer_free(found, ranks=(0, 1)) == []
    assert pool.tick(after_s=0.7) == []
    assert kinds(pool.answer_free(found, ranks=(2,))) == ["AbortOperations fire 0-2"]


def test_a_rank_that_cannot_be_armed_is_not_waited_for_for_ever():
    pool, _ = stuck_pool()
    found = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    pool.answer_free(found, ranks=(0, 1))
    assert kinds(pool.tick(after_s=1.0))[0] == "AbortOperations fire 0-2"


def test_a_rank_that_was_silent_before_is_armed_and_not_waited_for():
    pool = Pool(3)
    run_id = pool.run()
    pool.finished(1, run_id)
    pool.looks[0] = seen(0, groups=(world(3),))
    del pool.looks[2]
    pool.report = verdict(stuck=(0,), involved=(0, 1))
    pool.answer_looks(pool.quiet(0))
    found = pool.answer_looks(pool.tick(after_s=0.4))
    assert kinds(found) == ["VerdictReached", "AbortOperations arm 0-2"]
    assert kinds(pool.answer_free(found, ranks=(0, 1))) == ["AbortOperations fire 0-2"]


def test_a_rank_that_exits_while_it_is_armed_is_not_fired_at():
    pool, _ = stuck_pool()
    found = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    pool.answer_free(found, ranks=(0, 2))
    assert "AbortOperations fire 0,2" in kinds(pool.exited(1))


def test_the_end_of_the_cell_makes_the_second_phase_needless():
    pool, run_id = stuck_pool()
    found = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    pool.answer_free(found, ranks=(0, 1))
    pool.finished(0, run_id)
    look = pool.finished(2, run_id)
    assert kinds(look) == ["DescribeRank 0-2"]  # what is armed must be formed again
    reform = pool.answer_looks(look)
    assert requests(reform, RebuildGroups)[0][1].groups == (world(3, seq=1),)
    pool.tick(after_s=2.0)
    assert "AbortOperations fire 0-2" not in kinds(pool.done)


def test_on_request_a_verdict_is_only_shown_once_each():
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


def test_what_was_shown_is_in_the_outcome_too():
    pool, run_id = stuck_pool()
    pool.configure(on_deadlock="report")
    judged(pool)
    pool.finished(0, run_id)
    outcome = outcome_of(pool.finished(2, run_id))
    assert outcome.report == pool.report


# --- time-outs of the user's own -----------------------------------------------------------------


def test_a_short_time_out_is_left_to_show_itself():
    pool, _ = stuck_pool()
    pool.report = replace(pool.report, earliest_timeout_ms=5_000, earliest_timeout_left_ms=3_000)
    assert kinds(judged(pool)) == ["NoticeChanged", "VerdictReached only"]
    for _ in range(7):
        pool.report = replace(pool.report, earliest_timeout_left_ms=0)
        assert kinds(judged(pool, after_s=0.5)) == ["NoticeChanged"]
    pool.tick(after_s=0.45)
    looks = pool.tick(after_s=0.05)  # by itself, a second after the time-out
    found = pool.answer_looks(pool.answer_looks(looks))
    assert kinds(found) == ["VerdictReached", "AbortOperations arm 0-2"]


def test_each_wait_of_a_loop_that_tries_again_is_left_to_its_own_time_out():
    pool, _ = stuck_pool()
    for number in range(5):
        pool.looks[0] = seen(0, version=number, groups=(world(3, seq=1),))
        pool.report = replace(pool.report, earliest_timeout_ms=1_000, earliest_timeout_left_ms=900)
        assert "AbortOperations arm 0-2" not in kinds(judged(pool, after_s=1.0))


def test_a_long_time_out_is_not_waited_for():
    pool, _ = stuck_pool()
    pool.report = replace(pool.report, earliest_timeout_ms=60_001, earliest_timeout_left_ms=1_000)
    assert kinds(judged(pool)) == ["VerdictReached", "AbortOperations arm 0-2"]


@pytest.mark.parametrize(("left_ms", "acted"), [(2_000, False), (2_001, True)])
def test_after_an_error_only_a_time_out_that_is_near_is_waited_for(left_ms: int, acted: bool):
    pool, _ = stuck_pool()
    pool.report = replace(
        verdict((0, 2), (0, 1, 2), "first-error"),
        earliest_timeout_ms=30_000,
        earliest_timeout_left_ms=left_ms,
    )
    found = judged(pool)
    assert any(isinstance(each, VerdictReached) and each.acted == acted for each in found)


def test_the_limit_for_short_time_outs_is_a_setting():
    pool, _ = stuck_pool(settings=Settings(own_timeout_s=0))
    pool.report = replace(pool.report, earliest_timeout_ms=5_000, earliest_timeout_left_ms=5_000)
    assert kinds(judged(pool)) == ["VerdictReached", "AbortOperations arm 0-2"]


@pytest.mark.parametrize(("line", "is_told"), [(5, True), (6, False)])
def test_the_time_out_of_a_stuck_rank_is_no_error_of_its_own(line: int, is_told: bool):
    """It raises where it waits, or after it has dealt with the time-out, on another line."""
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
    found = pool.answer_looks(pool.answer_looks(pool.tick(after_s=0.2)))
    [shown] = of_type(found, VerdictReached)
    [(_, arm)] = requests(found, AbortOperations)
    assert shown.acted
    if is_told:
        assert shown.report is first
        assert (arm.reason, arm.text) == ("deadlock", "rank 0 waits for rank 1")
    else:
        assert shown.report is pool.report
        assert (arm.reason, arm.text) == ("error", "rank 0 raised RuntimeError")


def test_the_error_of_a_freed_rank_is_no_cause_for_one_that_comes_later():
    """Rank 2 was on its way to where ranks 0 and 1 were stuck."""
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
    found = pool.answer_looks(pool.answer_looks(pool.tick(after_s=1.1)))
    assert kinds(found) == ["AbortOperations arm 0-2"]
    [(_, arm)] = requests(found, AbortOperations)
    assert (arm.reason, arm.text) == ("deadlock", "rank 0 waits for rank 1")


def test_the_error_of_another_rank_is_told_though_a_time_out_was_awaited():
    pool, run_id = stuck_pool()
    pool.report = replace(pool.report, earliest_timeout_ms=5_000, earliest_timeout_left_ms=100)
    judged(pool)
    pool.finished(0, run_id, "RuntimeError")
    culprits = RankSet.of([0, 1])
    pool.report = verdict((2,), (0, 1, 2))
    pool.report = replace(pool.report, findings=(finding("first-error", culprits=culprits),))
    [shown] = of_type(pool.answer_looks(pool.answer_looks(pool.tick(after_s=0.2))), VerdictReached)
    assert shown.report is pool.report


# --- after a verdict -----------------------------------------------------------------------------


def freed_pool() -> tuple[Pool, str]:
    """Ranks 0 and 2 were freed just now."""
    pool, run_id = stuck_pool()
    found = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    pool.answer_free(pool.answer_free(found))
    return pool, run_id


def test_ranks_that_are_on_their_way_out_are_not_judged_again():
    pool, _ = freed_pool()
    assert judged(pool, after_s=0.5) == []


def test_ranks_that_are_stuck_again_are_freed_again():
    pool, run_id = freed_pool()
    looks = pool.tick(after_s=1.0)
    assert "DescribeRank 0-2" in kinds(looks)
    found = pool.answer_looks(pool.answer_looks(looks))
    assert kinds(found) == ["AbortOperations arm 0-2"]  # the card is there already
    pool.answer_free(pool.answer_free(found))
    pool.finished(0, run_id)
    assert pool.active() == run_id


def test_ranks_that_stay_blocked_are_given_up():
    pool, run_id = freed_pool()
    pool.report = notice()
    pool.answer_looks(pool.tick(after_s=1.0))
    pool.tick(after_s=1.9)
    assert pool.active() == run_id
    look = pool.tick(after_s=0.1)
    assert kinds(look) == ["DescribeRank 0-2"]  # which groups can be formed without them?
    outcome = outcome_of(pool.answer_looks(look))
    assert statuses(outcome) == {0: "unfinished", 1: "ok", 2: "unfinished"}
    assert outcome.report is not None
    assert pool.machine.refusal(RankSet.all(3)) == "ranks 0,2 are still in an old cell"
    assert pool.machine.refusal(RankSet.of([1])) is None


def test_why_a_rank_cannot_be_freed_is_kept():
    pool, run_id = stuck_pool()
    found = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    pool.answer_free(pool.answer_free(found), stuck={2: "a lock of libfoo"})
    pool.finished(0, run_id, "E", was_freed=True)
    pool.tick(after_s=1.0)
    look = pool.tick(after_s=2.0)
    outcome = outcome_of(pool.answer_looks(look))
    assert statuses(outcome) == {0: "error", 1: "ok", 2: "unfinished"}
    assert [outcome.results[rank].stuck for rank in range(3)] == ["", "", "a lock of libfoo"]


def test_a_rank_that_still_runs_code_of_the_user_gets_time_and_then_an_interrupt():
    pool, run_id = freed_pool()
    pool.finished(0, run_id, "E", was_freed=True, marks=(BROKEN,))
    pool.looks[2] = seen(2, version=5, waits=False)
    pool.report = notice()
    pool.answer_looks(pool.tick(after_s=1.0))
    for _ in range(9):
        pool.answer_looks(pool.tick(after_s=1.0))
    assert "Interrupt 2" not in kinds(pool.done)
    assert "Interrupt 2" in kinds(pool.tick(after_s=1.0))
    pool.tick(after_s=1.9)
    assert pool.active() == run_id
    assert pool.machine.pool.run is not None
    pool.tick(after_s=0.1)
    assert pool.machine.pool.run is None


def test_a_rank_that_comes_out_late_ends_the_cell_as_usual():
    pool, run_id = freed_pool()
    pool.finished(0, run_id, "E", was_freed=True, marks=(BROKEN,))
    pool.tick(after_s=2.5)
    look = pool.finished(2, run_id, "E", was_freed=True, marks=(BROKEN,))
    assert kinds(look) == ["DescribeRank 0-2"]
    pool.looks = {rank: pool.idle(rank) for rank in range(3)}
    outcome = outcome_of(pool.answer_reform(pool.answer_looks(look)))
    assert statuses(outcome) == {0: "error", 1: "ok", 2: "error"}


def test_the_second_interrupt_gives_the_prompt_back_before_the_pool_is_whole():
    pool, run_id = freed_pool()
    actions = pool.feed(AbandonRequested(run_id))
    assert statuses(outcome_of(actions)) == {0: "unfinished", 1: "ok", 2: "unfinished"}
    assert pool.is_rebuilding()
    assert pool.answer_looks(pool.tick(after_s=0.05)) == []
    assert not pool.is_rebuilding()


# --- on request ----------------------------------------------------------------------------------


def test_a_diagnosis_on_request_while_no_cell_runs():
    pool = Pool(2)
    pool.report = notice()
    looks = pool.feed(DiagnoseRequested(7))
    [answer] = of_type(pool.answer_looks(looks), Diagnosed)
    assert (answer.number, answer.report) == (7, pool.report)
    assert answer.looks == pool.looks
    assert (answer.peeks, answer.silent) == ({}, RankSet())


def test_a_diagnosis_on_request_changes_nothing():
    pool, _ = stuck_pool()
    answer = pool.answer_looks(pool.feed(DiagnoseRequested(1)))
    assert kinds(answer) == ["Diagnosed"]


def test_ranks_are_peeked_at_on_request_and_when_they_are_silent():
    pool = Pool(3)
    del pool.looks[2]
    looks = pool.feed(DiagnoseRequested(1, peek=RankSet.of([0])))
    pool.answer_looks(looks)
    peeks = pool.tick(after_s=0.4)
    assert kinds(peeks) == ["DumpStack 0,2"]
    [answer] = of_type(pool.answer_peeks(peeks), Diagnosed)
    assert sorted(answer.peeks) == [0, 2]
    assert sorted(answer.looks) == [0, 1]
    assert answer.silent == RankSet()
    assert sorted(answer.only(RankSet.of([0])).peeks) == [0]
    assert answer.only(RankSet.of([2])).looks == {}


def test_nobody_answers():
    pool = Pool(2)
    pool.looks = {}
    pool.feed(DiagnoseRequested(1))
    pool.tick(after_s=0.4)
    [answer] = of_type(pool.tick(after_s=10.0), Diagnosed)
    assert answer.silent == RankSet.all(2)


def test_plain_ranks_are_only_peeked_at():
    pool = Pool(2, plain=True)
    peeks = pool.feed(DiagnoseRequested(1, peek=RankSet.of([1])))
    assert kinds(peeks) == ["DumpStack 0-1"]
    assert kinds(pool.answer_peeks(peeks)) == ["Diagnosed"]


def test_a_survey_disturbs_only_ranks_that_do_not_tell():
    pool = Pool(3)
    del pool.looks[2]
    pool.report = notice()
    looks = pool.feed(DiagnoseRequested(1, last=1, survey=True))
    assert [look.memory for _, look in requests(looks, DescribeRank)] == [True]
    pool.answer_looks(looks)
    peeks = pool.tick(after_s=0.4)
    asked = [(peek.ranks, peek.stack) for _, peek in agent_requests(peeks, DumpStack)]
    assert asked == [((2,), True), ((0, 1), False)]
    [answer] = of_type(pool.answer_peeks(peeks), Diagnosed)
    assert sorted(answer.peeks) == [0, 1, 2]
    assert answer.report.findings == ()  # nobody has judged


def test_two_requests_at_once():
    pool = Pool(2)
    first = pool.feed(DiagnoseRequested(1))
    second = pool.feed(DiagnoseRequested(2))
    assert of_type(pool.answer_looks(second), Diagnosed)[0].number == 2
    assert of_type(pool.answer_looks(first), Diagnosed)[0].number == 1


# --- after a cell that ended well ----------------------------------------------------------------


def test_operations_that_differed_are_told_after_the_cell():
    pool = Pool(2)
    run_id = pool.run()
    one = GroupMark(pg_id=WORLD, collective_seq_id=3, digest=1)
    pool.finished(0, run_id, marks=(one,))
    look = pool.finished(1, run_id, marks=(GroupMark(pg_id=WORLD, collective_seq_id=3, digest=2),))
    assert kinds(look) == ["DescribeRank 0-1"]
    assert pool.active() == run_id
    assert kinds(pool.answer_looks(look)) == ["EndRun"]  # these looks show no difference
    assert pool.active() is None


def test_ranks_at_different_places_after_a_good_cell_are_no_fault():
    """Operations were issued and not waited for."""
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(GroupMark(pg_id=WORLD, collective_seq_id=3, digest=1, open=1),))
    last = pool.finished(1, run_id, marks=(GroupMark(pg_id=WORLD, collective_seq_id=2, digest=7),))
    assert kinds(last) == ["EndRun"]


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_mismatch_that_all_see_at_once_has_a_report_too(is_broken: bool):
    """They leave the cell before anybody can look at them."""
    pool = Pool(2)
    run_id = pool.run()
    pool.report = verdict((), (0, 1), "mismatched-collective")
    mark = GroupMark(pg_id=WORLD, collective_seq_id=1, digest=1, is_broken=is_broken)
    last: list[Action] = []
    for rank in (0, 1):
        last = pool.finished(
            rank,
            run_id,
            "CollectiveMismatchError",
            mismatches=(plain_example(Mismatch),),
            marks=(mark,),
        )
    assert "EndRun" not in kinds(last)
    if not is_broken:
        ended = pool.answer_looks(last)
        assert kinds(ended) == ["VerdictReached only", "EndRun"]
    else:
        first, second = requests(last, DescribeRank)
        told = [
            action
            for asked, look in (first, second)
            for rank in asked
            for action in pool.feed(
                RankDescribed(number=look.number, rank=rank, look=pool.looks[rank])
            )
        ]
        assert kinds(told)[0] == "VerdictReached only"
        ended = pool.answer_reform(told)
    assert outcome_of(ended).report is pool.report


# --- cells that ended well, and wrong ------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_mismatch", "reduce_op", "is_wrong"),
    [("raise", "MAX", True), ("warn", "MAX", False), ("off", "MAX", False), ("raise", "SUM", None)],
)
def test_an_error_that_came_to_an_end_is_told_when_the_cell_has_ended(
    on_mismatch: str, reduce_op: str, is_wrong: bool | None
):
    """Between machines, where nobody has compared the operations before."""
    pool = Pool(1, nnodes=2)
    pool.configure(on_mismatch=on_mismatch)
    run_id = pool.run()
    for rank, (op, shape) in enumerate((("SUM", (2, 3)), (reduce_op, (3, 2)))):
        signature = Signature(
            kind="collective", op="all_reduce", input_sizes=(shape,), tensors=1, reduce_op=op
        )
        done = Operation(
            record_id=1, pg_id=WORLD, signature=signature, state="completed", collective_seq_id=1,
            run_id=run_id,
        )  # fmt: skip
        pool.looks[rank] = pool.idle(rank, operations=(done,))
        mark = GroupMark(pg_id=WORLD, collective_seq_id=1, digest=rank)
        ended = pool.finished(rank, run_id, marks=(mark,))
    ended = pool.answer_looks(ended)
    outcome = outcome_of(ended)
    assert kinds(ended) == ["VerdictReached only", "EndRun"]
    assert outcome.report is not None
    assert outcome.report.findings[0].is_error is (is_wrong is not None)
    assert outcome.is_wrong is bool(is_wrong)
