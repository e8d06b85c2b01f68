"""The handle of an operation of a traced group.

Runs in: the rank process, any thread.
"""

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from nbddp.errors import CollectiveAbortedError
from nbddp.rank.collectives import unwoken
from nbddp.rank.collectives.anysource import Senders
from nbddp.rank.collectives.keeping import Kept, has_failed
from nbddp.rank.collectives.recorder import in_words

if TYPE_CHECKING:
    from nbddp.rank.collectives.group import TracedGroup

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
        """Raises what torch has raised."""
        raise self._error

    synchronize = result = get_future = source_rank = wait


class TracedWork(dist.Work):
    """A handle of one operation."""

    def __init__(
        self, inner: Any, group: "TracedGroup", record: int, kept: Kept | None = None
    ) -> None:
        super().__init__()
        self._inner = inner
        self._group = group
        self._record = record
        self._kept = kept

    _is_open = True

    @property
    def pg_id(self) -> str:
        """Of the group that it belongs to."""
        return self._group.book.info.pg_id

    @property
    def description(self) -> str:
        """``all_reduce #5``; empty: it is no longer recorded."""
        return self._group.recorder.name_of(self._record)

    @property
    def is_busy(self) -> bool:
        """Whether a thread of the backend is in it."""
        return not self._inner.is_completed()

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the end; says so in the records meanwhile."""
        group, record = self._group, self._record
        recorder = group.recorder
        if recorder.is_child:
            return _wait(self._inner, timeout)
        writer = recorder.writer
        began = _now()
        if timeout:  # zero, as DDP's reducer gives it, means none
            writer.set_timeout(record, int(timeout.total_seconds() * 1000), began)
        slot = writer.begin_wait(_ident(), record, began)
        try:
            result = self._wait_inside(timeout)
        except BaseException as error:
            try:
                failure = self._failure(slot, began, error)
            except KeyboardInterrupt as interrupt:  # while torch waited: raised at our first call
                failure = self._failure(slot, began, interrupt)
            if failure is not error:
                self._inner = Ended(error)
                raise failure from error
            raise
        if self._is_open:
            self._is_open = False
            self._kept = None
            recorder.open.pop(record, None)
            ended = _now()
            writer.end(slot, record, ended, ended - began)
        else:
            writer.end_wait(slot)
        return True if result is None else result

    def _wait_inside(self, timeout: Any) -> Any:
        if timeout:  # it ends in any case
            return self._inner.wait(timeout)
        group = self._group
        return group.wait_for(self._inner, group.book)

    def _failure(self, slot: int, began: int, error: BaseException) -> BaseException:
        """Record what went wrong in a wait; gives what is to be raised."""
        group = self._group
        group.recorder.writer.end_wait(slot)
        failure = group.failure(error) if isinstance(error, RuntimeError) else error
        self._close(began, failure, was_woken=not isinstance(error, unwoken.NeverWokenError))
        return failure

    def _close(self, began: int, error: BaseException | None, *, was_woken: bool = True) -> None:
        if self._is_open:
            recorder, kept = self._group.recorder, self._kept
            is_cut_off = error is not None and self._group.was_cut_off(error)
            if kept is not None and is_cut_off and (not was_woken or has_failed(self._inner)):
                recorder.put_back(self._record, kept)
            self._kept = None
            self._is_open = False
            recorder.open.pop(self._record, None)
            now = _now()
            recorder.writer.complete(self._record, now, now - began, in_words(error))

    def notice(self, record: int) -> None:
        """Look whether it has ended without anybody waiting. For any thread, quick."""
        if self._inner.is_completed():
            self._close(_now(), self._trouble())

    def _trouble(self) -> BaseException | None:
        """What went wrong in an operation that has ended.

        Torch warns whoever asks the work itself. The future of NCCL would make a stream wait.
        """
        ended = self._group.book.ended
        if self._group.is_careful:
            return None if ended is None else ended()
        try:
            self._inner.get_future().value()
        except RuntimeError as error:
            return error if ended is None else ended()
        return None

    def abandon(self) -> None:
        """Its group was made anew: it never ends, and nobody need keep it."""
        why = "its group was formed again before it had ended"
        ended = self._group.book.ended
        if self._inner.is_completed():
            self.notice(self._record)  # well perhaps, before the end of the others
        # Nobody writes any longer, woken or not: the sockets are shut.
        error = CollectiveAbortedError(why) if ended is None else ended()
        self._close(_now(), error, was_woken=False)
        self._inner = Ended(RuntimeError(why))

    def get_future(self) -> Any:
        """The future of the operation inside; its end is recorded when it comes."""
        future = self._inner.get_future()
        future.add_done_callback(self._see_future)
        return future

    def _see_future(self, future: Any) -> None:
        if not self._is_open or self._group.recorder.is_child:
            return
        ended = _now()
        try:
            future.value()
        except RuntimeError:
            self.notice(self._record)  # who waits for it records why
        else:
            # Gloo completes the future before the work, so the work itself may not know yet.
            self._close(ended, None)

    def is_completed(self) -> bool:
        """Whether the operation has ended."""
        done = bool(self._inner.is_completed())
        if done and self._is_open:
            self.notice(self._record)
        return done

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        """Its error."""
        return self._inner.exception()

    def result(self) -> Any:
        """Its tensors."""
        return self._inner.result()

    def synchronize(self) -> None:
        """Let the current stream wait for it."""
        self._inner.synchronize()

    def source_rank(self) -> int:
        """Where a message from any source came from."""
        return int(self._inner.source_rank())

    _source_rank = source_rank

    def _get_op_type(self) -> Any:
        return self._inner._get_op_type()

    def _get_duration(self) -> Any:
        return self._inner._get_duration()

    def get_future_result(self) -> Any:
        """As of a stock work."""
        return self._inner.get_future_result()

    def block_current_stream(self) -> None:
        """As of a stock work."""
        self._inner.block_current_stream()

    def __getattr__(self, name: str) -> Any:
        # Called only for what is not above: names that other versions of torch have.
        return getattr(self.__dict__["_inner"], name)


def _wait(inner: Any, timeout: Any) -> bool:
    return bool(inner.wait() if timeout is None else inner.wait(timeout))


class MessageWork(TracedWork):
    """A send or a receive."""

    size = 0  #: in bytes
    is_receive = False
    is_busy = False  # Gloo's messages have no threads

    def _failure(self, slot: int, began: int, error: BaseException) -> BaseException:
        if self.is_receive and isinstance(error, unwoken.NeverWokenError):
            self._group.recorder.note_torn(self._record)
        return super()._failure(slot, began, error)

    def _wait_inside(self, timeout: Any) -> Any:
        group = self._group
        if group.is_careful or timeout:
            return super()._wait_inside(timeout)
        return unwoken.wait_for_message(self._inner, group.book, self.size)


class AnySourceWork(MessageWork):
    """A receive from any source: whose message it was is known at its end."""

    def wait(self, timeout: Any = None) -> bool:
        """As of any work; the message then counts as one from its source."""
        was_open = self._is_open
        if was_open and not self._group.recorder.is_child:
            timeout = self._await_sender(timeout)
        done = super().wait(timeout)
        group = self._group
        if was_open and not group.recorder.is_child:
            group.recorder.received_from_any(group.book, self.source_rank(), self._record)
        return done

    def _await_sender(self, timeout: timedelta | None) -> timedelta | None:
        """Wait until a message is on its way; gives what is left of the time-out.

        Nothing is done if a member is on another machine: its records cannot be read here.
        """
        group, record = self._group, self._record
        recorder, book = group.recorder, group.book
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
            self._close(began, error)
            self._inner = Ended(error)
            raise
        recorder.writer.end_wait(slot)
        if passed >= limit:
            return timedelta(milliseconds=1)  # torch says that the time is over
        return None if timeout is None else limit - passed

    def _look_for_message(self, senders: Senders, tag: int, limit: timedelta) -> timedelta:
        """Gives the time that it took, at least ``limit`` if none has come."""
        book = self._group.book
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
