"""Reads the records of a rank without its help; see `nbddp.wire.flight_recorder.writer`.

Runs in: agent; ranks, for their own region and those of their neighbours.
"""

import struct
from typing import TypeVar

import msgspec

from nbddp.wire.flight_recorder.layout import (
    ANSWERED,
    ASYNC,
    CALLED,
    COMPLETED,
    CREATED,
    FAILURE,
    FLAGS,
    GROUP,
    ID,
    INNER,
    LARGEST_TEXT,
    LINE,
    LINE_AT,
    LOOPS,
    MAX_TEXTS,
    MAX_THREADS,
    OPEN,
    OUTER,
    P2P_SEQ,
    PEER,
    PID,
    RECORD_WORDS,
    RECORDS,
    RING_AT,
    RING_LENGTH,
    RUN,
    SEQ,
    SIGNATURE,
    SITE,
    STATE,
    STATES,
    TAG,
    TAKEN,
    TEXT_AT,
    TEXT_BYTES,
    TEXT_HEAD,
    THREAD,
    TIMEOUT_MS,
    TOUCHED,
    WAIT_WORDS,
    WAITED,
    WAITS_AT,
    Loops,
    Text,
    call_code,
)
from nbddp.wire.flight_recorder.schema import (
    Failure,
    GroupInfo,
    LoopVariable,
    Operation,
    Signature,
    Site,
)

_T = TypeVar("_T", bound=msgspec.Struct)


class Reader:
    """Reads the region of one rank; never waits, and tolerates all contents."""

    def __init__(self, region: memoryview) -> None:
        self._words = region
        self._texts = region[TEXT_AT:].cast("B")
        self._cache: dict[tuple[int, type[msgspec.Struct]], msgspec.Struct] = {}
        self._cached_pid = 0

    @property
    def pid(self) -> int:
        """Process id of the writer; 0: none yet."""
        return int(self._words[PID])

    @property
    def version(self) -> int:
        """A number that changes whenever an operation is issued, completed, or waited for."""
        words = self._words
        return int(words[TOUCHED]) + 2 * int(words[RECORDS]) - int(words[OPEN])

    @property
    def open_count(self) -> int:
        """Number of operations that are issued and not complete."""
        return int(self._words[OPEN])

    @property
    def newest(self) -> int:
        """Id of the newest record; 0: none."""
        return int(self._words[RECORDS])

    @property
    def answered(self) -> int:
        """Code of the last expression whose value the rank has sent; 0: none."""
        return int(self._words[ANSWERED])

    @property
    def last_line(self) -> tuple[Site, int] | None:
        """The last line of the user's code that was seen in the running cell, and when, in ns."""
        site = self._text(int(self._words[LINE]), Site)
        return None if site is None else (site, int(self._words[LINE_AT]))

    def has_called(self, question: int, pg_id: str, number: int) -> bool:
        """Return whether the rank calls this collective for a query, or has gone past it."""
        if self._words[CALLED] == call_code(question, pg_id, number):
            return True
        return any(
            operation.collective_seq_id > number
            or (operation.collective_seq_id == number and operation.state == "completed")
            for operation in self.operations(128)
            if operation.pg_id == pg_id
        )

    def is_message(self, record: int, peer: int, tag: int) -> bool:
        """Return whether a record is a message with this peer and tag; faster than `operation`."""
        at = RING_AT + record % RING_LENGTH * RECORD_WORDS
        words = self._words
        return bool(words[at + P2P_SEQ]) and (words[at + PEER], words[at + TAG]) == (peer, tag)

    def is_taken(self, operation: Operation) -> bool:
        """Return whether torch accepted an operation: it has ended, continues, or is waited for.

        A wait that begins with the record proves nothing, see `Writer.accept`.
        """
        record = operation.record_id
        at = RING_AT + record % RING_LENGTH * RECORD_WORDS
        return (
            operation.state != "scheduled"
            or bool(self._words[at + FLAGS] & TAKEN)
            or any(
                waited == record and since > operation.time_created_ns
                for _, waited, since in self.waits()
            )
        )

    def waits(self) -> tuple[tuple[int, int, int], ...]:
        """Return ``(thread, record id, since)`` of each thread that waits."""
        waits = []
        for number in range(MAX_THREADS):
            at = WAITS_AT + number * WAIT_WORDS
            since, record, thread = self._words[at : at + 3].tolist()
            if record:
                waits.append((thread, record, since))
        return tuple(waits)

    def operation(self, record: int) -> Operation | None:
        """Return one operation; None if its record was overwritten, or is being written."""
        at = RING_AT + record % RING_LENGTH * RECORD_WORDS
        words = self._words[at : at + RECORD_WORDS].tolist()
        signature = self._text(words[SIGNATURE], Signature)
        if words[ID] != record or self._words[at] != record or signature is None:
            return None
        group = self._text(words[GROUP], GroupInfo)
        site = self._text(words[SITE], Site)
        run = self._text(words[RUN], Text)
        failure = self._text(words[FAILURE], Failure)
        loops = self._text(words[LOOPS], Loops)
        return Operation(
            record_id=record,
            pg_id=group.pg_id if group else "",
            signature=signature,
            state=STATES[words[STATE] % 3],
            collective_seq_id=words[SEQ],
            p2p_seq_id=words[P2P_SEQ],
            peer=words[PEER],
            tag=words[TAG],
            async_op=bool(words[FLAGS] & ASYNC),
            time_created_ns=words[CREATED],
            time_completed_ns=words[COMPLETED],
            waited_ns=words[WAITED],
            site=site or Site(),
            failure=failure,
            run_id=run.text if run else "",
            timeout_ms=words[TIMEOUT_MS],
            thread=words[THREAD],
            iteration=_iteration(loops, words) if loops is not None else (),
        )

    def operations(self, last: int = 64) -> tuple[Operation, ...]:
        """Return the open operations and the last ``last`` ones; the newest last."""
        newest = int(self._words[RECORDS])
        oldest = max(1, newest - RING_LENGTH + 1)
        open_left = self.open_count
        operations: list[Operation] = []
        for record in range(newest, oldest - 1, -1):
            is_last = newest - record < last
            if not is_last and open_left <= 0:
                break
            at = RING_AT + record % RING_LENGTH * RECORD_WORDS
            is_open = self._words[at + STATE] == 0
            open_left -= is_open
            if is_last or is_open:
                operation = self.operation(record)
                if operation is not None:
                    operations.append(operation)
        return tuple(reversed(operations))

    def _text(self, offset: int, kind: type[_T]) -> _T | None:
        if offset <= 0:
            return None
        if self._cached_pid != self.pid:
            self._cache.clear()  # a new process writes here now
            self._cached_pid = self.pid
        cached = self._cache.get((offset, kind))
        if isinstance(cached, kind):
            return cached
        at = offset % TEXT_BYTES
        (length,) = struct.unpack_from("<Q", self._texts, at)
        if length > LARGEST_TEXT or at + 8 + length > TEXT_BYTES:
            return None
        payload = bytes(self._texts[at + 8 : at + 8 + length])
        if int(self._words[TEXT_HEAD]) - offset > TEXT_BYTES:
            return None  # overwritten in the meantime
        try:
            text = msgspec.msgpack.decode(payload, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if len(self._cache) > MAX_TEXTS:
            self._cache.clear()
        self._cache[offset, kind] = text
        return text


def _iteration(loops: Loops, words: list[int]) -> tuple[LoopVariable, ...]:
    values = words[OUTER : INNER + 1][-len(loops.names) :]
    return tuple(map(LoopVariable, loops.names, values))
