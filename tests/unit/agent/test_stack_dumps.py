"""A main thread is asked for its stack in C only when it runs no Python code."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from nbddp.agent.stack_dumps import (
    MainThread,
    StackDumps,
    is_outside_python,
    is_pending,
    main_thread,
)
from nbddp.agent.stack_pipe import StackPipe
from nbddp.system import stack_signals
from nbddp.wire.messages import DumpStack, StackDumped
from tests.support.polling import poll_until


def child(code: str, pass_fds: Sequence[int] = ()) -> Any:
    command = [sys.executable, "-c", code]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=pass_fds
    )


@pytest.mark.parametrize(
    ("before", "now", "is_outside"),
    [
        (MainThread("S", 1.0), MainThread("S", 1.0), True),  # blocked all the time
        (MainThread("R", 1.0), MainThread("R", 1.02), True),  # had the time to handle the signal
        (MainThread("S", 1.0), MainThread("R", 1.25), True),
        # It waits for a core, perhaps since the signal came.
        (MainThread("R", 1.0), MainThread("R", 1.0), False),
        (MainThread("R", 1.0), MainThread("S", 1.0), False),
        (MainThread("S", 1.0), MainThread("S", 1.01), False),  # has run in between
        (MainThread("S", 1.0), MainThread("R", 1.0), False),
        # A page of its memory may be on its way.
        (MainThread("D", 1.0), MainThread("D", 1.0), False),
    ],
)
def test_only_a_thread_that_had_the_time_is_outside_python(
    before: MainThread, now: MainThread, is_outside: bool
):
    assert is_outside_python(before, now) is is_outside


def test_a_signal_that_has_not_been_delivered_is_seen():
    code = (
        "import signal, sys\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [{stack_signals.PYTHON}])\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    with child(code) as process:
        assert process.stdout.readline() == b"ready\n"
        assert not is_pending(process.pid, stack_signals.PYTHON)
        os.kill(process.pid, stack_signals.PYTHON)
        assert is_pending(process.pid, stack_signals.PYTHON)
        assert not is_pending(process.pid, stack_signals.C)
        process.send_signal(signal.SIGKILL)


def test_a_process_that_has_gone_has_no_main_thread():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert main_thread(process.pid) == MainThread("", 0.0)
    assert is_pending(process.pid, stack_signals.PYTHON)  # nobody knows: nothing else is sent


def has_used(pid: int, cpu_s: float) -> bool:
    return main_thread(pid).cpu_s > cpu_s


def test_the_state_of_the_process_is_that_of_its_stack():
    """It slept when it was to be described, and computes when it gets the signal."""
    pipe = StackPipe()
    code = (
        "import sys\n"
        "from nbddp.rank import stack_writer\n"
        f"stack_writer.install({pipe.write_fd})\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "sum(range(10**12))"
    )
    answers: list[StackDumped] = []
    unused: Any = None
    monitor: Any = SimpleNamespace(records=lambda rank: (0, ()))
    dumps = StackDumps(unused, monitor, unused, answers.append)
    with child(code, pass_fds=[pipe.write_fd]) as process:
        assert process.stdout.readline() == b"ready\n"
        poll_until(lambda: main_thread(process.pid).state == "S")
        rank: Any = SimpleNamespace(
            rank=0, pid=process.pid, is_ready=True, pipes=SimpleNamespace(stacks=pipe)
        )
        dumps.begin(DumpStack(number=1, ranks=(0,)), rank, now := 0.0)
        process.stdin.write(b"\n")
        process.stdin.flush()
        while not answers:
            # Time passes with the time of the process, which a busy machine may keep waiting.
            used_s = main_thread(process.pid).cpu_s
            poll_until(partial(has_used, process.pid, used_s + 0.05))
            pipe.read()
            dumps.advance(now := now + 0.02)
        process.kill()
    assert "line 6 in <module>" in answers[0].stack
    assert answers[0].process_state == "R"
