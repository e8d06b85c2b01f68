"""Waits for Gloo that come back; the works are made up, so that they forget to wake."""

import gc
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from nbddp.rank.collectives import unwoken
from nbddp.rank.collectives.recorder import GroupBook
from nbddp.wire.observed import GroupInfo

_LARGE = 1 << 24


class Work:
    """Ends when it is asked for the ``ends``-th time whether it has."""

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
def book() -> GroupBook:
    return GroupBook(GroupInfo(pg_id="0", name="0", desc="", ranks=(0, 1), backend="gloo"))


@pytest.mark.parametrize("ends", [1, 2, 5])
def test_it_waits_until_the_end(book: GroupBook, ends: int):
    work = Work(ends)
    unwoken.wait(work, book)
    assert work.is_completed()


@pytest.mark.parametrize("ends", [1, 2, 5])
def test_what_torch_raises_is_raised(book: GroupBook, ends: int):
    with pytest.raises(RuntimeError, match="peer"):
        unwoken.wait(Work(ends, RuntimeError("Connection closed by peer")), book)


def test_nothing_is_handled_while_it_waits(book: GroupBook):
    """What a rank handles is told as the reason for which it came to its operation."""
    work = Work(5)
    handled: list[object] = []
    work.on_wait = lambda: handled.append(sys.exception())
    unwoken.wait(work, book)
    assert handled == [None] * len(work.limits)


def test_who_is_never_woken_leaves_when_the_group_was_cut_off(book: GroupBook):
    work = Work(1000)

    def cut() -> None:
        if work.left == 990:
            book.cut_at = time.monotonic() - 60

    work.on_wait = cut
    with pytest.raises(unwoken.NeverWokenError):
        unwoken.wait(work, book)
    assert 985 < work.left < 990


def test_it_is_waited_a_little_for_gloo_to_wake_who_waits(book: GroupBook):
    book.cut_at = time.monotonic() + 1000
    unwoken.wait(Work(5), book)


def test_a_signal_is_raised_at_the_end_of_the_operation(book: GroupBook):
    work = Work(5)

    def interrupt() -> None:
        if work.left == 3:
            work.left -= 1
            raise KeyboardInterrupt

    work.on_wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        unwoken.wait(work, book)
    assert work.is_completed()


@pytest.mark.parametrize("size", [8, _LARGE])
def test_a_message_is_waited_for_without_a_limit(book: GroupBook, size: int):
    """Gloo would close the connections when it runs out."""
    work = Work(1)
    unwoken.wait_for_message(work, book, size)
    assert work.limits == [None]


@pytest.mark.parametrize("size", [8, _LARGE])
def test_what_torch_raises_for_a_message_is_raised(book: GroupBook, size: int):
    with pytest.raises(RuntimeError, match="peer"):
        unwoken.wait_for_message(Work(1, RuntimeError("Connection closed by peer")), book, size)


def test_a_large_message_that_never_ends(book: GroupBook):
    forever, work = threading.Event(), Work(1)
    work.on_wait = forever.wait
    book.cut_at = time.monotonic() - 60
    with pytest.raises(unwoken.NeverWokenError):
        unwoken.wait_for_message(work, book, _LARGE)
    forever.set()


class Group:
    """A stock group; ``gone`` when it was destroyed."""

    def __init__(self, gone: threading.Event) -> None:
        self._gone = gone

    def __del__(self) -> None:
        self._gone.set()


def test_a_group_is_destroyed_when_its_threads_have_ended(book: GroupBook):
    gone, busy = threading.Event(), [True, True]
    unwoken.drop([Group(gone)], book, lambda: bool(busy and busy.pop()))
    assert gone.is_set()
    assert busy == []


def test_a_group_with_a_thread_that_nobody_wakes_is_kept(book: GroupBook):
    gone = threading.Event()
    unwoken.drop([Group(gone)], book, lambda: True)
    gc.collect()
    assert not gone.is_set()
    unwoken._asleep.clear()


def test_a_group_in_which_a_wait_was_given_up_is_kept(book: GroupBook):
    gone = threading.Event()
    book.cut_at = time.monotonic() - 60
    with pytest.raises(unwoken.NeverWokenError):
        unwoken.wait(Work(1000), book)
    unwoken.drop([Group(gone)], book, lambda: False)
    assert not gone.is_set()
    unwoken._asleep.clear()


def test_a_destructor_that_waits_for_a_thread_that_nobody_wakes_is_left(book: GroupBook):
    gone, woken = threading.Event(), threading.Event()

    class Sleeping(Group):
        def __del__(self) -> None:
            woken.wait(20.0)
            super().__del__()

    unwoken.drop([Sleeping(gone)], book, lambda: False)
    assert not gone.is_set()
    woken.set()
    assert gone.wait(20.0)


def test_a_small_message_that_never_ends_is_left_where_gloo_cannot_end_it(book: GroupBook):
    """A receive from any source."""
    forever, work = threading.Event(), Work(1)
    work.on_wait = forever.wait
    book.cut_at = time.monotonic() - 60
    with pytest.raises(unwoken.NeverWokenError):
        unwoken.wait_beside(work, book)
    forever.set()
