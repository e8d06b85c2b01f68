"""Records the operations of this rank's process groups in shared memory.

Runs in: the rank process, any thread. The I/O thread reads it while the main thread is blocked.
"""

import os
import threading
import time
import types
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from nbddp.errors import CollectiveAbortedError, CollectiveError, CollectiveFailedError
from nbddp.rank.collectives.recording.call_sites import NO_ITERATION, Iteration, Sites
from nbddp.rank.collectives.recording.group_counters import DENSE, SPARSE, GroupCounters
from nbddp.rank.collectives.recording.mismatch_board import Board
from nbddp.rank.collectives.recording.signatures import CallSignature, Signatures, fingerprint
from nbddp.rank.collectives.rollback import WrittenCopies
from nbddp.rank.user_code_context import Callbacks
from nbddp.wire.flight_recorder import (
    EndedReduce,
    Failure,
    FailureKind,
    GroupMark,
    Mismatch,
    NodeMemory,
    Operation,
    Writer,
)
from nbddp.wire.flight_recorder.matching import hard_key
from nbddp.wire.messages import OnMismatch

_now = time.monotonic_ns
_ident = threading.get_ident
#: This many open operations are checked for an unnoticed end.
_SWEEP_AT = 16
#: Number of operations with partial results that are named.
_MAX_TORN = 4
#: Among so many operations those that have ended are looked for, after a cell with ``reduce``.
_REDUCES_AMONG = 256
#: The failure of an operation at a break point, before the user lets a mismatch be raised.
_STOPPED: Final = Failure("stopped", "Stopped: at a break point")
_REPLACED: Final = Failure("replaced", "Replaced: its call was made again")


class Recorder:
    """One per rank."""

    def __init__(
        self, memory: NodeMemory, local_rank: int, rank: int, cell_of: Callable[[str], int],
        machinery: tuple[str, ...], *, callbacks: Callbacks, first_local: int = 0,
    ) -> None:  # fmt: skip
        self.writer = Writer(memory, local_rank)
        self._reader = memory.reader(local_rank)
        self.sites = Sites(cell_of, self.writer, machinery)
        self.signatures = Signatures()
        self.board = Board(memory, local_rank, rank, first_local)
        self.rank = rank
        self.counters_by_group: dict[str, GroupCounters] = {}  # by pg_id, in the order of creation
        self.open: dict[int, Any] = {}  #: `pending_operation.Opened` by record
        self._sweep_at = _SWEEP_AT
        self.mismatches: list[Mismatch] = []
        self.torn: list[str] = []  #: operations whose tensors may hold partial results
        self.on_mismatch: OnMismatch = "raise"
        #: Called before an operation is issued, while the user steps or has break points,
        #: see `stops.Stops.before`; returns what stands for it, None: it is issued.
        self.before_operation: Callable[..., Any] | None = None
        #: Called before an operation is issued, and may leave it out, see
        #: `fault_strikes.Faults.before`.
        self.inject: Callable[..., bool] | None = None
        #: Checks the tensors of operations in a sanitized cell, see `sanitizer.Sanitizer`.
        self.sanitizer: Any = None
        #: Stops before a mismatch is raised, see `stops.Stops.before_mismatch`; None: nothing does.
        self.before_mismatch: Callable[..., Any] | None = None
        self.check = False  #: compare with members on other machines before each collective
        #: `check`, or this is a child, or no cell runs, or the user steps, or faults may strike, or
        #: the cell is sanitized, or a name is looked up during a cell.
        self.is_careful = True
        self._careful_lock = threading.Lock()
        self.callbacks = callbacks
        callbacks.lookup_changed = self.set_careful
        callbacks.pull_ended = self.writer.note_answer
        self.has_reduced = False  #: the cell has called ``reduce`` of Gloo
        self.run_id = ""
        self.cell_ranks: tuple[int, ...] = ()  #: ranks that run the cell; empty: all
        self.run_offset = 0
        self._newest_before = 0  #: the newest record when the cell began
        os.register_at_fork(after_in_child=self._become_child)
        self.is_child = False

    def _become_child(self) -> None:
        """Stop fast calls in a forked child, which must not write into the rank's records."""
        self.is_child = self.is_careful = True

    def set_careful(self) -> None:
        """Update ``is_careful`` after a change of its conditions. For any thread."""
        with self._careful_lock:
            is_in_cell = bool(self.run_id) and not self.is_child
            is_watched = self.check or self.sanitizer is not None
            is_watched = is_watched or bool(self.before_operation or self.inject)
            self.is_careful = is_watched or not is_in_cell or self.callbacks.is_answering_lookup

    # --- cells ---------------------------------------------------------------------------------

    def begin_cell(self, run_id: str, on_mismatch: OnMismatch, *, check: bool = False) -> None:
        """Begin a cell, to which all later records belong.

        Args:
            run_id: id of its run.
            on_mismatch: the reaction to a mismatch.
            check: whether to compare with members on other machines, too.
        """
        self.check = check
        self.run_id = run_id
        self.set_careful()
        self.on_mismatch = on_mismatch
        self.board.is_on = on_mismatch != "off"
        self.mismatches = []
        self.torn = []
        self.has_reduced = False
        for counters in list(self.counters_by_group.values()):
            counters.used_before = counters.used
            counters.far_messages = 0
            counters.dense_until = counters.seq + DENSE
        self._newest_before = self.writer.newest
        self.sites.forget()
        self.writer.note_line(0, 0)
        self.writer.forget_threads(thread.ident or 0 for thread in threading.enumerate())
        self.run_offset = self.writer.text(("run", run_id), lambda: RunText(run_id))
        self.writer.touch()

    def end_cell(self) -> tuple[GroupMark, ...]:
        """End the cell, and return the marks of groups that it has used, or that are broken."""
        self.sweep()
        interrupted: list[int] = []  # records of calls that were interrupted before they returned
        if self.writer.newest != self._newest_before or self.waits():
            interrupted = self.writer.end_interrupted(_ident(), self.open, _now())
        # The I/O thread removes operations that have ended while it describes the rank.
        open_by_group = Counter(operation.pg_id for operation in list(self.open.values()))
        open_by_group.update(
            operation.pg_id
            for record in interrupted
            if (operation := self.operation(record)) is not None
        )
        open_by_group.update(
            {
                counters.info.pg_id: counters.lost_messages
                for counters in list(self.counters_by_group.values())
            }
        )
        reduces = self._ended_reduces() if self.has_reduced else {}
        marks = tuple(
            GroupMark(
                pg_id=counters.info.pg_id,
                collective_seq_id=counters.seq,
                digest=counters.digest,
                open=open_by_group[counters.info.pg_id],
                is_broken=counters.is_broken,
                reduces=reduces.get(counters.info.pg_id, ()),
                far_messages=counters.far_messages,
            )
            for counters in list(self.counters_by_group.values())
            if counters.is_broken or (self.run_id and counters.used != counters.used_before)
        )
        self.run_id = ""
        self.run_offset = 0
        self.set_careful()
        self.writer.touch()
        return marks

    def _ended_reduces(self) -> dict[str, tuple[EndedReduce, ...]]:
        """Return the newest ``reduce`` of the cell to each root that has ended here, by group."""
        newest: dict[str, dict[int, EndedReduce]] = {}
        for operation in self.operations(_REDUCES_AMONG):
            op, root = operation.signature.op, operation.signature.root
            has_ended = op == "reduce" and operation.state == "completed"
            if has_ended and operation.record_id > self._newest_before:
                ended = EndedReduce(root=root, collective_seq_id=operation.collective_seq_id)
                newest.setdefault(operation.pg_id, {})[root] = ended
        return {pg_id: tuple(by_root.values()) for pg_id, by_root in newest.items()}

    def note_line(self, frame: types.FrameType | None) -> None:
        """Note the line of the user's code that a frame of the main thread works for.

        Called by the I/O thread now and then: if the process ends, this is what is known of it.
        When the user's code has left the cell, libraries format its traceback or show its value:
        the line that was noted before stays.
        """
        frame = self.sites.user_frame(frame)
        if frame is not None and self.sites.cell_of(frame) is not None:
            site = self.sites.site_of(frame)
            self.writer.note_line(self.writer.text(site, lambda: site), _now())

    # --- operations ----------------------------------------------------------------------------

    def collective(
        self, counters: GroupCounters, known: CallSignature, depth: int = 3, timeout_ms: int = 0,
        *, is_async: bool = False,
    ) -> int:  # fmt: skip
        """Record a collective before it is issued, and return its record.

        See also `fast_path.run`.

        Args:
            counters: counters of its group.
            known: signature of the call.
            depth: number of frames between the caller's line and `Sites.here`.
            timeout_ms: its timeout; 0: that of the group.
            is_async: whether the caller continues before the end of the operation.

        Raises:
            CollectiveMismatchError: another rank of this machine has issued another operation.
        """
        site, looping = self.sites.here(depth)
        counters.seq = seq = counters.seq + 1
        counters.digest ^= known.full + seq  # the number makes the digest depend on the order
        iteration = NO_ITERATION
        if looping is not None and (seq <= counters.dense_until or not seq % SPARSE):
            iteration = self.sites.iteration(looping)
        record = self._issue(counters, known, site, iteration, seq, 0, -1, 0, timeout_ms, is_async)
        if self.board.is_on and counters.has_peers:
            wrong = self.board.check(counters, seq, known, record)
            if wrong is not None:
                before = counters.digest ^ (known.full + seq)
                self.disagree(counters, record, wrong, partial(self.withdraw, counters, before))
        return record

    def message(
        self, counters: GroupCounters, known: CallSignature, direction: str, peer: int, tag: int,
        *, is_async: bool,
    ) -> int:  # fmt: skip
        """Record a send or a receive before it is issued, and return its record.

        Raises:
            CollectiveMismatchError: the other end is on this machine, and does not match.
        """
        site, _ = self.sites.here(3)
        key = (direction, peer, tag)
        counters.p2p[key] = count = counters.p2p.get(key, counters.p2p_base) + 1
        record = self._issue(counters, known, site, NO_ITERATION, 0, count, peer, tag, 0, is_async)
        if peer < 0:
            counters.any_source_tags.add(tag)
        elif not self.board.shows(peer):
            counters.add_far_message(direction, self.rank, peer, tag, count, known.hard)
        elif self.board.is_on and (direction == "send" or tag not in counters.any_source_tags):
            wrong = self.board.check_message(counters, direction, peer, tag, count, known, record)
            if wrong is not None:
                withdraw = partial(self.withdraw_message, counters, known, direction, peer, tag)
                self.disagree(counters, record, wrong, withdraw)
        return record

    def refused(
        self,
        counters: GroupCounters,
        known: CallSignature,
        error: BaseException,
        message: tuple[str, int, int] | None = None,
    ) -> None:
        """Record the first call on a group whose operations were freed.

        It shows to which call a rank came that was late.

        Args:
            counters: counters of the group.
            known: signature of the call.
            error: the error that the call raises.
            message: direction, peer and tag of a message.
        """
        counters.has_refused = True
        site, _ = self.sites.here(3)
        seq = count = tag = 0
        peer = -1
        if message is not None:
            _, peer, tag = key = message
            counters.p2p[key] = count = counters.p2p.get(key, counters.p2p_base) + 1
        else:
            counters.seq = seq = counters.seq + 1
        record = self._issue(counters, known, site, NO_ITERATION, seq, count, peer, tag, 0)
        self.writer.complete(record, _now(), 0, failure_of(error))

    def withdraw(self, counters: GroupCounters, digest: int) -> None:
        """Uncount the last collective, which failed before data was sent."""
        self.board.withdraw(counters, counters.seq)
        counters.seq -= 1
        counters.digest = digest

    def withdraw_message(
        self, counters: GroupCounters, known: CallSignature, direction: str, peer: int, tag: int
    ) -> None:
        """Uncount the last message, which failed before data was sent."""
        key = (direction, peer, tag)
        if peer >= 0 and not self.board.shows(peer):
            count = counters.p2p[key]
            counters.add_far_message(direction, self.rank, peer, tag, count, known.hard, -1)
        counters.p2p[key] -= 1

    def received_from_any(self, counters: GroupCounters, source: int, record: int) -> None:
        """Count a message that a receive from any source got, for its sender.

        Args:
            counters: counters of the group.
            source: rank of the sender in the group.
            record: record of the receive.
        """
        operation = self.operation(record)
        if operation is not None and 0 <= source < len(counters.ranks):
            peer, tag = counters.ranks[source], operation.tag
            key = ("recv", peer, tag)
            counters.p2p[key] = count = counters.p2p.get(key, counters.p2p_base) + 1
            if not self.board.shows(peer):
                hard = fingerprint(hard_key(operation.signature))
                counters.add_far_message("recv", self.rank, peer, tag, count, hard)

    def other(
        self, known: CallSignature, counters: GroupCounters | None = None, timeout_ms: int = 0
    ) -> int:
        """Record the creation of a group, or a wait for the store, and return its record."""
        site, _ = self.sites.here(3)
        return self._issue(counters, known, site, NO_ITERATION, 0, 0, -1, 0, timeout_ms)

    def _issue(  # noqa: PLR0917 - by position: keywords cost
        self, counters: GroupCounters | None, known: CallSignature, site: int,
        iteration: Iteration, seq: int, p2p_seq: int, peer: int, tag: int, timeout_ms: int,
        is_async: bool = False,
    ) -> int:  # fmt: skip
        signature, group = self.texts(known, counters)
        if counters is not None:
            timeout_ms = timeout_ms or counters.info.timeout_ms
        return self.writer.issue(
            signature, site, group, self.run_offset, seq, p2p_seq, peer, tag, is_async, _ident(),
            timeout_ms, _now(), 0, iteration[0], iteration[1], iteration[2],
        )  # fmt: skip

    def texts(self, known: CallSignature, counters: GroupCounters | None) -> tuple[int, int]:
        """Return the offsets of an operation's signature and group; writes old texts again."""
        writer = self.writer
        signature, group = known.offset, 0
        if signature <= writer.oldest_text:
            signature = known.offset = writer.text(known, lambda: known.signature)
        if counters is not None:
            group = counters.offset
            if group <= writer.oldest_text:
                info = counters.info
                group = counters.offset = writer.text(info, counters.description)
        return signature, group

    def opened(self, record: int, operation: Any) -> None:
        """Add an operation that continues while its caller continues."""
        self.open[record] = operation
        self.writer.take(record)
        if len(self.open) > self._sweep_at:
            self.sweep()
            # Gloo never reports the end of messages that no thread waits for.
            self._sweep_at = max(_SWEEP_AT, 2 * len(self.open))

    def disagree(
        self,
        counters: GroupCounters,
        record: int,
        wrong: Mismatch,
        withdraw: Callable[[], None] | None = None,
    ) -> None:
        """Note a mismatch, and raise it if ``on_mismatch`` says so.

        Args:
            counters: of the group.
            record: of the operation.
            wrong: the mismatch.
            withdraw: uncounts the operation; None: other machines have compared it, too.

        Raises:
            CollectiveMismatchError: ``on_mismatch`` is ``raise``.
            CallReplacedError: the user has let the call be made again.
        """
        error = mismatch_error(wrong)
        if self.on_mismatch == "raise":
            if self.before_mismatch is not None:
                # As long as the user looks, no record tells of the mismatch: ranks would be freed.
                self.writer.complete(record, _now(), 0, _STOPPED)
                instead = self.before_mismatch(
                    counters, wrong, withdraw and partial(self._take_back, record, withdraw)
                )
                if instead is not None:
                    raise CallReplacedError(instead)
                self.writer.set_failure(record, _failure(error))
            self.writer.complete(record, _now(), 0, failure_of(error))
        self.mismatches.append(wrong)
        if self.on_mismatch == "raise":
            counters.is_broken = True
            # If the code continued, its next call would match another call of the peers.
            counters.ended = lambda: mismatch_error(wrong)
            raise error

    def _take_back(self, record: int, withdraw: Callable[[], None]) -> None:
        self.writer.set_failure(record, _REPLACED)
        withdraw()

    def put_back(self, record: int, kept: WrittenCopies) -> None:
        """Restore the tensors of a failed operation, as far as copies exist."""
        kept.put_back()
        if kept.lost_bytes:
            self.note_torn(record)

    def note_torn(self, record: int) -> None:
        """Note that the tensors of an operation may hold partial results."""
        name = self.name_of(record)
        if name and name not in self.torn and len(self.torn) < _MAX_TORN:
            self.torn.append(name)

    def name_of(self, record: int) -> str:
        """Return ``all_reduce #5``; empty: it is no longer recorded."""
        operation = self.operation(record)
        return "" if operation is None else operation.label()

    def operation(self, record: int) -> Operation | None:
        """Return one of this rank's operations; None: it is no longer recorded."""
        return self._reader.operation(record)

    def is_taken(self, operation: Operation) -> bool:
        """Return whether torch accepted an operation, see `Reader.is_taken`."""
        return self._reader.is_taken(operation)

    def operations(self, last: int = 64) -> tuple[Operation, ...]:
        """Return this rank's operations, see `Reader.operations`."""
        return self._reader.operations(last)

    def waits(self) -> tuple[tuple[int, int, int], ...]:
        """Return ``(thread, record, since)`` of each thread that waits."""
        return self._reader.waits()

    def abandon(self, pg_id: str) -> None:
        """End the open operations of a group that was rebuilt, since they never end."""
        for operation in list(self.open.values()):
            if operation.pg_id == pg_id:
                operation.abandon()

    def is_busy(self, pg_id: str) -> bool:
        """Return whether threads of Gloo are in collectives of a group."""
        operations = list(self.open.values())
        return any(operation.is_busy for operation in operations if operation.pg_id == pg_id)

    def sweep(self) -> None:
        """Record the end of operations that no thread has waited for."""
        for operation in list(self.open.values()):
            operation.check_end()


class CallReplacedError(Exception):
    """Leaves the call of an operation that does not match, in whose place another one was made."""

    def __init__(self, instead: Any) -> None:
        super().__init__()
        self.instead = instead  #: `work.Instead`


class RunText(msgspec.Struct, frozen=True):
    """The id of a cell, as a text in shared memory."""

    text: str


def failure_of(error: BaseException | None) -> Failure | None:
    """Return an error as a failure for records; None: there is none."""
    return None if error is None else _failure(error)


def _failure(error: BaseException) -> Failure:
    kind: FailureKind = "raised"
    if isinstance(error, KeyboardInterrupt):
        kind = "interrupted"
    elif isinstance(error, CollectiveAbortedError):
        kind = "freed"
    elif isinstance(error, CollectiveFailedError):
        kind = "lost"
    elif isinstance(error, CollectiveError):
        kind = "collective"
    text = str(error)
    return Failure(kind, f"{type(error).__name__}: {text}" if text else type(error).__name__)


def mismatch_error(wrong: Mismatch) -> BaseException:
    """Return the exception for the rank that saw a mismatch."""
    from nbddp.errors import CollectiveMismatchError  # noqa: PLC0415

    mine, theirs = wrong.mine, wrong.theirs
    return CollectiveMismatchError(
        f"rank {wrong.rank} and rank {wrong.peer} disagree in {', '.join(wrong.fields)}\n"
        f"  rank {wrong.rank:<4} {describe(mine)}\n"
        f"  rank {wrong.peer:<4} {describe(theirs)}\n"
        f"  nothing was sent by rank {wrong.rank}; its variables are kept"
    )


def describe(operation: Operation) -> str:
    """Return an operation in one or two lines: its name, arguments, and line of code."""
    signature = operation.signature
    details = [
        " ".join(
            f"{dtype}{list(size)}"
            for dtype, size in zip(
                signature.input_dtypes[:4], signature.input_sizes[:4], strict=False
            )
        )
        or " ".join(
            f"{dtype}{list(size)}"
            for dtype, size in zip(
                signature.output_dtypes[:4], signature.output_sizes[:4], strict=False
            )
        ),
        f"places={', '.join(map(repr, signature.places[:4]))}" if signature.places else "",
        f"strides={', '.join(map(str, signature.strides[:4]))}" if signature.strides else "",
        f"op={signature.reduce_op}" if signature.reduce_op else "",
        f"root={signature.root}" if signature.root >= 0 else "",
        f"tag={operation.tag}" if operation.tag else "",
    ]
    source = f"\n            {operation.site.source}" if operation.site.source else ""
    text = ", ".join(part for part in details if part)
    return f"{operation.label(has_tag=False, has_call=False)} ({text}) at {operation.site}{source}"
