"""The progress of each rank in the operations that ranks have stopped before."""

from typing import Literal

from nbddp.controller.prompts.operation_rows import OperationRows, Progress, progress_in
from nbddp.wire.flight_recorder import Operation, Signature, Site
from nbddp.wire.step_replies import StepVerb


def operation(
    number: int, op: str = "all_reduce", kind: Literal["collective", "send"] = "collective"
) -> Operation:
    return Operation(
        record_id=0,
        pg_id="0",
        signature=Signature(kind, op, ((2,),), ("float32",), reduce_op="SUM"),
        state="scheduled",
        collective_seq_id=number,
        site=Site(cell=5, line=number, source="x"),
    )


def states(rows: OperationRows, *waiting: int) -> list[tuple[str, dict[int, str]]]:
    return [
        (row.label, {rank: progress.name for rank, progress in sorted(row.by_rank.items())})
        for row in rows.rows(waiting)
    ]


def test_a_row_fills_rank_by_rank():
    rows = OperationRows()
    rows.stop(0, operation(1))
    rows.stop(1, operation(1))
    rows.let_go(0, StepVerb.STEP)
    assert states(rows) == [("all_reduce #1", {0: "RUNS", 1: "BEFORE"})]
    assert states(rows, 0) == [("all_reduce #1", {0: "WAITS", 1: "BEFORE"})]
    rows.let_go(1, StepVerb.STEP)
    rows.stop(1, operation(2))
    assert states(rows, 0) == [
        ("all_reduce #1", {0: "WAITS", 1: "PASSED"}),
        ("all_reduce #2", {1: "BEFORE"}),
    ]


def test_a_rank_that_asks_again_is_before_the_same_operation():
    rows = OperationRows()
    rows.stop(0, operation(1))
    rows.stop(0, operation(1))
    assert states(rows) == [("all_reduce #1", {0: "BEFORE"})]


def test_messages_without_a_number_get_a_row_each_time():
    rows = OperationRows()
    message = operation(0, "send", "send")
    for _ in range(2):
        rows.stop(0, message)
        rows.let_go(0, StepVerb.CONTINUE)
    assert [states for _, states in states(rows)] == [{0: "PASSED"}, {0: "RUNS"}]


def test_ranks_that_skip_end_or_fail():
    rows = OperationRows()
    for rank in range(4):
        rows.stop(rank, operation(1))
    rows.let_go(0, StepVerb.SKIP)
    for rank in (1, 2):
        rows.let_go(rank, StepVerb.STEP)
    rows.leave(0, has_failed=False)
    rows.leave(1, has_failed=False)
    rows.leave(2, has_failed=True)
    assert states(rows) == [
        ("all_reduce #1", {0: "SKIPPED", 1: "PASSED", 2: "FAILED", 3: "BEFORE"})
    ]
    assert progress_in(rows.rows(())) == [
        Progress.BEFORE,
        Progress.PASSED,
        Progress.SKIPPED,
        Progress.FAILED,
    ]


def test_the_last_rows_are_kept():
    rows = OperationRows()
    for number in range(1, 10):
        rows.stop(0, operation(number))
        rows.let_go(0, StepVerb.STEP)
    assert [row.label for row in rows.rows(())] == [f"all_reduce #{n}" for n in range(4, 10)]
