"""Waits for Gloo that end even where Gloo never wakes who waits.

Runs in: the rank process, any thread.

When a connection is lost, Gloo tells all operations that wait for their turn, but not those whose
data was on its way at that moment: what was half received, and what the socket did not take
(``Pair::signalException`` in ``gloo/transport/tcp/pair.cc`` looks neither at ``rx_`` nor at the
unbound buffers of ``tx_``). Whoever waits for these sleeps until the group's time-out, half an
hour. A rank that dies in the middle of a large ``broadcast`` leaves its peers so. Nothing can wake
them, but nobody need wait with them: after the sockets were shut no one reads or writes their
tensors any more.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from nbddp.rank.collectives.recording.group_counters import GroupCounters

#: A wait comes back so often to see whether its group was cut off.
_SLICE = timedelta(milliseconds=200)
_SLICE_S = _SLICE.total_seconds()
#: What Gloo wakes it wakes in milliseconds.
GRACE_S = 0.25
_PAUSE_S = 0.002
#: A destructor is waited for so long, so that sockets of old groups do not pile up.
_RELEASE_S = 0.5
#: Messages above that are half sent for a millisecond or more; the others are not worth a thread.
_LARGE_BYTES = 1 << 20

#: Stock groups that are never destroyed, see `drop`.
_asleep: list[Any] = []


class NeverWokenError(RuntimeError):
    """Gloo has ended an operation without telling whoever waits for it."""

    def __init__(self) -> None:
        super().__init__("the connection was lost while data was on its way")


def wait_as_torch(work: Any, book: GroupCounters) -> Any:
    """``work.wait()`` of a group that others than Gloo belong to."""
    del book
    return True if work is None else work.wait()  # NCCL gives none: the stream has it


def wait(work: Any, book: GroupCounters) -> bool:
    """``work.wait()`` of a collective of a Gloo group.

    Signals that come meanwhile are handled at its end, as in C++: who left an operation that goes
    on would find its tensors changing.

    Raises:
        RuntimeError: what torch raises.
        NeverWokenError: its group was cut off.
    """
    try:  # a context manager costs half a microsecond
        work.wait(_SLICE)
    except RuntimeError:
        pass
    else:
        return True
    # Not while that error is handled: it is none of the user's.
    _until(lambda: _has_ended(work), book)
    return True


def _has_ended(work: Any) -> bool:
    if work.is_completed():
        work.wait()  # raises what went wrong
        return True
    with suppress(RuntimeError):
        work.wait(_SLICE)
    return False


def wait_for_message(work: Any, book: GroupCounters, size: int) -> bool:
    """``work.wait()`` of a send or a receive of a Gloo group.

    Gloo closes all connections of a group if such a wait has a limit that runs out. So another
    thread waits, where data of this ``size`` in bytes may be half sent.

    Raises:
        RuntimeError: what torch raises.
        NeverWokenError: its group was cut off.
    """
    return bool(work.wait()) if size <= _LARGE_BYTES else wait_beside(work, book)


def wait_beside(work: Any, book: GroupCounters) -> bool:
    """``work.wait()`` in a thread that can be left when the group is cut off. Raises as `wait`."""
    errors: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            work.wait()
        except RuntimeError as error:
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="nbddp-message", daemon=True).start()
    _until(lambda: ended.wait(_SLICE_S), book)
    if errors:
        raise errors.pop()
    return True


def _until(has_ended: Callable[[], bool], book: GroupCounters) -> None:
    signalled: BaseException | None = None
    while True:
        try:
            if has_ended():
                break
            _check(book)
        except RuntimeError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised by a handler of signals
            signalled = error
    try:
        if signalled is not None:
            raise signalled
    finally:
        del signalled  # see `works.TracedWork.wait`


def _check(book: GroupCounters) -> None:
    if book.cut_at and time.monotonic() - book.cut_at > GRACE_S:
        book.has_sleepers = True
        raise NeverWokenError


def drop(held: list[Any], book: GroupCounters, is_busy: Callable[[], bool]) -> None:
    """Let go of a stock group whose sockets were shut.

    Its destructor waits for its threads. So one that may have a thread that nobody wakes is kept as
    long as this process lives: others may hold it too, and the garbage collector could destroy it
    later in any thread. Of some that is not known: they are destroyed by a thread that can be left.

    Args:
        held: the stock group, of which the caller holds nothing else.
        book: of the group that it belonged to.
        is_busy: whether one of its threads has not ended its operation.
    """
    until = time.monotonic() + GRACE_S
    while is_busy():
        if time.monotonic() > until:
            book.has_sleepers = True
            break
        time.sleep(_PAUSE_S)
    if book.has_sleepers:
        _asleep.append(held)
        return
    thread = threading.Thread(target=held.clear, name="nbddp-release", daemon=True)
    thread.start()
    thread.join(_RELEASE_S)
