"""Cells that were given up while a rank was inside: the rank returns late, or is replaced."""

import threading
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import CellInterruptedError, CellTimeoutError, PoolBrokenError
from nbddp.wire.rank_set import RankSet
from tests.support.interrupts import interrupted
from tests.support.polling import poll_until
from tests.support.restarted_pool import restarted_pool
from tests.support.views import run_cell

shared_pool = restarted_pool()

#: Locks a lock of C twice, which no signal ends.
_LOCKED = """
import ctypes
lock = ctypes.create_string_buffer(128)
for _ in range(2 * rank):
    ctypes.{library}(None).pthread_mutex_lock(lock)
"""


#: SIGINT does not end rank 1 in the lines before it is stuck.
_BLOCKED = "import signal\nif rank: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])"


@pytest.mark.parametrize(
    ("before", "stuck"),
    [
        (_BLOCKED, _LOCKED.format(library="PyDLL")),
        pytest.param(_BLOCKED, _LOCKED.format(library="CDLL"), marks=pytest.mark.full),
        pytest.param(
            _BLOCKED,
            "import os\nif rank: os.kill(os.getpid(), signal.SIGSTOP)",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
            "while rank: pass",
            marks=pytest.mark.full,
        ),
    ],
    ids=["GIL held", "C call", "stopped", "SIGINT ignored"],
)
def test_a_second_interrupt_always_gives_the_prompt_back(before: str, stuck: str, pool: Pool):
    outcome = interrupted(pool, stuck, presses=2, ended=(0,), before=before)
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


def test_the_next_use_of_the_pool_waits_for_a_late_rank(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
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
        outcome = interrupted(pool, _IN_C.format(path=str(path)), presses=2, ended=(0,))
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


@pytest.mark.full
def test_a_rank_that_blocks_after_its_cell_was_given_up_comes_back(
    pool: Pool,
):
    assert 1 in interrupted(pool, _LATE, presses=2).ranks("unfinished")
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()), 30.0)
    assert run_cell(pool, "dist.barrier(); print(rank)").texts() == {0: "0\n", 1: "1\n"}


def test_stuck_ranks_replaced_one_after_another_get_a_fresh_process_group(
    pool: Pool,
):
    told: list[object] = []
    pool.listeners.background = told.append
    stuck = _LOCKED.format(library="PyDLL").replace("2 * rank", "2")
    assert interrupted(pool, stuck, presses=2).ranks("unfinished").ranks == (0, 1)
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


def test_a_rank_that_comes_back_late_can_be_used_again(pool: Pool):
    outcome = interrupted(
        pool,
        "if rank: sum(range(50_000_000))  # about a second of C, which no signal ends",
        presses=2,
        ended=(0,),
    )
    assert outcome.ranks("unfinished").ranks == (1,)
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()))
    assert run_cell(pool, "print('own')").texts() == {0: "own\n", 1: "own\n"}


#: A native lock that is taken twice: nothing ends that but the end of the process.
_ENDLESS = """
    import ctypes
    lock = ctypes.create_string_buffer(64)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)
"""


def test_timeout_names_the_ranks_that_are_still_inside(pool: Pool):
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
    pool: Pool,
):
    view = run_cell(pool, _GOES_ON, timeout=0.3, check=False)
    assert isinstance(view.error, CellTimeoutError)
    (told,) = [line for line in str(view.error).splitlines() if "still inside" in line]
    said = "rank 1 is still inside the cell (in Python code that ignores interrupts, at cell ["
    assert told.startswith(said)
    assert "line 4); if it does not come back: %ddp restart -r 1" in told


def test_late_output_of_a_given_up_cell_is_not_in_the_next_one(
    pool: Pool,
):
    late: list[object] = []
    pool.listeners.background = late.append
    outcome = interrupted(
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
