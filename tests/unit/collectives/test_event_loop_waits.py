"""The thread that an event loop waits for is found from outside, with real loops."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from nbddp.rank.collectives.thread_waits import awaited_thread
from tests.support.polling import poll_until

Work = Callable[[], object]


class Loop:
    """A loop in a thread of its own, with a worker that blocks until `end`."""

    def __init__(self, main: Callable[[Work], Coroutine[Any, Any, object]]) -> None:
        self._release = threading.Event()
        self.worker: int | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(main(self._block)))
        self._thread.start()

    def _block(self) -> None:
        self.worker = threading.get_ident()
        self._release.wait()

    def awaited(self) -> int | None:
        assert self._thread.ident is not None
        return awaited_thread(self._thread.ident, sys._current_frames())

    def is_in_select(self) -> bool:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return self.worker is not None and frame is not None and frame.f_code.co_name == "select"

    def end(self) -> None:
        self._release.set()
        self._thread.join()


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[Work], Coroutine[Any, Any, object]]], Loop]]:
    made: list[Loop] = []

    def start(main: Callable[[Work], Coroutine[Any, Any, object]]) -> Loop:
        made.append(Loop(main))
        return made[-1]

    yield start
    for loop in made:
        loop.end()


Start = Callable[[Callable[[Work], Coroutine[Any, Any, object]]], Loop]


async def _to_thread(block: Work) -> None:
    await asyncio.to_thread(block)


async def _in_executor(block: Work) -> None:
    await asyncio.get_running_loop().run_in_executor(None, block)


async def _task(block: Work) -> None:
    await asyncio.create_task(_to_thread(block))


async def _gather(block: Work) -> None:
    await asyncio.gather(asyncio.to_thread(block), asyncio.to_thread(len, ()))


@pytest.mark.parametrize("main", [_to_thread, _in_executor, _task, _gather])
def test_a_loop_that_has_nothing_else_to_do(start: Start, main: Any):
    loop = start(main)
    poll_until(lambda: loop.worker is not None and loop.awaited() == loop.worker)


async def _with_time_out(block: Work) -> None:
    await asyncio.wait_for(asyncio.shield(asyncio.to_thread(block)), 3600)


async def _beside_an_event(block: Work) -> None:
    event = asyncio.Event()
    other = asyncio.create_task(event.wait())
    await asyncio.to_thread(block)
    event.set()
    await other


async def _beside_a_timer(block: Work) -> None:
    timer = asyncio.get_running_loop().call_later(3600, print)
    await asyncio.to_thread(block)
    timer.cancel()


async def _beside_a_socket(block: Work) -> None:
    one, other = socket.socketpair()
    with one, other:
        asyncio.get_running_loop().add_reader(one, print)
        await asyncio.to_thread(block)
        asyncio.get_running_loop().remove_reader(one)


@pytest.mark.parametrize(
    "main", [_with_time_out, _beside_an_event, _beside_a_timer, _beside_a_socket]
)
def test_a_loop_that_may_continue_without_the_thread(start: Start, main: Any):
    loop = start(main)
    poll_until(loop.is_in_select)
    assert loop.awaited() is None
