"""Interrupts of callbacks that are just ending."""

import threading

import pytest

from nbddp.rank import user_code_context
from nbddp.rank.user_code_context import Callbacks

WAIT_S = 10.0


@pytest.mark.parametrize("is_late", [False, True])
def test_an_interrupt_is_for_its_callback_only(is_late: bool, monkeypatch: pytest.MonkeyPatch):
    callbacks = Callbacks()
    chosen, ended = threading.Event(), threading.Event()
    raise_in = user_code_context._raise_in
    seen: list[str] = []

    def raise_late(thread: int, error: type[BaseException] | None) -> None:
        """The callback would end here, between the choice of its thread and the interrupt."""
        if error is not None and is_late:
            chosen.set()
            assert not ended.wait(0.2)
        raise_in(thread, error)

    monkeypatch.setattr(user_code_context, "_raise_in", raise_late)

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
