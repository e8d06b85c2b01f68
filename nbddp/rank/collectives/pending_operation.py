"""Operations that go on while their caller does something else: what is noted of one until its end.

Runs in: the rank process, any thread. Nothing here owns a handle, or what the handle owns: a tensor
dies when it would die with a stock group. So the end is seen by looking at the handle as long as
somebody has it, and by the callback of its future afterwards.
"""

import time
import weakref
from typing import TYPE_CHECKING, Any

from nbddp.errors import CollectiveAbortedError
from nbddp.rank.collectives import failure_cause
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder, in_words
from nbddp.rank.collectives.rollback import Kept, has_failed

if TYPE_CHECKING:
    from nbddp.rank.collectives.work import TracedWork

_now = time.monotonic_ns


class PendingOperation:
    """One operation that is open."""

    __slots__ = (
        "_error", "book", "handle", "held", "is_message", "is_open", "kept", "record", "recorder",
        "was_interrupted",
    )  # fmt: skip

    def __init__(
        self, handle: "TracedWork", book: GroupCounters, recorder: Recorder, record: int,
        kept: Kept | None, *, is_message: bool,
    ) -> None:  # fmt: skip
        self.handle = weakref.ref(handle)
        self.book = book
        self.recorder = recorder
        self.record = record
        self.kept = kept  #: copies of what it writes
        self.is_message = is_message
        self.is_open = True
        self.was_interrupted = False  #: whoever waited for it has left it by an interrupt
        #: The work of a stock group whose handle was let go of; of Gloo's none is kept.
        self.held: Any = None
        self._error: RuntimeError | None = None

    @property
    def pg_id(self) -> str:
        """Of the group that it belongs to."""
        return self.book.info.pg_id

    @property
    def is_busy(self) -> bool:
        """Whether a thread of the backend is in it; Gloo's messages have none."""
        if self.is_message or self._error is not None:
            return False
        work = self._work()
        return work is None or not work.is_completed()

    def _work(self) -> Any:
        """The work of the stock group; None: nobody holds it."""
        handle = self.handle()
        return self.held if handle is None else handle.inner

    # --- its end -------------------------------------------------------------------------------

    def close(self, began: int, error: BaseException | None, *, was_woken: bool = True) -> None:
        """It has ended.

        Args:
            began: when somebody began to wait for it, or now.
            error: with which; None: well.
            was_woken: its end was told by the backend, and not by us.
        """
        if not self.is_open:
            return
        kept, record, recorder = self.kept, self.record, self.recorder
        if kept is not None and error is not None and failure_cause.was_cut_off(self.book, error):
            work = self._work()
            # Without a handle only an end with an error is told by an error.
            if not was_woken or work is None or has_failed(work):
                recorder.put_back(record, kept)
        self._end()
        now = _now()
        if self.was_interrupted and error is not None:
            error = KeyboardInterrupt()  # that its group was made anew is what follows
        # Who waits for a good end records it: here it was seen by somebody who did not wait.
        waited_ns = 0 if error is None else now - began
        recorder.writer.complete(record, now, waited_ns, in_words(error))

    def _end(self) -> None:
        self.is_open = False
        self.kept = self.held = self._error = None
        self.recorder.open.pop(self.record, None)

    def notice(self) -> None:
        """Look whether it has ended without anybody waiting. Quick."""
        work = self._work()
        if work is not None:
            if work.is_completed():
                self.close(_now(), self._trouble(work))
        elif self._error is not None:
            ended = self.book.ended
            self.close(_now(), self._error if ended is None else ended())

    def _trouble(self, work: Any) -> BaseException | None:
        """What went wrong in an operation that has ended.

        Torch warns whoever asks the work itself. The future of NCCL would make a stream wait.
        """
        ended = self.book.ended
        if self.book.is_careful:
            return None if ended is None else ended()
        try:
            work.get_future().value()
        except RuntimeError as error:
            return error if ended is None else ended()
        return None

    def see_future(self, future: Any) -> None:
        """The future of the operation is done. On a thread of the backend, mostly."""
        if not self.is_open or self.recorder.is_child:
            return
        ended = _now()
        try:
            future.value()
        except RuntimeError:
            self.notice()  # who waits for it records why
        else:
            # Gloo completes the future before the work, so the work itself may not know yet.
            self.close(ended, None)

    def abandon(self) -> None:
        """Its group was made anew: it never ends, and nobody need keep it."""
        why = "its group was formed again before it had ended"
        ended = self.book.ended
        self.notice()  # ended well perhaps, before the end of the others
        # Nobody writes any longer, woken or not: the sockets are shut.
        self.close(
            _now(), CollectiveAbortedError(why) if ended is None else ended(), was_woken=False
        )
        handle = self.handle()
        if handle is not None:
            handle.let_go(RuntimeError(why))

    # --- its handle ----------------------------------------------------------------------------

    def lose(self, work: Any) -> None:
        """Nobody has the handle any more. In its destructor, so at any time: no lock is taken.

        Args:
            work: of the stock group, which nobody else holds.
        """
        if self.book.is_careful:
            self.held = work  # its end is seen by looking at it, see `Recorder.sweep`
            return
        try:
            work.get_future().add_done_callback(self._see_last)
        except RuntimeError:
            # Messages have no future. Gloo forgets this one, and does not tell whether it was sent.
            self._end_well()

    def _see_last(self, future: Any) -> None:
        if not self.is_open or self.recorder.is_child:
            return
        try:
            future.value()
        except RuntimeError as error:
            self._error = error.with_traceback(None)  # for the next look
        else:
            self._end_well()

    def _end_well(self) -> None:
        self._end()
        self.recorder.writer.complete(self.record, _now())
