"""The thread that another thread joins is found from outside, with real threads."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from nbddp.rank.collectives.thread_waits import awaited_thread
from tests.support.polling import poll_until


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[], object]], threading.Thread]]:
    """Starts threads, which must end when `release` is set."""
    made: list[threading.Thread] = []

    def start(work: Callable[[], object]) -> threading.Thread:
        made.append(threading.Thread(target=work))
        made[-1].start()
        return made[-1]

    yield start
    for thread in made:
        thread.join()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def _awaited(thread: threading.Thread) -> int | None:
    assert thread.ident is not None
    return awaited_thread(thread.ident, sys._current_frames())


Start = Callable[[Callable[[], object]], threading.Thread]


def test_a_join(start: Start, release: threading.Event):
    worker = start(release.wait)
    joining = start(worker.join)
    poll_until(lambda: _awaited(joining) == worker.ident)
    assert _awaited(worker) is None


def test_a_chain_of_joins(start: Start, release: threading.Event):
    worker = start(release.wait)
    second = start(worker.join)
    third = start(second.join)
    poll_until(lambda: _awaited(third) == worker.ident)


def test_a_join_with_a_timeout_ends_by_itself(start: Start, release: threading.Event):
    worker = start(release.wait)
    entered = threading.Event()

    def join() -> None:
        entered.set()
        worker.join(60)

    joining = start(join)
    entered.wait()
    assert _awaited(joining) is None


def test_the_result_of_a_future_that_is_worked_on(start: Start, release: threading.Event):
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(release.wait)
        waiting = start(running.result)
        poll_until(lambda: _awaited(waiting) is not None)
        [worker] = executor._threads
        assert _awaited(waiting) == worker.ident
        queued = executor.submit(int)
        other = start(queued.result)
        assert _awaited(other) is None  # no thread works on it yet
        release.set()


def test_an_executor_that_ends(start: Start, release: threading.Event):
    executor = ThreadPoolExecutor(1)
    executor.submit(release.wait)
    [worker] = executor._threads
    ending = start(executor.shutdown)
    poll_until(lambda: _awaited(ending) == worker.ident)


def test_waits_that_are_no_joins(start: Start, release: threading.Event):
    assert _awaited(start(release.wait)) is None
    assert _awaited(threading.current_thread()) is None
