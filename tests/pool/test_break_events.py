"""``%ddp break --on error`` and ``--on mismatch`` on real ranks."""

import threading
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import VerdictReached
from nbddp.errors import BadOptionError
from nbddp.wire.rank_set import RankSet
from tests.support.views import RecordingView, run_cell

ERROR = """\
def scale(batch, factor):
    half = factor / 2
    return batch / int(half)
def train(step):
    return scale(3, factor=step * 2)
for step in (2, 1, 0):
    if rank == 1:
        train(step)
    else:
        total = torch.ones(1)
dist.all_reduce(torch.ones(1))
"""
MISMATCH = """\
x = torch.ones(2 + rank)
dist.all_reduce(x)
"""


def kinds(view: RecordingView) -> list[str]:
    reports = [event.report for event in view.events if isinstance(event, VerdictReached)]
    return [finding.kind for report in reports for finding in report.findings]


def test_an_error_opens_a_debugger_at_its_line(pool: Pool):
    pool.break_points.add([], on="error")
    answers = ["p half, batch", "up", "p step", "ranks", "c"]
    view = run_cell(pool, ERROR, answers=answers, check=False)
    assert [request.rank for request in view.asked] == [1, 1, 1, 1, 1]
    text = view.text(1)
    assert "ZeroDivisionError: division by zero (break point 1; c raises it)" in text
    assert "(0.0, 3)" in text
    assert "\n0\n" in text
    (listing,) = (each for each in view.told if "the prompt is on rank 1" in each)
    assert "rank 0  waits in all_reduce" in listing
    assert "rank 1  is at a prompt, at cell [1], line 5" in listing
    assert view.error is not None
    assert {name for name, _ in view.error.by_rank.values()} >= {"ZeroDivisionError"}
    assert pool.break_points.listing().endswith("1 on rank 1")


def test_leaving_the_debugger_raises_the_error(pool: Pool):
    pool.break_points.add([], on="error")
    view = run_cell(pool, "if rank == 0: undefined", answers=["q"], check=False)
    assert view.error is not None
    assert view.error.by_rank[0][0] == "NameError"
    assert len(view.asked) == 1
    run_cell(pool, "dist.all_reduce(torch.ones(1))")


def test_an_interrupt_at_the_prompt_ends_the_cell_with_the_error(pool: Pool):
    pool.break_points.add([], on="error")
    code = "kept = 1\nif rank == 0: undefined\ndist.barrier()"
    view = run_cell(pool, code, answers=[KeyboardInterrupt()], check=False)
    assert view.outcome is not None
    assert view.outcome.interrupted
    assert pool.pull("kept") == [1, 1]
    run_cell(pool, "dist.all_reduce(torch.ones(1))")


def test_without_an_answer_the_error_is_raised(pool: Pool):
    pool.break_points.add([], on="error")
    view = run_cell(pool, "1 / 0", check=False)
    assert view.error is not None
    assert set(view.error.by_rank) == {0, 1}


def test_the_debugger_opens_in_the_users_frame_of_a_library_error(pool: Pool):
    pool.break_points.add([], on="error")
    code = "if rank == 0:\n    bad = torch.ones(2, 3)\n    torch.nn.Linear(2, 1)(bad.t().t())\n"
    view = run_cell(pool, code, answers=["p bad.shape", "c"], check=False)
    assert "torch.Size([2, 3])" in view.text(0)


def test_ranks_of_the_break_point_stop_and_others_do_not(pool: Pool):
    pool.break_points.add([], on="error", ranks=pool.rank_set([1]))
    view = run_cell(pool, "1 / 0", answers=["c"], check=False)
    assert [request.rank for request in view.asked] == [1]


def test_interrupts_and_exits_stop_nothing(pool: Pool):
    pool.break_points.add([], on="error")
    assert run_cell(pool, "import sys\nsys.exit(3)", check=False).asked == []
    assert run_cell(pool, "raise KeyboardInterrupt", check=False).asked == []


def test_a_freed_rank_does_not_stop(pool: Pool):
    pool.break_points.add([], on="error")
    view = run_cell(pool, "if rank == 0: dist.barrier()", check=False)
    assert view.asked == []
    assert kinds(view) == ["missing-rank"]


def test_an_error_that_is_caught_stops_nothing(pool: Pool):
    pool.break_points.add([], on="error")
    code = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass"
    assert run_cell(pool, code).asked == []


def test_an_awaited_error_opens_a_debugger(pool: Pool):
    pool.break_points.add([], on="error")
    code = "import asyncio\nvalue = 5\nawait asyncio.sleep(0)\nif rank == 0:\n    1 / (value - 5)\n"
    view = run_cell(pool, code, answers=["p value", "c"], check=False)
    assert view.text(0).splitlines()[-1].endswith("5")
    assert len(view.asked) == 2


def test_a_mismatch_stops_the_rank_that_sees_it(pool: Pool):
    pool.break_points.add([], on="mismatch")
    view = run_cell(pool, MISMATCH, answers=["p x.shape", "waits", "c"], check=False)
    (first, *_) = view.asked
    assert first.stop is not None
    table = view.told[0]
    other = 1 - first.rank
    assert f"rank {first.rank}  before all_reduce #" in table
    assert "(break point 1)" in table
    assert f"; rank {other} called all_reduce of float32[{2 + other}]" in table
    assert f"rank {other}  waits in all_reduce #" in table
    assert f"torch.Size([{2 + first.rank}])" in view.text(first.rank)
    assert view.error is not None
    assert "CollectiveMismatchError" in {name for name, _ in view.error.by_rank.values()}
    assert "mismatched-collective" in kinds(view)
    run_cell(pool, "dist.all_reduce(torch.ones(1))")


def test_a_mismatched_message_stops_too(pool: Pool):
    pool.break_points.add([], on="mismatch")
    code = (
        "if rank == 0:\n    dist.send(torch.ones(2), 1)\n"
        "else:\n    dist.recv(torch.empty(3), 0)\ndist.barrier()"
    )
    view = run_cell(pool, code, answers=["c"], check=False)
    assert len(view.asked) == 1
    assert view.error is not None


def test_matching_operations_stop_nothing(pool: Pool):
    pool.break_points.add([], on="mismatch")
    code = "for step in range(4):\n    dist.all_reduce(torch.ones(2))\ndist.broadcast(x, 0)"
    run_cell(pool, "x = torch.ones(3)")
    assert run_cell(pool, code).asked == []


def test_code_at_the_prompt_of_a_mismatch_calls_no_collective(pool: Pool):
    pool.break_points.add([], on="mismatch")
    view = run_cell(pool, MISMATCH, answers=["p dist.barrier()", "c"], check=False)
    assert "CollectiveRefusedError" in view.text(view.asked[0].rank)


def test_an_event_takes_no_place(pool: Pool):
    with pytest.raises(BadOptionError, match="takes no place"):
        pool.break_points.add(["all_reduce"], on="error")
    assert str(pool.break_points.add([], on="error")) == "an error ends the cell"
    assert str(pool.break_points.add([], on="mismatch", ranks=pool.rank_set([1]))) == (
        "an operation that does not match on rank 1"
    )


@pytest.mark.fresh_ranks(3)
def test_the_end_of_a_cell_by_an_error_ends_the_prompt_and_says_so(pool: Pool, tmp_path: Path):
    pool.break_points.add(["barrier"], ranks=RankSet.of([1]))
    flag = tmp_path / "asked"

    def type_nothing() -> str:
        flag.touch()
        threading.Event().wait(60)  # the end of the cell interrupts it
        raise AssertionError("the prompt has not ended")

    code = (
        "import os, time\nif rank == 2:\n"
        f"    while not os.path.exists({str(flag)!r}): time.sleep(0.01)\n    1 / 0\n"
        "dist.barrier()\n"
    )
    view = run_cell(pool, code, answers=[type_nothing], check=False)
    assert view.told[-1] == "the cell has ended: this prompt takes no more lines"
    assert view.error is not None
    assert view.error.by_rank[2][0] == "ZeroDivisionError"
