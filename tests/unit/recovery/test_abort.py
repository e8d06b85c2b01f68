"""Interrupts and deaths: ranks that are blocked in C++ are freed in bounded time."""

import pytest

from nbddp.controller.state.actions import Action, EndRun
from nbddp.controller.state.stimuli import (
    AbandonRequested,
    InterruptRequested,
    RestartRequested,
    StopRequested,
)
from nbddp.settings import Settings
from nbddp.wire.flight_recorder.schema import GroupMark
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import AbortOperations, Interrupt, RebuildGroups, RunFinished
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import (
    NOTHING,
    WORLD,
    Pool,
    agent_requests,
    kinds,
    notice,
    outcome_of,
    requests,
    seen,
    statuses,
    verdict,
)

SETTINGS = Settings(interrupt_grace_s=2.0, cleanup_grace_s=10.0, death_grace_s=0.5)
BROKEN = GroupMark(pg_id=WORLD, collective_seq_id=1, digest=1, is_broken=True)


def running(n: int = 3, *, plain: bool = False) -> tuple[Pool, str]:
    pool = Pool(n, settings=SETTINGS, plain=plain)
    run_id = pool.run()
    for rank in range(n):
        pool.looks[rank] = seen(rank)
    return pool, run_id


def without_notices(actions: list[Action]) -> list[str]:
    return [kind for kind in kinds(actions) if not kind.startswith("NoticeChanged")]


# --- interrupts ----------------------------------------------------------------------------------


def test_ranks_that_an_interrupt_does_not_end_are_freed():
    pool, run_id = running()
    assert kinds(pool.feed(InterruptRequested(run_id))) == ["Interrupt 0-2"]
    pool.finished(1, run_id, "KeyboardInterrupt")
    assert pool.tick(after_s=0.05) == []
    arm = pool.tick(after_s=0.05)
    assert kinds(arm) == ["AbortOperations arm 0,2"]
    [(_, free)] = requests(arm, AbortOperations)
    assert (free.reason, free.pg_ids, free.ranks) == ("interrupt", (), ())
    fire = pool.answer_free(arm, pg_ids=(WORLD,))
    assert kinds(fire) == ["AbortOperations fire 0,2"]
    pool.answer_free(fire)
    pool.finished(0, run_id, "KeyboardInterrupt", was_freed=True)
    look = pool.finished(2, run_id, "KeyboardInterrupt", was_freed=True)
    assert kinds(look) == ["DescribeRank 0-2"]
    pool.looks = {rank: pool.idle(rank) for rank in range(3)}
    outcome = outcome_of(pool.answer_reform(pool.answer_looks(look)))
    assert outcome.interrupted
    assert outcome.report is None
    assert statuses(outcome) == dict.fromkeys(range(3), "error")


def test_ranks_that_an_interrupt_ends_are_not_freed():
    pool, run_id = running(2)
    pool.feed(InterruptRequested(run_id))
    pool.finished(0, run_id, "KeyboardInterrupt")
    assert kinds(pool.finished(1, run_id, "KeyboardInterrupt")) == ["EndRun"]
    assert pool.machine.next_deadline() is None


def test_an_interrupt_of_another_cell_frees_no_rank():
    pool, run_id = running(2)
    pool.feed(InterruptRequested("old"))
    assert pool.tick(after_s=1.0) == []
    assert pool.active() == run_id


def test_a_timeout_frees_as_an_interrupt_does():
    pool = Pool(2, settings=SETTINGS)
    run_id = pool.run(timeout_s=5.0)
    assert kinds(pool.tick(after_s=5.0)) == ["Interrupt 0-1"]
    arm = pool.tick(after_s=0.11)
    assert kinds(arm) == ["AbortOperations arm 0-1"]
    assert requests(arm, AbortOperations)[0][1].reason == "interrupt"
    pool.finished(0, run_id, "KeyboardInterrupt")
    look = pool.tick(after_s=2.0)
    outcome = outcome_of(pool.answer_looks([look[-1]]))
    assert outcome.timed_out
    assert statuses(outcome) == {0: "error", 1: "unfinished"}


def test_an_interrupt_while_ranks_are_armed_waits_for_that():
    pool, run_id = running(2)
    pool.report = verdict(stuck=(0, 1), involved=(0, 1))
    actions = pool.answer_looks(pool.answer_looks(pool.quiet(0, 1)))
    assert kinds(actions) == ["VerdictReached", "AbortOperations arm 0-1"]
    pool.feed(InterruptRequested(run_id))
    assert pool.tick(after_s=0.1) == []
    assert kinds(pool.answer_free(actions)) == ["AbortOperations fire 0-1"]
    again = pool.tick(after_s=0.1)
    assert kinds(again) == ["AbortOperations arm 0-1"]
    assert requests(again, AbortOperations)[0][1].reason == "interrupt"


def test_a_verdict_after_an_interrupt_frees_as_the_interrupt_does():
    pool, run_id = running(2)
    pool.configure(on_deadlock="report")
    pool.feed(InterruptRequested(run_id))
    pool.answer_free(pool.tick(after_s=0.1))
    pool.report = verdict(stuck=(0, 1), involved=(0, 1))
    looks = pool.tick(after_s=1.0)
    actions = pool.answer_looks(pool.answer_looks(looks))
    assert kinds(actions) == [
        "AbortOperations arm 0-1"
    ]  # a user who interrupts knows why the cell ends
    assert requests(actions, AbortOperations)[0][1].reason == "interrupt"


def test_a_rank_that_an_interrupt_cannot_free_is_given_up():
    pool, run_id = running(2)
    pool.report = notice()
    pool.feed(InterruptRequested(run_id))
    pool.finished(0, run_id, "KeyboardInterrupt")
    pool.answer_free(pool.answer_free(pool.tick(after_s=0.1), pg_ids=()), stuck={1: "no reason"})
    del pool.looks[1]
    pool.tick(after_s=1.0)
    pool.tick(after_s=1.9)
    assert pool.active() == run_id
    pool.looks[0] = pool.idle(0)
    look = pool.tick(after_s=0.1)
    ended = [*look, *pool.tick(after_s=0.4)]
    outcome = outcome_of(ended)
    assert statuses(outcome) == {0: "error", 1: "unfinished"}
    assert outcome.results[1].stuck == "no reason"


def test_a_rank_that_continues_after_an_interrupt_is_given_up_by_the_user_only():
    pool, run_id = running(2)
    pool.report = NOTHING
    pool.feed(InterruptRequested(run_id))
    pool.answer_free(pool.answer_free(pool.tick(after_s=0.1), pg_ids=()))
    pool.looks = {rank: seen(rank, waits=False) for rank in range(2)}
    for _ in range(100):
        looks = pool.tick(after_s=1.0)
        if requests(looks, object):
            pool.answer_looks(looks)
    assert pool.active() == run_id
    pool.looks = {rank: pool.idle(rank) for rank in range(2)}
    ended = pool.feed(AbandonRequested(run_id))
    assert statuses(outcome_of(ended)) == {0: "unfinished", 1: "unfinished"}


def test_a_second_interrupt_starts_the_wait_again():
    pool, run_id = running(2)
    pool.feed(InterruptRequested(run_id))
    pool.answer_free(pool.answer_free(pool.tick(after_s=0.1)))
    pool.tick(after_s=0.9)
    assert kinds(pool.feed(InterruptRequested(run_id))) == ["Interrupt 0-1"]
    assert "AbortOperations arm 0-1" in kinds(pool.tick(after_s=0.11))


def test_plain_pools_only_interrupt():
    pool, run_id = running(2, plain=True)
    assert kinds(pool.feed(InterruptRequested(run_id))) == ["Interrupt 0-1"]
    assert pool.tick(after_s=100.0) == []


# --- deaths in a cell ----------------------------------------------------------------------------


def test_the_death_of_a_rank_frees_the_others_at_once():
    pool, run_id = running(4)
    arm = pool.exited(3)
    assert kinds(arm) == ["AnnounceExit", "AbortOperations arm 0-2"]
    [(_, free)] = requests(arm, AbortOperations)
    assert (free.reason, free.ranks, free.pg_ids) == ("death", (3,), ())
    assert free.text == "rank 3 exited (SIGKILL (signal 9))"
    assert kinds(pool.answer_free(arm, pg_ids=(WORLD,))) == ["AbortOperations fire 0-2"]
    pool.finished(0, run_id, "E", was_freed=True)
    assert without_notices(pool.tick(after_s=0.15)) == []
    assert kinds(pool.tick(after_s=0.06)) == ["Interrupt 1-2"]


def test_a_rank_that_does_not_answer_after_a_death_delays_no_other():
    pool, _ = running(3)
    arm = pool.exited(2)
    pool.answer_free(arm, ranks=(0,), pg_ids=(WORLD,))
    assert pool.tick(after_s=0.04) == []
    assert kinds(pool.tick(after_s=0.02)) == ["AbortOperations fire 0-1"]


def test_idle_ranks_are_armed_after_a_death_and_not_interrupted():
    pool = Pool(3, settings=SETTINGS)
    pool.run("0-1")
    assert kinds(pool.exited(0)) == ["AnnounceExit", "AbortOperations arm 1-2"]
    assert "Interrupt 1" in kinds(pool.tick(after_s=0.2))


def test_a_rank_that_survives_a_death_inside_the_cell_is_given_up():
    pool, run_id = running(3)
    pool.exited(2)
    pool.finished(0, run_id, "E")
    pool.tick(after_s=0.2)
    pool.tick(after_s=1.9)
    assert pool.active() == run_id
    assert not any(isinstance(each, EndRun) for each in pool.done)
    start = pool.tick(after_s=0.11)
    assert "StartRanks 2" in kinds(start)


def test_errors_after_an_interrupt_by_nbddp_are_blamed_on_no_rank():
    pool, run_id = running(3)
    arm = pool.exited(2)
    pool.answer_free(pool.answer_free(arm, pg_ids=(WORLD,)))
    assert "Interrupt 0-1" in kinds(pool.tick(after_s=0.2))
    pool.finished(0, run_id, "KeyboardInterrupt", was_freed=True)
    pool.report = verdict(stuck=(1,), involved=(0, 1), kind="first-error", pg_ids=("1@mine",))
    actions = pool.answer_looks(pool.answer_looks(pool.tick(after_s=1.0)))
    assert kinds(actions) == ["AbortOperations arm 1"]
    [(_, free)] = requests(actions, AbortOperations)
    assert (free.reason, free.text) == ("death", "rank 2 exited (SIGKILL (signal 9))")
    assert free.pg_ids == ("1@mine",)


def test_a_second_death_does_not_prolong_the_wait():
    pool, _ = running(4)
    pool.exited(3)
    pool.tick(after_s=0.15)
    assert kinds(pool.exited(2)) == ["AnnounceExit", "AbortOperations arm 0-1"]
    assert "Interrupt 0-1" in kinds(pool.tick(after_s=0.06))
    assert "StartRanks 2-3" in kinds(pool.tick(after_s=2.0))


def test_the_last_rank_that_dies_needs_no_freeing_of_others():
    pool, run_id = running(2)
    pool.finished(0, run_id)
    assert kinds(pool.exited(1)) == ["AnnounceExit", "StartRanks 1"]


def test_the_death_of_a_rank_beside_the_cell_is_left_to_the_diagnosis():
    pool = Pool(3, settings=SETTINGS)
    run_id = pool.run("0-1")
    assert kinds(pool.exited(2)) == ["AnnounceExit"]
    assert pool.tick(after_s=10.0) == []
    pool.looks = {0: seen(0), 1: seen(1)}
    pool.report = verdict(stuck=(0, 1), involved=(0, 1, 2), kind="dead-rank")
    actions = pool.answer_looks(pool.answer_looks(pool.quiet(0, 1)))
    [(ranks, free)] = requests(actions, AbortOperations)
    assert (ranks, free.reason, free.ranks) == ((0, 1), "death", (2,))
    pool.finished(0, run_id, "E", was_freed=True)
    # The rank is replaced when the cell has ended.
    assert kinds(pool.finished(1, run_id, "E", was_freed=True)) == ["StartRanks 2"]


def test_a_death_in_a_plain_pool_interrupts_the_others():
    pool, run_id = running(3, plain=True)
    assert kinds(pool.exited(1)) == ["AnnounceExit", "Interrupt 0,2"]
    pool.finished(0, run_id)
    ended = pool.tick(after_s=0.5)
    assert statuses(outcome_of(ended)) == {0: "ok", 1: "exited", 2: "unfinished"}
    assert outcome_of(ended).is_plain
    assert pool.machine.refusal(RankSet.of([1])) == "rank 1 has exited"


# --- stop and restart ----------------------------------------------------------------------------


@pytest.mark.parametrize("stimulus", [StopRequested(), RestartRequested()])
def test_stop_and_restart_end_a_cell_whose_ranks_are_freed(
    stimulus: StopRequested | RestartRequested,
):
    pool, _ = running(2)
    arm = pool.exited(1)
    ended = pool.feed(stimulus)
    assert statuses(outcome_of(ended)) == {0: "unfinished", 1: "exited"}
    assert outcome_of(ended).ended_by
    assert pool.active() is None
    pool.answer_free(arm)
    pool.tick(after_s=5.0)
    assert not any("StartRanks" in kind for kind in kinds(pool.done))


def test_nothing_is_repaired_while_the_pool_ends():
    pool = Pool(2, settings=SETTINGS)
    pool.feed(StopRequested())
    assert kinds(pool.exited(0, exit_code=0)) == ["AnnounceExit"]
    assert kinds(pool.exited(1, exit_code=0)) == ["AnnounceExit"]
    assert pool.tick(after_s=10.0) == []


def test_ranks_inside_a_cell_that_was_given_up_are_freed_repeatedly():
    pool, run_id = running(2)
    pool.feed(InterruptRequested(run_id))
    pool.finished(0, run_id, "KeyboardInterrupt")
    given_up = pool.feed(AbandonRequested(run_id))
    [(_, interrupt)] = agent_requests(given_up, Interrupt)
    assert (interrupt.run_id, interrupt.ranks) == (run_id, (1,))
    assert [ranks for ranks, _ in requests(given_up, AbortOperations)] == [(1,), (1,)]
    for _ in range(3):
        again = pool.tick(after_s=0.5)
        assert agent_requests(again, Interrupt) == []
        assert [free.phase for _, free in requests(again, AbortOperations)] == ["arm", "fire"]
    pool.finished(1, run_id, "KeyboardInterrupt")
    assert requests(pool.tick(after_s=0.5), AbortOperations) == []


def test_ranks_that_have_made_different_numbers_of_groups_count_alike_again():
    pool, run_id = running(2)
    pool.feed(InterruptRequested(run_id))
    error = ErrorInfo(ename="KeyboardInterrupt", evalue="", traceback=[])
    for rank, count in enumerate((3, 4)):
        pool.looks[rank] = pool.idle(rank, group_count=count)
        last = pool.feed(
            RunFinished(run_id=run_id, rank=rank, elapsed_s=1, error=error, group_count=count)
        )
    reform = pool.answer_looks(last)
    assert requests(reform, RebuildGroups)[0][1].group_count == 4
    assert kinds(pool.answer_reform(reform)) == ["EndRun"]
