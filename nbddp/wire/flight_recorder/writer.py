"""Records of collectives in shared memory: written by ranks, read by the agent and by other ranks.

Runs in: agent (creates, reads), rank (writes its own region, reads those of its neighbours). A
region is read without the help of its rank, which may be blocked in C++, hold the GIL, be stopped,
or be dead.

    node memory:  | region of local rank 0 | region of local rank 1 | ... | fingerprint board |
    region:       | head | waits | ring of records | texts |

All numbers are native signed 64-bit integers. A record holds numbers only; its signature, line and
group are texts, each written once and referred to by its offset. The texts are a circular log:
offsets only grow, so that a reader can tell whether a text was overwritten.

There are no locks. A rank writes a record's id before the rest, and counts the record when it is
complete; a reader reads only counted ones and checks the id before and after, so that it leaves out
a record that is overwritten during the read.
"""

import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from nbddp.wire.flight_recorder.layout import (
    ANSWERED,
    BOARD_GROUPS,
    BOARD_SLOTS,
    CALLED,
    COMPLETED,
    CREATED,
    END,
    FAILURE,
    FLAGS,
    HEAD,
    HEAD_AND_WAIT,
    ID,
    LARGEST_TEXT,
    LINE,
    LINE_AT,
    MAX_TEXTS,
    MAX_THREADS,
    OPEN,
    PID,
    RECORD,
    RECORD_WORDS,
    REGION_WORDS,
    RING_AT,
    RING_LENGTH,
    SEQ,
    STATE,
    TAKEN,
    TEXT_AT,
    TEXT_BYTES,
    TEXT_HEAD,
    THREAD,
    TIMEOUT_MS,
    TOUCHED,
    WAIT,
    WAIT_THREAD,
    WAIT_WORDS,
    WAITED,
    WAITS_AT,
    call_code,
)
from nbddp.wire.flight_recorder.reader import Reader
from nbddp.wire.flight_recorder.schema import Failure

_WRITE_RECORD, _WRITE_END = RECORD.pack_into, END.pack_into
_WRITE_HEAD, _WRITE_WAIT = HEAD.pack_into, WAIT.pack_into
_WRITE_HEAD_AND_WAIT = HEAD_AND_WAIT.pack_into
_RECORD_BYTES = RECORD_WORDS * 8
#: Maximum length of the text of a failure.
_MAX_FAILURE: Final = 2000
_INTERRUPTED: Final = Failure("interrupted", KeyboardInterrupt.__name__)


class NodeMemory:
    """The shared memory of one node."""

    def __init__(self, fd: int, local_ranks: int) -> None:
        self.fd = fd
        self.local_ranks = local_ranks
        self.mapping = mmap.mmap(fd, _size(local_ranks))
        self.words = memoryview(self.mapping).cast("q")

    @classmethod
    def create(cls, local_ranks: int) -> "NodeMemory":
        """Create memory, all zero. It has no file name that could be left behind."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("nbddp-records", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, _size(local_ranks))
        return cls(fd, local_ranks)

    @classmethod
    def attach(cls, fd: int, local_ranks: int) -> "NodeMemory":
        """Return the memory behind a descriptor, which this object now owns."""
        return cls(fd, local_ranks)

    def region(self, index: int) -> memoryview:
        """Return the words of one local rank."""
        return self.words[index * REGION_WORDS : (index + 1) * REGION_WORDS]

    def reader(self, index: int) -> "Reader":
        """Return a reader of the region of one local rank."""
        return Reader(self.region(index))

    def board(self, group: int) -> memoryview:
        """Return the words of one group: by slot, the keys of all local ranks, fingerprints."""
        per_group = BOARD_SLOTS * self.local_ranks * 2
        start = self.local_ranks * REGION_WORDS + (group % BOARD_GROUPS) * per_group
        return self.words[start : start + per_group]

    def reset(self, index: int) -> None:
        """Clear the region of a local rank for its new process."""
        region = self.region(index)
        region[:TEXT_AT] = memoryview(bytes(TEXT_AT * 8)).cast("q")
        for group in range(BOARD_GROUPS):
            board = self.board(group)
            for at in range(index, len(board), self.local_ranks):
                board[at] = 0

    def close(self) -> None:
        """Release the memory; its readers and writers must not be used afterwards."""
        self.words.release()
        self.mapping.close()
        os.close(self.fd)


def _size(local_ranks: int) -> int:
    words = local_ranks * (REGION_WORDS + BOARD_GROUPS * BOARD_SLOTS * 2)
    return words * 8


class Writer:
    """Writes the region of this process. One per process; any thread, under the GIL.

    Methods that are called for each operation do as little as possible: see the benchmark
    ``tests/bench/bench_trace.py``.

    Args:
        memory: the shared memory of the node.
        index: the local rank of this process.
    """

    def __init__(self, memory: NodeMemory, index: int) -> None:
        self.index = index
        self._words = memory.region(index)
        self._ring = self._words[RING_AT:TEXT_AT]
        #: Writing to the mapping is faster than to a view of it.
        self._mapping = memory.mapping
        start = index * REGION_WORDS * 8
        self._head = start + OPEN * 8
        self._first_slot = start + WAITS_AT * 8
        self._ring_start = start + RING_AT * 8
        self._first_end = self._ring_start + STATE * 8
        self._texts = self._words[TEXT_AT:].cast("B")
        self._text_head = 8  # 0 means "no text"
        #: Texts up to this offset may be overwritten soon: they are written again before use. Half
        #: of the log lies after it, so that the texts of all records still exist.
        self.oldest_text = 0
        self._offset_by_key: dict[object, int] = {}
        self._records = 0
        self._touched = 0
        self._open = 0
        self.slots: dict[int, int] = {}  #: by thread, see `slot`
        self._lock = threading.Lock()  #: protects texts and slots, which are seldom new
        self._words[PID] = os.getpid()
        self.slot(threading.get_ident())  # the first one is the main thread's

    @property
    def version(self) -> int:
        """The value of `Reader.version`."""
        return self._touched + 2 * self._records - self._open

    @property
    def newest(self) -> int:
        """Id of the newest record, counted or not; 0: none."""
        return self._records

    def touch(self) -> None:
        """Change `version` after a change that is not an operation."""
        self._touched += 1
        self._words[TOUCHED] = self._touched

    # --- texts ---------------------------------------------------------------------------------

    def text(self, key: object, make: Callable[[], msgspec.Struct]) -> int:
        """Return the offset of a text, and write it if the log does not have it (any more).

        Args:
            key: equal for equal texts.
            make: returns the text; called only if it has to be written.
        """
        offset = self._offset_by_key.get(key)
        if offset is not None and offset > self.oldest_text:
            return offset
        payload = msgspec.msgpack.encode(make())
        with self._lock:
            if len(self._offset_by_key) > MAX_TEXTS:
                self._offset_by_key.clear()
            offset = self._offset_by_key[key] = self._write(payload)
        return offset

    def _write(self, payload: bytes) -> int:
        if len(payload) > LARGEST_TEXT:
            return 0
        length = 8 + len(payload) + -len(payload) % 8
        at = self._text_head % TEXT_BYTES
        if at + length > TEXT_BYTES:  # no text crosses the end
            self._text_head += TEXT_BYTES - at
            at = 0
        offset = self._text_head
        struct.pack_into("<Q", self._texts, at, len(payload))
        self._texts[at + 8 : at + 8 + len(payload)] = payload
        self._text_head = offset + length
        self.oldest_text = max(0, self._text_head - TEXT_BYTES // 2)
        self._words[TEXT_HEAD] = self._text_head
        return offset

    # --- operations ----------------------------------------------------------------------------

    def issue(  # noqa: PLR0917 - by position, since keywords cost a third of a microsecond
        self,
        signature: int,
        site: int,
        group: int,
        run: int,
        seq: int,
        p2p_seq: int,
        peer: int,
        tag: int,
        is_async: int,
        thread: int,
        timeout_ms: int,
        created_ns: int,
        slot: int = 0,
        loops: int = 0,
        outer: int = 0,
        inner: int = 0,
    ) -> int:
        """Write a new record, with offsets of texts, and return its id.

        With a ``slot`` (see `slot`), its thread begins to wait for the operation.
        """
        self._records = record = self._records + 1
        mapping = self._mapping
        _WRITE_RECORD(
            mapping, self._ring_start + record % RING_LENGTH * _RECORD_BYTES,
            record, signature, site, group, run, seq, p2p_seq, peer, tag, is_async, thread,
            timeout_ms, created_ns, 0, 0, 0, 0, loops, outer, inner,
        )  # fmt: skip
        self._open += 1
        # Both numbers are read last: another thread may have changed them since.
        if slot == self._first_slot:
            _WRITE_HEAD_AND_WAIT(mapping, self._head, self._open, self._records, created_ns, record)
        else:
            _WRITE_HEAD(mapping, self._head, self._open, self._records)
            if slot:
                _WRITE_WAIT(mapping, slot, created_ns, record)
        return record

    def take(self, record: int) -> None:
        """Note that torch accepted the operation, and its caller continues; see `accept`."""
        at = record % RING_LENGTH * RECORD_WORDS
        if self._ring[at] == record:
            self._ring[at + FLAGS] |= TAKEN

    def complete(
        self, record: int, now_ns: int, waited_ns: int = 0, failure: Failure | None = None
    ) -> None:
        """Note that the operation has ended; does nothing if its end is already recorded."""
        at = record % RING_LENGTH * RECORD_WORDS
        ring = self._ring
        if ring[at] == record:
            if ring[at + STATE]:
                return
            ring[at + COMPLETED] = now_ns
            ring[at + WAITED] += waited_ns
            if failure is not None:
                ring[at + FAILURE] = self._failure(failure)
            ring[at + STATE] = 1 if failure is None else 2
        self._open -= 1
        self._words[OPEN] = self._open

    def set_failure(self, record: int, failure: Failure) -> None:
        """Replace the failure of an operation that has failed."""
        at = record % RING_LENGTH * RECORD_WORDS
        if self._ring[at] == record:
            self._ring[at + FAILURE] = self._failure(failure)

    def _failure(self, failure: Failure) -> int:
        return self.text(failure, lambda: Failure(failure.kind, failure.text[:_MAX_FAILURE]))

    def end(self, slot: int, record: int, now_ns: int, waited_ns: int) -> None:
        """Do `end_wait` and `complete` at once, for the successful wait of a ``Work``."""
        mapping = self._mapping
        if self._records - record < RING_LENGTH:
            end = self._first_end + record % RING_LENGTH * _RECORD_BYTES
            _WRITE_END(mapping, end, 1, now_ns, waited_ns)
        self._open -= 1
        if slot == self._first_slot:
            _WRITE_HEAD_AND_WAIT(mapping, self._head, self._open, self._records, 0, 0)
        else:
            _WRITE_HEAD(mapping, self._head, self._open, self._records)
            _WRITE_WAIT(mapping, slot, 0, 0)

    def end_interrupted(self, thread: int, going_on: Collection[int], now_ns: int) -> list[int]:
        """Repair records that an interrupt has left half written.

        Args:
            thread: the interrupted thread, which has left all its calls.
            going_on: records of operations that need no thread, see `Recorder.open`.
            now_ns: the time.

        Returns:
            The records that were open, and are no longer.
        """
        before = (self._records, self._open)
        ids, states, threads = (self._ring[at::RECORD_WORDS].tolist() for at in (ID, STATE, THREAD))
        open_now = [
            (record, its_thread)
            for record, state, its_thread in zip(ids, states, threads, strict=True)
            if record and not state
        ]
        older = sum(self._records - record >= RING_LENGTH for record in going_on)
        if before == (self._records, self._open):  # no other thread has counted meanwhile
            self._open = len(open_now) + older
        interrupted = [
            record
            for record, its_thread in open_now
            if its_thread == thread and record not in going_on
        ]
        for record in interrupted:
            waited_ns = now_ns - self._ring[record % RING_LENGTH * RECORD_WORDS + CREATED]
            self.complete(record, now_ns, waited_ns, _INTERRUPTED)
        self._words[OPEN] = self._open
        self.end_wait(self.slot(thread))
        return interrupted

    def set_timeout(self, record: int, timeout_ms: int, began_ns: int) -> None:
        """Note the timeout of a wait that begins now.

        The timeout of a collective counts from its call, that of a message from the wait.

        Args:
            record: the operation that is waited for.
            timeout_ms: the timeout in milliseconds.
            began_ns: the begin of the wait.
        """
        at = record % RING_LENGTH * RECORD_WORDS
        ring = self._ring
        if ring[at] == record:
            passed_ms = (began_ns - ring[at + CREATED]) // 1_000_000 if ring[at + SEQ] else 0
            ring[at + TIMEOUT_MS] = timeout_ms + passed_ms

    def begin_wait(self, thread: int, record: int, now_ns: int) -> int:
        """Note that a thread begins to wait for an operation, and return its slot."""
        slot = self.slots.get(thread) or self.slot(thread)
        _WRITE_WAIT(self._mapping, slot, now_ns, record)
        self.touch()
        return slot

    def note_answer(self, code: int) -> None:
        """Note that the value of an expression was sent; see `Reader.answered`."""
        self._words[ANSWERED] = code

    def note_line(self, site: int, now_ns: int) -> None:
        """Note the line that the main thread is at; see `Reader.last_line`."""
        self._words[LINE] = site
        self._words[LINE_AT] = now_ns

    def note_call(self, question: int, pg_id: str, number: int) -> None:
        """Note that an expression calls a collective; see `Reader.has_called`."""
        self._words[CALLED] = call_code(question, pg_id, number)

    def accept(self, slot: int, record: int, created_ns: int) -> None:
        """Note that torch accepted the operation for which its thread waits since the call."""
        _WRITE_WAIT(self._mapping, slot, created_ns + 1, record)

    def end_wait(self, slot: int) -> None:
        """Note that the thread of a slot does not wait any more."""
        _WRITE_WAIT(self._mapping, slot, 0, 0)
        self.touch()

    def slot(self, thread: int) -> int:
        """Return the slot for the waits of a thread, as an offset in memory.

        New threads get the slots of threads that have ended; the last slot may be shared.
        """
        with self._lock:
            slot = self.slots.get(thread)
            if slot is None:
                taken = set(self.slots.values())
                for number in range(MAX_THREADS):
                    slot = self._first_slot + number * WAIT_WORDS * 8
                    if slot not in taken:
                        break
                assert slot is not None  # noqa: S101 - there is at least one slot
                self.slots[thread] = slot
                self._words[WAITS_AT + number * WAIT_WORDS + WAIT_THREAD] = thread
        return slot

    def forget_threads(self, living: Iterable[int]) -> None:
        """Free the slots of threads that have ended."""
        with self._lock:
            for thread in set(self.slots) - set(living):
                del self.slots[thread]
