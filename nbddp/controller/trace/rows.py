"""The operations of all ranks side by side: a row for the operations that they issued together.

Runs in: the notebook's process. Pure: no clock, no I/O.

    operations by rank ──rows──▶ TraceRow ──select──▶ TraceRow ──▶ export    (pandas, Perfetto)
                                                              └──▶ timeline  (the notebook)

Times are those of the ranks' monotonic clock, which ranks of one machine share. Times of other
machines are moved to the notebook's clock, as far as the difference is known.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import msgspec

from nbddp.controller.diagnosis import RankView
from nbddp.controller.trace.arrivals import Clock, largest_error_ns, last_of
from nbddp.wire.flight_recorder import (
    Ending,
    GroupInfo,
    Operation,
    OperationState,
    Site,
    group_name_of,
)
from nbddp.wire.flight_recorder.matching import MESSAGES
from nbddp.wire.rank_set import RankSet, ranks_by

#: Like `nbddp.wire.flight_recorder.schema.OperationKind`, but a ``message`` is a send and its recv.
RowKind: TypeAlias = Literal["collective", "message", "creation", "store"]

_Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class RankPart:
    """The part of one rank in an operation."""

    rank: int
    op: str  #: name of the operation, as users call it
    state: OperationState
    created_ns: int  #: when the rank came
    completed_ns: int | None  #: when it noticed the end; None: not yet
    waited_ns: int  #: how long a thread of it was blocked for the operation
    nbytes: int  #: size of its input tensors
    async_op: bool  #: the call did not wait for the end
    site: Site  #: the line that issued it
    cell: int  #: execution count of the cell that ran; 0: not known
    run_id: str  #: of that cell; empty: it was issued between cells
    error: str  #: what the operation raised; empty: nothing
    ending: Ending  #: whether it is done, open, or how it failed
    record_id: int  #: number in the rank's record
    #: When the rank was asked, if it was not complete and its cell was running; None: otherwise.
    open_at_ns: int | None = None
    is_waited_for: bool = False  #: a thread of the rank was seen to wait for it
    follows_lost: bool = False  #: the rank's records before it were overwritten
    clock: Clock | None = None  #: of its node; None: that of the notebook


@dataclass(frozen=True)
class TraceRow:
    """One collective, message, creation of a group or wait for the store, of all its ranks.

    Times are in nanoseconds of the ranks' monotonic clock.
    """

    kind: RowKind
    pg_id: str  #: of the process group: the same on all ranks, and of one group only
    pg_name: str  #: torch's name of the group, mostly a number
    pg_desc: str  #: the user's description of it
    members: RankSet  #: of the group; the two ends of a message
    op: str  #: the function that the user called; ``all_reduce | broadcast`` if the ranks differ
    label: str  #: ``all_reduce #7``, ``send 0→1 #3 (tag 2)``
    parts: Mapping[int, RankPart]  #: by rank, in order
    collective_seq_id: int = 0  #: number of the collective in its group; 0: it is none
    p2p_seq_id: int = 0  #: number of the message between its two ranks; 0: it is none
    src: int = -1  #: global rank that sends a message; -1: any source
    dst: int = -1  #: global rank that receives it
    tag: int = 0  #: of a message
    #: Members that never issued it, as their records show. A rank whose record is not known, or
    #: was overwritten, is neither here nor in ``parts``.
    missing: RankSet = field(default_factory=RankSet)
    gone: RankSet = field(default_factory=RankSet)  #: those of ``missing`` that ended their cell
    #: Members that told nothing, and whose records nobody could read: their node is silent or lost.
    unheard: RankSet = field(default_factory=RankSet)

    @cached_property
    def unknown(self) -> RankSet:
        """Members of which it is not known whether and when they came."""
        return RankSet.of(self.members) - RankSet.of(self.parts) - self.missing

    @cached_property
    def first_ns(self) -> int:
        """The arrival of the first rank."""
        return min(part.created_ns for part in self.parts.values())

    @cached_property
    def last_ns(self) -> int:
        """The arrival of the last of the ranks that came."""
        return max(part.created_ns for part in self.parts.values())

    @cached_property
    def spread_ns(self) -> int | None:
        """From the first arrival to the last; None if those of some members are not known."""
        is_known = len(self.parts) > 1 and not self.unknown
        return self.last_ns - self.first_ns if is_known else None

    @cached_property
    def last_rank(self) -> int | None:
        """The rank that came last.

        None: not all are known to have come, all came at once, or the clocks do not tell it.
        """
        return None if self.missing or not self.spread_ns else last_of(self.parts.values())

    @cached_property
    def spread_error_ns(self) -> int:
        """The largest error of the spread; 0: one clock has measured it."""
        return largest_error_ns(self.parts.values())

    @cached_property
    def is_order_unclear(self) -> bool:
        """Whether all came, and only the clocks do not tell which rank was the last."""
        return bool(self.spread_ns) and not self.missing and self.last_rank is None

    @cached_property
    def completed_ns(self) -> int | None:
        """The time at which the last rank noticed the end; None if some member has not."""
        ends = [part.completed_ns for part in self.parts.values()]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) and not self.missing else None

    @cached_property
    def open_at_ns(self) -> int | None:
        """The time at which ranks were seen that may still wait in it; None: there are none."""
        return max((p.open_at_ns for p in self.parts.values() if p.open_at_ns), default=None)

    @cached_property
    def waited_ns(self) -> int:
        """The longest time that a rank was blocked."""
        return max(part.waited_ns for part in self.parts.values())

    @cached_property
    def nbytes(self) -> int:
        """Size of the input tensors on the rank with the largest; counted once, not per rank."""
        return max(part.nbytes for part in self.parts.values())

    @cached_property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Algorithm bandwidth: ``nbytes / (last completion - last arrival)``.

        Nothing can be complete before the last rank has come, so the time before belongs to that
        rank and not to the network. It is the ``algbw`` of nccl-tests, without their factor for
        the algorithm (``busbw``). The end of an asynchronous operation is noticed when a thread
        waits for it: its bandwidth is a lower bound. None where a rank, a time or the number of
        bytes is not known, or an operation failed.
        """
        end = self.completed_ns
        if end is None or end <= self.last_ns or not self.nbytes:
            return None
        if len(self.parts) < len(self.members) or any(
            part.state == "failed" for part in self.parts.values()
        ):
            return None
        return self.nbytes / (end - self.last_ns) * 1e9

    @cached_property
    def run_ids(self) -> list[str]:
        """The runs of the cells that issued it: mostly one; none if it was issued between cells."""
        return sorted({part.run_id for part in self.parts.values() if part.run_id})

    @cached_property
    def site(self) -> Site:
        """The line of the first rank that came; `sites` has all lines."""
        return min(self.parts.values(), key=lambda part: (part.created_ns, part.rank)).site

    @cached_property
    def sites(self) -> dict[Site, RankSet]:
        """The distinct lines, with the ranks at each."""
        return ranks_by((part.site, rank) for rank, part in self.parts.items())


def rows(
    operations_by_rank: Mapping[int, Sequence[Operation]],
    groups: Mapping[str, GroupInfo],
    cell_by_run: Mapping[str, int] | None = None,
    now_by_run: Mapping[str, int] | None = None,
    fresh: Collection[int] = (),
    *,
    waited_for: Collection[tuple[int, int]] = (),
    clocks: Mapping[int, Clock] | None = None,
) -> list[TraceRow]:
    """Build the rows from the operations of the ranks, in the order in which they began.

    Args:
        operations_by_rank: as the ranks recorded them; ranks that are not known are absent.
        groups: by ``pg_id``.
        cell_by_run: the execution count of the cell by ``run_id``; without it a part belongs to
            the cell of its line, which is an earlier one if the line is in a function.
        now_by_run: when the ranks were asked, by the ``run_id`` of the running cell.
        fresh: ranks that took the place of others, whose records are not known.
        waited_for: rank and record of the operations for which threads were seen to wait.
        clocks: of the ranks; one that is absent has the notebook's.

    Returns:
        A row for each operation; a rank that took no part is absent from its ``parts``.
    """
    cells = cell_by_run or {}
    now = now_by_run or {}
    by_key: dict[_Key, list[tuple[int, Operation]]] = {}
    after_lost: set[tuple[int, int]] = set()
    progress = _Progress(operations_by_rank, fresh)
    for rank, operations in operations_by_rank.items():
        shown = [op for op in operations if not op.is_replaced]
        after_lost.update((rank, number) for number in _after_lost(operations, shown))
        for operation in shown:
            by_key.setdefault(_key(rank, operation), []).append((rank, operation))
    unordered = [
        _row(
            together,
            groups,
            cells,
            now,
            progress,
            waited_for=waited_for,
            after_lost=after_lost,
            clocks=clocks or {},
        )
        for entries in by_key.values()
        for together in _split(entries)
    ]
    return sorted(unordered, key=lambda row: (row.first_ns, row.pg_id, row.collective_seq_id))


def select(
    candidates: Sequence[TraceRow],
    *,
    cell: int | None = None,
    run_id: str | None = None,
    ranks: RankSet | None = None,
    last: int | None = None,
) -> list[TraceRow]:
    """Choose rows; each condition that is given has to hold.

    A row stays whole: its spread and its bandwidth are still those of all its ranks.

    Args:
        candidates: all rows, in order.
        cell: execution count of a cell that issued the operation.
        run_id: a run of that cell.
        ranks: at least one of these takes part.
        last: at most this many, the newest.

    Returns:
        The chosen rows, in order.
    """
    kept = [
        row
        for row in candidates
        if (cell is None or any(part.cell == cell for part in row.parts.values()))
        and (run_id is None or any(part.run_id == run_id for part in row.parts.values()))
        and (ranks is None or any(rank in ranks for rank in row.parts))
    ]
    return kept if last is None else kept[max(0, len(kept) - last) :]


def rows_of_views(
    views: Mapping[int, RankView],
    cell_by_run: Mapping[str, int] | None = None,
    clock_by_rank: Mapping[int, Clock] | None = None,
) -> list[TraceRow]:
    """Make rows from what the ranks have answered, or from their records as seen from outside.

    Args:
        views: what is known of each rank.
        cell_by_run: the execution count of the cell by ``run_id``.
        clock_by_rank: the clocks of the ranks' nodes; a rank that is absent has the notebook's.

    Returns:
        A row for each operation, in the order in which they began.
    """
    clocks = clock_by_rank or {}
    offsets = {rank: clock.offset_ns for rank, clock in clocks.items()}
    operations_by_rank: dict[int, list[Operation]] = {}
    groups: dict[str, GroupInfo] = {}
    now_by_run: dict[str, int] = {}
    for rank, view in views.items():
        reported = view.look.operations if view.look else ()
        if reported or view.operations or view.look:
            known = {operation.record_id: operation for operation in (*view.operations, *reported)}
            operations_by_rank[rank] = [
                _moved(known[number], offsets.get(rank, 0)) for number in sorted(known)
            ]
        for group in view.look.groups if view.look else ():
            groups.setdefault(group.pg_id, group)
        if view.look is not None and view.look.run_id:
            run_id = view.look.run_id
            now_ns = view.look.time_ns - offsets.get(rank, 0)
            now_by_run[run_id] = max(now_by_run.get(run_id, now_ns), now_ns)
    fresh = [rank for rank, view in views.items() if view.look is not None and view.look.is_fresh]
    waited_for = {
        (rank, record)
        for rank, view in views.items()
        for thread in (view.look.threads if view.look is not None else ())
        for record in (thread.wait.record_ids if thread.wait is not None else ())
    }
    made = rows(
        operations_by_rank,
        groups,
        cell_by_run,
        now_by_run,
        fresh,
        waited_for=waited_for,
        clocks=clocks,
    )
    over = [rank for rank, view in views.items() if view.is_over]
    return [replace(row, gone=RankSet.of(set(row.missing).intersection(over))) for row in made]


def _moved(operation: Operation, offset_ns: int) -> Operation:
    """Return an operation with times of the notebook's clock."""
    if not offset_ns:
        return operation
    completed_ns = operation.time_completed_ns
    return msgspec.structs.replace(
        operation,
        time_created_ns=operation.time_created_ns - offset_ns,
        time_completed_ns=completed_ns - offset_ns if completed_ns else 0,
    )


# --- rows ----------------------------------------------------------------------------------------


class _Progress:
    """The numbers that each rank has passed in each group, and those that it left out."""

    def __init__(
        self, operations_by_rank: Mapping[int, Sequence[Operation]], fresh: Collection[int]
    ) -> None:
        self._known = operations_by_rank.keys()
        self._fresh = fresh
        self._newest: dict[_Key, int] = {}
        self._oldest: dict[_Key, int] = {}  # of the records after the last lost one
        for rank, operations in operations_by_rank.items():
            oldest_id = _first_unbroken_record(operation.record_id for operation in operations)
            for operation in operations:
                counted = (*_counter(rank, operation), rank)
                number = _number(operation)
                self._newest[counted] = max(self._newest.get(counted, 0), number)
                if operation.record_id >= oldest_id:
                    self._oldest[counted] = min(self._oldest.get(counted, number), number)

    def unheard(self, members: Iterable[int]) -> RankSet:
        """The ranks whose records are not known."""
        return RankSet.of(rank for rank in members if rank not in self._known)

    def has_not_come(
        self, rank: int, counted: _Key, number: int, *, is_over: bool, is_done: bool
    ) -> bool:
        """Whether the records of ``rank`` show that it never issued this operation."""
        if rank not in self._known:
            return False
        newest = self._newest.get((*counted, rank))
        if newest is None:
            return not (is_done or (is_over and rank in self._fresh))
        return newest < number or self._oldest.get((*counted, rank), number) < number


def _after_lost(operations: Sequence[Operation], shown: Sequence[Operation]) -> list[int]:
    """Return the ``record_id`` of the first shown operation after lost records, if any are lost."""
    oldest_id = _first_unbroken_record(operation.record_id for operation in operations)
    rest = [op.record_id for op in shown if op.record_id >= oldest_id]
    return [min(rest)] if rest and oldest_id > 1 else []


def _first_unbroken_record(record_ids: Iterable[int]) -> int:
    """Find the ``record_id`` from which on no record is missing: a ring forgets the oldest."""
    ids = sorted(record_ids, reverse=True)
    return next((a for a, b in pairwise(ids) if a - b > 1), ids[-1] if ids else 0)


def _number(operation: Operation) -> int:
    return operation.collective_seq_id or operation.p2p_seq_id


def _counter(rank: int, operation: Operation) -> _Key:
    """Name the counter of the operation's number; the same for all ranks that take part."""
    kind = operation.signature.kind
    match kind:
        case "collective":
            return (kind, operation.pg_id)
        case "send":
            return ("message", operation.pg_id, rank, operation.peer, operation.tag)
        case "recv":
            return ("message", operation.pg_id, operation.peer, rank, operation.tag)
        case "creation":
            return (kind, operation.pg_id)
        case "store":
            return (kind, operation.signature.op, operation.signature.keys)


def _key(rank: int, operation: Operation) -> _Key:
    """A key that is equal for the operations of one row."""
    if operation.signature.kind == "recv" and operation.peer < 0:
        return ("any", rank, operation.record_id)  # the sender is not known
    return (*_counter(rank, operation), _number(operation))


def _split(entries: list[tuple[int, Operation]]) -> Iterator[list[tuple[int, Operation]]]:
    """Split operations with equal keys into rows in which each rank stands once.

    Numbers begin again when a group is created again under its old name. Then, and after a failure,
    only operations of one cell belong together.
    """
    ranks = {rank for rank, _ in entries}
    if len(ranks) == len(entries) and all(op.state != "failed" for _, op in entries):
        yield entries
        return
    seen: dict[tuple[int, str], int] = {}
    parts: dict[tuple[str, int], list[tuple[int, Operation]]] = {}
    for rank, operation in entries:
        occurrence = seen.get((rank, operation.run_id), 0)
        seen[rank, operation.run_id] = occurrence + 1
        parts.setdefault((operation.run_id, occurrence), []).append((rank, operation))
    yield from parts.values()


def _row(
    entries: list[tuple[int, Operation]],
    groups: Mapping[str, GroupInfo],
    cells: Mapping[str, int],
    now: Mapping[str, int],
    progress: _Progress,
    *,
    waited_for: Collection[tuple[int, int]],
    after_lost: Collection[tuple[int, int]],
    clocks: Mapping[int, Clock],
) -> TraceRow:
    rank, operation = entries[0]
    kind = _row_kind(operation)
    pg_id = operation.pg_id  # a group that is being made has another id, which begins with its name
    group = groups.get(pg_id) or GroupInfo.of(pg_id=pg_id, name=group_name_of(pg_id))
    parts = {
        rank: RankPart(
            rank=rank,
            op=op.signature.op,
            state=op.state,
            created_ns=op.time_created_ns,
            completed_ns=op.time_completed_ns or None,
            waited_ns=op.waited_ns,
            nbytes=op.signature.nbytes,
            async_op=op.async_op,
            site=op.site,
            cell=cells.get(op.run_id, op.site.cell),
            run_id=op.run_id,
            error="" if op.failure is None else op.failure.text,
            ending=op.ending,
            record_id=op.record_id,
            open_at_ns=now.get(op.run_id) if op.state == "scheduled" else None,
            is_waited_for=(rank, op.record_id) in waited_for,
            follows_lost=(rank, op.record_id) in after_lost,
            clock=clocks.get(rank),
        )
        for rank, op in sorted(entries, key=lambda entry: entry[0])
    }
    src, dst = -1, -1
    if kind == "message":
        is_send = operation.signature.kind == "send"
        src, dst = (rank, operation.peer) if is_send else (operation.peer, rank)
        members = RankSet.of(end for end in (src, dst) if end >= 0)
    else:
        members = RankSet.of(group.ranks if kind != "store" else ()) or RankSet.of(parts)
    op = _op(entries)
    counted, number = _counter(rank, operation), _number(operation)
    is_over = all(part.completed_ns is not None for part in parts.values())
    is_done = all(part.state == "completed" for part in parts.values())
    return TraceRow(
        kind=kind,
        pg_id=operation.pg_id,
        pg_name=group.name,
        pg_desc=group.desc,
        members=members,
        op=op,
        label=_label(_common(entries), op, src, dst),
        parts=parts,
        collective_seq_id=operation.collective_seq_id,
        p2p_seq_id=operation.p2p_seq_id,
        src=src,
        dst=dst,
        tag=operation.tag,
        unheard=progress.unheard(members),
        missing=RankSet.of(
            member
            for member in members
            if member not in parts
            and progress.has_not_come(member, counted, number, is_over=is_over, is_done=is_done)
        ),
    )


def _row_kind(operation: Operation) -> RowKind:
    kind = operation.signature.kind
    return "message" if kind == "send" or kind == "recv" else kind  # noqa: PLR1714 - for mypy


def _common(entries: list[tuple[int, Operation]]) -> Operation:
    """The operation of the first rank; without an origin, if those of other ranks differ."""
    operation = entries[0][1]
    if len({each.site.origin for _, each in entries}) == 1:
        return operation
    return msgspec.structs.replace(operation, site=Site())


def _label(operation: Operation, op: str, src: int, dst: int) -> str:
    """The label of `Operation.label`, but that of a message names both ends."""
    if operation.signature.kind in MESSAGES:
        tag = f" (tag {operation.tag})" if operation.tag else ""
        return f"{op} {'any' if src < 0 else src}→{dst} #{operation.p2p_seq_id}{tag}"
    called = msgspec.structs.replace(operation.signature, op=op)
    return msgspec.structs.replace(operation, signature=called).label(is_brief=True)


def _op(entries: list[tuple[int, Operation]]) -> str:
    """The names of the operations in the order of the ranks; that of its send for a message."""
    sends = [op.signature.op for _, op in entries if op.signature.kind == "send"]
    if sends:
        return sends[0]
    ordered = sorted(entries, key=lambda entry: entry[0])
    return " | ".join(dict.fromkeys(op.signature.op for _, op in ordered))
