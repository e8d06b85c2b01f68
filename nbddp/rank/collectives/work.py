"""The handle of an operation of a traced group.

Runs in: the rank process, any thread. A thread of the backend may release a handle, and the release
of a group joins the threads of its backend. So a handle does not own the group.
"""

import copy
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from nbddp.rank.backoff import pause_s
from nbddp.rank.collectives import failure_cause
from nbddp.rank.collectives.gloo import futures, waits
from nbddp.rank.collectives.gloo.any_source import Senders
from nbddp.rank.collectives.pending_operation import PendingOperation
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.rollback import WrittenCopies

_now = time.monotonic_ns
_ident = threading.get_ident


class EndedWork:
    """Replaces a work that nbddp has ended.

    Python keeps the last traceback and all objects in it, and the work itself would keep the
    sockets and threads of a group that was rebuilt since.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error.with_traceback(None)

    def is_completed(self) -> bool:
        """Return True: it has ended."""
        return True

    def is_success(self) -> bool:
        """Return False: it has failed."""
        return False

    def exception(self) -> BaseException:
        """Return the error of torch."""
        return self._error

    def wait(self, *_: Any) -> Any:
        """Raise the error of torch: a copy, whose traceback is not kept here."""
        raise copy.copy(self._error)

    synchronize = result = get_future = source_rank = wait


class Instead(NamedTuple):
    """Stands for an operation that is not issued, with the handle that its caller gets."""

    work: Any = None  #: of the call that was made in its place; None: it has ended, or is none


class SkippedWork(dist.Work):
    """The handle of an operation that a fault or ``skip`` left out, or that has ended."""

    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True: it has ended."""
        return True

    is_success = is_completed

    def result(self) -> Any:
        """Return the tensors, which are as they were."""
        return self._tensors

    def get_future(self) -> Any:
        """Return a future with these tensors."""
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class TracedWork(dist.Work):
    """A handle of one operation."""

    is_message = False
    #: Called when the caller sees the end, or can see it from now on: by the sanitizer.
    note_seen: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        inner: Any,
        counters: GroupCounters,
        recorder: Recorder,
        record: int,
        copies: WrittenCopies | None = None,
    ) -> None:
        super().__init__()
        self.inner = inner
        self._counters = counters
        self._recorder = recorder
        self._record = record
        self.pending = PendingOperation(
            self, counters, recorder, record, copies, is_message=self.is_message
        )

    def __del__(self) -> None:
        pending = self.pending
        if pending.is_open and not self._recorder.is_child:
            pending.follow_without_handle(self.inner)

    @property
    def description(self) -> str:
        """Its name, such as ``all_reduce #5``; empty: it is no longer recorded."""
        return self._recorder.name_of(self._record)

    def release_inner(self, error: BaseException) -> None:
        """Release the stock work; later waits raise ``error``."""
        self.inner = EndedWork(error)

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the end; the wait is recorded meanwhile."""
        self.note_seen()
        recorder, record = self._recorder, self._record
        if recorder.is_child:
            return _wait(self.inner, timeout)
        writer = recorder.writer
        began = _now()
        if timeout:  # DDP's reducer gives zero, which means none
            writer.set_timeout(record, int(timeout.total_seconds() * 1000), began)
        slot = writer.begin_wait(_ident(), record, began)
        try:
            result = self._wait_inside(timeout)
        except BaseException as error:
            try:
                # In a list, because a variable would refer to the error, whose traceback refers to
                # the variable.
                failures = [self._failure(slot, began, error)]
            except KeyboardInterrupt as interrupt:  # of torch's wait, raised at our first call
                failures = [self._failure(slot, began, interrupt)]
            if failures[0] is not error:
                self.release_inner(error)
                raise failures.pop() from error
            failures.clear()
            raise
        pending = self.pending
        if pending.is_open:
            pending.is_open = False
            pending.copies = None
            recorder.open.pop(record, None)
            ended = _now()
            writer.end(slot, record, ended, ended - began)
        else:
            writer.end_wait(slot)
        return True if result is None else result

    def _wait_inside(self, timeout: Any) -> Any:
        if timeout:  # the wait ends in any case
            return self.inner.wait(timeout)
        wait = waits.wait_as_torch if self._counters.is_careful else waits.wait
        return wait(self.inner, self._counters)

    def _failure(self, slot: int, began: int, error: BaseException) -> BaseException:
        """Record the error of a wait; returns the exception to raise."""
        self._recorder.writer.end_wait(slot)
        if not isinstance(error, RuntimeError) and not self.inner.is_completed():
            # Interrupted: the operation goes on, and writes to its tensors, until it is aborted.
            self.pending.was_interrupted = isinstance(error, KeyboardInterrupt)
            return error
        counters = self._counters
        failure = (
            failure_cause.failure(counters, error) if isinstance(error, RuntimeError) else error
        )
        was_woken = not isinstance(error, waits.NeverWokenError)
        self.pending.close(began, failure, was_woken=was_woken)
        return failure

    def get_future(self) -> Any:
        """Return the future of the operation, whose end is recorded."""
        self.note_seen()
        future = self.inner.get_future()
        pending = self.pending
        pending.has_future = True
        if self._counters.is_careful:
            future.add_done_callback(lambda ended: pending.take_end(futures.error_of(ended)))
            return future
        return futures.future_behind(future, self._counters, pending.take_end)

    def is_completed(self) -> bool:
        """Return whether the operation has ended."""
        done = bool(self.inner.is_completed())
        if done:
            self.note_seen()
            self.pending.check_end()
        return done

    def is_success(self) -> bool:
        """Return whether it has succeeded."""
        return bool(self.inner.is_success())

    def exception(self) -> Any:
        """Return its error."""
        return self.inner.exception()

    def result(self) -> Any:
        """Return its tensors."""
        return self.inner.result()

    def synchronize(self) -> None:
        """Let the current stream wait for it."""
        self.note_seen()
        self.inner.synchronize()

    def source_rank(self) -> int:
        """Return the source of a message from any source."""
        return int(self.inner.source_rank())

    _source_rank = source_rank

    def _get_op_type(self) -> Any:
        return self.inner._get_op_type()

    def _get_duration(self) -> Any:
        return self.inner._get_duration()

    def get_future_result(self) -> Any:
        """Return the future of the result, as of a stock work."""
        return self.inner.get_future_result()

    def block_current_stream(self) -> None:
        """Block the current stream, as of a stock work."""
        self.note_seen()
        self.inner.block_current_stream()

    def __getattr__(self, name: str) -> Any:
        # Called only for names that are not defined above, of other versions of torch.
        return getattr(self.__dict__["inner"], name)


def _wait(inner: Any, timeout: Any) -> bool:
    return bool(inner.wait() if timeout is None else inner.wait(timeout))


class MessageWork(TracedWork):
    """A send or a receive."""

    size = 0  #: in bytes
    is_receive = False
    is_message = True

    def _failure(self, slot: int, began: int, error: BaseException) -> BaseException:
        if self.is_receive and isinstance(error, waits.NeverWokenError):
            self._recorder.note_torn(self._record)
        return super()._failure(slot, began, error)

    def _wait_inside(self, timeout: Any) -> Any:
        if self._counters.is_careful or timeout:
            return super()._wait_inside(timeout)
        return waits.wait_for_message(self.inner, self._counters, self.size)


class AnySourceWork(MessageWork):
    """A receive from any source, whose source is known at its end."""

    def wait(self, timeout: Any = None) -> bool:
        """Wait as any work; at the end, the message counts as one from its source."""
        was_open = self.pending.is_open
        if was_open and not self._recorder.is_child:
            timeout = self._await_sender(timeout)
        done = super().wait(timeout)
        if was_open and not self._recorder.is_child:
            source = self.source_rank()
            self._recorder.received_from_any(self._counters, source, self._record)
        return done

    def _wait_inside(self, timeout: Any) -> Any:
        if self._counters.is_careful or timeout:
            return super()._wait_inside(timeout)
        # The message may never come: the sender may have recorded it, and been interrupted before
        # it sent it. Gloo then wakes no thread, not even if the sockets are shut.
        return waits.wait_in_thread(self.inner, self._counters)

    def _await_sender(self, timeout: timedelta | None) -> timedelta | None:
        """Wait until a message is on its way; returns the rest of the timeout.

        Does nothing if a member is on another machine, because its records cannot be read here.
        """
        recorder, counters, record = self._recorder, self._counters, self._record
        receive = recorder.operation(record)
        all_readers = [(rank, recorder.board.reader_of(rank)) for rank in counters.ranks]
        readers = [
            (r, reader) for r, reader in all_readers if reader is not None and r != recorder.rank
        ]
        if receive is None or len(readers) < len(all_readers) - 1:
            return timeout
        began = _now()
        if timeout:
            recorder.writer.set_timeout(record, int(timeout.total_seconds() * 1000), began)
        limit = timeout or timedelta(milliseconds=counters.info.timeout_ms) or default_pg_timeout
        slot = recorder.writer.begin_wait(_ident(), record, began)
        try:
            elapsed = self._wait_for_message(
                Senders(readers, receive, recorder.rank), receive.tag, limit
            )
        except BaseException as error:
            recorder.writer.end_wait(slot)
            self.pending.close(began, error)
            self.release_inner(error)
            raise
        recorder.writer.end_wait(slot)
        if elapsed >= limit:
            return timedelta(milliseconds=1)  # torch then raises its timeout
        return None if timeout is None else limit - elapsed

    def _wait_for_message(self, senders: Senders, tag: int, limit: timedelta) -> timedelta:
        """Wait for a message; returns the time that passed, at least ``limit`` if none came."""
        counters = self._counters
        ranks = counters.ranks
        began = time.monotonic()
        while True:
            taken = {
                rank: counters.p2p.get(("recv", rank, tag), counters.p2p_base) for rank in ranks
            }
            passed_s = time.monotonic() - began
            if senders.has_message(taken) or passed_s >= limit.total_seconds():
                return timedelta(seconds=passed_s)
            if counters.ended is not None:
                raise counters.ended()
            time.sleep(pause_s(passed_s))
