"""Faults on purpose, ``%%ddp --fault``, on real ranks: each kind strikes where it says."""

import re

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import (
    CellError,
    CellInterruptedError,
    DeadlockError,
    MismatchError,
    RankExitedError,
)
from tests.support.polling import poll_until
from tests.support.views import RecordingView, begin_cell, run_cell

LOOP = """\
x = torch.ones(2)
for step in range(6):
    dist.all_reduce(x)
    last = step
dist.barrier()
"""
MODEL = """\
from torch import nn
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
"""
#: One step; `sum` of the gradients is a NaN if one of them is.
STEP = """\
model.zero_grad()
model(torch.ones(1, 4)).sum().backward()
has_nan.append(bool(sum(p.grad.sum() for p in model.parameters()).isnan()))
"""


def strike(
    pool: Pool, code: str, faults: str, *, check: bool = True, timeout: float | None = None
) -> RecordingView:
    return run_cell(pool, code, faults=faults, check=check, timeout=timeout)


def unnumbered(text: str) -> str:
    """Without the numbers that torch gives to operations, which count on from cell to cell."""
    return re.sub(r" #\d+", " #", text)


def is_usable(pool: Pool) -> bool:
    """Whether the next cell, without faults, is like any other."""
    view = run_cell(pool, "y = torch.ones(1)\ndist.all_reduce(y)\nprint(y.item())")
    assert view.outcome is not None
    assert view.outcome.injected == ()
    return view.struck() == [] and view.texts() == {0: "2.0\n", 1: "2.0\n"}


# --- kinds of faults -----------------------------------------------------------------------------


def test_a_delay_comes_before_the_operation(pool: Pool):
    code = f"import time\nbegan = time.monotonic()\n{LOOP}took = time.monotonic() - began"
    view = strike(pool, code, "rank 1: delay 300 ms before all_reduce #2")
    expected = (
        "rank 1 was delayed 300 ms before all_reduce # "
        "(call 2 of all_reduce in the cell), cell [1], line 5, step 1"
    )
    assert list(map(unnumbered, view.struck())) == [expected]
    assert pool.pull("took", ranks=1) >= 0.3
    assert is_usable(pool)


def test_an_exception_is_raised_in_the_iteration(pool: Pool):
    view = strike(pool, LOOP, "rank 1: raise OSError at step 4", check=False)
    assert view.struck() == ["rank 1 raised OSError, cell [1], line 3, step 4"]
    assert pool.pull("last") == [3, 3]
    error = str(view.error)
    assert error.splitlines()[0] == f"fault on purpose: {view.struck()[0]}"
    assert (
        "rank 1 raised OSError at cell [1], line 3: "
        "fault on purpose (rank 1: raise OSError at step 4)" in error
    )
    assert is_usable(pool)


def test_operations_of_any_kind_are_counted_together(pool: Pool):
    code = "a = torch.ones(1)\ndist.all_reduce(a)\ndist.barrier()"
    view = strike(pool, code, "rank 1: delay 1 ms before operation #2")
    expected = "rank 1 was delayed 1 ms before barrier # (operation 2 of the cell)"
    assert [text.partition(", cell")[0] for text in map(unnumbered, view.struck())] == [expected]


def test_an_exception_in_an_iteration_is_raised_inside_its_suppress(pool: Pool):
    code = """\
from contextlib import suppress
done = []
for step in range(3):
    with suppress(OSError):
        done.append(step)
dist.barrier()
"""
    view = strike(pool, code, "rank 1: raise OSError at step 1")
    assert view.struck() == ["rank 1 raised OSError, cell [1], line 5, step 1"]
    assert pool.pull("done") == [[0, 1, 2], [0, 2]]
    assert is_usable(pool)


def test_an_exception_in_an_iteration_is_raised_inside_its_try(pool: Pool):
    code = """\
caught = []
for step in range(3):
    try:  # the data of a step
        y = step
    except OSError:
        caught.append(step)
dist.barrier()
"""
    view = strike(pool, code, "rank 1: raise OSError at step 1")
    assert view.struck() == ["rank 1 raised OSError, cell [1], line 4, step 1"]
    assert pool.pull("caught") == [[], [1]]
    assert is_usable(pool)


def test_an_exception_of_torch_is_raised_on_all_ranks(pool: Pool):
    code = "try: dist.barrier()\nexcept torch.OutOfMemoryError as error: text = str(error)"
    view = strike(pool, code, "all ranks: raise OutOfMemoryError before the next barrier")
    assert len(view.struck()) == 2
    text = "fault on purpose (ranks 0-1: raise OutOfMemoryError before the next barrier)"
    assert pool.pull("text") == [text, text]
    assert is_usable(pool)


@pytest.mark.breaks_pool
def test_a_rank_is_killed_at_a_line(pool: Pool):
    view = strike(pool, LOOP, "rank 1: kill at line 4", check=False)
    assert isinstance(view.error, RankExitedError)
    assert "likely" not in str(view.error)  # the fault is the reason
    # The message came before the end of the process.
    assert view.struck() == ["rank 1 was killed, cell [1], line 4, step 0"]
    assert view.outcome is not None
    report = view.outcome.report
    assert report is not None
    assert report.injected == tuple(view.struck())
    assert [finding.suspicions for finding in report.findings] == [()]
    assert pool.pull("last", ranks=0) == 0  # the survivor has its variables
    assert is_usable(pool)


def test_a_rank_is_stopped_and_continued(pool: Pool):
    """No thread of a stopped process runs, so the ticks of another thread have a gap."""
    code = """\
import threading, time
ticks, is_over = [time.monotonic()], threading.Event()
def tick():
    while not is_over.wait(0.001):
        ticks.append(time.monotonic())
thread = threading.Thread(target=tick)
thread.start()
dist.barrier()
is_over.set()
thread.join()
gap = max(after - before for before, after in zip(ticks, ticks[1:] + [time.monotonic()]))
"""
    view = strike(pool, code, "rank 1: stop 0.4 s before the next barrier")
    expected = ["rank 1 was stopped for 400 ms before barrier #, cell [1], line 8"]
    assert list(map(unnumbered, view.struck())) == expected
    # A thread on another processor runs on until the signal reaches it.
    assert pool.pull("gap", ranks=1) >= 0.3
    assert is_usable(pool)


def test_a_skipped_operation_makes_a_card_that_says_so_first(pool: Pool):
    code = "x = torch.ones(2)\ndist.all_reduce(x)\ndist.barrier()"
    view = strike(pool, code, "rank 1: skip the next barrier", check=False)
    assert isinstance(view.error, DeadlockError)
    assert list(map(unnumbered, view.struck())) == ["rank 1 left out barrier #, cell [1], line 3"]
    assert view.outcome is not None
    report = view.outcome.report
    assert report is not None
    assert report.to_dict()["injected"] == view.struck()
    (finding,) = report.findings
    assert (finding.kind, finding.culprits.ranks) == ("missing-rank", (1,))
    assert (finding.change, finding.code, finding.suspicions) == (None, (), ())
    assert finding.next_step.startswith("Nothing, if a fault on purpose is the cause.")
    assert is_usable(pool)


def test_an_operation_that_is_left_out_gives_a_handle(pool: Pool):
    code = """\
x = torch.ones(2) * (rank + 1)
work = dist.all_reduce(x, async_op=True)
done = work.wait(), work.is_completed(), work.get_future().wait()[0].tolist()
y = torch.zeros(1)
if rank == 0:
    dist.send(x, 1)
else:
    dist.recv(y, 0)
"""
    view = strike(pool, code, "all ranks: skip all_reduce; rank 0: skip send; rank 1: skip recv")
    assert len(view.struck()) == 4
    assert pool.pull("done") == [(True, True, [1.0, 1.0]), (True, True, [2.0, 2.0])]
    assert pool.pull("y.tolist()") == [[0.0], [0.0]]
    assert is_usable(pool)


def test_an_operation_after_one_that_was_left_out_does_not_match(pool: Pool):
    code = "x = torch.ones(2)\ndist.all_reduce(x)\ndist.broadcast(x, 0)"
    view = strike(pool, code, "rank 0: skip all_reduce", check=False)
    assert isinstance(view.error, MismatchError)
    assert str(view.error).startswith("fault on purpose: rank 0 left out all_reduce #")
    assert "Nothing, if a fault on purpose is the cause" in str(view.error)
    assert is_usable(pool)


#: A tensor and the sum on two ranks, if a bit of that of rank 1 was flipped.
FLIPPED = {
    "torch.tensor([1.0, 2.0])": [2.5, 4.0],
    "torch.tensor([1.0, 2.0], dtype=torch.float64)": [2.5, 4.0],
    "torch.tensor([1.0, 2.0], dtype=torch.bfloat16)": [2.5, 4.0],
    "torch.tensor([2, 3])": [5, 6],
    "torch.tensor(2, dtype=torch.uint8)": 5,
    "torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()": [[2.5, 6.0], [4.0, 8.0]],
    "torch.tensor([1 + 2j])": [2.5 + 4j],
}


@pytest.mark.parametrize("tensor", FLIPPED)
def test_a_bit_is_flipped(pool: Pool, tensor: str):
    view = strike(
        pool, f"x = {tensor}\ndist.all_reduce(x)", "rank 1: flip a bit in the next all_reduce"
    )
    assert view.struck()[0].startswith("rank 1 sent a flipped bit in all_reduce #")
    assert pool.pull("x.tolist()") == [FLIPPED[tensor]] * 2


def test_a_bit_is_flipped_in_what_a_rank_sends(pool: Pool):
    """Not in what it receives, which has its place in front of the input in torch's methods."""
    code = """\
found = [torch.zeros(1) for _ in range(2)]
dist.all_gather(found, torch.ones(1))
whole = torch.zeros(2)
dist.all_gather_into_tensor(whole, torch.ones(1))
values = [*torch.cat(found).tolist(), *whole.tolist()]
"""
    faults = "rank 0: flip a bit in the next all_gather; rank 1: flip a bit in operation #2"
    view = strike(pool, code, faults)
    assert len(view.struck()) == 2
    assert pool.pull("values") == [[1.5, 1.0, 1.0, 1.5]] * 2


def test_a_rank_that_only_receives_sends_no_flipped_bit(pool: Pool):
    code = "x = torch.ones(1)\ndist.broadcast(x, 0)\ndist.broadcast(x, 1)"
    view = strike(pool, code, "rank 1: flip a bit in the next broadcast")
    (told,) = view.struck()
    assert told.endswith(", cell [1], line 3")
    assert pool.pull("x.item()") == [1.5, 1.5]


def test_a_nan_comes_into_the_gradient_that_a_rank_sends(pool: Pool):
    code = f"{MODEL}has_nan = []\nfor step in range(3):\n" + "".join(
        f"    {line}\n" for line in STEP.splitlines()
    )
    view = strike(pool, code, "nan in rank 0's gradient at step 1")
    (told,) = view.struck()
    assert told.startswith("rank 0 got a NaN in the gradient of a parameter of shape (")
    assert told.endswith(", cell [1], line 7, step 1")
    assert pool.pull("has_nan") == [[False, True, False]] * 2  # DDP gives it to both
    code = "p = torch.ones(3, requires_grad=True)\n(p * 2).sum().backward()\ng = p.grad.tolist()"
    strike(pool, code, "nan in rank 1's gradient")
    assert pool.pull("str(g)") == ["[2.0, 2.0, 2.0]", "[nan, 2.0, 2.0]"]
    assert is_usable(pool)


def test_a_link_is_slow_for_its_two_ranks(pool: Pool):
    code = f"import time\nbegan = time.monotonic()\n{LOOP}took = time.monotonic() - began"
    view = strike(pool, code, "link 0-1: 20 ms, 1 MB/s")
    told = sorted(map(unnumbered, view.struck()))
    assert told == [
        f"rank {rank} was delayed 20.01 ms before all_reduce #, and before each operation with "
        f"rank {1 - rank}, cell [1], line 5, step 0"
        for rank in range(2)
    ]
    assert min(pool.pull("took")) >= 7 * 0.02
    assert is_usable(pool)


def test_the_store_is_slow(pool: Pool):
    code = """\
import time
store = dist.distributed_c10d._get_default_store()
began = time.monotonic()
store.set(f"slow{rank}", "1")
value = store.get(f"slow{rank}")
took = time.monotonic() - began
"""
    view = strike(pool, code, "store: slow 50 ms")
    assert sorted(view.struck()) == [
        f"rank {rank} was delayed 50 ms before each store call, cell [1], line 4"
        for rank in range(2)
    ]
    assert min(pool.pull("took")) >= 0.1
    assert is_usable(pool)
    run_cell(pool, "is_stock = 'slow_store' not in str(type(store).set)")
    assert pool.pull("is_stock") == [True, True]


def test_random_faults_are_the_same_for_the_same_seed(pool: Pool):
    faults = "random: seed=3, rate=0.5, acts=delay+flip"
    told = []
    for _ in range(2):
        view = strike(pool, LOOP, faults)
        told.append([list(map(unnumbered, view.struck(rank))) for rank in range(2)])
    without_values = [re.sub(r": its first element.*?, cell", ", cell", str(each)) for each in told]
    assert without_values[0] == without_values[1]
    assert sum(map(len, told[0])) > 2
    assert is_usable(pool)


def test_a_rank_tells_only_the_first_of_many_random_faults(pool: Pool):
    code = "x = torch.ones(1)\nfor i in range(60):\n    dist.all_reduce(x)\n    x /= 2"
    view = strike(pool, code, "random: rate=1, acts=flip")
    assert [len(view.struck(rank)) for rank in range(2)] == [50, 50]
    assert (
        'its next faults of "random: seed=0, rate=1, acts=flip" are not told' in view.struck(0)[-1]
    )
    assert is_usable(pool)


# --- moments -------------------------------------------------------------------------------------


def test_a_fault_without_a_moment_strikes_before_the_first_line(pool: Pool):
    code = "\nimport time\nstarted = True\ndist.barrier()"
    run_cell(pool, "started = False")
    view = strike(pool, code, "rank 0: raise ValueError", check=False)
    assert view.struck() == ["rank 0 raised ValueError, cell [1], line 2"]
    assert pool.pull("started") == [False, True]


def test_faults_strike_in_functions_and_in_cells_with_await(pool: Pool):
    code = """\
import asyncio
async def work():
    await asyncio.sleep(0)
    for i in range(3):
        await asyncio.sleep(0)
await work()
"""
    faults = "rank 1: delay 1 ms at i = 2; rank 0: delay 1 ms at line 3"
    assert sorted(strike(pool, code, faults).struck()) == [
        "rank 0 was delayed 1 ms, cell [1], line 3",
        "rank 1 was delayed 1 ms, cell [1], line 5, i = 2",
    ]


def test_a_traced_function_keeps_its_variables(pool: Pool):
    """Before Python 3.13, Python writes ``f_locals`` back after a trace function."""
    code = """\
def total(n):
    found, x = [], torch.ones(1)
    def add(value):
        for k in range(2):
            found.append(value + k)
    for step in range(n):
        twice = 2 * step
        add(twice)
    return found, x.item(), step, twice, n
values = total(3)
"""
    view = strike(pool, code, "rank 1: delay 1 ms at step 2; ranks 0-1: kill at step 9")
    assert view.struck() == ["rank 1 was delayed 1 ms, cell [1], line 7, step 2"]
    assert pool.pull("values") == [([0, 1, 2, 3, 4, 5], 1.0, 2, 4, 3)] * 2


def test_a_fault_strikes_in_a_backward(pool: Pool):
    """DDP calls its operation in the backward, in C++."""
    code = f"{MODEL}has_nan = []\n{STEP}"
    view = strike(pool, code, "rank 1: delay 10 ms before the next all_reduce")
    (told,) = map(unnumbered, view.struck())
    assert told == "rank 1 was delayed 10 ms before all_reduce #, cell [1], line 6"
    view = strike(pool, code, "all ranks: skip all_reduce #1")
    assert len(view.struck()) == 2
    assert is_usable(pool)


def test_a_delay_ends_with_an_interrupt(pool: Pool):
    cell = begin_cell(pool, "dist.barrier()", faults="rank 1: delay 60 min")
    poll_until(lambda: bool(cell.view.struck()))
    pool.interrupt()
    view = cell.join()
    assert isinstance(view.error, CellInterruptedError)
    assert is_usable(pool)


# --- the end of the cell -------------------------------------------------------------------------


def test_a_fault_that_did_not_strike_is_told(pool: Pool):
    faults = (
        "rank 1: raise OSError at line 99; ranks 0-1: skip the next gather; "
        "ranks 0-1: delay 1 ms at line 2; random: rate=0.000001"
    )
    view = strike(pool, "if rank == 0:\n    x = 1", faults)
    assert len(view.struck()) == 1
    assert view.told == [
        "3 faults did not strike: rank 1: raise OSError at line 99 (the cell has 2 lines); "
        "ranks 0-1: skip the next gather; ranks 0-1: delay 1 ms at line 2 (on rank 1)"
    ]


def test_the_next_cell_has_no_faults(pool: Pool):
    strike(pool, "x = 1", "rank 0: kill at line 3; rank 1: skip the next barrier")
    code = "import sys\nx = 2\ny = 3\ndist.barrier()\nis_traced = sys.gettrace() is not None"
    view = run_cell(pool, code)
    assert (view.struck(), view.told) == ([], [])
    assert pool.pull("is_traced") == [False, False]


def test_the_trace_function_of_a_debugger_comes_back(pool: Pool):
    code = """\
import sys
def own(*_): return None
sys.settrace(own)
with nbddp.faults.inject("ranks 0-1: delay 1 ms at line 5"):
    x = 1
is_own = sys.gettrace() is own
sys.settrace(None)
"""
    assert len(run_cell(pool, code).struck()) == 2
    assert pool.pull("is_own") == [True, True]


def test_a_cell_of_some_ranks_has_their_faults_only(pool: Pool):
    view = run_cell(pool, "x = 1", ranks="1", faults="rank 0: kill; rank 1: delay 1 ms")
    assert view.struck() == ["rank 1 was delayed 1 ms, cell [1], line 1"]
    assert view.told == ["1 fault did not strike: rank 0: kill"]


def test_errors_name_the_first_faults_only(pool: Pool):
    faults = "; ".join(["ranks 0-1: delay 1 ms before the next barrier"] * 10)
    code = "dist.barrier()\nif rank == 1: raise ValueError"
    view = strike(pool, code, faults, check=False)
    assert isinstance(view.error, CellError)
    assert str(view.error).count("fault on purpose: ") < len(view.struck()) == 20
