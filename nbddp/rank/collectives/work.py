"""The handle of an operation of a traced group.

Runs in: the rank process, any thread. A handle may be released by a thread of the backend, and
whoever releases a group joins the threads of its backend: so a handle does not own the group.
"""

import copy
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from nbddp.rank.collectives import failure_cause
from nbddp.rank.collectives.gloo import futures, waits
from nbddp.rank.collectives.gloo.any_source import Senders
from nbddp.rank.collectives.pending_operation import PendingOperation
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.rollback import Kept

_now = time.monotonic_ns
_ident = threading.get_ident
#: A message is looked for after a quarter of the time waited so far, within these limits.
_SHORTEST_S, _LONGEST_S = 0.0002, 0.02
_NO_LIMIT_MS = 30 * 60 * 1000  # as torch has it


class Ended:
    """In the place of a work that we have ended.

    Python keeps the last traceback and all that is in it: the work itself would keep the sockets
    and threads of a group that was formed again since.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error.with_traceback(None)

    def is_completed(self) -> bool:
        """It has ended."""
        return True

    def is_success(self) -> bool:
        """Not well."""
        return False

    def exception(self) -> BaseException:
        """What torch has raised."""
        return self._error

    def wait(self, *_: Any) -> Any:
        """Raises what torch has raised: a copy, whose traceback is not kept here."""
        raise copy.copy(self._error)

    synchronize = result = get_future = source_rank = wait


class TracedWork(dist.Work):
    """A handle of one operation."""

    is_message = False

    def __init__(
        self,
        inner: Any,
        book: GroupCounters,
        recorder: Recorder,
        record: int,
        kept: Kept | None = None,
    ) -> None:
        super().__init__()
        self.inner = inner
        self._book = book
        self._recorder = recorder
        self._record = record
        self.opened = PendingOperation(
            self, book, recorder, record, kept, is_message=self.is_message
        )

    def __del__(self) -> None:
        opened = self.opened
        if opened.is_open and not self._recorder.is_child:
            opened.lose(self.inner)

    @property
    def description(self) -> str:
        """``all_reduce #5``; empty: it is no longer recorded."""
        return self._recorder.name_of(self._record)

    def let_go(self, error: BaseException) -> None:
        """Keep nothing of the stock group; whoever waits gets this."""
        self.inner = Ended(error)

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the end; says so in the records meanwhile."""
        recorder, record = self._recorder, self._record
        if recorder.is_child:
            return _wait(self.inner, timeout)
        writer = recorder.writer
        began = _now()
        if timeout:  # zero, as DDP's reducer gives it, means none
            writer.set_timeout(record, int(timeout.total_seconds() * 1000), began)
        slot = writer.begin_wait(_ident(), record, began)
        try:
            result = self._wait_inside(timeout)
        except BaseException as error:
            try:
                # In a list: a variable would hold the error, whose traceback holds the variable.
                failures = [self._failure(slot, began, error)]
            except KeyboardInterrupt as interrupt:  # while torch waited: raised at our first call
                failures = [self._failure(slot, began, interrupt)]
            if failures[0] is not error:
                self.let_go(error)
                raise failures.pop() from error
            failures.clear()
            raise
        opened = self.opened
        if opened.is_open:
            opened.is_open = False
            opened.kept = None
            recorder.open.pop(record, None)
            ended = _now()
            writer.end(slot, record, ended, ended - began)
        else:
            writer.end_wait(slot)
        return True if result is None else result

    def _wait_inside(self, timeout: Any) -> Any:
        if timeout:  # it ends in any case
            return self.inner.wait(timeout)
        wait = waits.wait_as_torch if self._book.is_careful else waits.wait
        return wait(self.inner, self._book)

    def _failure(self, slot: int, began: int, error: BaseException) -> BaseException:
        """Record what went wrong in a wait; gives what is to be raised."""
        self._recorder.writer.end_wait(slot)
        if not isinstance(error, RuntimeError) and not self.inner.is_completed():
            # Interrupted: it goes on, and writes into its tensors, until its group is freed.
            self.opened.was_interrupted = isinstance(error, KeyboardInterrupt)
            return error
        book = self._book
        failure = failure_cause.failure(book, error) if isinstance(error, RuntimeError) else error
        was_woken = not isinstance(error, waits.NeverWokenError)
        self.opened.close(began, failure, was_woken=was_woken)
        return failure

    def get_future(self) -> Any:
        """The future of the operation; its end is recorded when it comes."""
        future = self.inner.get_future()
        future.add_done_callback(self.opened.see_future)
        return future if self._book.is_careful else futures.future_behind(future, self._book)

    def is_completed(self) -> bool:
        """Whether the operation has ended."""
        done = bool(self.inner.is_completed())
        if done:
            self.opened.notice()
        return done

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return bool(self.inner.is_success())

    def exception(self) -> Any:
        """Its error."""
        return self.inner.exception()

    def result(self) -> Any:
        """Its tensors."""
        return self.inner.result()

    def synchronize(self) -> None:
        """Let the current stream wait for it."""
        self.inner.synchronize()

    def source_rank(self) -> int:
        """Where a message from any source came from."""
        return int(self.inner.source_rank())

    _source_rank = source_rank

    def _get_op_type(self) -> Any:
        return self.inner._get_op_type()

    def _get_duration(self) -> Any:
        return self.inner._get_duration()

    def get_future_result(self) -> Any:
        """As of a stock work."""
        return self.inner.get_future_result()

    def block_current_stream(self) -> None:
        """As of a stock work."""
        self.inner.block_current_stream()

    def __getattr__(self, name: str) -> Any:
        # Called only for what is not above: names that other versions of torch have.
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
        if self._book.is_careful or timeout:
            return super()._wait_inside(timeout)
        return waits.wait_for_message(self.inner, self._book, self.size)


class AnySourceWork(MessageWork):
    """A receive from any source: whose message it was is known at its end."""

    def wait(self, timeout: Any = None) -> bool:
        """As of any work; the message then counts as one from its source."""
        was_open = self.opened.is_open
        if was_open and not self._recorder.is_child:
            timeout = self._await_sender(timeout)
        done = super().wait(timeout)
        if was_open and not self._recorder.is_child:
            source = self.source_rank()
            self._recorder.received_from_any(self._book, source, self._record)
        return done

    def _wait_inside(self, timeout: Any) -> Any:
        if self._book.is_careful or timeout:
            return super()._wait_inside(timeout)
        # Its message may never come: the sender has recorded it, and was interrupted before it sent
        # it. Gloo wakes nobody then, whatever happens to the sockets.
        return waits.wait_beside(self.inner, self._book)

    def _await_sender(self, timeout: timedelta | None) -> timedelta | None:
        """Wait until a message is on its way; gives what is left of the time-out.

        Nothing is done if a member is on another machine: its records cannot be read here.
        """
        recorder, book, record = self._recorder, self._book, self._record
        own = recorder.operation(record)
        found = [(rank, recorder.board.reader_of(rank)) for rank in book.info.ranks]
        readers = [(r, reader) for r, reader in found if reader is not None and r != recorder.rank]
        if own is None or len(readers) < len(found) - 1:
            return timeout
        began = _now()
        if timeout:
            recorder.writer.set_timeout(record, int(timeout.total_seconds() * 1000), began)
        limit = timeout or timedelta(milliseconds=book.info.timeout_ms or _NO_LIMIT_MS)
        slot = recorder.writer.begin_wait(_ident(), record, began)
        try:
            passed = self._look_for_message(Senders(readers, own, recorder.rank), own.tag, limit)
        except BaseException as error:
            recorder.writer.end_wait(slot)
            self.opened.close(began, error)
            self.let_go(error)
            raise
        recorder.writer.end_wait(slot)
        if passed >= limit:
            return timedelta(milliseconds=1)  # torch says that the time is over
        return None if timeout is None else limit - passed

    def _look_for_message(self, senders: Senders, tag: int, limit: timedelta) -> timedelta:
        """Gives the time that it took, at least ``limit`` if none has come."""
        book = self._book
        ranks = book.info.ranks
        began = time.monotonic()
        while True:
            taken = {rank: book.p2p.get(("recv", rank, tag), book.p2p_base) for rank in ranks}
            passed_s = time.monotonic() - began
            if senders.has_message(taken) or passed_s >= limit.total_seconds():
                return timedelta(seconds=passed_s)
            if book.ended is not None:
                raise book.ended()
            time.sleep(min(max(passed_s / 4, _SHORTEST_S), _LONGEST_S))
