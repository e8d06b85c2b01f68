"""``retry`` at a stop: the call is made again, with its arguments of now, on real ranks."""

from collections.abc import Iterator

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.prompts import BreakPoints
from nbddp.errors import CellError, CellInterruptedError, DeadlockError
from tests.support.views import RecordingView, run_cell

SUM = "x = torch.full((2 + rank,), float(rank + 1))\ndist.all_reduce(x)\nprint(x.tolist())"


@pytest.fixture
def pool(pool: Pool) -> Iterator[Pool]:
    """The shared pool, without break points of another test."""
    yield pool
    pool.break_points = BreakPoints()


def before(view: RecordingView) -> list[str]:
    """The rows of stopped ranks in the last table."""
    tables = [text for text in view.told if text.startswith(("rank ", "ranks "))]
    return [" ".join(row.split()) for row in tables[-1].splitlines() if "before" in row]


def test_a_mismatch_is_repaired_before_it_happens(pool: Pool):
    answers = ["run x = x[:2] -r 1", "retry -r 1", "ranks", "step"]
    view = run_cell(pool, SUM, step=True, answers=answers)
    (row,) = before(view)
    assert row.startswith("ranks 0-1 before all_reduce #")
    assert "of float32[2] with SUM" in row
    assert view.texts() == dict.fromkeys((0, 1), "[3.0, 3.0]\n")


def test_a_mismatch_is_repaired_where_it_was_seen(pool: Pool):
    pool.break_points.add([], on="mismatch")
    # The other rank is inside its operation, with the shape that it has there.
    answers = ["run x = torch.full((3 - rank,), rank + 1.0)", "retry", "step"]
    view = run_cell(pool, SUM, answers=answers)
    (stopped,) = {request.rank for request in view.asked}
    total = [3.0] * (3 - stopped)
    assert view.texts() == dict.fromkeys((0, 1), f"{total}\n")
    (row,) = before(view)
    assert f"of float32[{3 - stopped}] with SUM" in row
    numbers = {request.stop.collective_seq_id for request in view.asked if request.stop}
    assert len(numbers) == 1
    view = run_cell(pool, "dist.all_reduce(torch.ones(1))")
    assert view.error is None
    was_changed = [cell.was_changed for cell in pool.history if cell.code.startswith(SUM)]
    assert was_changed[-1]


@pytest.mark.full
def test_a_mismatched_message_is_repaired_where_it_was_seen(pool: Pool):
    pool.break_points.add([], on="mismatch")
    # With a tag of its own: a receive from any source, in another test, ends checks of its tag.
    code = """\
x = torch.ones(2 + rank)
if rank == 0:
    dist.send(x, 1, tag=7)
else:
    dist.recv(x, 0, tag=7)
dist.barrier()
print(len(x))
"""
    view = run_cell(pool, code, answers=["run x = torch.ones(3 - rank)", "retry", "c"])
    lengths = {view.text(0), view.text(1)}
    assert len(lengths) == 1


def test_a_mismatch_that_stays_is_raised(pool: Pool):
    pool.break_points.add([], on="mismatch")
    view = run_cell(pool, SUM, answers=["retry", "step", "retry", "c", "c"], check=False)
    assert isinstance(view.error, CellError)
    assert "CollectiveMismatchError" in {name for name, _ in view.error.by_rank.values()}
    run_cell(pool, "dist.all_reduce(torch.ones(1))")


def test_a_mismatch_that_is_skipped_is_no_mismatch(pool: Pool):
    pool.break_points.add([], on="mismatch")
    view = run_cell(pool, SUM, answers=["skip"], check=False)
    (request,) = view.asked
    assert request.stop is not None
    number = request.stop.collective_seq_id
    assert view.outcome is not None
    assert view.outcome.left_out == (
        f"rank {request.rank} left out all_reduce #{number} at the prompt, cell [1], line 2",
    )
    assert isinstance(view.error, DeadlockError)
    assert view.outcome.report is not None
    (finding,) = view.outcome.report.findings
    assert finding.headline.startswith(f"Rank {request.rank} never called all_reduce")
    told = str(finding.ranks[request.rank])
    assert told.endswith(" has finished the cell and called no collective in it")
    # Its tensor is as it was, and the line after the call has run.
    assert view.texts() == {request.rank: f"{[request.rank + 1.0] * (2 + request.rank)}\n"}
    run_cell(pool, "dist.all_reduce(torch.ones(1))")


def test_a_rank_stops_again_after_a_mismatch_that_it_has_skipped(pool: Pool):
    pool.break_points.add([], on="mismatch")
    code = f"{SUM}\ndist.barrier()"
    view = run_cell(pool, code, answers=["skip", "quit"], check=False)
    first, second = view.asked
    assert second.rank == first.rank
    assert first.stop is not None
    assert second.stop is not None
    assert second.stop.label() == f"barrier #{first.stop.collective_seq_id}"
    run_cell(pool, "dist.all_reduce(torch.ones(1))")


def test_a_function_of_the_user_is_called_once(pool: Pool):
    code = """\
calls = []
def total(value, factor):
    calls.append(factor)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value * factor
print(total(torch.full((2,), float(rank)), 10).tolist(), len(calls))
"""
    answers = ["run value = value + 5", "run factor = 2", "retry", "retry", "step"]
    view = run_cell(pool, code, step=True, answers=answers)
    assert view.texts() == dict.fromkeys((0, 1), "[12.0, 12.0] 1\n")


def test_an_asynchronous_call_gives_the_new_handle(pool: Pool):
    code = """\
x = torch.ones(2)
work = dist.all_reduce(x, async_op=True)
print(type(work).__name__)
work.wait()
print(x.tolist())
"""
    view = run_cell(pool, code, step=True, answers=["run x = x + rank", "retry", "c"])
    assert view.texts() == dict.fromkeys((0, 1), "TracedWork\n[3.0, 3.0]\n")


def test_another_call_stands_for_the_stopped_one(pool: Pool):
    code = (
        "x = torch.ones(2) + rank\n"
        "dist.all_reduce(x) if rank else dist.broadcast(x, 0)\n"
        "print(x.tolist())"
    )
    code += "\ndist.barrier()"
    answers = ["retry dist.broadcast(x, src=0) -r 1", "step", "p before.tolist()", "c"]
    view = run_cell(pool, code, step=True, answers=answers)
    assert "before broadcast" in view.told[-2]
    assert view.texts() == {rank: f"[1.0, 1.0]\n[{rank + 1}.0, {rank + 1}.0]\n" for rank in (0, 1)}
    assert len(view.rows) == 2  # the call that was replaced has no row


def test_messages_are_sent_anew(pool: Pool):
    code = """\
x = torch.arange(4.0)
if rank == 0:
    dist.send(x, 1)
else:
    dist.recv(x[:2], src=0)
    print(x.tolist())
dist.barrier()
"""
    answers = ["retry dist.send(x[2:], 1) -r 0", "retry -r 1", "step", "c"]
    view = run_cell(pool, code, step=True, answers=answers)
    assert view.texts() == {1: "[2.0, 3.0, 2.0, 3.0]\n"}


def refusal(pool: Pool, code: str, *commands: str) -> str:
    """The answer of rank 0 to commands, the last of which is a retry that is refused."""
    view = run_cell(pool, code, step=True, answers=[*commands, "ranks", "c"])
    lines = [line for line in view.text(0).splitlines() if line.startswith("no retry: ")]
    assert len(lines) == 1, view.texts()
    assert "before" in view.told[-1], view.told
    return lines[0]


def test_what_cannot_be_made_anew_is_refused_and_the_rank_stays(pool: Pool):
    ddp = """\
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(torch.nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
"""
    assert "`DDP(torch.nn.Linear(2, 1))` is no direct call" in refusal(pool, ddp, "retry")
    text = refusal(pool, ddp, "step 3", "retry")
    assert "`model(torch.ones(1, 2)).sum().backward()` is no direct call" in text
    batches = "b = iter([torch.ones(1)] * 3)\ndist.all_reduce(next(b))"
    assert "`next(b)` in `dist.all_reduce(next(b))` would run a second time" in refusal(
        pool, batches, "retry"
    )
    objects = "objects = [None] * 2\ndist.all_gather_object(objects, rank)"
    assert "is no direct call" in refusal(pool, objects, "retry")
    one = "x = torch.ones(1)\ndist.all_reduce(x)"
    assert "`dist.all_gather_object` is no function" in refusal(
        pool, one, "retry dist.all_gather_object([None] * 2, 1)"
    )
    assert "`x = 1` is no call" in refusal(pool, one, "retry x = 1")
    assert "NameError: name 'y' is not defined" in refusal(pool, one, "retry dist.all_reduce(y)")
    assert "TypeError" in refusal(pool, one, "retry dist.all_reduce('x')")


def test_the_source_of_a_receive_stays(pool: Pool):
    code = """\
x = torch.ones(1)
if rank == 0:
    print(dist.recv(x, src=1))
else:
    dist.send(x, 0)
"""
    text = refusal(pool, code, "retry dist.all_reduce(x) -r 0")
    assert "recv returns the rank of its source" in text


def test_a_retried_call_may_be_skipped_or_ended(pool: Pool):
    one = "x = torch.ones(1)\ndist.all_reduce(x)\nprint(x.item())"
    view = run_cell(pool, one, step=True, answers=["retry", "skip"])
    assert view.texts() == dict.fromkeys((0, 1), "1.0\n")
    view = run_cell(pool, one, step=True, answers=["retry", "quit"], check=False)
    assert isinstance(view.error, CellInterruptedError)
    run_cell(pool, "dist.all_reduce(torch.ones(1))")


def test_a_retried_call_that_does_not_match_is_a_mismatch(pool: Pool):
    one = "x = torch.ones(1)\ndist.all_reduce(x)"
    answers = ["retry dist.all_reduce(torch.ones(5)) -r 1", "step"]
    view = run_cell(pool, one, step=True, answers=answers, check=False)
    assert isinstance(view.error, CellError)
    assert "`retry dist.all_reduce(torch.ones(5))`" in before(view)[1]
    place, text = "at cell [1], line 2", str(view.error)
    assert f"of float32[5] {place}: `retry dist.all_reduce(torch.ones(5))`" in text
    assert f"of float32[1] {place}: `dist.all_reduce(x)`" in text
    assert "CollectiveMismatchError" in {name for name, _ in view.error.by_rank.values()}
    run_cell(pool, "dist.all_reduce(torch.ones(1))")
