"""Callbacks of widgets: they run on one rank, between cells or beside one."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.actions import NoticeChanged
from nbddp.errors import CellInterruptedError, PoolBusyError
from nbddp.wire.flight_recorder import ThreadLook
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell
from tests.support.widgets import Slider

LIMIT_S = 30.0
HEALTHY = "x = torch.ones(1)\ndist.all_reduce(x)\nprint(int(x))"

CALLS = {
    "all_reduce": "dist.all_reduce(x)",
    "broadcast": "dist.broadcast(x, 0)",
    "all_gather": "dist.all_gather_object([None, None], 1)",
    "all_gather_into_tensor": "dist.all_gather_into_tensor(torch.ones(2), x)",
    "barrier": "dist.barrier()",
    "monitored_barrier": "dist.monitored_barrier()",
    "send": "dist.send(x, 0)",
    "recv": "dist.recv(x, 0)",
    "new_group": "dist.new_group([0, 1])",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_collective_that_only_one_rank_would_call_is_refused(pool: Pool, call: str):
    run_cell(pool, "before = dist.new_group([0, 1]).group_name\ndist.barrier()\nx = torch.ones(1)")
    slider = Slider(pool, f"print('begins')\n{CALLS[call]}\nprint('goes on')")
    slider.move(1)
    slider.wait_text(f"rank 1 called {call} in a widget's callback, while no cell runs")
    assert "goes on" not in slider.text
    assert "touched: rank 0 would never make this call\n" in slider.text
    # Nothing counts: numbers of collectives and names of groups are as before.
    assert run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}
    name = "group = dist.new_group([0, 1])\ndist.barrier(group)\nprint(group.group_name)"
    first, second = run_cell(pool, name).texts().values()
    assert first == second


def test_a_call_among_one_rank_is_allowed(pool: Pool):
    run_cell(pool, "alone = [dist.new_group([0]), dist.new_group([1])][rank]\nx = torch.ones(1)")
    slider = Slider(
        pool,
        "dist.all_reduce(x, group=alone)\n"
        "dist.new_group([rank], use_local_synchronization=True)\nprint('done')",
    )
    slider.move(1)
    slider.wait_text("done")
    assert run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}


def test_a_new_group_is_refused_also_where_the_rank_is_no_member(pool: Pool):
    slider = Slider(pool, "dist.new_group([0])")
    slider.move(1)
    slider.wait_text("rank 1 called new_group in a widget's callback, while no cell runs")
    name = "group = dist.new_group([0, 1])\ndist.barrier(group)\nprint(group.group_name)"
    first, second = run_cell(pool, name).texts().values()
    assert first == second


WAYS_TO_HANG = {
    "loop": "while True: time.sleep(0.01)",
    "store": "dist.distributed_c10d._get_default_store().get('what nobody sets')",
    "sleep": "time.sleep(600)",
}


def threads_of(pool: Pool, rank: int) -> tuple[ThreadLook, ...]:
    look = pool.survey().looks.get(rank)
    return look.threads if look is not None else ()


@pytest.mark.parametrize("way", WAYS_TO_HANG)
def test_a_callback_that_hangs_is_seen_and_interrupted(pool: Pool, way: str):
    slider = Slider(pool, f"print('begins')\n{WAYS_TO_HANG[way]}")
    slider.move(1)
    slider.wait_text("begins")
    # A rank of a busy machine may be late with its answer.
    poll_until(lambda: pool._processes.in_callback() == pool.rank_set([1]), LIMIT_S)
    threads = poll_until(lambda: threads_of(pool, 1), LIMIT_S)
    main = next(each for each in threads if each.is_main)
    assert main.stack[0].function == "changed"
    assert set(pool.interrupt()) <= {1}  # a rank that answers late is interrupted, too
    slider.wait_text("KeyboardInterrupt")
    poll_until(lambda: not pool._processes.in_callback(), LIMIT_S)
    assert run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}


def test_a_cell_can_be_traced_after_a_callback_beside_another(pool: Pool):
    """A debugger, or a fault at a line, traces: CPython 3.11 hung, see `Callbacks._end`."""
    slider = Slider(pool, "seen.append(1)", before="seen = []")
    cell = begin_cell(pool, "print('runs')\nwhile not seen: time.sleep(0.01)", ranks=[1])
    poll_until(lambda: cell.view.text(1), LIMIT_S)
    slider.move(1)
    cell.join()
    poll_until(lambda: not pool._processes.in_callback(), LIMIT_S)
    view = run_cell(pool, "a = 1\nprint(a)", faults="rank 1: delay 0.01s at line 2")
    assert len(view.struck()) == 1
    assert view.texts() == {0: "1\n", 1: "1\n"}


def test_a_callback_that_outlives_its_cell_is_interrupted_too(pool: Pool):
    body = "seen.append(1)\nprint('begins', len(seen))\nwhile len(seen) == 1: time.sleep(0.01)"
    slider = Slider(pool, body, before="seen = []")
    cell = begin_cell(pool, "print('runs')\nwhile not slider.value: time.sleep(0.01)", ranks=[1])
    poll_until(lambda: cell.view.text(1), LIMIT_S)
    slider.move(1)
    cell.join()
    assert pool._processes.in_callback() == pool.rank_set([1])
    assert pool.interrupt() == pool.rank_set([1])
    slider.wait_text("KeyboardInterrupt")
    poll_until(lambda: not pool._processes.in_callback(), LIMIT_S)
    slider.move(1)
    slider.wait_text("begins 2")
    assert run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}


def test_callbacks_run_beside_a_cell_also_after_the_hooks_of_ipython_were_cleared(pool: Pool):
    """The advice about a hook that raises is to clear them."""
    for event in ("pre_run_cell", "post_run_cell", "pre_execute", "post_execute"):
        run_cell(pool, f"get_ipython().events.callbacks['{event}'].clear()")
    slider = Slider(pool, "print('begins')")
    cell = begin_cell(pool, "print('runs')\nwhile not slider.value: time.sleep(0.01)", ranks=[1])
    poll_until(lambda: cell.view.text(1), LIMIT_S)
    slider.move(1)
    assert cell.join(LIMIT_S).error is None


@pytest.mark.parametrize("error", ["SystemExit", "asyncio.CancelledError", "GeneratorExit"])
def test_no_error_of_a_callback_ends_the_thread_of_callbacks(pool: Pool, error: str):
    slider = Slider(pool, f"print('begins')\nraise {error}", before="import asyncio")
    cell = begin_cell(pool, "print('runs')\nwhile slider.value < 2: time.sleep(0.01)", ranks=[1])
    poll_until(lambda: cell.view.text(1), LIMIT_S)
    slider.move(1)
    poll_until(lambda: "begins" in cell.view.text(1), LIMIT_S)
    slider.move(1)
    assert cell.join(LIMIT_S).error is None


def test_a_pull_during_a_callback_is_told_why_it_waits(pool: Pool):
    slider = Slider(pool, "print('begins')\nwhile True: time.sleep(0.01)")
    slider.move(1)
    slider.wait_text("begins")
    words = r"rank 1 is in a widget's callback \(cell \[1\], line 5, in changed\)"
    with pytest.raises(PoolBusyError, match=words):
        pool.pull("rank")
    with pytest.raises(PoolBusyError, match=words):
        pool.push(never_pushed=1)
    assert pool.pull("rank", ranks=0) == 0
    pool.interrupt()
    slider.wait_text("KeyboardInterrupt")
    assert pool.pull("(rank, 'never_pushed' in globals())") == [(0, False), (1, False)]


def test_a_cell_that_waits_for_a_rank_in_a_callback_says_so_and_can_be_stopped(pool: Pool):
    slider = Slider(pool, "print('begins')\nwhile True: time.sleep(0.01)")
    slider.move(1)
    slider.wait_text("begins")
    cell = begin_cell(pool, "dist.barrier()")
    notice = poll_until(
        lambda: [e for e in cell.view.events if isinstance(e, NoticeChanged)], LIMIT_S
    )[0]
    assert notice.report is not None
    headline = notice.report.findings[0].headline
    assert headline.startswith("Rank 0 waits in barrier for rank 1")
    assert headline.endswith(" for rank 1, still in a widget's callback.")
    pool.interrupt()
    assert isinstance(cell.join().error, CellInterruptedError)
    assert "KeyboardInterrupt" in cell.view.text(1, "stderr")
    assert run_cell(pool, HEALTHY).texts() == {0: "2\n", 1: "2\n"}
