"""A hang is proven by two rounds of looks that agree; the verdict frees its ranks."""

from dataclasses import replace

import pytest

from nbddp.controller.diagnosis.phrases import Predicate, RankVerb
from nbddp.controller.diagnosis.report import GroupRef, Kind, PerRank, Report
from nbddp.controller.state.actions import VerdictReached
from nbddp.wire.flight_recorder.schema import ExceptionLine, GroupMark, RankLook
from nbddp.wire.messages import (
    AbortOperations,
    DescribeRank,
    FreeReason,
    RebuildGroups,
)
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import (
    WORLD,
    Pool,
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
from tests.support.recovery_scenes import BROKEN, judged, stuck_pool

# --- the usual course ----------------------------------------------------------------------------


def test_a_deadlock_from_the_first_look_to_the_end_of_the_cell():
    pool, run_id = stuck_pool()
    looks = pool.quiet(0, 2)
    assert kinds(looks) == ["DescribeRank 0-2"]
    again = pool.answer_looks(looks)
    assert kinds(again) == ["DescribeRank 0-2"]
    briefs = [look.is_brief for _, look in requests([*looks, *again], DescribeRank)]
    assert briefs == [False, True]  # the second one asks only whether they have moved
    actions = pool.answer_looks(again)
    assert kinds(actions) == ["VerdictReached", "AbortOperations arm 0-2"]
    [(_, arm)] = requests(actions, AbortOperations)
    assert (arm.reason, arm.pg_ids, arm.text) == ("deadlock", (WORLD,), "rank 0 waits for rank 1")
    fire = pool.answer_free(actions)
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


def test_a_cell_that_makes_progress_costs_nothing():
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


# --- looks that disprove a hang ------------------------------------------------------------------


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


def test_ranks_that_always_move_are_looked_at_again_when_they_are_quiet():
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


def test_only_involved_ranks_are_asked_again_and_others_may_be_silent():
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


def test_a_hub_that_was_busy_gives_ranks_more_time():
    """A diagnosis of thousands of ranks may take longer than ranks have to answer."""
    pool, _ = stuck_pool()
    again = pool.answer_looks(pool.quiet(0, 2))
    pool.machine.put_off(60.0)
    assert pool.tick(after_s=59.0) == []  # without that, all three would be silent
    assert kinds(pool.answer_looks(again)) == ["VerdictReached", "AbortOperations arm 0-2"]


def test_late_answers_are_ignored():
    pool, _ = stuck_pool()
    pool.report = notice()
    first = pool.quiet(0, 2)
    pool.answer_looks(first, ranks=(0, 1))
    peek = pool.tick(after_s=0.4)
    assert kinds(peek) == ["DumpStack 2"]
    [(_, look)] = requests(first, DescribeRank)
    assert pool.described(look.number, 2) == []
    assert pool.described(999, 2) == []
    assert kinds(pool.answer_looks(pool.answer_peeks(peek))) == ["NoticeChanged"]
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


# --- late callers of a mismatch ------------------------------------------------------------------


def mismatch(*called: int) -> Report:
    """Ranks have called what does not match; the others run."""
    does = {True: Predicate(RankVerb.CALLED, " x"), False: Predicate(RankVerb.RUNS)}
    report = verdict(stuck=(0,), involved=(0, 1), kind="mismatched-collective")
    found = replace(
        report.findings[0],
        group=GroupRef(WORLD, ranks=RankSet.all(3)),
        culprits=RankSet.of(called),
        ranks={rank: PerRank(rank, "running", does[rank in called]) for rank in range(3)},
    )
    return replace(report, findings=(found,))


def test_a_mismatch_waits_for_late_callers():
    pool = Pool(3)
    pool.run()
    pool.looks = {rank: seen(rank, groups=(world(3, seq=1),)) for rank in range(3)}
    pool.report = mismatch(0, 1)
    assert judged(pool) == []
    pool.report = mismatch(0, 1, 2)
    actions = pool.answer_looks(pool.answer_looks(pool.tick(after_s=0.2)))
    [shown] = of_type(actions, VerdictReached)
    assert shown.report.findings[0].culprits == RankSet.all(3)


def test_a_mismatch_does_not_wait_long():
    pool = Pool(3)
    pool.run()
    pool.looks = {rank: seen(rank, groups=(world(3, seq=1),)) for rank in range(3)}
    pool.report = mismatch(0, 1)
    assert judged(pool) == []
    assert pool.answer_looks(pool.answer_looks(pool.tick(after_s=0.2))) == []
    actions = pool.answer_looks(pool.answer_looks(pool.tick(after_s=1.0)))
    assert of_type(actions, VerdictReached)


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


# --- ranks that are still on their way -----------------------------------------------------------


def late_verdict(status: str = "running", n: int = 3) -> Report:
    """Rank 1 has finished; rank 2 may still come to the call in which rank 0 waits."""
    places = {
        0: PerRank(0, "running", Predicate(RankVerb.WAITS, " in barrier #1")),
        1: PerRank(1, "finished", Predicate(RankVerb.HAS_FINISHED)),
        2: PerRank(2, status, Predicate(RankVerb.RUNS)),  # type: ignore[arg-type]  # one of them
    }
    report = verdict()
    group = GroupRef(WORLD, ranks=RankSet.all(n))
    missing = replace(report.findings[0], group=group, ranks=places)
    return replace(report, findings=(missing,), ranks=places)


def late_pool() -> tuple[Pool, str]:
    pool, run_id = stuck_pool()
    pool.looks[2] = seen(2, waits=False)
    pool.report = late_verdict()
    return pool, run_id


def test_a_verdict_waits_a_moment_for_each_member_that_is_late():
    pool, _ = late_pool()
    assert judged(pool) == []
    looks = pool.tick(after_s=0.03)
    assert kinds(looks) == ["DescribeRank 0-2"]
    assert kinds(pool.answer_looks(pool.answer_looks(looks))) == [
        "VerdictReached",
        "AbortOperations arm 0-2",
    ]


def test_a_verdict_that_names_all_members_waits_for_nobody():
    pool, _ = stuck_pool()
    pool.report = late_verdict("finished")
    assert kinds(judged(pool))[0] == "VerdictReached"


def test_at_the_end_of_the_cell_the_verdict_names_the_ranks_that_were_late():
    pool, run_id = late_pool()
    judged(pool)
    actions = pool.answer_looks(pool.answer_looks(pool.tick(after_s=0.03)))
    [first] = of_type(actions, VerdictReached)
    pool.answer_free(pool.answer_free(actions))
    pool.finished(0, run_id, "E", was_freed=True, marks=(BROKEN,))
    end = pool.finished(2, run_id)
    looks = requests(end, DescribeRank)
    assert len(looks) == 2  # that of the verdict, and that of the rebuild
    pool.looks = {rank: pool.idle(rank) for rank in range(3)}
    whole = late_verdict("finished")
    both = replace(whole.findings[0], culprits=RankSet.of([1, 2]))
    pool.report = replace(whole, findings=(both,))
    actions = []
    for asked, look in looks:
        for rank in asked:
            actions += pool.described(look.number, rank)
    [second] = of_type(actions, VerdictReached)
    assert second.replaces == first.report.fingerprint != second.report.fingerprint
    assert (second.acted, str(second.report.findings[0].culprits)) == (True, "1-2")
    assert pool.views[-1][2].state == "finished"
    assert pool.views[-1][0].look == seen(0, groups=(world(3, seq=1),))  # as in the proof
    assert outcome_of(pool.answer_reform(actions)).report == second.report
