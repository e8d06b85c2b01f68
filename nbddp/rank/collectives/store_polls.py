"""Notes loops of the user that ask the store the same question again and again, and keys they set.

Runs in: the rank process; `expire` on the I/O thread, others on any thread. A loop of Python that
polls a key waits in no operation: without a record of it, nothing would seem to wait.
"""

import threading
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from nbddp.rank.collectives.recording import signatures
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.wire.flight_recorder import StoreQuestion, shortened

#: Equal answers for this long, and this many of them, are a loop that waits.
_LOOP_NS, _LOOP_COUNT = 1_000_000_000, 4
#: A thread that asks less often than this, and computes for half of the time or more, only looks at
#: the key in passing: a training loop that ends when another rank says so.
_SPIN_NS = 5_000_000
#: A loop that has not asked for this long, and for this many of its pauses, has ended.
_EXPIRED_NS, _EXPIRED_PAUSES = 2_000_000_000, 3
#: Questions of one rank that are watched at a time, and keys that are kept.
_MAX_QUESTIONS, _MAX_KEYS = 32, 16


@dataclass
class _Poll:
    answer: Hashable
    operations: int  #: that the rank had issued before
    cpu_ns: int  #: time of the processor that the thread had used before
    first_ns: int
    last_ns: int
    count: int = 1
    record: int = 0

    def has_expired(self, now_ns: int) -> bool:
        return now_ns - self.last_ns > max(_EXPIRED_NS, _EXPIRED_PAUSES * self._pause_ns)

    def is_loop(self) -> bool:
        elapsed_ns = self.last_ns - self.first_ns
        is_idle = 2 * (time.thread_time_ns() - self.cpu_ns) < elapsed_ns
        is_long = self.count >= _LOOP_COUNT and elapsed_ns >= _LOOP_NS
        return is_long and (is_idle or self._pause_ns < _SPIN_NS)

    @property
    def _pause_ns(self) -> int:
        return (self.last_ns - self.first_ns) // self.count


class StorePolls:
    """The questions of this rank to stores, and the last keys that it has set.

    Args:
        recorder: has an open record for each loop that waits.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._polls: dict[tuple[int, StoreQuestion, str], _Poll] = {}
        self._recorded = 0  #: records of loops so far
        self._lock = threading.Lock()
        self._keys: deque[str] = deque(maxlen=_MAX_KEYS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The last keys that the user's code has set on this rank, in any cell."""
        return tuple(self._keys)

    def note_key(self, key: str) -> None:
        """Note that the user's code sets a key."""
        if key not in self._keys:
            self._keys.append(shortened(key))

    def note_answer(self, question: StoreQuestion, key: str, answer: Hashable) -> None:
        """Note an answer of the store to the user's code."""
        if self._recorder.is_child or not self._recorder.run_id:
            return
        now_ns, place = time.monotonic_ns(), (threading.get_ident(), question, key)
        with self._lock:
            poll = self._polls.get(place)
            now = answer, self._recorder.writer.newest - self._recorded
            if poll is None or (poll.answer, poll.operations) != now or poll.has_expired(now_ns):
                self._end(place)
                if len(self._polls) < _MAX_QUESTIONS:
                    self._polls[place] = _Poll(*now, time.thread_time_ns(), now_ns, now_ns)
                return
            poll.count += 1
            poll.last_ns = now_ns
            if not poll.record and poll.is_loop():
                call = signatures.make("store", question, keys=(shortened(key),))
                poll.record = self._recorder.other(signatures.known(call))
                self._recorded += 1

    def expire(self) -> None:
        """Forget loops that have ended without another answer."""
        now_ns = time.monotonic_ns()
        with self._lock:
            for place in [place for place, poll in self._polls.items() if poll.has_expired(now_ns)]:
                self._end(place)

    def end_cell(self) -> None:
        """Forget all questions of a cell."""
        with self._lock:
            for place in list(self._polls):
                self._end(place)

    def _end(self, place: tuple[int, StoreQuestion, str]) -> None:
        poll = self._polls.pop(place, None)
        if poll is not None and poll.record:
            self._recorder.writer.complete(poll.record, time.monotonic_ns())
