"""A cell that ended well: its operations are compared, and a difference is told afterwards."""

import pytest

from nbddp.controller.state.actions import Action
from nbddp.controller.state.stimuli import AbandonRequested
from nbddp.wire.flight_recorder.schema import GroupMark, Mismatch, Operation, Signature
from nbddp.wire.messages import DescribeRank
from tests.support.examples import plain_example
from tests.support.recovering import WORLD, Pool, kinds, outcome_of, requests, verdict

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


def test_a_rank_that_sends_its_records_late_is_waited_for():
    """On a busy machine; the difference would be told nowhere else."""
    pool = Pool(2)
    run_id = pool.run()
    for rank in (0, 1):
        mark = GroupMark(pg_id=WORLD, collective_seq_id=3, digest=rank)
        look = pool.finished(rank, run_id, marks=(mark,))
    assert pool.tick(4.0) == []
    assert pool.active() == run_id
    assert kinds(pool.answer_looks(look)) == ["EndRun"]


def test_a_cell_ends_though_a_rank_does_not_send_its_records():
    pool = Pool(2)
    run_id = pool.run()
    for rank in (0, 1):
        mark = GroupMark(pg_id=WORLD, collective_seq_id=3, digest=rank)
        pool.finished(rank, run_id, marks=(mark,))
    assert kinds(pool.tick(5.1)) == ["EndRun"]


def test_a_rank_beside_the_cell_that_does_not_answer_is_not_waited_for():
    """It is in an old cell, perhaps in C code for as long as it likes."""
    pool = Pool(3)
    old = pool.run("2")
    pool.feed(AbandonRequested(old))
    run_id = pool.run("0,1")
    for rank in (0, 1):
        mark = GroupMark(pg_id=WORLD, collective_seq_id=3, digest=rank)
        look = pool.finished(rank, run_id, marks=(mark,))
    assert "DescribeRank 0-2" in kinds(look)
    assert "EndRun" in kinds(pool.tick(0.5))


def test_ranks_at_different_places_after_a_good_cell_are_no_fault():
    """The operations were issued and not waited for."""
    pool = Pool(2)
    run_id = pool.run()
    pool.finished(0, run_id, marks=(GroupMark(pg_id=WORLD, collective_seq_id=3, digest=1, open=1),))
    last = pool.finished(1, run_id, marks=(GroupMark(pg_id=WORLD, collective_seq_id=2, digest=7),))
    assert kinds(last) == ["EndRun"]


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_mismatch_that_all_see_at_once_has_a_report_too(is_broken: bool):
    """The ranks leave the cell before they can be looked at."""
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
        actions = [
            action
            for asked, look in (first, second)
            for rank in asked
            for action in pool.described(look.number, rank)
        ]
        assert kinds(actions)[0] == "VerdictReached only"
        ended = pool.answer_reform(actions)
    assert outcome_of(ended).report is pool.report


# --- cells that ended well, and wrong ------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_mismatch", "reduce_op", "is_wrong"),
    [("raise", "MAX", True), ("warn", "MAX", False), ("off", "MAX", False), ("raise", "SUM", None)],
)
def test_a_mismatch_that_completed_is_told_when_the_cell_has_ended(
    on_mismatch: str, reduce_op: str, is_wrong: bool | None
):
    """The ranks are on two machines, where no board compares the operations first."""
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


@pytest.mark.parametrize(("received", "is_compared"), [(5, False), (6, True)])
def test_records_are_compared_where_messages_between_nodes_do_not_add_up(
    received: int, is_compared: bool
):
    pool = Pool(1, nnodes=2)
    run_id = pool.run()
    for rank, far in enumerate((5, -received % 2**63)):
        mark = GroupMark(pg_id=WORLD, collective_seq_id=1, digest=3, far_messages=far)
        ended = pool.finished(rank, run_id, marks=(mark,))
    assert kinds(ended) == (["DescribeRank 0-1"] if is_compared else ["EndRun"])
    if is_compared:
        assert kinds(pool.answer_looks(ended)) == ["EndRun"]  # the records show nothing
