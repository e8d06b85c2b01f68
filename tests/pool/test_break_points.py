"""``%ddp break`` on real ranks: where they stop, who waits, and that nothing else changes."""

import itertools
import time
from collections.abc import Iterator, Sequence

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import Diagnosed
from nbddp.errors import DeadlockError
from tests.support.views import RecordingView, run_cell

SUM = "x = torch.full((2,), float(rank + 1))\ndist.all_reduce(x)\nprint(x.tolist())"
LOOP = """\
total = torch.zeros(1)
for step in range(4):
    x = torch.full((2,), float(step))
    dist.all_reduce(x)
    dist.barrier()
    total += x.sum()
"""
DDP = """\
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)))
for step in range(3):
    model(torch.full((2, 4), rank + step + 1.0)).square().mean().backward()
result = [parameter.grad.tolist() for parameter in model.parameters()]
"""


#: With a NaN on rank 1 at step 2.
BAD_LOOP = """\
for step in range(4):
    x = torch.full((2,), float(rank + step))
    dist.broadcast(x, 0)
    if step == 2 and rank == 1:
        x[0] = float("nan")
    dist.all_reduce(x)
"""


def tables(view: RecordingView) -> list[list[str]]:
    """The tables that were shown, as rows with one space between columns."""
    found = [[" ".join(row.split()) for row in text.splitlines()] for text in view.told]
    return [table for table in found if " #" in table[0]]


def hits(pool: Pool) -> list[str]:
    """The last column of the list of break points."""
    return [row.rsplit("  ", 1)[1].strip() for row in pool.break_points.listing().splitlines()[1:]]


def test_an_operation_stops_all_ranks(pool: Pool):
    pool.break_points.add(["all_reduce"])
    view = run_cell(pool, LOOP, answers=["p step", "c", "c", "c", "c"])
    assert [len(table) for table in tables(view)] == [1, 1, 1, 1]
    first = tables(view)[0][0]
    assert first.startswith("ranks 0-1 before all_reduce #")
    assert " (break point 1) cell [1], line 4:" in first
    assert view.texts() == {0: "0\n", 1: "0\n"}
    assert hits(pool) == ["4 on ranks 0-1"]
    pool.break_points.clear()
    assert run_cell(pool, LOOP).asked == []


def test_a_collective_by_its_number(pool: Pool):
    seq = max(part for part in _numbers(pool)) + 3
    pool.break_points.add([f"#{seq}"])
    view = run_cell(pool, LOOP, answers=["p step", "c"])
    assert view.texts() == {0: "1\n", 1: "1\n"}


def test_a_line_that_leads_to_an_operation(pool: Pool):
    run_cell(pool, "def scale(value):\n    dist.all_reduce(value)", execution_count=7)
    code = "x = torch.ones(1)\ndist.barrier()\nscale(x)\ndist.barrier()"
    pool.break_points.add(["line", "3"])
    view = run_cell(pool, code, answers=["c"], execution_count=8)
    assert "cell [7], line 2" in tables(view)[0][0]
    pool.break_points.clear()
    pool.break_points.add(["line", "2"], cell=7)
    assert len(run_cell(pool, code, answers=["c"], execution_count=9).asked) == 1


def test_a_line_of_a_cell_without_a_number(pool: Pool):
    pool.break_points.add(["line", "2"])
    assert len(run_cell(pool, SUM, answers=["c"], execution_count=0).asked) == 1


def test_a_step_goes_on_from_a_break_point_to_the_next_operation(pool: Pool):
    pool.break_points.add(["all_reduce"], condition="step == 1")
    view = run_cell(pool, BAD_LOOP, answers=["s", "p step", "c"])
    assert [table[0].split(" #")[0] for table in tables(view)] == [
        "ranks 0-1 before all_reduce",
        "ranks 0-1 before broadcast",
    ]
    assert view.texts() == {0: "2\n", 1: "2\n"}


def test_the_first_nan_of_a_program_stops_the_rank_that_sends_it(pool: Pool):
    pool.break_points.add([], has_nan=True)
    view = run_cell(pool, BAD_LOOP, answers=["p (rank, step)", "c", "c", "c"])
    assert view.texts()[1].startswith("(1, 2)\n")
    assert view.asked[0].rank == 1


def test_a_nan_that_is_only_overwritten_stops_nothing(pool: Pool):
    pool.break_points.add([], has_nan=True)
    code = "x = torch.full((2,), float('nan') if rank else 1.0)\ndist.broadcast(x, 0)"
    assert run_cell(pool, code).asked == []


def test_each_of_several_break_points_stops(pool: Pool):
    pool.break_points.add(["all_reduce"], group="tp")
    pool.break_points.add(["broadcast"], ranks=pool.rank_set("0"))
    make = "tp = dist.new_group(group_desc='tp')\ndist.all_reduce(torch.ones(1), group=tp)\n"
    run_cell(pool, make + BAD_LOOP, answers=["c"] * 5)
    assert hits(pool) == ["1 on ranks 0-1", "4 on rank 0"]


def test_gradient_averaging_stops_in_the_line_of_the_user(pool: Pool):
    code = """\
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
loss = model(torch.ones(1, 2)).sum()
loss.backward()
print(model.module.bias.grad.tolist())
"""
    pool.break_points.add(["all_reduce"])
    view = run_cell(pool, code, answers=["c", "c"])
    row = tables(view)[-1][0]
    assert row.startswith("ranks 0-1 before gradient averaging (all_reduce #")
    assert row.endswith("line 3: `loss.backward()`")
    assert view.texts() == {0: "[1.0]\n", 1: "[1.0]\n"}


def test_a_deadlock_is_proven_as_in_every_cell(pool: Pool):
    pool.break_points.add(["all_reduce"])
    code = "x = torch.ones(1)\nif rank == 0:\n    dist.all_reduce(x)"
    view = run_cell(pool, code, answers=["c"], check=False)
    assert isinstance(view.error, DeadlockError)
    assert len(tables(view)) == 1


@pytest.mark.parametrize("answer", ["quit", "c"])
def test_later_cells_without_break_points_do_not_stop(pool: Pool, answer: str):
    pool.break_points.add(["all_reduce"], condition="step == 0")
    run_cell(pool, LOOP, answers=[answer], check=False)
    pool.break_points.clear()
    assert run_cell(pool, LOOP).asked == []


def test_a_group(pool: Pool):
    make = "tp = dist.new_group([0, 1], group_desc='mesh_tp')\nx = torch.ones(1)\n"
    pool.break_points.add(["all_reduce"], group="tp")
    code = f"{make}dist.all_reduce(x)\ndist.all_reduce(x, group=tp)\ndist.destroy_process_group(tp)"
    view = run_cell(pool, code, answers=["c"])
    assert ["line 4" in table[0] for table in tables(view)] == [True]


def test_a_condition_in_the_frame_of_the_user(pool: Pool):
    pool.break_points.add([], condition="rank == 1 and step == 2")
    view = run_cell(pool, LOOP, answers=["c", "c"])
    table = tables(view)[0]
    assert table[0].startswith("rank 0 waits in all_reduce #")
    assert table[1].startswith("rank 1 before all_reduce #")
    assert hits(pool) == ["2 on rank 1"]


@pytest.mark.parametrize(
    ("condition", "text"),
    [("unknown > 1", "NameError: name 'unknown' is not defined"), ("exit(3)", "SystemExit: 3")],
)
def test_a_condition_that_fails_stops_and_says_why_once(pool: Pool, condition: str, text: str):
    pool.break_points.add(["all_reduce"], condition=condition)
    view = run_cell(pool, LOOP, answers=["c"] * 4)
    assert len(tables(view)) == 4
    (line,) = view.text(0).splitlines()
    assert line.endswith(f"condition failed: {text}")


def test_a_condition_cannot_call_collectives(pool: Pool):
    pool.break_points.add(["all_reduce"], condition="dist.barrier()")
    view = run_cell(pool, SUM, answers=["c"])
    assert "CollectiveRefusedError" in view.text(0)
    assert "[3.0, 3.0]" in view.text(0)


@pytest.mark.parametrize(
    "operation",
    [
        "dist.all_reduce(x)",
        pytest.param("dist.broadcast(x, 1)", marks=pytest.mark.full),
        pytest.param(
            "dist.all_gather([torch.empty(2), torch.empty(2)], x)", marks=pytest.mark.full
        ),
        pytest.param("dist.all_gather_into_tensor(torch.empty(4), x)", marks=pytest.mark.full),
        "dist.send(x, 0) if rank else dist.recv(torch.full((2,), float('nan')), 1)",
        "torch.distributed._functional_collectives.all_reduce(x, 'sum', dist.group.WORLD).wait()",
    ],
)
def test_nan_stops_the_rank_that_sends_it(pool: Pool, operation: str):
    pool.break_points.add([], has_nan=True)
    clean = f"import torch.distributed._functional_collectives\nx = torch.ones(2)\n{operation}"
    assert run_cell(pool, clean).asked == []
    bad = "x = torch.tensor([1.0, float('inf') if rank else 1.0])\n" + operation
    view = run_cell(pool, bad, answers=["c"])
    assert [request.rank for request in view.asked] == [1]


def test_a_break_point_of_one_rank_lets_the_others_wait(pool: Pool):
    pool.break_points.add(["all_reduce"], ranks=pool.rank_set("1"))
    view = run_cell(pool, SUM, answers=["waits", "trace", "p x.tolist()", "c"])
    assert [row.split(" #")[0] for row in tables(view)[0]] == [
        "rank 0 waits in all_reduce",
        "rank 1 before all_reduce",
    ]
    report, rows = view.sights
    assert isinstance(report, Diagnosed)
    assert "at a prompt" in report.report.ranks[1].description
    assert isinstance(rows, Sequence)
    assert rows[-1].op == "all_reduce"
    assert set(rows[-1].parts) == {0}
    assert view.texts() == {0: "[3.0, 3.0]\n", 1: "[2.0, 2.0]\n[3.0, 3.0]\n"}


@pytest.mark.parametrize("ranks", ["all", "1"])
@pytest.mark.parametrize(
    "code",
    [pytest.param(LOOP, id="loop", marks=pytest.mark.full), pytest.param(DDP, id="DDP")],
)
def test_results_are_those_of_an_undisturbed_run(pool: Pool, code: str, ranks: str):
    name = "total.tolist()" if code == LOOP else "result"
    run_cell(pool, code)
    expected = pool.pull(name)
    pool.break_points.add(["all_reduce"], ranks=pool.rank_set(ranks))
    view = run_cell(pool, code, answers=itertools.cycle(["p step", "s 2", "c"]))
    assert len(view.asked) >= 6
    assert view.error is None
    assert pool.pull(name) == expected


def test_a_tensor_is_drawn_at_the_prompt(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["show x", "show x * 2 -r 1", "c"])
    assert [len(view.displays(rank)) for rank in (0, 1)] == [1, 2]
    assert "2 2" in view.displays(1)[0]["text/plain"]


def test_a_variable_of_a_function_is_changed_at_the_prompt(pool: Pool):
    code = """\
def scaled():
    factor = 1.0
    dist.barrier()
    return factor
print(scaled())
"""
    view = run_cell(pool, code, step=True, answers=["run factor = rank + 5.0", "p factor", "c"])
    assert view.texts() == {0: "5.0\n5.0\n", 1: "6.0\n6.0\n"}


def test_until_goes_to_a_collective(pool: Pool):
    first = max(_numbers(pool)) + 1
    answers = [f"until {first + 4}", "p step", "c"]
    view = run_cell(pool, LOOP, step=True, answers=answers)
    assert view.texts() == {0: "2\n", 1: "2\n"}
    assert [f"#{first + 4} " in table[0] for table in tables(view)] == [False, True]


def test_a_held_rank_stays(pool: Pool):
    view = run_cell(
        pool, SUM, step=True, answers=["hold -r 1", "step", "p x.tolist()", "release", "step"]
    )
    assert tables(view)[1][0].startswith("rank 0 waits in all_reduce #")
    assert tables(view)[1][1].startswith("rank 1 held before all_reduce #")
    assert view.texts() == {0: "[3.0, 3.0]\n", 1: "[2.0, 2.0]\n[3.0, 3.0]\n"}


def test_an_operation_that_all_ranks_skip_is_not_done(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["skip"])
    assert view.texts() == {0: "[1.0, 1.0]\n", 1: "[2.0, 2.0]\n"}
    view = run_cell(pool, SUM, step=True, answers=["step"])
    assert view.texts() == {0: "[3.0, 3.0]\n", 1: "[3.0, 3.0]\n"}


def test_gradients_of_a_skipped_bucket_are_those_of_the_rank(pool: Pool):
    code = "torch.manual_seed(0)\nmodel = torch.nn.Linear(2, 1)\n"
    data = "torch.full((1, 2), rank + 1.0)"
    run_cell(pool, f"{code}model({data}).sum().backward()")
    own = pool.pull("model.weight.grad.tolist()")
    run_cell(pool, f"{code}model = torch.nn.parallel.DistributedDataParallel(model)")
    pool.break_points.add(["all_reduce"])
    run_cell(pool, f"model({data}).sum().backward()", answers=["skip"])
    halves = [[[value / 2 for value in row] for row in rows] for rows in own]
    assert pool.pull("model.module.weight.grad.tolist()") == halves


def test_an_operation_that_one_rank_skips_is_a_deadlock(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["skip -r 1", "step"], check=False)
    assert isinstance(view.error, DeadlockError)


def test_a_skipped_message_and_barrier(pool: Pool):
    code = "dist.barrier()\nif rank == 0:\n    dist.send(torch.ones(1), 1)"
    view = run_cell(pool, code, step=True, answers=["skip", "skip"])
    assert view.error is None


def test_a_replaced_rank_has_the_break_points(pool: Pool):
    pool.break_points.add(["all_reduce"])
    pool.restart(1)
    view = run_cell(pool, SUM, answers=["c"])
    assert tables(view)[0][0].startswith("ranks 0-1 before")


def test_where_no_user_can_be_asked_the_cell_goes_on(pool: Pool):
    pool.break_points.add(["all_reduce"])
    view = run_cell(pool, LOOP, answers=[EOFError("no user")])
    assert view.told[-1] == "no user: the cell goes on without stops"
    assert len(view.asked) == 1


@pytest.mark.full
def test_a_long_look_is_no_timeout_and_no_notice(pool: Pool):
    def slow() -> Iterator[str]:
        time.sleep(3)  # longer than the timeout of the cell, and than notices take
        yield "c"

    pool.break_points.add(["all_reduce"], ranks=pool.rank_set("1"))
    view = run_cell(pool, SUM, answers=slow(), timeout=2)
    assert view.error is None
    assert view.texts() == {0: "[3.0, 3.0]\n", 1: "[3.0, 3.0]\n"}
    waited_ns = pool.trace_rows()[-1].waited_ns
    assert waited_ns < 2e9  # the trace has only the time until the question


def _numbers(pool: Pool) -> list[int]:
    """The numbers of the default group's collectives so far, and 0."""
    look = pool.survey().views[0].look
    assert look is not None
    return [0, *(group.collective_seq_id for group in look.groups if group.desc == "default_pg")]
