"""A pool that starts in the background: a cell that needs it waits, and may be interrupted."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nbddp.errors import BadOptionError, NoPoolError, PoolBusyError, PoolStartError
from nbddp.notebook import session


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets the start continue, and awaits it afterwards."""
    gate = threading.Event()
    monkeypatch.setattr(session, "_default", None)
    monkeypatch.setattr(session, "_current", None)
    monkeypatch.setattr(session, "_start_thread", None)
    monkeypatch.setattr(session, "_start_has_ended", threading.Event())

    def start(**arguments: Any) -> None:
        assert gate.wait(20)
        raise PoolStartError("no pool in this test")

    monkeypatch.setattr(session, "start", start)
    yield gate
    gate.set()
    session.await_start()


def test_a_cell_that_needs_the_pool_waits_until_the_start_has_ended(gate: threading.Event):
    options = session.start_soon({"nproc_per_node": 3})
    assert options.world_size == 3
    assert session.last_options() == options
    threading.Timer(0.05, gate.set).start()
    with pytest.raises(NoPoolError) as caught:  # not before: the start has failed
        session.pool()
    assert "Next: %ddp start -n 3 (the last options)" in str(caught.value)
    assert gate.is_set()


def test_an_illegal_option_is_refused_at_once(gate: threading.Event):
    with pytest.raises(BadOptionError):
        session.start_soon({"nproc_per_node": 0})


def test_an_interrupt_ends_the_wait_and_not_the_start(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    session.start_soon({"nproc_per_node": 2})

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "_start_has_ended", Interrupted())
        with pytest.raises(PoolBusyError, match="run the cell again"):
            session.pool()
