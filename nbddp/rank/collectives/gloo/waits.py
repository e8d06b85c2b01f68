"""Waits for Gloo that end even if Gloo never wakes the waiting thread.

Runs in: the rank process, any thread.

When a connection is lost, Gloo notifies all operations that wait for their turn, but not those
whose data was being transferred at that moment: half received data, and data that the socket did
not take (``Pair::signalException`` in ``gloo/transport/tcp/pair.cc`` checks neither ``rx_`` nor the
unbound buffers of ``tx_``). A thread that waits for these sleeps until the group's timeout, half
an hour. A rank that dies in the middle of a large ``broadcast`` leaves its peers in such waits.
These threads cannot be woken, but callers need not wait for them: after the sockets were shut, no
thread reads or writes their tensors any more.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from nbddp.rank.collectives.recording.group_counters import GroupCounters

#: A wait checks at this interval whether its group was cut off.
_SLICE = timedelta(milliseconds=200)
_SLICE_S = _SLICE.total_seconds()
#: Gloo wakes threads within milliseconds, if at all.
GRACE_S = 0.25
_PAUSE_S = 0.002
#: Longest wait for a destructor, so that sockets of old groups do not accumulate.
_RELEASE_S = 0.5
#: Messages above this size are half sent for a millisecond or more; smaller ones need no thread.
_LARGE_BYTES = 1 << 20

#: Stock groups that are never destroyed, see `drop`.
_never_destroyed: list[Any] = []


class NeverWokenError(RuntimeError):
    """Gloo has ended an operation without waking the thread that waits for it."""

    def __init__(self) -> None:
        super().__init__("the connection was lost while data was on its way")


def wait_as_torch(work: Any, counters: GroupCounters) -> Any:
    """Wait as ``work.wait()``, for a group with another backend than Gloo."""
    del counters
    return True if work is None else work.wait()  # NCCL: None, the operation is on the stream


def wait(work: Any, counters: GroupCounters) -> bool:
    """Wait as ``work.wait()``, for a collective of a Gloo group.

    Signals that arrive meanwhile are handled at its end, as in C++: the tensors of an operation
    that goes on would change after an earlier return.

    Raises:
        RuntimeError: an error of torch.
        NeverWokenError: its group was cut off.
    """
    try:  # a context manager costs half a microsecond
        work.wait(_SLICE)
    except RuntimeError:
        pass
    else:
        return True
    # Outside of the except block, because that error is not the user's.
    _until(lambda: _has_ended(work), counters)
    return True


def _has_ended(work: Any) -> bool:
    if work.is_completed():
        work.wait()  # raises the error of the operation
        return True
    with suppress(RuntimeError):
        work.wait(_SLICE)
    return False


def wait_for_message(work: Any, counters: GroupCounters, size: int) -> bool:
    """Wait as ``work.wait()``, for a send or a receive of a Gloo group.

    Gloo closes all connections of a group if such a wait times out. So another thread waits if data
    of this ``size`` in bytes may be half sent.

    Raises:
        RuntimeError: an error of torch.
        NeverWokenError: its group was cut off.
    """
    return bool(work.wait()) if size <= _LARGE_BYTES else wait_in_thread(work, counters)


def wait_in_thread(work: Any, counters: GroupCounters) -> bool:
    """Wait in a thread that is left behind when the group is cut off. Raises as `wait`."""
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
    _until(lambda: ended.wait(_SLICE_S), counters)
    if errors:
        raise errors.pop()
    return True


def _until(has_ended: Callable[[], bool], counters: GroupCounters) -> None:
    signalled: BaseException | None = None
    while True:
        try:
            if has_ended():
                break
            _check(counters)
        except RuntimeError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised by a signal handler
            signalled = error
    try:
        if signalled is not None:
            raise signalled
    finally:
        del signalled  # see `work.TracedWork.wait`


def _check(counters: GroupCounters) -> None:
    if counters.cut_at and time.monotonic() - counters.cut_at > GRACE_S:
        counters.has_sleepers = True
        raise NeverWokenError


def release(held: list[Any], counters: GroupCounters, is_busy: Callable[[], bool]) -> None:
    """Release a stock group whose sockets were shut.

    Its destructor waits for its threads. So a group that may have a thread which is never woken is
    kept as long as this process lives: there may be other references to it, and the garbage
    collector could destroy it later in any thread. For some groups this is not known: a thread that
    can be left behind destroys them.

    Args:
        held: the stock group; the caller has no other reference to it.
        counters: of the group that it belonged to.
        is_busy: returns whether one of its threads has not ended its operation.
    """
    until = time.monotonic() + GRACE_S
    while is_busy():
        if time.monotonic() > until:
            counters.has_sleepers = True
            break
        time.sleep(_PAUSE_S)
    if counters.has_sleepers:
        _never_destroyed.append(held)
        return
    thread = threading.Thread(target=held.clear, name="nbddp-release", daemon=True)
    thread.start()
    thread.join(_RELEASE_S)
