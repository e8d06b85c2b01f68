"""The sentences below a timeline: operations that still wait, missing records, a late rank.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nbddp.controller.state import NodeClock, PoolSnapshot, RankState, silent_since_text
from nbddp.controller.trace import TraceRow
from nbddp.notebook.render.html import duration
from nbddp.wire.rank_set import RankSet

#: Ranks that came within this time came together.
_TOGETHER_NS = 1_000_000
#: A straggler was last in at least this many operations, and caused this share of all waits.
_MIN_LATE = 3
_MIN_SHARE = 0.6
#: Open operations that have a sentence; the others are counted.
_MAX_SENTENCES = 3
#: Nodes whose clocks are told one by one.
_MAX_CLOCKS = 8


def open_operations(rows: Sequence[TraceRow]) -> list[str]:
    """``rank 1 waits in all_reduce #7 for rank 0, 3.2 s so far``; the longest wait comes first."""
    open_rows = sorted(
        (row for row in rows if row.open_at_ns is not None), key=lambda row: row.first_ns
    )
    sentences = [_open_operation(row) for row in open_rows[:_MAX_SENTENCES]]
    rest = len(open_rows) - len(sentences)
    return [*sentences, f"and {rest} more that are not complete"] if rest else sentences


def _open_operation(row: TraceRow) -> str:
    parts = [part for part in row.parts.values() if part.open_at_ns is not None]
    ranks = RankSet.of(part.rank for part in parts)
    since_ns = min(part.created_ns for part in parts)
    if not row.missing and len(row.parts) == len(row.members) > 1:
        since_ns = row.last_ns
        state = f"{row.label}: all ranks have come, and it is not complete"
    else:
        waits = ranks.verb("waits", "wait")
        missing = f" for {row.missing.describe()}" if row.missing else ""
        state = f"{ranks.describe()} {waits} in {row.label}{missing}"
    return f"{state}, {duration((row.open_at_ns or since_ns) - since_ns)} so far"


def clocks_text(clocks: Sequence[NodeClock]) -> str:
    """``times are the notebook's; clock of n2: +5.0 s, known to 0.2 ms``; empty: one machine."""
    if not clocks:
        return ""
    hosts = [clock.host for clock in clocks]
    names = [
        f"{clock.host} (node {clock.node})" if hosts.count(clock.host) > 1 else clock.host
        for clock in clocks[:_MAX_CLOCKS]
    ]
    known = [
        f"{name}: {'-' if clock.offset_ns < 0 else '+'}{duration(abs(clock.offset_ns))}, "
        f"known to {duration(clock.error_ns)}"
        for name, clock in zip(names, clocks, strict=False)
    ]
    rest = clocks[_MAX_CLOCKS:]
    if rest:
        worst = max(clock.error_ns for clock in rest)
        known.append(f"{len(rest)} more, known to {duration(worst)}")
    return f"times are on the notebook's clock; clocks of the nodes: {'; '.join(known)}"


def missing_records(rows: Sequence[TraceRow], pool: PoolSnapshot, now: float) -> str:
    """Say whose records are missing, why, and what is not known therefore; empty: none are.

    Args:
        rows: the operations that are shown.
        pool: the state of the ranks.
        now: `time.monotonic`.
    """
    ranks = RankSet.of(rank for row in rows for rank in row.unheard)
    if not ranks:
        return ""
    silences = pool.silences(ranks, now)
    gone = RankSet.of(set(ranks).intersection(pool.in_state(RankState.EXITED)))
    others = ranks - gone - RankSet.of(rank for each in silences for rank in each.ranks)
    reasons = [silent_since_text(silences)] if silences else []
    reasons += [f"{gone.describe()} {gone.verb('is', 'are')} gone"] if gone else []
    reasons += [f"no answer of {others.describe()}"] if others else []
    them = ranks.verb("it", "they")
    return (
        f"the records of {ranks.describe()} are missing ({'; '.join(reasons)}): whether "
        f"{them} came last, and how long others waited for that, is not known"
    )


@dataclass(frozen=True)
class Straggler:
    """The rank for which the others mostly waited."""

    rank: int
    n_last: int  #: operations in which it came last
    n_compared: int  #: operations that all ranks joined
    waited_ns: int  #: the longest wait of another rank for it, in all these operations
    share: float  #: its part of all such waits, 0 to 1
    n_unclear: int = 0  #: operations of which the clocks do not tell the last rank
    has_clocks: bool = False  #: clocks of several machines have measured the others

    def sentence(self) -> str:
        """``rank 1 came last in 5 of 8 operations; the others waited 40 ms for it``."""
        if self.n_last == self.n_compared:
            order = f"rank {self.rank} always came last, in all {self.n_last} operations"
        else:
            order = f"rank {self.rank} came last in {self.n_last} of {self.n_compared} operations"
        waits = f"the others waited {duration(self.waited_ns)} for it"
        if self.share < 1:
            waits += f", {self.share:.0%} of all such waits"
        elif self.n_last + self.n_unclear < self.n_compared:
            order += ", and in the rest all came together"
            order += ", as far as the clocks tell" if self.has_clocks else ""
        if self.n_unclear:
            waits += f"; the clocks do not tell which rank was the last in {self.n_unclear}"
        return f"{order}; {waits}"


def straggler(rows: Sequence[TraceRow]) -> Straggler | None:
    """Return the rank for which the others mostly waited.

    Returns:
        None: no rank came last in at least 3 operations and caused at least 60 % of all waits.
    """
    compared = [row for row in rows if row.spread_ns is not None and not row.missing]
    late_rows: dict[int, list[TraceRow]] = {}
    unclear = [row for row in compared if row.is_order_unclear]
    for row in compared:
        if row.last_rank is not None and row.spread_ns and row.spread_ns > _TOGETHER_NS:
            late_rows.setdefault(row.last_rank, []).append(row)
    late_ns = {rank: _longest_wait_ns(late) for rank, late in late_rows.items()}
    if not any(late_ns.values()):
        return None
    rank = max(late_ns, key=lambda rank: late_ns[rank])
    n_last, waited_ns = len(late_rows[rank]), late_ns[rank]
    # Perhaps other ranks caused the waits of which the cause is not known.
    unclear_late = [row for row in unclear if (row.spread_ns or 0) > _TOGETHER_NS]
    unclear_ns = _longest_wait_ns(unclear_late) if unclear_late else 0
    share = waited_ns / (sum(late_ns.values()) + unclear_ns)
    if n_last < _MIN_LATE or share < _MIN_SHARE:
        return None
    has_clocks = any(row.spread_error_ns for row in compared)
    return Straggler(rank, n_last, len(compared), waited_ns, share, len(unclear), has_clocks)


def _longest_wait_ns(rows: Sequence[TraceRow]) -> int:
    """The longest time that one rank waited for the last one; waits that overlap count once."""
    waits_by_rank: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        for part in row.parts.values():
            begin_ns = part.created_ns
            if part.async_op and part.waited_ns and part.completed_ns is not None:
                # The rank continued after the call. Waits inside torch, as in DDP, are not known.
                begin_ns = max(begin_ns, part.completed_ns - part.waited_ns)
            waits_by_rank.setdefault(part.rank, []).append((begin_ns, row.last_ns))
    return max(map(_union_ns, waits_by_rank.values()))


def _union_ns(spans: Sequence[tuple[int, int]]) -> int:
    total = until = 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total
