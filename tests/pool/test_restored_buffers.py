"""The buffers of an interrupted collective are restored."""

import os
import signal
import textwrap
import time

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.wire.rank_set import RankSet
from tests.support.polling import poll_until
from tests.support.pool_processes import pid_of
from tests.support.restarted_pool import restarted_pool
from tests.support.views import begin_cell, run_cell

shared_pool = restarted_pool(4)

_BEFORE = "x = torch.full((3,), float(rank + 1)); parts = [torch.zeros(3) for _ in range(4)]"

#: Rank 1 does not call, or calls something else; data has already moved between the others.
_FAILING = {
    "call": "if rank != 1: dist.all_reduce(x)",
    "handle": "if rank != 1: dist.all_reduce(x, async_op=True).wait()",
    "nobody waits": "if rank != 1: work = dist.all_reduce(x, async_op=True)\n1 / 0",
    "outputs": "if rank != 1: dist.all_gather(parts, x)",
    "other shape": "dist.all_reduce(x if rank != 1 else torch.ones(2))",
    "other call": "if rank != 1: dist.all_reduce(x)\nelse: dist.broadcast(x, 1)",
    "death of another": "import os\nif rank == 1: os._exit(1)\ndist.all_reduce(x)",
}


def test_small_tensors_are_restored(pool: Pool):
    for how, code in _FAILING.items():
        for _ in range(2):
            run_cell(pool, _BEFORE)
            assert run_cell(pool, code, check=False).error is not None, how
            left = pool.pull("(x.tolist(), [each.sum().item() for each in parts])", ranks=[0, 2, 3])
            assert left == [([rank + 1.0] * 3, [0.0] * 4) for rank in (0, 2, 3)], how
            # The next operation gives its usual result.
            run_cell(pool, f"{_BEFORE}\ndist.all_reduce(x)\nassert x.tolist() == [10.0] * 3")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("if rank == 2: dist.barrier()\ndist.all_reduce(x)", id="other operation"),
        pytest.param(
            "dist.all_reduce(x if rank else x[:100])", id="other shape", marks=pytest.mark.full
        ),
        pytest.param(
            "if rank == 0: dist.broadcast(x, 0)\nelse: dist.all_reduce(x)",
            id="other kind",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_million_elements_are_restored(pool: Pool, code: str):
    run_cell(pool, "x = torch.full((1_000_000,), float(rank))")
    assert run_cell(pool, code, check=False).error is not None
    assert pool.pull("bool(x.eq(rank).all())") == [True] * 4


def test_strided_tensors_are_restored(pool: Pool):
    run_cell(pool, "x = (torch.arange(6.0) + rank).reshape(2, 3).t()")
    text = str(run_cell(pool, "if rank != 1: dist.all_reduce(x)", check=False).error)
    assert "partial results" not in text
    assert pool.pull("x.tolist()") == [
        [[rank + row, rank + row + 3.0] for row in range(3)] for rank in range(4)
    ]


def test_the_source_of_a_broadcast_only_reads_its_tensor(pool: Pool):
    """Whatever its size, and however it is called: no copy is needed."""
    run_cell(pool, "x = torch.ones(3_000_000)")
    for how in ("dist.broadcast(x, 2)", "dist.broadcast(x, 2, async_op=True).wait()"):
        text = str(run_cell(pool, f"if rank == 2: {how}", check=False).error)
        assert "DeadlockError" in text
        assert "the tensors of" not in text


def test_tensors_are_restored_after_the_stop_button(pool: Pool):
    run_cell(pool, _BEFORE)
    cell = begin_cell(
        pool, "import time\nif rank == 1: time.sleep(600)\nprint('now')\ndist.all_reduce(x)"
    )
    poll_until(lambda: all("now" in cell.view.text(rank) for rank in (0, 2, 3)))
    pool.interrupt()
    assert cell.join().error is not None
    assert pool.pull("x.tolist()") == [[rank + 1.0] * 3 for rank in range(4)]


def test_tensors_are_restored_when_an_interrupt_comes_before_the_group_is_freed(pool: Pool):
    """The rank leaves an operation that goes on without it."""
    run_cell(pool, _BEFORE)
    cell = begin_cell(
        pool, "import time\nif rank == 1: time.sleep(600)\nprint('now')\ndist.all_reduce(x)"
    )
    poll_until(lambda: all("now" in cell.view.text(rank) for rank in (0, 2, 3)))
    for rank in (2, 3):
        os.kill(pid_of(pool, rank), signal.SIGINT)
    time.sleep(0.5)  # the wait comes back to look after a fifth of a second
    pool.interrupt()
    assert cell.join().error is not None
    assert pool.pull("x.tolist()") == [[rank + 1.0] * 3 for rank in range(4)]


def test_results_of_completed_operations_stay(pool: Pool):
    """A later error of the rank is no reason to restore, nor is an earlier operation."""
    run_cell(pool, f"{_BEFORE}\ny = x.clone()")
    code = "work = dist.all_reduce(x, async_op=True)\nwork.wait()\nif rank != 1: dist.all_reduce(y)"
    run_cell(pool, code, check=False)
    assert pool.pull("x.tolist()") == [[10.0] * 3] * 4
    assert pool.pull("y.tolist()") == [[rank + 1.0] * 3 for rank in range(4)]


def test_a_tensor_too_large_to_copy_is_named(pool: Pool):
    run_cell(pool, "x = torch.ones(3_000_000)")
    text = str(run_cell(pool, "if rank != 1: dist.all_reduce(x)", check=False).error)
    assert "except    the tensors of all_reduce #1 on ranks 0,2-3: no copy of them was kept" in text
    run_cell(pool, "x = torch.ones(3)")
    assert "except" not in str(run_cell(pool, "if rank: dist.barrier()", check=False).error)


def test_a_tensor_too_large_to_copy_is_named_after_the_death_of_another_rank(pool: Pool):
    run_cell(pool, "x = torch.full((3_000_000,), float(rank + 1))")
    code = """
    import os
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["issued on 0", "issued on 2", "issued on 3"])
        os._exit(3)
    work = dist.all_reduce(x, async_op=True)
    store.set(f"issued on {rank}", "")  # a rank that hears of the death before it issues no more
    work.wait()
    """
    outcome = run_cell(pool, textwrap.dedent(code), check=False).outcome
    assert outcome is not None
    assert outcome.report is not None
    assert (
        "Except: the tensors of all_reduce #1 on ranks 0,2-3 may hold partial results."
        in outcome.report.findings[0].now
    )


@pytest.mark.full
def test_a_tensor_too_large_to_copy_is_named_for_a_handle_without_wait(pool: Pool):
    run_cell(pool, "x = torch.ones(3_000_000)")
    code = "if rank != 1: work = dist.all_reduce(x, async_op=True)\nelse: raise ValueError('bad')"
    text = str(run_cell(pool, code, check=False).error)
    assert "partial   the tensors of all_reduce #1 on ranks 0,2-3: no copy of them was kept" in text
    code = "work = dist.all_reduce(x, async_op=True); work.wait()\nassert rank != 1"
    assert "partial" not in str(run_cell(pool, code, check=False).error)


def test_ranks_whose_tensors_an_ended_reduce_has_used_are_named(pool: Pool):
    code = """
    store = dist.distributed_c10d._get_default_store()
    x = torch.full((2,), float(rank + 1))
    if rank == 0:
        store.wait(["ended on 2", "ended on 3"])  # and then it leaves the cell
    else:
        dist.reduce(x, 0)
        store.set(f"ended on {rank}", "")
    """
    view = run_cell(pool, textwrap.dedent(code), check=False)
    assert pool.pull("x.tolist()", ranks=[0, 1]) == [[1.0] * 2, [2.0] * 2]
    assert pool.last_report is not None
    (finding,) = pool.last_report.findings
    assert finding.scratch == RankSet.of([2, 3])  # rank 1 waits for the root, and is put back
    assert "except    the tensors of reduce on ranks 2-3: it had ended" in str(view.error)


@pytest.mark.parametrize(
    "how",
    [
        "exit",
        "raise",
        pytest.param("stop", marks=pytest.mark.full),
        pytest.param("timeout", marks=pytest.mark.full),
    ],
)
def test_an_ended_reduce_is_told_however_its_root_leaves_the_cell(pool: Pool, how: str):
    leaves = {"exit": "os._exit(4)", "raise": "1 / 0"}.get(how, "time.sleep(100)")
    code = f"""
    import os, time
    store = dist.distributed_c10d._get_default_store()
    x = torch.full((2,), float(rank + 1))
    if rank == 0:
        store.wait(["{how} 2", "{how} 3"])
        print("ended")
        {leaves}
    dist.reduce(x, 0)
    store.set(f"{how} {{rank}}", "")
    """
    running = begin_cell(pool, textwrap.dedent(code), timeout=1.0 if how == "timeout" else None)
    if how == "stop":
        poll_until(lambda: running.view.texts().get(0) == "ended\n")
        pool.interrupt()
    view = running.join()
    assert view.outcome is not None
    assert view.outcome.scratch == RankSet.of([2, 3])
    label = "partial" if how == "raise" else "except"
    told = f"{label} the tensors of reduce on ranks 2-3: it had ended there, and torch may leave"
    assert told in " ".join(str(view.error).split())
    assert pool.pull("x.tolist()", ranks=1) == [2.0] * 2


def test_a_reduce_that_has_ended_on_its_root_is_not_told(pool: Pool):
    code = "x = torch.ones(2)\nfor _ in range(3): dist.reduce(x, 0)\ndist.barrier()\n"
    view = run_cell(pool, f"{code}assert rank != 0", check=False)
    assert view.outcome is not None
    assert not view.outcome.scratch
    view = run_cell(pool, "dist.reduce(x, 0)\nif rank: dist.barrier()", check=False)
    assert view.outcome is not None
    assert view.outcome.report is not None
    assert not view.outcome.scratch


def test_a_handle_without_a_partner_is_told_where_the_next_call_meets_it(pool: Pool):
    """The notice does not come earlier: the missing rank may call it in a later cell."""
    begin, end = "if rank != 1: work = dist.all_reduce(x, async_op=True)", "work.wait()"
    run_cell(pool, f"x = torch.ones(3_000_000)\n{begin}")
    run_cell(pool, f"if rank == 1: work = dist.all_reduce(x, async_op=True)\n{end}")
    assert pool.pull("x[:2].tolist()") == [[4.0, 4.0]] * 4
    run_cell(pool, begin)
    text = str(run_cell(pool, "dist.barrier()", check=False).error)
    assert "rank 1 called barrier, ranks 0,2-3 called all_reduce" in text.replace("Rank", "rank")
    assert "except    the tensors of all_reduce #2 on ranks 0,2-3" in text


@pytest.mark.full
def test_neither_autograd_nor_a_profiler_sees_the_copies(pool: Pool):
    run_cell(
        pool,
        "from torch.utils._python_dispatch import TorchDispatchMode\n"
        "seen = []\n"
        "class Spy(TorchDispatchMode):\n"
        "    def __torch_dispatch__(self, func, types, args=(), kwargs=None):\n"
        "        seen.append(str(func)); return func(*args, **(kwargs or {}))\n"
        "w = torch.nn.Parameter(torch.ones(3)); before = w._version\n"
        "with Spy(), torch.no_grad(): dist.all_reduce(w)\n"
        "assert not [each for each in seen if 'c10d' not in each], seen\n"
        "torch.ones(3).requires_grad_()\n",
    )
