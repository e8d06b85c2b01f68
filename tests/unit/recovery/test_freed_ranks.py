"""Ranks of a proven hang are armed, then fired at; they leave the cell, or are given up."""

from nbddp.controller.state.stimuli import AbandonRequested
from nbddp.wire.messages import RebuildGroups
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import (
    Pool,
    kinds,
    notice,
    outcome_of,
    requests,
    seen,
    statuses,
    verdict,
    world,
)
from tests.support.recovery_scenes import BROKEN, judged, stuck_pool

# --- two phases: armed, then fired at ------------------------------------------------------------


def test_all_members_of_the_groups_are_armed_and_no_other_rank():
    pool = Pool(5)
    pool.run("0,1,2")
    pair = world(5).of("1@pair", "1", ranks=(0, 3))
    for rank in (0, 3):
        pool.looks[rank] = seen(rank, is_running=rank == 0, groups=(world(5), pair))
    pool.report = verdict(stuck=(0,), involved=(0, 3), pg_ids=("1@pair",))
    actions = pool.answer_looks(pool.answer_looks(pool.quiet(0)))
    assert kinds(actions) == ["VerdictReached", "AbortOperations arm 0,3"]


def test_ranks_are_fired_at_only_when_all_are_armed():
    pool, _ = stuck_pool()
    actions = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    assert pool.answer_free(actions, ranks=(0, 1)) == []
    assert pool.tick(after_s=0.7) == []
    assert kinds(pool.answer_free(actions, ranks=(2,))) == ["AbortOperations fire 0-2"]


def test_the_wait_for_a_rank_that_cannot_be_armed_is_bounded():
    pool, _ = stuck_pool()
    actions = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    pool.answer_free(actions, ranks=(0, 1))
    assert kinds(pool.tick(after_s=1.0))[0] == "AbortOperations fire 0-2"


def test_a_rank_that_was_silent_before_is_armed_and_not_waited_for():
    pool = Pool(3)
    run_id = pool.run()
    pool.finished(1, run_id)
    pool.looks[0] = seen(0, groups=(world(3),))
    del pool.looks[2]
    pool.report = verdict(stuck=(0,), involved=(0, 1))
    pool.answer_looks(pool.quiet(0))
    actions = pool.answer_looks(pool.tick(after_s=0.4))
    assert kinds(actions) == ["VerdictReached", "AbortOperations arm 0-2"]
    assert kinds(pool.answer_free(actions, ranks=(0, 1))) == ["AbortOperations fire 0-2"]


def test_a_rank_that_exits_while_it_is_armed_is_not_fired_at():
    pool, _ = stuck_pool()
    actions = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    pool.answer_free(actions, ranks=(0, 2))
    assert "AbortOperations fire 0,2" in kinds(pool.exited(1))


def test_the_end_of_the_cell_saves_the_second_phase():
    pool, run_id = stuck_pool()
    actions = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    pool.answer_free(actions, ranks=(0, 1))
    pool.finished(0, run_id)
    look = pool.finished(2, run_id)
    assert kinds(look) == ["DescribeRank 0-2"]  # what is armed must be formed again
    reform = pool.answer_looks(look)
    assert requests(reform, RebuildGroups)[0][1].groups == (world(3, seq=1),)
    pool.tick(after_s=2.0)
    assert "AbortOperations fire 0-2" not in kinds(pool.done)


# --- after a verdict -----------------------------------------------------------------------------


def freed_pool() -> tuple[Pool, str]:
    """Ranks 0 and 2 were freed just now."""
    pool, run_id = stuck_pool()
    actions = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    pool.answer_free(pool.answer_free(actions))
    return pool, run_id


def test_ranks_that_are_on_their_way_out_are_not_judged_again():
    pool, _ = freed_pool()
    assert judged(pool, after_s=0.5) == []


def test_ranks_that_are_stuck_again_are_freed_again():
    pool, run_id = freed_pool()
    looks = pool.tick(after_s=1.0)
    assert "DescribeRank 0-2" in kinds(looks)
    actions = pool.answer_looks(pool.answer_looks(looks))
    assert kinds(actions) == ["AbortOperations arm 0-2"]  # the card is there already
    pool.answer_free(pool.answer_free(actions))
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


def test_the_reason_that_keeps_a_rank_from_being_freed_is_kept():
    pool, run_id = stuck_pool()
    actions = pool.answer_looks(pool.answer_looks(pool.quiet(0, 2)))
    pool.answer_free(pool.answer_free(actions), stuck={2: "a lock of libfoo"})
    pool.finished(0, run_id, "E", was_freed=True)
    pool.tick(after_s=1.0)
    look = pool.tick(after_s=2.0)
    outcome = outcome_of(pool.answer_looks(look))
    assert statuses(outcome) == {0: "error", 1: "ok", 2: "unfinished"}
    assert [outcome.results[rank].stuck for rank in range(3)] == ["", "", "a lock of libfoo"]


def test_a_rank_that_still_runs_python_code_gets_time_and_then_an_interrupt():
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


def test_the_second_interrupt_gives_the_prompt_back_before_the_pool_is_rebuilt():
    pool, run_id = freed_pool()
    actions = pool.feed(AbandonRequested(run_id))
    assert statuses(outcome_of(actions)) == {0: "unfinished", 1: "ok", 2: "unfinished"}
    assert pool.is_rebuilding()
    assert pool.answer_looks(pool.tick(after_s=0.05)) == []
    assert not pool.is_rebuilding()
