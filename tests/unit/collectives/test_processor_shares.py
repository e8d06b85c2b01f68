"""The processor time of a rank between cells."""

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from nbddp.rank.collectives import processor_shares
from nbddp.rank.collectives.processor_shares import ProcessorShares, Shares, _Sample

MS = 1_000_000


def sample(at_ms: int, process_ms: int, **used_ms: int) -> _Sample:
    """A moment; threads are named ``t1``, ``t2``."""
    return _Sample(
        at_ms * MS, process_ms * MS, {int(name[1:]): ms * MS for name, ms in used_ms.items()}
    )


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[_Sample]]:
    samples: list[_Sample] = []
    monkeypatch.setattr(processor_shares, "_sample", lambda: samples.pop(0))
    monkeypatch.setattr(processor_shares, "_AGAIN_S", 0.0)
    yield samples
    assert not samples


def test_shares_since_the_end_of_the_cell(moments: list[_Sample]):
    moments += [sample(0, 500, t1=500), sample(1000, 600, t1=580, t2=30)]
    # Nothing is known of a thread that has begun since then.
    assert ProcessorShares().shares() == Shares(10, {1: 8})


def test_a_short_time_tells_nothing(moments: list[_Sample]):
    moments += [sample(0, 0, t1=0), sample(100, 100, t1=100)]
    assert ProcessorShares().shares() == Shares()


@pytest.mark.parametrize(("used_ms", "share"), [(0, 0), (100, 100)])
def test_high_shares_are_measured_again(moments: list[_Sample], used_ms: int, share: int):
    """The thread may have computed for a while, and have ended long ago."""
    moments += [
        sample(0, 0, t1=0),
        sample(1000, 1000, t1=1000),
        sample(1100, 1000 + used_ms, t1=1000 + used_ms),
    ]
    assert ProcessorShares().shares() == Shares(share, {1: share})


def test_the_beginning_of_a_cell_does_not_wait_for_a_second_measurement(moments: list[_Sample]):
    moments += [sample(0, 0, t1=0), sample(1000, 1000, t1=1000)]
    assert ProcessorShares().shares(again=False) == Shares(100, {1: 100})


@pytest.mark.skipif(sys.platform != "linux", reason="threads have clocks on Linux only")
def test_a_real_thread_is_measured():
    """By the clock that the thread itself reads."""
    own_ns: list[int] = []
    samples: list[_Sample] = []

    def work() -> None:
        while time.thread_time_ns() < 20 * MS:
            pass
        own_ns.append(time.thread_time_ns())
        samples.append(processor_shares._sample())
        own_ns.append(time.thread_time_ns())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert own_ns[0] <= samples[0].threads_ns[thread.native_id or 0] <= own_ns[1]
    assert thread.native_id not in processor_shares._sample().threads_ns


def test_a_thread_without_a_clock_is_left_out(monkeypatch: pytest.MonkeyPatch):
    """Other systems have thread ids that are no ids of clocks."""

    class Foreign:
        native_id = 1 << 40

    monkeypatch.setattr(threading, "enumerate", lambda: [Foreign()])
    assert processor_shares._sample().threads_ns == {}
