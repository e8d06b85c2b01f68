"""One execution of a cell, from the side of the notebook.

Runs in: the hub thread puts events in; the thread that waits for the cell takes them out.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Container

from msgspec.structs import replace

from nbddp.controller.state import NoticeChanged, RanksHeld, RunOutcome, VerdictReached
from nbddp.wire.events import InOrder
from nbddp.wire.left_out_text import LeftOutText
from nbddp.wire.messages import (
    ClearOutput,
    Display,
    FaultStruck,
    ImportChanged,
    InputRequest,
    Output,
    RankAt,
    RankExited,
    Result,
    RunFinished,
    RunsFinished,
    RunsStarted,
    RunStarted,
    Stream,
)
from nbddp.wire.rank_set import RankSet

#: The events that the view of a cell gets.
CellEvent = (
    RunStarted
    | ImportChanged
    | RankAt
    | Output
    | Display
    | Result
    | ClearOutput
    | InputRequest
    | FaultStruck
    | RunFinished
    | RankExited
    | NoticeChanged
    | VerdictReached
    | RanksHeld
)
#: Events that the hub puts into a run: equal answers of a node come together.
HubEvent = CellEvent | RunsStarted | RunsFinished


class Run:
    """A queue of events that ends with an outcome.

    Text beyond a limit that is not taken out in time is dropped and counted; the next text of the
    same rank carries the count (`Output.dropped_bytes`). If none has come when all others were
    taken out, or when something else of the rank is shown, the last lines of the dropped text do.
    So memory stays bounded.

    Args:
        run_id: names the run.
        ranks: the ranks that run the cell.
        backlog_bytes: the limit for text that no thread has taken out.
    """

    def __init__(self, run_id: str, ranks: RankSet, backlog_bytes: int) -> None:
        self.run_id = run_id
        self.ranks = ranks
        self.outcome: RunOutcome | None = None
        #: Ranks that have ended it may print, because the user asks them: `RanksHeld`.
        self.has_late_output = False
        #: The user has asked for its end; set by the thread that waits.
        self.was_interrupted = False
        self._events: queue.SimpleQueue[HubEvent | None]
        self._events = queue.SimpleQueue()
        self._unfolded: deque[CellEvent] = deque()  #: of the thread that takes them out
        self._backlog_bytes = backlog_bytes
        self._queued_bytes = 0
        self._left_out: dict[tuple[int, Stream], LeftOutText] = {}
        self._lock = threading.Lock()  # of the texts and counts, which both threads change
        self._when_ended: list[Callable[[], None]] = []
        #: Called when its end was shown, by the thread that waits.
        self.on_shown: Callable[[], None] = lambda: None
        self.put_count = 0  #: events put in so far
        self.taken_count = 0  #: events taken out so far

    def put(self, event: HubEvent) -> None:
        """Add an event that has come, or folded ones. The hub thread calls this."""
        if isinstance(event, Output):
            limited = self._limited(event)
            if limited is None:
                return
            event = limited
        elif isinstance(event, InOrder | RunFinished | RankExited):
            self._end_left_out([event.rank])
        elif isinstance(event, RunsFinished):
            self._end_left_out(event.ranks)
        count = len(event.ranks) if isinstance(event, RunsStarted | RunsFinished) else 1
        with self._lock:
            self.put_count += count
        self._events.put(event)

    def put_output(self, event: Output | Display | Result | ClearOutput) -> bool:
        """Add an output; False: it is not of this cell. The hub thread calls this."""
        if event.run_id is None and self.has_late_output:
            event = replace(event, run_id=self.run_id)
        if event.run_id != self.run_id:
            return False
        self.put(event)
        return True

    def end(self, outcome: RunOutcome) -> None:
        """Set the outcome: no more events will come. The hub thread calls this."""
        with self._lock:
            self.outcome = outcome
            callbacks = self._when_ended
            self._when_ended = []
        self._end_left_out()
        self._events.put(None)
        for callback in callbacks:
            callback()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, from the hub thread, or now if the run has ended."""
        with self._lock:
            if self.outcome is None:
                self._when_ended.append(callback)
                return
        callback()

    def wait_for_end(self, timeout_s: float) -> RunOutcome | None:
        """Wait for the outcome; None: the run goes on. Another thread must take out the events."""
        ended = threading.Event()
        self.add_done_callback(ended.set)
        ended.wait(timeout_s)
        return self.outcome

    @property
    def has_more(self) -> bool:
        """Whether an event can be taken out at once, or the end."""
        return bool(self._unfolded) or not self._events.empty()

    def get(self, timeout_s: float | None) -> CellEvent | None:
        """The next event; None when the run has ended and everything was taken out.

        Raises:
            TimeoutError: nothing came in time.
        """
        if self._unfolded:
            self.taken_count += 1
            return self._unfolded.popleft()
        if self._left_out and self._events.empty():
            self._end_left_out()
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(event, RunsStarted | RunsFinished):
            self._unfolded.extend(event.each())
            return self.get(timeout_s)
        self.taken_count += 1
        if isinstance(event, Output):
            with self._lock:
                self._queued_bytes -= len(event.text)
        return event

    def _end_left_out(self, ranks: Container[int] | None = None) -> None:
        """Add the ends of the texts that were left out, of these ranks or of all."""
        with self._lock:
            for rank, stream in sorted(self._left_out):
                if ranks is not None and rank not in ranks:
                    continue
                dropped, text = self._left_out.pop((rank, stream)).take_with_end()
                self._queued_bytes += len(text)
                self.put_count += 1
                self._events.put(
                    Output(
                        run_id=self.run_id,
                        rank=rank,
                        stream=stream,
                        text=text,
                        dropped_bytes=dropped,
                    )
                )

    def _limited(self, output: Output) -> Output | None:
        key = (output.rank, output.stream)
        with self._lock:
            if self._queued_bytes > self._backlog_bytes:
                left_out = self._left_out.setdefault(key, LeftOutText())
                left_out.add(output.text, lost_before=output.dropped_bytes)
                return None
            self._queued_bytes += len(output.text)
            before = self._left_out.pop(key, None)
        if before is None:
            return output
        return replace(output, dropped_bytes=output.dropped_bytes + before.take())
