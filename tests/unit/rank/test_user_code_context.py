"""Interrupts of callbacks that are just ending."""

import subprocess
import sys
import threading

import pytest

from nbddp.rank import user_code_context
from nbddp.rank.user_code_context import Callbacks

WAIT_S = 10.0


@pytest.mark.parametrize("is_late", [False, True])
def test_an_interrupt_is_for_its_callback_only(is_late: bool, monkeypatch: pytest.MonkeyPatch):
    callbacks = Callbacks()
    chosen, ended = threading.Event(), threading.Event()
    interrupt = user_code_context._interrupt
    seen: list[str] = []

    def interrupt_late(thread: int) -> None:
        """The callback would end here, between the choice of its thread and the interrupt."""
        if is_late:
            chosen.set()
            assert not ended.wait(0.2)
        interrupt(thread)

    monkeypatch.setattr(user_code_context, "_interrupt", interrupt_late)

    def serve() -> None:
        try:
            with callbacks.running():
                if not is_late:
                    chosen.set()
                    for _ in range(int(WAIT_S * 100)):
                        ended.wait(0.01)
                chosen.wait(WAIT_S)
        except KeyboardInterrupt:
            seen.append("in the callback")
        try:
            ended.set()
            sum(range(1000))
        except KeyboardInterrupt:
            seen.append("after it")

    thread = threading.Thread(target=serve)
    thread.start()
    if not is_late:
        chosen.wait(WAIT_S)
    while not callbacks.thread:
        pass
    callbacks.interrupt()
    thread.join(WAIT_S)
    assert seen == ([] if is_late else ["in the callback"])
    assert callbacks.thread == 0
    assert not callbacks.is_in_callback


TRACE = """
import os, sys, threading
from nbddp.rank.user_code_context import Callbacks

def run():
    with callbacks.running():
        pass

callbacks = Callbacks()
thread = threading.Thread(target=run)
thread.start()
thread.join()
sys.settrace(lambda frame, event, arg: None)
(lambda: print("called"))()
os._exit(0)
"""


def test_a_trace_function_returns_after_a_callback_beside_a_cell():
    """CPython 3.11 would never leave the first traced call, see `Callbacks._end`."""
    words = [sys.executable, "-c", TRACE]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("called\n", "")
