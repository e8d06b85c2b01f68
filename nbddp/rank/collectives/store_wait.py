"""Waits for the store by polling, so that interrupts are handled, and `abort` can end the wait.

Runs in: the rank process, any thread. A wait in C++ would lock the store's client.
"""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar

from torch.distributed.constants import default_pg_timeout

from nbddp.errors import CollectiveAbortedError
from nbddp.rank import torch_private
from nbddp.rank.backoff import pause_s
from nbddp.rank.collectives.recording import signatures
from nbddp.rank.collectives.recording.recorder import Recorder, failure_of
from nbddp.wire.flight_recorder import CONNECTION, STORE_WAIT, shortened

T = TypeVar("T")

_now = time.monotonic_ns
#: Limits of the pause between two checks.
_SHORTEST_S, _LONGEST_S = 0.0005, 0.05
#: Number of keys of one wait that are recorded.
_MAX_KEYS = 16


class StoreWait:
    """Waits for keys of a store; one per rank."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        #: Start of the latest check that found keys missing, by waiting thread.
        self._checked_ns: dict[int, int | None] = {}
        #: Raised by all threads that wait for the store, or for other members; set by `abort`.
        self.ended: Callable[[], BaseException] | None = None
        self._ended_attempt = 0

    def begin_attempt(self, number: int) -> None:
        """Begin the rebuild of groups with this number.

        Raises:
            CollectiveAbortedError: this attempt was aborted before it began.
        """
        self.ended = None
        # Checked after that, so that an abort now is seen here, or by threads that wait.
        if self._ended_attempt >= number:
            raise CollectiveAbortedError("another rank could not form its groups")

    def end_attempt(self, number: int) -> None:
        """Give an attempt up, whether this rank has begun it or not."""
        self._ended_attempt = max(self._ended_attempt, number)

    def wait_for_store(
        self, original: Callable[..., Any], store: Any, keys: list[str], timeout: Any,
        op: str = STORE_WAIT,
    ) -> None:  # fmt: skip
        """Replace `Store.wait`, and the wait in `Store.get` for a missing key."""
        recorder = self._recorder
        if recorder.is_child:
            original(store, keys) if timeout is None else original(store, keys, timeout)
            return
        try:
            if store.check(keys):
                return
        except RuntimeError:
            pass  # a store without `check`: its wait will raise
        total = timeout or _timeout_of(store)
        with self._recorded(keys, total, op):
            self.wait(store, keys, total, original)

    def connect(self, begin: Callable[[], None], keys: list[str], timeout: timedelta) -> None:
        """Call ``begin()``, which waits in C++ for all clients of a store.

        Args:
            begin: makes the store.
            keys: its address, and the number of clients that it waits for.
            timeout: of the store.
        """
        if self._recorder.is_child:
            begin()
            return
        with self._recorded(keys, timeout, CONNECTION):
            self.run_in_thread(begin)

    def _recorded(self, keys: list[str], timeout: timedelta, op: str) -> "RecordedWait":
        key_texts = tuple(shortened(str(key)) for key in keys[:_MAX_KEYS])
        call = signatures.known(signatures.make("store", op, keys=key_texts))
        record = self._recorder.other(call, None, int(timeout.total_seconds() * 1000))
        return RecordedWait(self._recorder, record)

    def wait(
        self, store: Any, keys: list[str], timeout: Any, original: Callable[..., Any] | None = None
    ) -> None:
        """Wait as `Store.wait`, but handle interrupts, and let `abort` end the wait.

        Short waits in C++ would do too, but torch warns of each that times out.
        """
        wait = original or torch_private.original_store_wait
        total_s = (timeout or default_pg_timeout).total_seconds()
        if self._are_set(store, keys, total_s):
            return
        try:
            wait(store, keys, timedelta(milliseconds=1))  # raises the error of torch
        except RuntimeError as error:
            text = str(error).replace("after 1ms", f"after {total_s * 1000:.0f}ms")
            raise type(error)(text) from None

    def _are_set(self, store: Any, keys: list[str], limit_s: float) -> bool:
        """Wait for the keys; returns False at the timeout."""
        began = time.monotonic()
        thread = threading.get_ident()
        self._checked_ns[thread] = None
        try:
            while True:
                if self.ended is not None:
                    raise self.ended()
                checked_ns = _now()
                if store.check(keys):
                    return True
                self._checked_ns[thread] = checked_ns
                waited_s = time.monotonic() - began
                if waited_s >= limit_s:
                    return False
                pause = pause_s(waited_s, shortest_s=_SHORTEST_S, longest_s=_LONGEST_S)
                time.sleep(min(pause, limit_s - waited_s))
        finally:
            del self._checked_ns[thread]

    def check_age_ns(self) -> int | None:
        """Return for how long all waiting threads have known their keys missing; see `RankLook`."""
        checked = list(self._checked_ns.values())
        known_ns = [at_ns for at_ns in checked if at_ns is not None]
        return _now() - min(known_ns) if known_ns and len(known_ns) == len(checked) else None

    def run_in_thread(self, call: Callable[[], T]) -> T:
        """Run ``call()`` in a thread, which is left behind when `abort` ends the wait for it.

        Raises:
            BaseException: an exception of ``call``, or the reason of the abort.
        """
        answers: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()

        def run() -> None:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                answers.put(partial(_raise, error))
            else:
                answers.put(lambda: result)

        threading.Thread(target=run, name="nbddp-connect", daemon=True).start()
        while self.ended is None:
            with suppress(queue.Empty):
                return answers.get(timeout=_LONGEST_S)()
        raise self.ended()

    def gather(self, store: Any, key: str, count: int, timeout: Any) -> None:
        """Wait until ``count`` members have called this with the same key."""
        if store.add(key, 1) == count:
            store.set(f"{key}-all", "1")
        try:
            self.wait(store, [f"{key}-all"], timeout)
        except BaseException:
            with suppress(RuntimeError):  # the store's connection itself may have failed
                store.add(key, -1)
            raise


class RecordedWait:
    """Records that the calling thread waits for the store or for members, within a block."""

    def __init__(self, recorder: Recorder, record: int) -> None:
        self._writer = recorder.writer
        self._record = record

    def __enter__(self) -> None:
        self._slot = self._writer.begin_wait(threading.get_ident(), self._record, _now())

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._writer.end_wait(self._slot)
        self._writer.complete(self._record, _now(), 0, failure_of(error))


def _raise(error: BaseException) -> NoReturn:
    raise error


def _timeout_of(store: Any) -> timedelta:
    try:
        return timedelta(seconds=store.timeout.total_seconds())
    except (AttributeError, RuntimeError):
        return default_pg_timeout
