"""Process groups are formed again: which ones, when, and what happens if that fails."""

import pytest

from nbddp.controller.pool.refusals import broken_text
from nbddp.controller.recovery.rebuild import groups_to_form
from nbddp.controller.state import AgentExited
from nbddp.controller.state.stimuli import RebuildRequested
from nbddp.settings import Settings
from nbddp.wire.flight_recorder.schema import GroupMark
from nbddp.wire.message_types import AgentEnd
from nbddp.wire.messages import AbortOperations, RebuildGroups, StoreExited
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import WORLD, Pool, kinds, outcome_of, requests, seen, statuses
from tests.support.recovery_scenes import BROKEN, dead_in_cell, group

# --- which groups --------------------------------------------------------------------------------


def test_broken_groups_are_formed_in_the_order_in_which_ranks_know_them():
    a, b, c = group("a", 0, 1, seq=1), group("b", 1), group("c", 0, 1, seq=3)
    looks = {
        1: seen(1, groups=(a, b, c)),
        0: seen(0, groups=(a, group("c", 0, 1, seq=3))),
    }
    now, later = groups_to_form(looks, RankSet.all(2), {"c", "a", "gone"}, forms_all=False)
    assert now == (a, c)
    assert later == set()


def test_groups_whose_members_disagree_are_formed_and_the_highest_number_counts():
    looks = {
        0: seen(0, groups=(group("a", 0, 1, seq=4), group("b", 0, 1, seq=2))),
        1: seen(1, groups=(group("a", 0, 1, seq=5), group("b", 0, 1, seq=2))),
    }
    now, later = groups_to_form(looks, RankSet.all(2), set(), forms_all=False)
    assert now == (group("a", 0, 1, seq=5),)
    assert later == set()


def test_groups_with_members_that_cannot_take_part_wait():
    looks = {0: seen(0, groups=(group("a", 0, 1), group("b", 0), group("c", 0, 1)))}
    assert groups_to_form(looks, RankSet.of([0]), {"a", "b"}, forms_all=False) == (
        (group("b", 0),),
        {"a"},
    )
    assert groups_to_form(looks, RankSet.of([0]), (), forms_all=True) == (
        (group("b", 0),),
        {"a", "c"},
    )


# --- when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "marks",
    [
        [(BROKEN,), ()],
        [
            (GroupMark(pg_id=WORLD, collective_seq_id=2, digest=1),),
            (GroupMark(pg_id=WORLD, collective_seq_id=1, digest=0),),
        ],
        [(GroupMark(pg_id=WORLD, collective_seq_id=2, digest=1),), ()],
        [
            (GroupMark(pg_id=WORLD, collective_seq_id=2, digest=1, open=1),),
            (GroupMark(pg_id=WORLD, collective_seq_id=2, digest=1, open=1),),
        ],
    ],
    ids=["broken", "out of step", "used on one rank only", "open"],
)
def test_groups_in_doubt_are_looked_at_after_a_cell_that_failed(marks: list[tuple[GroupMark, ...]]):
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, "ValueError", marks=marks[0])
    assert kinds(pool.finished(1, run_id, "ValueError", marks=marks[1])) == ["DescribeRank 0-1"]


def test_ranks_that_turn_out_to_be_in_step_need_nothing():
    pool = Pool(2)
    run_id = pool.run()
    mark = GroupMark(pg_id="pair", collective_seq_id=2, digest=1)
    pool.finished(0, run_id, "ValueError", marks=(mark,))
    ended = pool.answer_looks(pool.finished(1, run_id, "ValueError"))
    assert kinds(ended) == ["EndRun"]


def test_a_rank_that_does_not_answer_after_a_cell_delays_nothing():
    pool = Pool(2)
    run_id = pool.run()
    mark = GroupMark(pg_id="pair", collective_seq_id=2, digest=1)
    pool.finished(0, run_id, "ValueError", marks=(mark,))
    look = pool.finished(1, run_id, "ValueError")
    pool.answer_looks(look, ranks=(0,))
    assert kinds(pool.tick(after_s=0.4)) == ["EndRun"]


def test_a_broken_group_is_formed_again_even_after_a_good_end():
    """The cell has caught the error."""
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    reform = pool.answer_looks(pool.finished(1, run_id, marks=(BROKEN,)))
    assert kinds(reform) == ["RebuildGroups 0-1"]
    assert statuses(outcome_of(pool.answer_reform(reform))) == {0: "ok", 1: "ok"}


def test_a_rank_that_is_silent_is_asked_again_when_a_group_is_broken():
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    look = pool.finished(1, run_id, marks=(BROKEN,))
    pool.answer_looks(look, ranks=(0,))
    again = pool.tick(after_s=0.4)
    assert kinds(again) == ["DescribeRank 0-1"]
    assert kinds(pool.answer_looks(again)) == ["RebuildGroups 0-1"]


def test_a_rank_that_stays_silent_fails_the_rebuild():
    pool = Pool(2, settings=Settings(rebuild_timeout_s=1.0))
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    pool.finished(1, run_id, marks=(BROKEN,))
    for _ in range(3):
        pool.tick(after_s=0.4)
    outcome = outcome_of(pool.done)
    assert outcome.rebuild_failure == "ranks 0-1 did not report the process groups"
    refusal = pool.machine.refusal(RankSet.all(2))
    assert refusal == (
        "the process groups could not be formed again (ranks 0-1 did not report the process groups)"
    )
    assert pool.machine.refusal(RankSet.of([0])) is None
    assert pool.machine.transfer_refusal(RankSet.all(2)) is None


def test_a_rebuild_that_fails_is_tried_again_with_the_others_freed():
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    reform = pool.answer_looks(pool.finished(1, run_id, marks=(BROKEN,)))
    frees = pool.answer_reform(reform, errors={0: "connection refused"})
    assert kinds(frees) == ["AbortOperations arm 0-1", "AbortOperations fire 0-1"]
    assert {free.reason for _, free in requests(frees, AbortOperations)} == {"error"}
    assert {free.pg_ids for _, free in requests(frees, AbortOperations)} == {(WORLD,)}
    ended = {free.reform for _, free in requests(frees, AbortOperations)}
    assert ended == {request.number for _, request in requests(reform, RebuildGroups)}
    look = pool.tick(after_s=0.05)
    again = pool.answer_looks(look)
    numbers = [request.number for _, request in requests([*reform, *again], RebuildGroups)]
    assert numbers[0] != numbers[1]
    assert outcome_of(pool.answer_reform(again)).rebuild_failure == ""


def test_a_rebuild_that_fails_three_times_is_reported():
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    look = pool.finished(1, run_id, marks=(BROKEN,))
    for _ in range(3):
        pool.answer_reform(pool.answer_looks(look), errors={0: "connection refused"})
        look = pool.tick(after_s=0.05)
    outcome = outcome_of(pool.done)
    assert outcome.rebuild_failure == "rank 0: RuntimeError: connection refused; tried 3 times"
    # Next time, the groups are still to be formed.
    run_id = pool.run("0")
    assert kinds(pool.finished(0, run_id)) == ["EndRun"]


def test_groups_that_could_not_be_formed_are_tried_again_on_request():
    pool, _ = dead_in_cell()
    pool.start_fresh(pool.done)
    reform = pool.answer_looks([pool.done[-1]])
    ended = pool.tick(after_s=20.0)
    assert outcome_of(ended).rebuild_failure == "ranks 0-2 did not form their groups in 20 s"
    assert "could not be formed again" in str(pool.machine.refusal(RankSet.all(3)))
    assert pool.machine.may_rebuild_again
    pool.feed(RebuildRequested())
    assert pool.is_rebuilding()
    reform = pool.answer_looks(pool.tick(after_s=0.05))
    assert requests(reform, RebuildGroups)[0][1].fresh == (1,)
    pool.answer_reform(reform)
    assert not pool.is_rebuilding()
    assert pool.machine.refusal(RankSet.all(3)) is None
    pool.feed(RebuildRequested())
    assert not pool.is_rebuilding()  # nothing is broken


def test_a_rebuild_that_does_not_end_is_reported():
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    pool.answer_looks(pool.finished(1, run_id, marks=(BROKEN,)))
    ended = pool.tick(after_s=20.0)
    assert outcome_of(ended).rebuild_failure == "ranks 0-1 did not form their groups in 20 s"


def test_groups_cannot_be_formed_without_the_store():
    pool = Pool(2)
    pool.feed(StoreExited(pid=2, exit_code=-9))
    run_id = pool.run()
    pool.finished(0, run_id, marks=(BROKEN,))
    ended = pool.finished(1, run_id, marks=(BROKEN,))
    assert "the process of the store has ended" in outcome_of(ended).rebuild_failure


def test_the_store_of_a_node_that_was_given_up_is_lost_and_its_process_perhaps_is_not():
    pool = Pool(2, nnodes=2)
    run_id = pool.run()
    for rank in (2, 3):
        pool.finished(rank, run_id, marks=(BROKEN,))
    lost = AgentExited(0, AgentEnd("silent", 60, "n1"))
    failure = outcome_of([*pool.feed(lost), *pool.tick(after_s=1.0)]).rebuild_failure
    assert failure == "the store of the process groups was lost with node 0, and new groups need it"
    asked, snapshot = RankSet.all(4), pool.machine.snapshot()
    reason = pool.machine.refusal(asked)
    assert reason is not None
    text = broken_text(reason, asked, snapshot, pool.now, is_up=True, is_plain=False)
    assert text.endswith(
        f"({failure}) (each of ranks 2-3 can still be used alone, as with -r 2). Next: pull what "
        "you need (x = %ddp pull x -r 2-3), then %ddp restart, which ends all ranks"
    )
