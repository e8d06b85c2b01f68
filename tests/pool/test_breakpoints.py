"""``%ddp break``: ranks stop before chosen operations, on real ranks."""

import itertools
import re
from collections.abc import Sequence

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import DeadlockError
from nbddp.wire.operation_breakpoints import OperationBreakpoint, read_breakpoint
from tests.support.views import RecordingView, run_cell

LOOP = """\
for step in range(4):
    x = torch.full((2,), float(rank + step))
    dist.broadcast(x, 0)
    if step == 2 and rank == 1:
        x[0] = float("nan")
    dist.all_reduce(x)
print(x.tolist())
"""


def stops(view: RecordingView) -> list[list[str]]:
    """The tables that were shown, without numbers of operations."""
    found = [[" ".join(row.split()) for row in text.splitlines()] for text in view.told]
    tables = [table for table in found if table[0].startswith(("rank ", "ranks "))]
    return [[re.sub(r" of .*", "", re.sub(r" #\d+", "", row)) for row in rows] for rows in tables]


def reached(view: RecordingView) -> list[str]:
    """The lines about break points that were reached."""
    return [text for text in view.told if text.startswith("break point")]


def run(
    pool: Pool, points: Sequence[OperationBreakpoint], answers: Sequence[str], code: str = LOOP
) -> RecordingView:
    return run_cell(pool, code, breakpoints=points, answers=answers)


def test_all_ranks_stop_before_an_operation_and_nowhere_else(pool: Pool):
    view = run(pool, [read_breakpoint(["all_reduce"], 1)], ["p step", "c", "c", "c", "c"])
    assert stops(view) == [["ranks 0-1 before all_reduce"]] * 4
    assert reached(view) == ["break point 1: all_reduce: reached on ranks 0-1"] * 4
    assert view.texts()[0].startswith("0\n")


def test_a_line_and_a_number_choose(pool: Pool):
    at_line = run(pool, [read_breakpoint(["line", "3"], 1)], ["c"] * 4)
    assert stops(at_line) == [["ranks 0-1 before broadcast"]] * 4
    numbers = [request.stop for request in at_line.asked]
    (first, *_) = [stop.collective_seq_id for stop in numbers if stop is not None]
    later = read_breakpoint([f"#{first + 10}"], 2)  # 8 in a cell: the second of the next one + 1
    view = run(pool, [later], ["p step", "c"])
    assert view.texts()[1].startswith("1\n")
    assert stops(view) == [["ranks 0-1 before broadcast"]]


def test_a_step_from_a_break_point_stops_at_the_next_operation(pool: Pool):
    view = run(
        pool, [read_breakpoint(["all_reduce"], 1, condition="step == 1")], ["s", "p step", "c"]
    )
    assert stops(view) == [["ranks 0-1 before all_reduce"], ["ranks 0-1 before broadcast"]]
    assert view.texts()[0].startswith("2\n")


def test_a_condition_is_evaluated_on_each_rank(pool: Pool):
    point = read_breakpoint(["all_reduce"], 1, condition="rank == 1 and step == 3")
    view = run(pool, [point], ["p step", "c"])
    assert reached(view) == [
        "break point 1: all_reduce --if 'rank == 1 and step == 3': reached on rank 1"
    ]
    (table,) = stops(view)
    assert len(table) == 2
    assert table[1] == "rank 1 before all_reduce"
    assert set(view.texts()) == {0, 1}  # it goes on to its end on both


def test_a_condition_that_raises_stops_and_is_told_once(pool: Pool):
    view = run(pool, [read_breakpoint(["all_reduce"], 1, condition="unknown > 1")], ["c"] * 4)
    line = "the condition of break point 1 has raised NameError: name 'unknown' is not defined\n"
    assert view.texts()[0].count(line) == 1
    assert len(stops(view)) == 4


def test_a_condition_that_calls_a_collective_is_refused(pool: Pool):
    view = run(pool, [read_breakpoint(["all_reduce"], 1, condition="dist.barrier()")], ["c"] * 4)
    assert "nothing was sent" in view.texts()[1]


def test_the_first_nan_stops_the_rank_that_sends_it(pool: Pool):
    view = run(pool, [read_breakpoint([], 1, nan=True)], ["p (rank, step)", "c", "c", "c"])
    assert view.texts()[1].startswith("(1, 2)\n")
    assert reached(view)[0] == "break point 1: --nan: reached on rank 1"


def test_a_nan_that_is_only_overwritten_stops_nothing(pool: Pool):
    code = "x = torch.full((2,), float('nan') if rank else 1.0)\ndist.broadcast(x, 0)"
    view = run(pool, [read_breakpoint([], 1, nan=True)], ["c"], code)
    assert view.asked == []


def test_ranks_and_groups(pool: Pool):
    code = f"tp = dist.new_group(group_desc='tp')\ndist.all_reduce(torch.ones(1), group=tp)\n{LOOP}"
    points = [
        read_breakpoint(["all_reduce"], 1, group="tp"),
        read_breakpoint(["broadcast"], 2, ranks=(0,)),
    ]
    view = run(pool, points, ["c"] * 5, code)
    assert reached(view)[0] == "break point 1: all_reduce --group tp: reached on ranks 0-1"
    assert reached(view)[1:] == ["break point 2: broadcast -r 0: reached on rank 0"] * 4


def test_gradient_averaging_stops_in_the_line_of_the_user(pool: Pool):
    code = """\
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
loss = model(torch.ones(1, 2)).sum()
loss.backward()
print(model.module.bias.grad.tolist())
"""
    view = run(pool, [read_breakpoint(["all_reduce"], 1)], ["c", "c"], code)
    assert stops(view)[-1] == ["ranks 0-1 before gradient averaging (all_reduce)"]
    assert view.texts() == {0: "[1.0]\n", 1: "[1.0]\n"}


def test_the_results_are_those_of_an_undisturbed_run(pool: Pool):
    plain = run_cell(pool, LOOP.replace("nan", "2"))
    points = [read_breakpoint(["all_reduce"], 1, ranks=(1,)), read_breakpoint(["line", "3"], 2)]
    answers = itertools.islice(itertools.cycle(["p x.sum()", "s 2", "c"]), 24)
    view = run_cell(pool, LOOP.replace("nan", "2"), breakpoints=points, answers=answers)
    for rank in range(2):
        assert view.texts()[rank].splitlines()[-1:] == plain.texts()[rank].splitlines()


def test_a_deadlock_is_proven_as_in_every_cell(pool: Pool):
    code = "x = torch.ones(1)\nif rank == 0:\n    dist.all_reduce(x)"
    points = [read_breakpoint(["all_reduce"], 1)]
    view = run_cell(pool, code, breakpoints=points, answers=["c"], check=False)
    assert isinstance(view.error, DeadlockError)
    assert len(stops(view)) == 1


@pytest.mark.parametrize("answer", ["quit", "c"])
def test_later_cells_without_break_points_do_not_stop(pool: Pool, answer: str):
    points = [read_breakpoint(["all_reduce"], 1, condition="step == 0")]
    run_cell(pool, LOOP, breakpoints=points, answers=[answer], check=False)
    assert run_cell(pool, LOOP).asked == []
