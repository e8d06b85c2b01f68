"""Futures that nbddp can complete where Gloo never does; the inner ones are fakes."""

import gc
import time
import weakref
from typing import Any

import pytest
import torch
from torch.futures import Future

from nbddp.rank.collectives.gloo import futures
from nbddp.rank.collectives.gloo.waits import GRACE_S, NeverWokenError
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.work import TracedWork
from nbddp.rank.user_code_context import Callbacks
from nbddp.wire.flight_recorder import NodeMemory
from nbddp.wire.flight_recorder.schema import GroupInfo
from tests.support.polling import poll_until


@pytest.fixture
def counters() -> GroupCounters:
    return GroupCounters(GroupInfo.of(pg_id="0", name="0", desc="", ranks=(0, 1), backend="gloo"))


def _ignore(_: RuntimeError | None) -> None:
    """Take the end of an operation."""


def _failed(text: str) -> Any:
    """A future of an operation that has failed."""

    def fail(_: Any) -> None:
        raise RuntimeError(text)

    began: Any = Future()
    failed = began.then(fail)
    began.set_result(None)
    return failed


@pytest.mark.parametrize("is_early", [True, False])
def test_the_value_is_passed_on(counters: GroupCounters, is_early: bool):
    inner: Any = Future()
    value = [torch.ones(2)]
    if is_early:
        inner.set_result(value)
    future = futures.future_behind(inner, counters, _ignore)
    if not is_early:
        assert not future.done()
        inner.set_result(value)
    assert future.wait() is value
    assert future.then(lambda done: done.value()[0].sum().item()).wait() == 2.0
    assert not counters.relays


def test_the_error_is_passed_on(counters: GroupCounters):
    future = futures.future_behind(_failed("Connection closed by peer"), counters, _ignore)
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        future.wait()


def test_a_future_that_never_ends_is_ended_after_its_sockets_were_shut(counters: GroupCounters):
    inner: Any = Future()
    before = futures.future_behind(inner, counters, _ignore)
    futures.end_soon(counters)
    meanwhile = futures.future_behind(Future(), counters, _ignore)
    for future in (before, meanwhile):
        with pytest.raises(RuntimeError, match="the connection was lost while data was on its way"):
            future.wait()
    assert counters.has_sleepers
    inner.set_result([torch.ones(1)])  # Gloo's thread wakes up half an hour later


def test_a_future_that_gloo_ends_in_time_has_its_result(counters: GroupCounters):
    inner: Any = Future()
    future = futures.future_behind(inner, counters, _ignore)
    futures.end_soon(counters)
    inner.set_result("well")
    assert future.wait() == "well"
    time.sleep(2 * GRACE_S)
    assert not counters.has_sleepers


def test_operations_of_the_group_that_was_made_again_continue(counters: GroupCounters):
    futures.future_behind(Future(), counters, _ignore)
    futures.end_soon(counters)
    counters.restart(1, 0, 0)
    later: Any = futures.future_behind(Future(), counters, _ignore)
    poll_until(lambda: len(counters.relays) == 1)
    assert not later.done()
    assert not counters.has_sleepers


def test_values_die_with_the_last_reference_to_the_future(counters: GroupCounters):
    inner: Any = Future()
    future = futures.future_behind(inner, counters, _ignore)
    tensor = torch.ones(2)
    seen = weakref.ref(tensor)
    gc.disable()
    try:
        inner.set_result([tensor])
        del tensor, inner
        assert seen() is not None
        del future
        assert seen() is None
    finally:
        gc.enable()


def test_text_that_cpp_adds_to_an_error_is_left_out(counters: GroupCounters):
    stock = _failed("Connection closed by peer")
    with pytest.raises(RuntimeError) as caught:
        futures.future_behind(stock, counters, _ignore).wait()
    with pytest.raises(RuntimeError) as expected:
        stock.wait()
    assert str(caught.value) != str(expected.value)
    assert str(futures.as_raised(caught.value)) == str(expected.value)
    other = RuntimeError("of the user's")
    assert futures.as_raised(other) is other


def test_a_callback_in_cpp_that_wants_the_original_gets_it(
    counters: GroupCounters, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(futures, "_keeps_original", False)
    inner: Any = Future()
    assert futures.future_behind(inner, counters, _ignore) is not inner
    futures.keep_original()
    assert futures.future_behind(inner, counters, _ignore) is inner


def test_the_error_is_one_of_torch():
    assert issubclass(NeverWokenError, RuntimeError)


class _StockFuture:
    """A future of Gloo that counts its callbacks."""

    def __init__(self, error: RuntimeError | None = None) -> None:
        self.callbacks: list[Any] = []
        self._error = error

    def add_done_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def value(self) -> list[int]:
        if self._error is not None:
            raise self._error
        return [7]

    def end(self) -> None:
        for callback in self.callbacks:
            callback(self)


class _StockWork:
    def __init__(self, future: _StockFuture) -> None:
        self._future = future

    def get_future(self) -> _StockFuture:
        return self._future

    def is_completed(self) -> bool:
        return False  # Gloo completes the future before the work


@pytest.mark.parametrize("error", [None, RuntimeError("Connection closed by peer")])
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_thread_of_gloo_calls_python_once_for_an_operation_of_ddp(
    counters: GroupCounters, error: RuntimeError | None, is_deleted: bool
):
    """C++ takes the future of the handle, and deletes the handle."""
    recorder = Recorder(NodeMemory.create(1), 0, 0, lambda file: 0, (), callbacks=Callbacks())
    record = recorder.writer.issue(0, 0, 0, 0, 1, 0, -1, 0, 1, 7, 0, 1)
    stock = _StockFuture(error)
    handle: Any = TracedWork(_StockWork(stock), counters, recorder, record)
    pending = handle.pending
    recorder.opened(record, pending)
    future = handle.get_future()
    if is_deleted:
        del handle
    assert len(stock.callbacks) == 1
    stock.end()
    assert future.done()
    if error is None:
        assert future.value() == [7]
        assert not pending.is_open
        return
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        future.wait()
    assert pending.is_open  # the caller that waits for the handle, or the next check, records it
    handle = None
    pending.check_end()
    assert not pending.is_open


def test_an_error_in_nbddp_leaves_no_future_open(counters: GroupCounters):
    def stumble(_: RuntimeError | None) -> None:
        raise KeyError("a bug")

    relay = futures.Relay(counters, stumble)
    future = relay.gate.then(relay.deliver)
    done: Any = Future()
    done.set_result([1])
    with pytest.raises(KeyError):
        relay.take_end(done)
    assert future.wait() == [1]
    relay = futures.Relay(counters, stumble)
    future = relay.gate.then(relay.deliver)
    with pytest.raises(KeyError):
        relay.take_end(_failed("lost"))
    with pytest.raises(RuntimeError, match="lost"):
        future.wait()
