"""Who waits for whom, and who made others wait: the sentences below a timeline.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence

from nbddp.controller.trace.rows import TraceRow
from nbddp.notebook.render.html import duration, name_ranks
from nbddp.wire.rank_set import RankSet

#: Ranks that came within this time came together.
_TOGETHER_NS = 1_000_000
#: A rank is named if it was last in so many operations, and made so much of the others' waits.
_MIN_LATE = 3
_MOSTLY = 0.6
#: Waits that are told.
_MAX_TOLD = 3


def still_waiting(rows: Sequence[TraceRow]) -> list[str]:
    """``rank 1 waits in all_reduce #7 for rank 0, 3.2 s so far``, those that wait longest first."""
    open_rows = sorted(
        (row for row in rows if row.open_at_ns is not None), key=lambda row: row.first_ns
    )
    told = [_waits(row) for row in open_rows[:_MAX_TOLD]]
    rest = len(open_rows) - len(told)
    return [*told, f"and {rest} more that are not complete"] if rest else told


def _waits(row: TraceRow) -> str:
    parts = [part for part in row.parts.values() if part.open_at_ns is not None]
    ranks = RankSet.of(part.rank for part in parts)
    since_ns = min(part.created_ns for part in parts)
    if not row.missing and len(row.parts) == len(row.members) > 1:
        since_ns = row.last_ns
        told = f"{row.label}: all ranks have come, and it is not complete"
    else:
        waits = ranks.verb("waits", "wait")
        whom = f" for {name_ranks(row.missing)}" if row.missing else ""
        told = f"{name_ranks(ranks)} {waits} in {row.label}{whom}"
    return f"{told}, {duration((row.open_at_ns or since_ns) - since_ns)} so far"


def lateness(rows: Sequence[TraceRow]) -> str:
    """Which rank the others waited for, if it is mostly the same one."""
    late = latest(rows)
    if late is None:
        return ""
    rank, times, of, waited_ns, share = late
    if times == of:
        told = f"rank {rank} always came last, in all {times} operations"
    else:
        told = f"rank {rank} came last in {times} of {of} operations"
    waits = f"the others waited {duration(waited_ns)} for it"
    if share < 1:
        waits += f", {share:.0%} of all such waits"
    elif times < of:
        told += ", and in the rest all came together"
    return f"{told}; {waits}"


def latest(rows: Sequence[TraceRow]) -> tuple[int, int, int, int, float] | None:
    """That rank, how often it was last and of how many, the waits for it, its share of all."""
    compared = [row for row in rows if row.spread_ns is not None and not row.missing]
    late_rows: dict[int, list[TraceRow]] = {}
    for row in compared:
        if row.last_rank is not None and row.spread_ns and row.spread_ns > _TOGETHER_NS:
            late_rows.setdefault(row.last_rank, []).append(row)
    late_ns = {rank: _longest_wait_ns(late) for rank, late in late_rows.items()}
    if not any(late_ns.values()):
        return None
    rank = max(late_ns, key=lambda rank: late_ns[rank])
    times, waited_ns = len(late_rows[rank]), late_ns[rank]
    share = waited_ns / sum(late_ns.values())
    is_told = times >= _MIN_LATE and share >= _MOSTLY
    return (rank, times, len(compared), waited_ns, share) if is_told else None


def _longest_wait_ns(rows: Sequence[TraceRow]) -> int:
    """How long one rank waited until the last had come; waits that overlap count once."""
    waits_by_rank: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        for part in row.parts.values():
            begin_ns = part.created_ns
            if part.async_op and part.waited_ns and part.completed_ns is not None:
                # It went on after the call. Waits within torch, as for DDP, are not known.
                begin_ns = max(begin_ns, part.completed_ns - part.waited_ns)
            waits_by_rank.setdefault(part.rank, []).append((begin_ns, row.last_ns))
    return max(map(_union_ns, waits_by_rank.values()))


def _union_ns(spans: Sequence[tuple[int, int]]) -> int:
    total = until = 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total
