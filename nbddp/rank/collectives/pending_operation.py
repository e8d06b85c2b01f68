"""Open operations, which continue while their caller continues, until their end.

Runs in: the rank process, any thread. Nothing here owns a handle, or an object that the handle
owns, so that a tensor is deleted when it would be with a stock group. The end is seen by checking
the handle while it exists, and by the callback of its future afterwards.
"""

import time
import weakref
from typing import TYPE_CHECKING, Any

from nbddp.errors import CollectiveAbortedError
from nbddp.rank.collectives import failure_cause
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder, failure_of
from nbddp.rank.collectives.rollback import WrittenCopies, has_failed

if TYPE_CHECKING:
    from nbddp.rank.collectives.work import TracedWork

_now = time.monotonic_ns


class PendingOperation:
    """One operation that is open."""

    __slots__ = (
        "_error", "copies", "counters", "handle", "has_future", "is_message", "is_open", "record",
        "recorder", "stock_work", "was_interrupted",
    )  # fmt: skip

    def __init__(
        self, handle: "TracedWork", counters: GroupCounters, recorder: Recorder, record: int,
        copies: WrittenCopies | None, *, is_message: bool,
    ) -> None:  # fmt: skip
        self.handle = weakref.ref(handle)
        self.counters = counters
        self.recorder = recorder
        self.record = record
        self.copies = copies  #: copies of the tensors that it writes
        self.is_message = is_message
        self.is_open = True
        self.was_interrupted = False  #: an interrupt has ended the caller's wait for it
        self.has_future = False  #: its future calls `take_end`
        #: The stock work of a deleted handle; None for Gloo.
        self.stock_work: Any = None
        self._error: RuntimeError | None = None

    @property
    def pg_id(self) -> str:
        """Id of its group."""
        return self.counters.info.pg_id

    @property
    def is_busy(self) -> bool:
        """True while a thread of the backend runs it; Gloo's messages have no thread."""
        if self.is_message:
            return False
        work = self._work()
        return self._error is None if work is None else not work.is_completed()

    def _work(self) -> Any:
        """Return the work of the stock group; None: it was deleted."""
        handle = self.handle()
        return self.stock_work if handle is None else handle.inner

    # --- its end -------------------------------------------------------------------------------

    def close(self, began: int, error: BaseException | None, *, was_woken: bool = True) -> None:
        """Record its end.

        Args:
            began: when a caller began to wait for it, or now.
            error: its error; None: it succeeded.
            was_woken: whether the backend has reported the end, and not nbddp.
        """
        if not self.is_open:
            return
        copies, record, recorder = self.copies, self.record, self.recorder
        if (
            copies is not None
            and error is not None
            and failure_cause.was_cut_off(self.counters, error)
        ):
            work = self._work()
            # Without a handle, an error is reported only if the operation itself has failed.
            if not was_woken or work is None or has_failed(work):
                recorder.put_back(record, copies)
        self._end()
        now = _now()
        if self.was_interrupted and error is not None:
            error = KeyboardInterrupt()  # the rebuild of its group is only the consequence
        # A thread that waits for a good end records it itself: nothing waited for this one.
        waited_ns = 0 if error is None else now - began
        recorder.writer.complete(record, now, waited_ns, failure_of(error))

    def _end(self) -> None:
        self.is_open = False
        self.copies = self.stock_work = self._error = None
        self.recorder.open.pop(self.record, None)

    def check_end(self) -> None:
        """Record its end if it has ended while no caller waited. This is fast."""
        work = self._work()
        if work is not None:
            if work.is_completed():
                self.close(_now(), self._error_of(work))
        elif self._error is not None:
            ended = self.counters.ended
            self.close(_now(), self._error if ended is None else ended())

    def _error_of(self, work: Any) -> BaseException | None:
        """Return the error of an ended operation; None: it succeeded.

        The work itself is not asked, because torch warns of that. The future of NCCL would make a
        stream wait.
        """
        ended = self.counters.ended
        if self.counters.is_careful:
            return None if ended is None else ended()
        try:
            work.get_future().value()
        except RuntimeError as error:
            return error if ended is None else ended()
        return None

    def take_end(self, error: RuntimeError | None) -> None:
        """Take the end of the operation's future. Called mostly by a thread of the backend.

        Args:
            error: of the future; None: it succeeded.
        """
        if not self.is_open or self.recorder.is_child:
            return
        if error is not None:
            self._error = error  # for a check without a handle
            if self._work() is not None:
                self.check_end()  # the caller that waits for it records the cause
        else:
            # Gloo completes the future before the work, so the work may not be complete yet.
            self.close(_now(), None)

    def abandon(self) -> None:
        """End the operation in the records, because its group was rebuilt."""
        reason = "its group was formed again before it had ended"
        ended = self.counters.ended
        self.check_end()  # it may have succeeded before the others ended
        # No thread writes to its tensors any more, because the sockets are shut.
        self.close(
            _now(), CollectiveAbortedError(reason) if ended is None else ended(), was_woken=False
        )
        handle = self.handle()
        if handle is not None:
            handle.release_inner(RuntimeError(reason))

    # --- its handle ----------------------------------------------------------------------------

    def follow_without_handle(self, work: Any) -> None:
        """Follow the operation after the deletion of its handle.

        The destructor of the handle calls this, so at any time: no lock is taken.

        Args:
            work: of the stock group; there is no other reference to it.
        """
        if self.counters.is_careful:
            self.stock_work = work  # its end is seen by checking it, see `Recorder.sweep`
            return
        if self.has_future:
            return
        try:
            work.get_future().add_done_callback(self._take_last_future)
        except RuntimeError:
            # Messages have no future. Gloo forgets this one, and does not report its end.
            if self.is_message:
                self.counters.lost_messages += 1
            self._end_well()

    def _take_last_future(self, future: Any) -> None:
        if not self.is_open or self.recorder.is_child:
            return
        try:
            future.value()
        except RuntimeError as error:
            self._error = error.with_traceback(None)  # for the next check
        else:
            self._end_well()

    def _end_well(self) -> None:
        self._end()
        self.recorder.writer.complete(self.record, _now())
