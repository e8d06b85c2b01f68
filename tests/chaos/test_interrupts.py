"""Interrupts in every state: the prompt comes back, and the pool can be used."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nbddp.controller.hub.run import Run
from nbddp.controller.pool.pool import CellOptions, Pool
from nbddp.controller.state.outcome import RunOutcome
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import (
    CellInterruptedError,
    CellTimeoutError,
    PoolBrokenError,
    PoolBusyError,
    PoolInterruptedError,
    TransferInterruptedError,
)
from nbddp.wire.messages import InputRequest, RunFinished
from nbddp.wire.rank_set import RankSet
from tests.support.polling import poll_until
from tests.support.views import RecordingView, begin_cell, run_cell


class _PressingView(RecordingView):
    """Presses Ctrl-C, as often as told, each time when the cell's ranks have said so.

    Args:
        ended: ranks that have ended the cell before.
    """

    def __init__(
        self, presses: int, said: str = "in\n", ranks: int = 2, ended: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self._ended = set(ended)
        self._presses = presses
        self._said = said
        self._ranks = ranks

    def tick(self) -> float | None:
        said = [rank for rank, text in self.texts().items() if self._said in text]
        ended = {event.rank for event in self.events if isinstance(event, RunFinished)}
        if self._presses and len(said) >= self._ranks and self._ended <= ended:
            self._presses -= 1
            signal.raise_signal(signal.SIGINT)
        return 0.05


def _interrupted(
    pool: Pool, code: str, presses: int = 1, ranks: int = 2, ended: tuple[int, ...] = ()
) -> RunOutcome:
    run = pool.submit(f"print('in', flush=True)\n{code}\n", CellOptions(ranks=pool.all_ranks))
    return pool.wait(run, _PressingView(presses, ranks=ranks, ended=ended))


_IN_PYTHON = {
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(100)",
    "await": "import asyncio; await asyncio.sleep(100)",
    "busy await": "import asyncio\nwhile True: await asyncio.sleep(0)",
    "blocking call in a task": "import asyncio, time\nasync def f(): time.sleep(100)\nawait f()",
    "subprocess": "import subprocess; subprocess.run(['sleep', '100'])",
    "shell": "!sleep 100",
    # A thread that is left could act for ever: nothing would be proven on that pool any more.
    "thread join": "import threading\nover = threading.Event()\n"
    "t = threading.Thread(target=over.wait, daemon=True); t.start()\n"
    "try: t.join()\nfinally: over.set()",
    "lock": "import threading; x = threading.Lock()\nx.acquire(); x.acquire()",
    "queue": "import queue; queue.Queue().get()",
    "display flood": "while True: display(1)",
    "finalizer": "import time\nclass Slow:\n    def __del__(self): time.sleep(10)\n"
    "slow = Slow(); del slow\ntime.sleep(100)",
    # As where it comes in the moment before the main thread blocks: that sleeps on.
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
    outcome = _interrupted(pool, _IN_PYTHON[where])
    assert outcome.interrupted
    assert not outcome.ranks("unfinished", "exited")
    if where != "shell":  # ends by itself when its child has ended
        assert isinstance(pool.error_of(outcome), CellInterruptedError)
    assert run_cell(pool, "print(kept)").texts() == {0: "10\n", 1: "11\n"}


def test_handlers_of_signals_of_an_event_loop_go_on_in_the_next_cell(pool: Pool):
    """asyncio hears of signals by the only descriptor that CPython tells of them."""
    run_cell(
        pool,
        "import asyncio, os, signal\nloop, heard = asyncio.get_running_loop(), []\n"
        "loop.add_signal_handler(signal.SIGUSR1, heard.append, 1)\nawait asyncio.sleep(0)",
    )
    run_cell(
        pool, "os.kill(os.getpid(), signal.SIGUSR1)\nwhile not heard: await asyncio.sleep(0.01)"
    )
    assert _interrupted(pool, "await asyncio.sleep(100)").interrupted
    assert pool.pull("heard") == [[1], [1]]
    run_cell(pool, "loop.remove_signal_handler(signal.SIGUSR1)\nawait asyncio.sleep(0)")
    assert _interrupted(pool, _IN_PYTHON["signal that another thread gets"]).interrupted


def test_an_interrupt_goes_to_the_ranks_of_the_cell_only(pool: Pool):
    run = pool.submit(
        "import time\nprint('in')\ntime.sleep(100)\n", CellOptions(pool.rank_set("1"))
    )
    outcome = pool.wait(run, _PressingView(1, ranks=1))
    assert outcome.ranks("error").ranks == (1,)


#: Locks a lock of C twice, which no signal ends.
_LOCKED = """
import ctypes
lock = ctypes.create_string_buffer(128)
for _ in range(2 * rank):
    ctypes.{library}(None).pthread_mutex_lock(lock)
"""


@pytest.mark.parametrize(
    "stuck",
    [
        _LOCKED.format(library="PyDLL"),
        _LOCKED.format(library="CDLL"),
        "import os, signal\nif rank: os.kill(os.getpid(), signal.SIGSTOP)",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile rank: pass",
    ],
    ids=["GIL held", "C call", "stopped", "SIGINT ignored"],
)
def test_a_second_interrupt_always_gives_the_prompt_back(
    stuck: str, fresh_pool: Callable[..., Pool]
):
    pool = fresh_pool()
    outcome = _interrupted(pool, stuck, presses=2, ended=(0,))
    error = pool.error_of(outcome)
    assert isinstance(error, CellInterruptedError)
    assert outcome.ranks("unfinished").ranks == (1,)
    assert "rank 1 is still inside the cell" in str(error)
    assert "%ddp restart" in str(error)
    with pytest.raises(PoolBrokenError, match="rank 1 is still in an old cell"):
        run_cell(pool, "pass")
    assert run_cell(pool, "print('free')", ranks="0").text(0) == "free\n"
    pool.restart()
    assert run_cell(pool, "dist.barrier(); print('again')").texts() == {0: "again\n", 1: "again\n"}


def test_a_cell_waits_for_ranks_that_are_being_freed(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool()
    run_cell(pool, "kept = rank")
    for _ in range(3):
        outcome = _interrupted(pool, "if rank: dist.all_reduce(torch.ones(1))", presses=2)
        assert isinstance(pool.error_of(outcome), CellInterruptedError)
        assert run_cell(pool, "print(kept); dist.barrier()").texts() == {0: "0\n", 1: "1\n"}


#: As where the button is pressed in the first moments of the cell after this one.
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
    """IPython prints what its callbacks raise, and runs the cell all the same."""
    run_cell(pool, _PRESSED_BEFORE.format(event=event, module=module))
    view = run_cell(pool, "import time; time.sleep(30)", timeout=20, check=False)
    assert view.outcome is not None
    assert not view.outcome.timed_out
    results = view.outcome.results.values()
    assert {result.error.ename for result in results if result.error} == {"KeyboardInterrupt"}
    assert ("Error in callback" in view.text()) == (module == "__main__")


#: No signal ends the wait for a mutex. The other thread opens it when the file is there.
_IN_C = """
import ctypes, os, threading, time
if rank:
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    def open_it():
        while not os.path.exists({path!r}):
            time.sleep(0.01)
        libc.pthread_mutex_unlock(mutex)
    threading.Thread(target=open_it, daemon=True).start()
    libc.pthread_mutex_lock(mutex)
"""


def test_what_comes_next_waits_for_a_rank_that_is_late(
    fresh_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    pool = fresh_pool()
    run_cell(pool, "kept = rank")
    late, threads = PoolMachine.late, set()

    def noted_late(machine: PoolMachine, ranks: RankSet) -> RankSet:
        threads.add(threading.current_thread())
        found = late(machine, ranks)
        if found:
            path.touch()
        return found

    # Asked from another thread it may be answered when the rank is back that was refused.
    monkeypatch.setattr(PoolMachine, "late", noted_late)
    uses = (
        lambda: run_cell(pool, "print(kept); dist.barrier()"),
        lambda: pool.pull("kept"),
        lambda: pool.push({"kept": 7}),
    )
    for number, use in enumerate(uses):
        path = tmp_path / str(number)
        outcome = _interrupted(pool, _IN_C.format(path=str(path)), presses=2, ended=(0,))
        assert outcome.ranks("unfinished").ranks == (1,)
        use()
    assert pool.pull("kept") == [7, 7]
    assert [thread.name for thread in threads] == ["nbddp-hub"]


#: Rank 1 enters the barrier when the cell was given up and all others have left it.
_LATE = """
import signal, time
if rank:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(2)
    dist.barrier()
time.sleep(100)
"""


def test_a_rank_that_blocks_after_its_cell_was_given_up_comes_back(
    fresh_pool: Callable[..., Pool],
):
    pool = fresh_pool()
    assert 1 in _interrupted(pool, _LATE, presses=2).ranks("unfinished")
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()), 30.0)
    assert run_cell(pool, "dist.barrier(); print(rank)").texts() == {0: "0\n", 1: "1\n"}


@pytest.mark.timeout(120)
def test_a_module_that_is_being_imported_is_whole_afterwards(fresh_pool: Callable[..., Pool]):
    """As in the first DDP of a process; what it imports cannot be imported once more."""
    pool = fresh_pool(3)
    code = "import threading\nif rank == 0: threading.Timer(0.5, os._exit, (1,)).start()\n"
    view = run_cell(pool, f"import os\n{code}import torch._dynamo\ndist.barrier()", check=False)
    assert view.error is not None
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()), 60.0)
    model = "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))"
    run_cell(pool, f"import torch._dynamo.utils\n{model}(torch.ones(1, 2)).sum().backward()")


def test_a_debugger_ends_when_its_cell_is_given_up(pool: Pool):
    view = RecordingView([KeyboardInterrupt(), KeyboardInterrupt(), KeyboardInterrupt()])
    run = pool.submit("if rank == 0: breakpoint()\n", CellOptions(ranks=pool.all_ranks))
    pool.wait(run, view)
    assert len(view.asked) == 2
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()))


def test_stuck_ranks_replaced_one_after_another_get_a_fresh_process_group(
    fresh_pool: Callable[..., Pool],
):
    pool = fresh_pool()
    told: list[object] = []
    pool.listeners.background = told.append
    stuck = _LOCKED.format(library="PyDLL").replace("2 * rank", "2")
    assert _interrupted(pool, stuck, presses=2).ranks("unfinished").ranks == (0, 1)
    first = pool.restart(0)
    assert "rank 0 is a fresh process. Rank 1 is still inside a cell" in first
    assert "%ddp restart -r 1" in first
    run_cell(pool, "kept = 'of the first fresh rank'", ranks="0")
    pool.restart(1)
    view = run_cell(pool, "t = torch.ones(1); dist.all_reduce(t); print(t.item())")
    assert view.texts() == {0: "2.0\n", 1: "2.0\n"}
    run_cell(pool, "g = dist.new_group([0, 1]); dist.barrier(group=g)")
    assert pool.pull("kept", ranks=0) == "of the first fresh rank"
    assert told == []


def test_a_rank_that_comes_back_late_can_be_used_again(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool()
    outcome = _interrupted(
        pool,
        "if rank: sum(range(50_000_000))  # about a second of C, which no signal ends",
        presses=2,
        ended=(0,),
    )
    assert outcome.ranks("unfinished").ranks == (1,)
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()))
    assert run_cell(pool, "print('own')").texts() == {0: "own\n", 1: "own\n"}


def test_an_interrupt_between_sending_and_waiting_is_for_the_cell(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    submit = pool.submit

    def submit_and_press(code: str, options: CellOptions) -> Run:
        run = submit(code, options)
        signal.raise_signal(signal.SIGINT)
        return run

    monkeypatch.setattr(pool, "submit", submit_and_press)
    with pytest.raises(CellInterruptedError):
        pool.run("import time; time.sleep(100)")


def _run_interrupted(pool: Pool, patch: pytest.MonkeyPatch, code: str, delay_s: float) -> None:
    """Run a cell, with a SIGINT so long after it began to be submitted."""
    submit = pool.submit
    timer = threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGINT))

    def submit_and_start(code: str, options: CellOptions) -> Run:
        timer.start()
        return submit(code, options)

    with patch.context() as patched:
        patched.setattr(pool, "submit", submit_and_start)
        with pytest.raises(CellInterruptedError):
            pool.run(code)
    timer.join()


def test_interrupts_at_any_point_leave_the_pool_usable(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    """Twenty of them, seeded; the next cell gets only its own output."""
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


def test_an_interrupt_while_the_pool_starts_leaves_nothing(fresh_pool: Callable[..., Pool]):
    for delay_s in (0.05, 0.4, 0.8):
        with _sigint_after(delay_s), suppress(PoolInterruptedError, KeyboardInterrupt):
            fresh_pool()  # which may be quicker than the interrupt: it is stopped in the end


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


def test_an_interrupted_pull_stops_on_the_ranks_too(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool()
    with _sigint_after(0.3), pytest.raises(TransferInterruptedError):
        pool.pull("__import__('time').sleep(100)")
    view = run_cell(pool, "print('free')", timeout=1.0, check=False)
    assert view.texts() == {0: "free\n", 1: "free\n"}


#: A native lock that is taken twice: nothing ends that but the end of the process.
_ENDLESS = """
    import ctypes
    lock = ctypes.create_string_buffer(64)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)
"""


def test_timeout_names_the_ranks_that_are_still_inside(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool()
    view = run_cell(pool, f"if rank:\n{_ENDLESS}", timeout=0.3, check=False)
    assert isinstance(view.error, CellTimeoutError)
    assert "rank 1 is still inside the cell" in str(view.error)
    assert "rank 0 finished" in str(view.error)
    pool.restart([1])
    assert run_cell(pool, "dist.barrier(); print(rank)").texts() == {0: "0\n", 1: "1\n"}


_GOES_ON = """import time
while rank:
    try:
        while True: time.sleep(0.01)
    except KeyboardInterrupt:
        pass
"""


def test_code_that_goes_on_after_an_interrupt_is_told_with_its_line(
    fresh_pool: Callable[..., Pool],
):
    pool = fresh_pool()
    view = run_cell(pool, _GOES_ON, timeout=0.3, check=False)
    assert isinstance(view.error, CellTimeoutError)
    (told,) = [line for line in str(view.error).splitlines() if "still inside" in line]
    said = (
        "rank 1 is still inside the cell (in Python code that goes on after an interrupt, at cell ["
    )
    assert told.startswith(said)
    assert "line 4); if it does not come back: %ddp restart -r 1" in told


def test_a_cell_while_another_runs_is_refused(pool: Pool):
    running = begin_cell(pool, "import time\nprint('in')\ntime.sleep(100)")
    poll_until(lambda: running.view.text(0) == "in\n")
    for use in (lambda: pool.run("pass"), lambda: pool.pull("rank"), lambda: pool.push(x=1)):
        with pytest.raises(PoolBusyError, match="still running on ranks 0-1"):
            use()
    pool.interrupt()
    assert isinstance(running.join().error, CellInterruptedError)


def test_questions_of_all_ranks_end_with_one_interrupt(pool: Pool):
    run = pool.submit("input('?')\n", CellOptions(ranks=pool.all_ranks))

    class View(RecordingView):
        def ask(self, request: InputRequest) -> str:
            self.asked.append(request)
            poll_until(lambda: run.put_count == 4)  # both ranks have begun, both have asked
            raise KeyboardInterrupt

    view = View()
    assert isinstance(pool.error_of(pool.wait(run, view)), CellInterruptedError)
    assert len(view.asked) == 1


def test_questions_of_all_ranks_end_when_their_cell_is_given_up(pool: Pool):
    code = "while True:\n    try: input('?')\n    except KeyboardInterrupt: pass\n"
    run = pool.submit(code, CellOptions(ranks=pool.all_ranks))

    class View(RecordingView):
        def ask(self, request: InputRequest) -> str:
            self.asked.append(request)
            # Both ranks have begun, and ask for the first or for the second time.
            # More may have come: ranks that are interrupted once more ask once more.
            poll_until(lambda: run.put_count >= 2 + 2 * len(self.asked))
            raise KeyboardInterrupt

    view = View()
    outcome = pool.wait(run, view)
    assert len(view.asked) == 2
    assert outcome.ranks("unfinished") == pool.all_ranks
    assert (
        "ranks 0-1 are still inside the cell (last seen at a prompt, which now ends); "
        "if they do not come back: %ddp restart" in str(pool.error_of(outcome))
    )
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()))
    assert run_cell(pool, "dist.barrier(); print(rank)").texts() == {0: "0\n", 1: "1\n"}


def test_a_question_after_its_cell_was_given_up_ends_at_once(
    fresh_pool: Callable[..., Pool], tmp_path: Path
):
    pool = fresh_pool()
    late: list[object] = []
    pool.listeners.background = late.append
    outcome = _interrupted(
        pool,
        "import signal\nfrom pathlib import Path\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"while rank and not Path({str(tmp_path / 'go')!r}).exists(): pass\n"
        "try: rank and input('?')\nexcept EOFError as error: print('told:', error)",
        presses=2,
    )
    assert 1 in outcome.ranks("unfinished")
    assert "in C code" in str(pool.error_of(outcome))  # it does not ask yet
    (tmp_path / "go").touch()
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()))
    assert "told: the cell that asked has ended\n" in [getattr(one, "text", "") for one in late]


def test_a_rank_may_ask_after_an_interrupt(pool: Pool):
    code = "try: input('first? ')\nexcept KeyboardInterrupt: print('got', input('really? '))"
    view = run_cell(pool, code, ranks="0", answers=[KeyboardInterrupt(), "yes"], check=False)
    assert view.text(0) == "got yes\n"


def test_what_a_given_up_cell_prints_later_is_not_in_the_next_one(
    fresh_pool: Callable[..., Pool],
):
    pool = fresh_pool()
    late: list[object] = []
    pool.listeners.background = late.append
    outcome = _interrupted(
        pool,
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "time.sleep(0.5 * rank)\nprint('late')",
        presses=2,
    )
    assert 1 in outcome.ranks("unfinished")
    view = run_cell(pool, "print('own')", ranks="0")
    poll_until(lambda: any("late" in getattr(event, "text", "") for event in late))
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()))
    assert view.texts() == {0: "own\n"}
