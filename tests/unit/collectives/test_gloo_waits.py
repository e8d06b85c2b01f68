"""Waits for Gloo end; the work handles are fakes that never wake their waiter."""

import gc
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from nbddp.rank.collectives.gloo import waits
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.wire.flight_recorder.schema import GroupInfo

_LARGE = 1 << 24


class Work:
    """Completes at the ``ends``-th poll."""

    def __init__(self, ends: int, error: Exception | None = None) -> None:
        self.left = ends
        self.limits: list[timedelta | None] = []
        self.error = error
        self.on_wait: Callable[[], object] = lambda: None

    def is_completed(self) -> bool:
        return self.left <= 0

    def wait(self, limit: timedelta | None = None) -> bool:
        self.on_wait()
        self.limits.append(limit)
        self.left -= 1
        if limit is not None and self.left > 0:
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise self.error
        return True


@pytest.fixture
def counters() -> GroupCounters:
    return GroupCounters(GroupInfo.of(pg_id="0", name="0", desc="", ranks=(0, 1), backend="gloo"))


@pytest.mark.parametrize("ends", [1, 2, 5])
def test_a_wait_lasts_until_the_end(counters: GroupCounters, ends: int):
    work = Work(ends)
    waits.wait(work, counters)
    assert work.is_completed()


@pytest.mark.parametrize("ends", [1, 2, 5])
def test_errors_of_torch_are_raised(counters: GroupCounters, ends: int):
    with pytest.raises(RuntimeError, match="peer"):
        waits.wait(Work(ends, RuntimeError("Connection closed by peer")), counters)


def test_no_exception_is_being_handled_during_a_wait(counters: GroupCounters):
    """An exception that a rank handles is reported as the reason for its operation."""
    work = Work(5)
    handled: list[object] = []
    work.on_wait = lambda: handled.append(sys.exception())
    waits.wait(work, counters)
    assert handled == [None] * len(work.limits)


def test_a_waiter_that_is_never_woken_leaves_when_the_group_was_cut_off(counters: GroupCounters):
    work = Work(1000)

    def cut() -> None:
        if work.left == 990:
            counters.cut_at = time.monotonic() - 60

    work.on_wait = cut
    with pytest.raises(waits.NeverWokenError):
        waits.wait(work, counters)
    assert 985 < work.left < 990


def test_gloo_gets_a_moment_to_wake_its_waiters(counters: GroupCounters):
    counters.cut_at = time.monotonic() + 1000
    waits.wait(Work(5), counters)


def test_a_signal_is_raised_at_the_end_of_the_operation(counters: GroupCounters):
    work = Work(5)

    def interrupt() -> None:
        if work.left == 3:
            work.left -= 1
            raise KeyboardInterrupt

    work.on_wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        waits.wait(work, counters)
    assert work.is_completed()


@pytest.mark.parametrize("size", [8, _LARGE])
def test_a_message_is_waited_for_without_a_limit(counters: GroupCounters, size: int):
    """Gloo would close the connections when the limit passes."""
    work = Work(1)
    waits.wait_for_message(work, counters, size)
    assert work.limits == [None]


@pytest.mark.parametrize("size", [8, _LARGE])
def test_errors_of_torch_for_a_message_are_raised(counters: GroupCounters, size: int):
    with pytest.raises(RuntimeError, match="peer"):
        waits.wait_for_message(Work(1, RuntimeError("Connection closed by peer")), counters, size)


def test_a_large_message_that_never_ends(counters: GroupCounters):
    forever, work = threading.Event(), Work(1)
    work.on_wait = forever.wait
    counters.cut_at = time.monotonic() - 60
    with pytest.raises(waits.NeverWokenError):
        waits.wait_for_message(work, counters, _LARGE)
    forever.set()


class Group:
    """A stock group; ``gone`` when it was destroyed."""

    def __init__(self, gone: threading.Event) -> None:
        self._gone = gone

    def __del__(self) -> None:
        self._gone.set()


def test_a_group_is_destroyed_when_its_threads_have_ended(counters: GroupCounters):
    gone, busy = threading.Event(), [True, True]
    waits.release([Group(gone)], counters, lambda: bool(busy and busy.pop()))
    assert gone.is_set()
    assert busy == []


def test_a_group_with_a_thread_that_is_never_woken_is_kept(counters: GroupCounters):
    gone = threading.Event()
    waits.release([Group(gone)], counters, lambda: True)
    gc.collect()
    assert not gone.is_set()
    waits._never_destroyed.clear()


def test_a_group_in_which_a_wait_was_given_up_is_kept(counters: GroupCounters):
    gone = threading.Event()
    counters.cut_at = time.monotonic() - 60
    with pytest.raises(waits.NeverWokenError):
        waits.wait(Work(1000), counters)
    waits.release([Group(gone)], counters, lambda: False)
    assert not gone.is_set()
    waits._never_destroyed.clear()


def test_a_destructor_that_waits_for_a_thread_that_never_wakes_is_left(counters: GroupCounters):
    gone, woken = threading.Event(), threading.Event()

    class Sleeping(Group):
        def __del__(self) -> None:
            woken.wait(20.0)
            super().__del__()

    waits.release([Sleeping(gone)], counters, lambda: False)
    assert not gone.is_set()
    woken.set()
    assert gone.wait(20.0)


def test_a_small_message_that_never_ends_is_left_where_gloo_cannot_end_it(counters: GroupCounters):
    """A receive from any source."""
    forever, work = threading.Event(), Work(1)
    work.on_wait = forever.wait
    counters.cut_at = time.monotonic() - 60
    with pytest.raises(waits.NeverWokenError):
        waits.wait_in_thread(work, counters)
    forever.set()
