"""Interrupts in every state: the prompt comes back, and the pool can be used."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from nbddp.controller.hub.run import Run
from nbddp.controller.pool import CellOptions, Pool
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import (
    CellInterruptedError,
    PoolBusyError,
    PoolInterruptedError,
    TransferInterruptedError,
)
from tests.support.interrupts import PressingView, interrupted
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell

_IN_PYTHON = {
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(100)",
    "await": "import asyncio; await asyncio.sleep(100)",
    "busy await": "import asyncio\nwhile True: await asyncio.sleep(0)",
    "blocking call in a task": "import asyncio, time\nasync def f(): time.sleep(100)\nawait f()",
    "subprocess": "import subprocess; subprocess.run(['sleep', '100'])",
    "shell": "!sleep 100",
    # A thread that stays could act forever: no later hang would be proven on that pool.
    "thread join": "import threading\nover = threading.Event()\n"
    "t = threading.Thread(target=over.wait, daemon=True); t.start()\n"
    "try: t.join()\nfinally: over.set()",
    "lock": "import threading; x = threading.Lock()\nx.acquire(); x.acquire()",
    "queue": "import queue; queue.Queue().get()",
    "display flood": "while True: display(1)",
    "finalizer": "import time\nclass Slow:\n    def __del__(self): time.sleep(10)\n"
    "slow = Slow(); del slow\ntime.sleep(100)",
    # The effect of a signal just before the main thread blocks, which then sleeps on.
    "signal that another thread gets": "import signal, threading\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
    "try: threading.Event().wait()\n"
    "finally: signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})",
    "weak reference": "import time, weakref\nclass C: pass\nc = C()\n"
    "r = weakref.ref(c, lambda _: time.sleep(10)); del c\ntime.sleep(100)",
}


@pytest.mark.parametrize("where", _IN_PYTHON)
def test_one_interrupt_ends_python_code(where: str, pool: Pool):
    run_cell(pool, "kept = rank + 10")
    outcome = interrupted(pool, _IN_PYTHON[where])
    assert outcome.interrupted
    assert not outcome.ranks("unfinished", "exited")
    if where != "shell":  # ends by itself when its child has ended
        assert isinstance(pool.error_of(outcome), CellInterruptedError)
    assert run_cell(pool, "print(kept)").texts() == {0: "10\n", 1: "11\n"}


def test_signal_handlers_of_an_event_loop_still_work_in_the_next_cell(pool: Pool):
    """asyncio learns of signals from the only descriptor to which CPython writes them."""
    run_cell(
        pool,
        "import asyncio, os, signal\nloop, heard = asyncio.get_running_loop(), []\n"
        "loop.add_signal_handler(signal.SIGUSR1, heard.append, 1)\nawait asyncio.sleep(0)",
    )
    run_cell(
        pool, "os.kill(os.getpid(), signal.SIGUSR1)\nwhile not heard: await asyncio.sleep(0.01)"
    )
    assert interrupted(pool, "await asyncio.sleep(100)").interrupted
    assert pool.pull("heard") == [[1], [1]]
    run_cell(pool, "loop.remove_signal_handler(signal.SIGUSR1)\nawait asyncio.sleep(0)")
    assert interrupted(pool, _IN_PYTHON["signal that another thread gets"]).interrupted


def test_an_interrupt_goes_to_the_ranks_of_the_cell_only(pool: Pool):
    run = pool.submit(
        "import time\nprint('in')\ntime.sleep(100)\n", CellOptions(pool.rank_set("1"))
    )
    outcome = pool.wait(run, PressingView(1, ranks=1))
    assert outcome.ranks("error").ranks == (1,)


@pytest.mark.fresh_ranks
def test_a_cell_waits_for_ranks_that_are_being_freed(pool: Pool):
    run_cell(pool, "kept = rank")
    for _ in range(3):
        outcome = interrupted(pool, "if rank: dist.all_reduce(torch.ones(1))", presses=2)
        assert isinstance(pool.error_of(outcome), CellInterruptedError)
        assert run_cell(pool, "print(kept); dist.barrier()").texts() == {0: "0\n", 1: "1\n"}


#: The button is pressed in the first moments of the next cell.
_PRESSED_BEFORE = """
import os, signal, time
from IPython.core.events import EventManager
shell = get_ipython()
def press(*_):
    shell.events.unregister({event!r}, press)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)
press.__module__ = {module!r}
shell.events.register({event!r}, press)
"""


@pytest.mark.parametrize("event", ["pre_execute", "pre_run_cell"])
@pytest.mark.parametrize("module", ["IPython.core.interactiveshell", "__main__"])
def test_an_interrupt_before_the_code_of_a_cell_is_not_lost(pool: Pool, event: str, module: str):
    """IPython prints errors of its callbacks, and still runs the cell."""
    run_cell(pool, _PRESSED_BEFORE.format(event=event, module=module))
    view = run_cell(pool, "import time; time.sleep(30)", timeout=20, check=False)
    assert view.outcome is not None
    assert not view.outcome.timed_out
    results = view.outcome.results.values()
    assert {result.error.ename for result in results if result.error} == {"KeyboardInterrupt"}
    assert ("Error in callback" in view.text()) == (module == "__main__")


@pytest.mark.full
@pytest.mark.timeout(120)
@pytest.mark.fresh_ranks(3)
def test_a_module_that_is_being_imported_is_whole_afterwards(pool: Pool):
    """The first DDP imports modules; after an incomplete import they cannot be imported again."""
    code = "import threading\nif rank == 0: threading.Timer(0.5, os._exit, (1,)).start()\n"
    view = run_cell(pool, f"import os\n{code}import torch._dynamo\ndist.barrier()", check=False)
    assert view.error is not None
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()), 60.0)
    model = "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))"
    run_cell(pool, f"import torch._dynamo.utils\n{model}(torch.ones(1, 2)).sum().backward()")


def test_an_interrupt_between_sending_and_waiting_is_for_the_cell(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    submit = pool.submit

    def submit_and_press(code: str, options: CellOptions, *more: Any) -> Run:
        run = submit(code, options, *more)
        signal.raise_signal(signal.SIGINT)
        return run

    monkeypatch.setattr(pool, "submit", submit_and_press)
    with pytest.raises(CellInterruptedError):
        pool.run("import time; time.sleep(100)")


def _run_interrupted(pool: Pool, patch: pytest.MonkeyPatch, code: str, delay_s: float) -> None:
    """Runs a cell, with a SIGINT ``delay_s`` after its submission began."""
    submit = pool.submit
    timer = threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGINT))

    def submit_and_start(code: str, options: CellOptions, *more: Any) -> Run:
        timer.start()
        return submit(code, options, *more)

    with patch.context() as patched:
        patched.setattr(pool, "submit", submit_and_start)
        with pytest.raises(CellInterruptedError):
            pool.run(code)
    timer.join()


def test_interrupts_at_any_point_leave_the_pool_usable(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    """Twenty interrupts at seeded moments; the next cell gets only its own output."""
    chance = random.Random(20)
    for number in range(20):
        code = f"print('cell {number}')\nimport time\ntime.sleep(100)"
        _run_interrupted(pool, monkeypatch, code, chance.uniform(0.001, 0.03))
        after = run_cell(pool, f"print('after {number}')", timeout=20.0)
        assert after.texts() == {0: f"after {number}\n", 1: f"after {number}\n"}


def test_interrupts_of_awaiting_cells_at_any_point(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    chance = random.Random(21)
    code = "import asyncio\nwhile True: await asyncio.sleep(0)"
    for number in range(20):
        _run_interrupted(pool, monkeypatch, code, chance.uniform(0.001, 0.03))
        assert run_cell(pool, f"print({number})", timeout=20.0).text(0) == f"{number}\n"


@contextmanager
def _sigint_after(delay_s: float) -> Iterator[None]:
    """One SIGINT for the main thread, and no more when the block has been left."""
    timer = threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


#: Python loses a KeyboardInterrupt that is raised in the callback of a weak reference, and pytest
#: tells it: an interrupt may come just before nbddp handles it.
_MAY_BE_LOST = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@_MAY_BE_LOST
def test_an_interrupt_while_the_pool_starts_leaves_nothing(fresh_pool: Callable[..., Pool]):
    for delay_s in (0.05, 0.4, 0.8):
        with _sigint_after(delay_s), suppress(PoolInterruptedError, KeyboardInterrupt):
            fresh_pool()  # which may be quicker than the interrupt: it is stopped in the end


@_MAY_BE_LOST
def test_an_interrupt_while_the_pool_restarts_ends_it(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool()
    with _sigint_after(0.05), suppress(PoolInterruptedError):
        pool.restart()
    assert pool.is_stopped or run_cell(pool, "print('up')").text(0) == "up\n"


def test_an_interrupt_while_a_value_is_pulled(pool: Pool):
    run_cell(pool, "def slow():\n    import time; time.sleep(1); return 'late'\nx = rank")
    with _sigint_after(0.2), pytest.raises(TransferInterruptedError, match="was interrupted"):
        pool.pull("slow()")
    assert pool.pull("x") == [0, 1]


def test_an_interrupt_while_an_expression_waits_for_a_member(pool: Pool):
    waits = "__import__('time').sleep(100) if rank else dist.barrier()"
    for expression in (waits, f"[dist.barrier(), {waits}]"):
        with _sigint_after(0.3), pytest.raises(TransferInterruptedError):
            pool.pull(expression)
        view = run_cell(pool, "dist.barrier()\nprint('free')", timeout=5.0)
        assert view.texts() == {0: "free\n", 1: "free\n"}


@pytest.mark.fresh_ranks
def test_an_interrupted_pull_stops_on_the_ranks_too(pool: Pool):
    with _sigint_after(0.3), pytest.raises(TransferInterruptedError):
        pool.pull("__import__('time').sleep(100)")
    view = run_cell(pool, "print('free')", timeout=1.0, check=False)
    assert view.texts() == {0: "free\n", 1: "free\n"}


def test_a_cell_while_another_runs_is_refused(pool: Pool):
    running = begin_cell(pool, "import time\nprint('in')\ntime.sleep(100)")
    poll_until(lambda: running.view.text(0) == "in\n")
    for use in (lambda: pool.run("pass"), lambda: pool.pull("rank"), lambda: pool.push(x=1)):
        with pytest.raises(PoolBusyError, match="still running on ranks 0-1"):
            use()
    pool.interrupt()
    assert isinstance(running.join().error, CellInterruptedError)
