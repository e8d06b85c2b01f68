"""``on_deadlock=debug``: a prompt opens where a deadlock is proven, before anybody is freed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import BadOptionError, CellError, DeadlockError, MismatchError
from tests.support.polling import poll_until
from tests.support.views import RecordingView, begin_cell, run_cell

MISSING = """\
x = torch.full((2,), float(rank + 1))
def step(value, factor):
    if rank == 1:
        dist.all_reduce(value)
    return value * factor

y = step(x, 10 + rank)
"""


@pytest.fixture
def debugging(pool: Pool) -> Iterator[Pool]:
    pool.configure(on_deadlock="debug")
    yield pool
    pool.configure(on_deadlock="abort")


def looked_at(pool: Pool, code: str, *answers: str | BaseException) -> RecordingView:
    return run_cell(pool, code, answers=answers, check=False)


def rows(view: RecordingView, place: int = 0) -> list[str]:
    """A text that was shown, with one space between columns, and no number of an operation."""
    return [" ".join(re.sub(r"#\d+", "#", row).split()) for row in view.told[place].splitlines()]


def test_the_ranks_are_where_they_were(debugging: Pool):
    view = looked_at(debugging, MISSING, "p value.sum(), factor", "p x.sum() -r 0", "where", "free")
    assert rows(view)[1:] == [
        "rank 0 has finished the cell",
        "rank 1 waits in all_reduce # cell [1], line 4, in step: `dist.all_reduce(value)`",
    ]
    assert rows(view)[0].startswith("Deadlock: rank 0 never called all_reduce")
    assert view.text(1).splitlines() == [
        "(tensor(4.), 11)",
        "cell [1], line 4, in step: dist.all_reduce(value)",
        "cell [1], line 7: y = step(x, 10 + rank)",
    ]
    assert view.text(0).splitlines() == [
        "NameError: name 'value' is not defined",
        "tensor(2.)",
        "no line of the user's code is running",
    ]
    assert isinstance(view.error, DeadlockError)


def test_the_cell_ends_as_without_the_prompt_and_the_next_one_works(debugging: Pool):
    run_cell(debugging, "kept = rank")
    view = looked_at(debugging, MISSING, "quit")
    assert isinstance(view.error, DeadlockError)
    assert len([event for event in view.events if type(event).__name__ == "VerdictReached"]) == 1
    again = run_cell(debugging, "x = torch.ones(1)\ndist.all_reduce(x)\nprint(x.item() + kept)")
    assert again.texts() == {0: "2.0\n", 1: "3.0\n"}
    assert again.asked == []


def test_sights_and_wrong_lines_free_nobody(debugging: Pool):
    answers = ["waits", "trace", "ranks", "step", "", "run x = 0", "p dist.barrier()"]
    errors = ["p exit(3)", "p (_ for _ in ()).throw(KeyboardInterrupt)"]
    view = looked_at(debugging, MISSING, *answers, *errors, "free")
    assert len(view.sights) == 2
    assert rows(view, 0) == rows(view, 3)
    assert all("Legal: print EXPR" in text for text in view.told[4:7])
    for rank in (0, 1):
        assert "CollectiveRefusedError: barrier was called at the prompt" in view.text(rank)
        assert view.text(rank).endswith("SystemExit: 3\nKeyboardInterrupt\n")
    assert isinstance(view.error, DeadlockError)


def test_diff_compares_a_value_of_all_ranks(debugging: Pool):
    code = "w = torch.zeros(3)\nw[rank] = 1\nsame = [1, 'a']\n" + MISSING
    view = looked_at(debugging, code, "diff w", "diff same", "diff nobody", "diff value", "free")
    differing, equal, of_one = view.differences
    assert [(d.index, d.values) for d in differing.differences[0].details] == [((0,), ("1", "0"))]
    assert equal.is_equal
    assert list(of_one.errors) == ["NameError: name 'value' is not defined"]
    assert "'nobody' has no value on any rank that can be compared" in view.told[-1]
    assert isinstance(view.error, DeadlockError)


def test_messages_open_it_too(debugging: Pool):
    code = "waited = rank + 3\ndist.recv(torch.ones(1), 1 - rank)"
    view = looked_at(debugging, code, "p waited", "free")
    line = "cell [1], line 2: `dist.recv(torch.ones(1), 1 - rank)`"
    assert rows(view)[1:] == [
        f"rank 0 waits in recv from rank 1 {line}",
        f"rank 1 waits in recv from rank 0 {line}",
    ]
    assert view.texts() == {0: "3\n", 1: "4\n"}
    assert isinstance(view.error, DeadlockError)


def test_the_line_is_that_of_the_thread_that_waits(debugging: Pool):
    code = """\
import threading
def wait():
    inner = 5
    if rank:
        dist.barrier()
thread = threading.Thread(target=wait)
thread.start()
thread.join()
"""
    view = looked_at(debugging, code, "p inner -r 1", "where -r 1", "free")
    assert view.text(1).splitlines()[:2] == ["5", "cell [1], line 5, in wait: dist.barrier()"]


def test_a_rank_that_has_raised_is_shown_so(debugging: Pool, tmp_path: Path):
    code = """\
x = torch.ones(2 + rank)
if rank == 0:
    work = dist.all_reduce(x, async_op=True)
    open(path, "w").close()
    work.wait()
else:
    while not os.path.exists(path):
        pass
    dist.all_reduce(x)
"""
    view = looked_at(
        debugging, f"import os\npath = {str(tmp_path / 'begun')!r}\n{code}", "p x.shape", "free"
    )
    assert rows(view)[0].startswith("Mismatch: rank 0 called all_reduce of float32[2], rank 1")
    assert rows(view)[2].startswith("rank 1 raised CollectiveMismatchError, after all_reduce #")
    assert view.text(1).splitlines()[0] == "torch.Size([3])"
    assert "rank 1 raised CollectiveMismatchError: its value is from after that" in view.told
    assert isinstance(view.error, MismatchError)


def test_an_error_of_a_rank_opens_no_prompt(debugging: Pool):
    view = looked_at(debugging, "if rank:\n    raise ValueError('oops')\ndist.barrier()")
    assert (view.asked, view.told) == ([], [])
    assert "oops" in str(view.error)


def test_a_rank_that_does_not_answer_is_named(debugging: Pool, tmp_path: Path):
    slow = "p [None for _ in iter(lambda: os.path.exists(path), True)] and None -r 1"
    begin = f"import os\npath = {str(tmp_path / 'begun')!r}\n"
    touch = "p open(path, 'w').close() -r 0"
    view = looked_at(debugging, begin + MISSING, slow, touch, "p x.sum() -r 0", "free")
    assert "rank 1 has not answered yet" in view.told
    assert isinstance(view.error, DeadlockError)


def test_each_deadlock_of_a_cell_opens_the_prompt_until_the_user_quits(debugging: Pool):
    code = """\
groups = [dist.new_group() for _ in range(3)]
for group in groups:
    try:
        if rank == 1:
            dist.barrier(group)
        else:
            torch.distributed.recv(torch.ones(1), 1, group)
    except RuntimeError as error:
        print(type(error).__name__)
"""
    view = looked_at(debugging, code, "free", "quit")
    assert len(view.asked) == 2
    assert view.texts() == dict.fromkeys((0, 1), 3 * "CollectiveAbortedError\n")


def test_where_nobody_can_be_asked_the_ranks_are_freed(debugging: Pool):
    cell = begin_cell(debugging, MISSING)
    cell.view.no_user = "this notebook runs without a user"
    view = cell.join()
    assert view.told == [
        "this notebook runs without a user: on_deadlock=debug opens no prompt, the ranks are freed"
    ]
    assert view.asked == []
    assert isinstance(view.error, DeadlockError)


def test_an_input_that_ends_frees_the_ranks(debugging: Pool):
    view = looked_at(debugging, MISSING)
    assert "the ranks are freed" in view.told[-1]
    assert isinstance(view.error, DeadlockError)


def test_an_interrupt_at_the_prompt_frees_the_ranks(debugging: Pool):
    view = looked_at(debugging, MISSING, "p x", KeyboardInterrupt())
    assert view.outcome is not None
    assert view.outcome.interrupted
    assert isinstance(view.error, DeadlockError)
    run_cell(debugging, "dist.barrier()")


def test_the_time_at_the_prompt_is_no_timeout(debugging: Pool):
    def answers() -> Iterator[str]:
        began = debugging.diagnose().ranks[1].since_s or 0.0
        poll_until(lambda: (debugging.diagnose().ranks[1].since_s or 0.0) > began + 3)
        yield "free"

    view = run_cell(debugging, MISSING, answers=answers(), timeout=2, check=False)
    assert isinstance(view.error, DeadlockError)


def test_a_mismatch_that_waits_opens_it_too(debugging: Pool):
    debugging.configure(on_mismatch="off")
    try:
        code = "x = torch.ones(2)\ndist.broadcast(x, 0) if rank else dist.recv(x, 1)"
        view = looked_at(debugging, code, "p x", "free")
    finally:
        debugging.configure(on_mismatch="raise")
    assert len(view.asked) == 2
    assert isinstance(view.error, CellError)


@pytest.mark.breaks_pool
def test_a_death_at_the_prompt_ends_it(debugging: Pool):
    kill = "__import__('os').kill(__import__('os').getpid(), 9)"
    view = looked_at(debugging, MISSING, f"p {kill} -r 1", *["p 1"] * 3)
    assert isinstance(view.error, CellError)
    assert view.outcome is not None
    assert view.outcome.results[1].status == "exited"


def test_a_break_point_on_deadlocks_opens_the_prompt_of_its_cells(pool: Pool):
    point = pool.break_points.add([], on="deadlock")
    assert str(point) == "a proven deadlock is ended"
    try:
        view = looked_at(pool, MISSING, "p factor -r 1", "free")
        assert view.text(1) == "11\n"
        assert isinstance(view.error, DeadlockError)
        assert pool.break_points.listing().split("\n")[1].endswith("  1")
    finally:
        pool.break_points.clear()
    view = looked_at(pool, MISSING)
    assert view.told == []
    assert isinstance(view.error, DeadlockError)


def test_a_break_point_on_deadlocks_is_for_all_ranks(pool: Pool):
    with pytest.raises(BadOptionError, match="--on deadlock stops all ranks"):
        pool.break_points.add([], on="deadlock", ranks=pool.rank_set([1]))
