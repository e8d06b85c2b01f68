"""Records of operations that an interrupt leaves half written."""

from typing import Any

import pytest

from nbddp.wire.flight_recorder import writer as records
from nbddp.wire.flight_recorder.layout import RING_LENGTH, Loops
from nbddp.wire.flight_recorder.reader import Reader
from nbddp.wire.flight_recorder.schema import Signature
from nbddp.wire.flight_recorder.writer import NodeMemory, Writer

_MAIN, _OTHER = 7, 8


@pytest.fixture
def memory() -> NodeMemory:
    return NodeMemory.create(1)


def issue(writer: Writer, thread: int = _MAIN) -> int:
    signature = Signature(kind="collective", op="all_reduce")
    text = writer.text(signature, lambda: signature)
    return writer.issue(text, 0, 0, 0, 1, 0, -1, 0, 0, thread, 0, 100, writer.slot(thread))


def interrupted_at(monkeypatch: pytest.MonkeyPatch, name: str, when: int = 1) -> None:
    """Python raises KeyboardInterrupt where it comes back from C."""
    real = getattr(records, name)
    left = [when]

    def write(*values: Any) -> None:
        real(*values)
        left[0] -= 1
        if not left[0]:
            monkeypatch.setattr(records, name, real)
            raise KeyboardInterrupt

    monkeypatch.setattr(records, name, write)


def told(reader: Reader) -> list[str]:
    return [each.ending for each in reader.operations()]


def test_a_record_has_the_iteration_of_its_loops(memory: NodeMemory):
    writer, reader = Writer(memory, 0), memory.reader(0)
    signature = Signature(kind="collective", op="all_reduce")

    def iteration(names: tuple[str, ...], outer: int, inner: int) -> tuple[tuple[str, int], ...]:
        loops = writer.text(("loops", names), lambda: Loops(names)) if names else 0
        text = writer.text(signature, lambda: signature)
        record = writer.issue(text, 0, 0, 0, 1, 0, -1, 0, 0, _MAIN, 0, 100, 0, loops, outer, inner)
        operation = reader.operation(record)
        assert operation is not None
        return tuple((variable.name, variable.value) for variable in operation.iteration)

    assert iteration(("epoch", "step"), 2, -3) == (("epoch", 2), ("step", -3))
    assert iteration(("step",), 0, 7) == (("step", 7),)
    assert iteration((), 0, 0) == ()


@pytest.mark.parametrize("name", ["_WRITE_RECORD", "_WRITE_HEAD", "_WRITE_WAIT"])
def test_a_call_that_is_interrupted_while_it_is_issued_does_not_count_as_open(
    name: str, memory: NodeMemory, monkeypatch: pytest.MonkeyPatch
):
    writer, reader = Writer(memory, 0), memory.reader(0)
    writer.slot(_MAIN)
    interrupted_at(monkeypatch, name)
    with pytest.raises(KeyboardInterrupt):
        issue(writer)
    writer.end_interrupted(_MAIN, {}, 200)
    assert reader.open_count == 0
    assert reader.waits() == ()
    issue(writer)
    assert reader.open_count == 1
    assert told(reader) == ["interrupted", "open"]


@pytest.mark.parametrize("name", ["_WRITE_END", "_WRITE_HEAD", "_WRITE_WAIT"])
def test_a_call_that_is_interrupted_while_it_ends_does_not_stay_open(
    name: str, memory: NodeMemory, monkeypatch: pytest.MonkeyPatch
):
    writer, reader = Writer(memory, 0), memory.reader(0)
    record = issue(writer)
    interrupted_at(monkeypatch, name)
    with pytest.raises(KeyboardInterrupt):
        writer.end(writer.slot(_MAIN), record, 200, 100)
    writer.end_interrupted(_MAIN, {}, 300)
    assert (reader.open_count, reader.waits(), told(reader)) == (0, (), ["done"])


def test_an_operation_that_continues_stays_open(memory: NodeMemory):
    writer, reader = Writer(memory, 0), memory.reader(0)
    of_a_work, of_a_thread = issue(writer), issue(writer, _OTHER)
    left = issue(writer)
    writer.end_interrupted(_MAIN, {of_a_work: None}, 300)
    assert told(reader) == ["open", "open", "interrupted"]
    assert reader.open_count == 2
    assert reader.waits() == ((_OTHER, of_a_thread, 100),)
    for _ in range(RING_LENGTH):
        writer.complete(issue(writer), 400)
    writer.end_interrupted(_MAIN, {of_a_work: None}, 500)
    assert reader.open_count == 1  # its record was written over
    assert left < writer.version
