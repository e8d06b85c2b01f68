"""A wait for the store in C++ can be left."""

import threading
from typing import Any

import pytest

from nbddp.errors import CollectiveAbortedError
from nbddp.rank.collectives.store_wait import StoreWait

_NO_RECORDER: Any = None


def test_a_call_in_another_thread_gives_its_value_or_its_error():
    patience = StoreWait(_NO_RECORDER)
    assert patience.run_in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        patience.run_in_thread(lambda: 1 // 0)


def test_a_call_in_another_thread_is_left_when_it_is_ended():
    patience = StoreWait(_NO_RECORDER)
    woken, left = threading.Event(), threading.Event()

    def wait_as_gloo_does() -> None:
        patience.ended = lambda: CollectiveAbortedError("rank 1 exited")
        woken.wait(20.0)
        left.set()

    with pytest.raises(CollectiveAbortedError, match="rank 1 exited"):
        patience.run_in_thread(wait_as_gloo_does)
    assert not left.is_set()
    woken.set()
    assert left.wait(20.0)


def test_an_attempt_that_was_ended_before_its_wait_is_left_at_once():
    patience = StoreWait(_NO_RECORDER)
    patience.ended = lambda: CollectiveAbortedError("rank 1 exited")
    woken = threading.Event()
    with pytest.raises(CollectiveAbortedError):
        patience.run_in_thread(lambda: woken.wait(20.0))
    woken.set()


def test_an_attempt_that_was_ended_before_it_began_is_not_begun():
    patience = StoreWait(_NO_RECORDER)
    patience.begin_attempt(3)
    patience.end_attempt(4)
    patience.end_attempt(0)  # of no attempt
    with pytest.raises(CollectiveAbortedError, match="another rank"):
        patience.begin_attempt(4)
    patience.begin_attempt(5)
