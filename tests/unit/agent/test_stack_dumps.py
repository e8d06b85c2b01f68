"""A main thread is asked for its stack in C only when it runs no Python code."""

import os
import signal
import subprocess
import sys

import pytest

from nbddp.agent.stack_dumps import MainThread, is_outside_python, main_thread
from nbddp.system import stack_signals
from tests.support.polling import poll_until


def seen(state: str, cpu_s: float) -> MainThread:
    return MainThread(state, cpu_s, is_signal_pending=False)


@pytest.mark.parametrize(
    ("before", "now", "is_outside"),
    [
        (seen("S", 1.0), seen("S", 1.0), True),  # blocked all the time
        (seen("R", 1.0), seen("R", 1.02), True),  # had the time to handle the signal
        (seen("S", 1.0), seen("R", 1.25), True),
        (seen("R", 1.0), seen("R", 1.0), False),  # waits for a core, perhaps since the signal came
        (seen("R", 1.0), seen("S", 1.0), False),
        (seen("S", 1.0), seen("S", 1.01), False),  # has run in between
        (seen("S", 1.0), seen("R", 1.0), False),
        (seen("D", 1.0), seen("D", 1.0), False),  # a page of its memory may be on its way
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
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"ready\n"
        before = poll_until(lambda: main_thread(process.pid))
        assert before is not None
        assert not before.is_signal_pending
        os.kill(process.pid, stack_signals.PYTHON)
        after = main_thread(process.pid)
        assert after is not None
        assert after.is_signal_pending
        process.send_signal(signal.SIGKILL)


def test_a_process_that_has_gone_has_no_main_thread():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert main_thread(process.pid) is None
