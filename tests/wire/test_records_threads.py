"""Threads that record at the same time: CPython may switch between any two calls."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from nbddp.wire.flight_recorder import writer as records
from nbddp.wire.flight_recorder.schema import Signature
from nbddp.wire.flight_recorder.writer import NodeMemory, Writer


@pytest.fixture
def memory() -> Iterator[NodeMemory]:
    memory = NodeMemory.create(1)
    yield memory
    memory.close()


class Meeting:
    """Two threads reach the same line, unless a lock admits only one at a time."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2)
        self._came: set[int] = set()

    def come(self) -> None:
        if threading.get_ident() not in self._came:
            self._came.add(threading.get_ident())
            with suppress(threading.BrokenBarrierError):
                self._barrier.wait(0.3)


def in_two_threads(act: Any) -> None:
    threads = [threading.Thread(target=act, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def issue(writer: Writer, text: int = 0) -> int:
    return writer.issue(text, 0, 0, 0, 1, 0, -1, 0, 0, threading.get_ident(), 0, 1)


def in_between(
    monkeypatch: pytest.MonkeyPatch, writer: Writer, name: str, other: list[int]
) -> None:
    """Another thread issues an operation while this one is in ``name``."""
    original = getattr(records, name)

    def write(*args: Any) -> None:
        original(*args)
        if not other:
            other.append(0)
            other[0] = issue(writer)

    monkeypatch.setattr(records, name, write)


@pytest.mark.parametrize("during", ["_WRITE_RECORD", "_WRITE_END"])
def test_the_newest_operation_is_not_hidden_by_an_older_one(
    memory: NodeMemory, monkeypatch: pytest.MonkeyPatch, during: str
):
    writer, reader = Writer(memory, 0), memory.reader(0)
    slot = writer.slot(threading.get_ident())
    other: list[int] = []
    in_between(monkeypatch, writer, during, other)
    record = issue(writer)
    assert reader.newest == max([*other, record])
    writer.end(slot, record, 2, 1)
    assert reader.newest == max(*other, record) == 2
    assert reader.open_count == 1
    assert reader.version == writer.version


def test_texts_of_two_threads_are_whole(memory: NodeMemory):
    meeting = Meeting()

    class Slow(Writer):
        @property
        def _text_head(self) -> int:
            head = self.head
            meeting.come()
            return head

        @_text_head.setter
        def _text_head(self, head: int) -> None:
            self.head = head

    writer, reader = Slow(memory, 0), memory.reader(0)
    texts = [Signature(kind="collective", op=name * 10) for name in ("first", "second")]

    def act(number: int) -> None:
        issue(writer, writer.text(number, lambda: texts[number]))

    in_two_threads(act)
    found = [operation.signature.op for operation in reader.operations()]
    assert sorted(found) == ["first" * 10, "second" * 10]


def test_two_threads_wait_in_places_of_their_own(memory: NodeMemory):
    meeting = Meeting()

    class Slow(dict[int, int]):
        def values(self) -> Any:
            found = list(super().values())
            meeting.come()
            return found

    writer = Writer(memory, 0)
    writer.slots = Slow(writer.slots)
    slots: list[int] = []
    in_two_threads(lambda number: slots.append(writer.slot(number + 1)))
    assert len(set(slots)) == 2
