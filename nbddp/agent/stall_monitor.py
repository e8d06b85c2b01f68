"""Watches the collectives of a node's ranks in their shared memory.

Runs in: the agent's thread; nothing in here waits or reads a clock. While a cell runs, two numbers
per rank are read twenty times a second; no rank is asked or disturbed. The hub finds out why a rank
is quiet (`nbddp.controller.recovery.machine`).

    rank --records in shared memory--> StallMonitor --RanksStalled, RankAt--> hub
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbddp.agent.rank_process import RankProcess
from nbddp.wire.flight_recorder import NodeMemory, Operation, Site
from nbddp.wire.message_types import PoolSpec
from nbddp.wire.messages import RankAt, RanksStalled

if TYPE_CHECKING:
    from nbddp.wire.flight_recorder import Reader

_INTERVAL_S = 0.05
#: A stall that lasts is reported again after this time, because the hub may have been unable to
#: prove anything before.
_REPEAT_S = 0.5
_NEVER = float("inf")
#: Places are read at this interval, first after this time: most cells end before.
_PLACES_INTERVAL_S, _FIRST_PLACES_S = 0.5, 0.25
#: Records that are searched for one with an iteration: not each has it.
_SEARCHED = 17
#: A line that was seen this much later than the last operation says more than its iteration.
_STALE_NS = 2_000_000_000


@dataclass
class _Seen:
    version: int
    since: float
    has_open: bool


@dataclass
class QuietRanks:
    """Finds ranks whose open operations do not progress. Pure.

    A rank counts only while a cell runs on it, because an idle rank may keep an operation open for
    ever.
    """

    quiet_s: float
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _reported: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    _report_again_at: float = 0.0

    def update(self, rank: int, version: int, open_count: int, in_cell: bool, now: float) -> None:
        """Take in the present state of a rank's records."""
        if not in_cell:
            self.forget(rank)
            return
        before = self._seen.get(rank)
        since = before.since if before is not None and before.version == version else now
        self._seen[rank] = _Seen(version, since, open_count > 0)

    def forget(self, rank: int) -> None:
        """Forget a rank whose cell or process has ended."""
        self._seen.pop(rank, None)

    def clear(self) -> None:
        """Forget all ranks, because no cell runs."""
        self._seen.clear()

    def quiet(self, now: float) -> tuple[int, ...]:
        """Return the ranks that are quiet."""
        return tuple(
            rank
            for rank, seen in sorted(self._seen.items())
            if seen.has_open and now - seen.since >= self.quiet_s
        )

    def news(self, now: float) -> tuple[int, ...]:
        """Return the quiet ranks if they have to be reported now; empty: there is no news.

        They are reported when the set of quiet ranks changes, when the cell has ended on a rank,
        because the quiet ranks may wait for that one, and repeatedly while the stall lasts.
        """
        quiet = self.quiet(now)
        state = frozenset(quiet), frozenset(self._seen)
        is_due = bool(quiet) and (state != self._reported or now >= self._report_again_at)
        self._reported = state
        if not is_due:
            return ()
        self._report_again_at = now + _REPEAT_S
        return quiet


def place_of(
    rank: int, run_id: str, operations: Sequence[Operation], last_line: tuple[Site, int] | None
) -> RankAt | None:
    """Return where a rank is in its cell; None: it is not known.

    Args:
        rank: the rank.
        run_id: the run of the cell.
        operations: the last ones, the newest last.
        last_line: the line that was seen last, and when.
    """
    of_cell = [each for each in operations if each.run_id == run_id]
    site, seen_ns = last_line or (Site(), 0)
    if not of_cell:
        return RankAt(run_id=run_id, rank=rank, line=site.line) if site.line else None
    newest = of_cell[-1]
    if seen_ns - newest.time_created_ns > _STALE_NS and newest.state == "completed":
        return RankAt(run_id=run_id, rank=rank, line=site.line)
    counted = [each.iteration for each in of_cell if each.iteration]
    line = newest.site.line if newest.time_created_ns >= seen_ns else site.line
    return RankAt(run_id=run_id, rank=rank, line=line, iteration=counted[-1] if counted else ())


class StallMonitor:
    """The shared memory of this node's records, and the ranks that are quiet.

    Args:
        node: number of the node.
        quiet_s: open operations that do not progress for this long are reported.
    """

    def __init__(self, node: int, quiet_s: float) -> None:
        self._node = node
        self._quiet_ranks = QuietRanks(quiet_s)
        self._memory: NodeMemory | None = None
        self._readers: dict[int, Reader] = {}  # by rank
        self._place_by_rank: dict[int, RankAt] = {}  # as it was told last
        self._places_at = _NEVER
        #: The time at which `check` has something to do; infinite while no cell runs.
        self.next_at = _NEVER

    def prepare(self, pool: PoolSpec, local_rank: int) -> int | None:
        """Make the region of a rank ready for a new process.

        Returns:
            The descriptor of the memory; None in a pool whose groups are not traced.

        Raises:
            OSError: there is no memory.
        """
        rank = self._node * pool.nproc_per_node + local_rank
        self.forget(rank)
        if pool.plain:
            return None
        if self._memory is not None and self._memory.local_ranks != pool.nproc_per_node:
            self.close()
        if self._memory is None:
            self._memory = NodeMemory.create(pool.nproc_per_node)
        self._memory.reset(local_rank)
        self._readers[rank] = self._memory.reader(local_rank)
        return self._memory.fd

    def check(self, ranks: Mapping[int, RankProcess], now: float) -> RanksStalled | None:
        """Check the ranks if it is time; returns the message for the hub. Called in each turn."""
        if now < self.next_at < _NEVER:
            return None
        in_cell = {
            rank: ranks[rank].pipes.run_id is not None for rank in self._readers if rank in ranks
        }
        if not any(in_cell.values()):
            self.next_at = self._places_at = _NEVER
            self._quiet_ranks.clear()
            return None
        self.next_at = now + _INTERVAL_S
        if self._places_at == _NEVER:
            self._places_at = now + _FIRST_PLACES_S
        for rank, is_in_cell in in_cell.items():
            reader = self._readers[rank]
            self._quiet_ranks.update(rank, reader.version, reader.open_count, is_in_cell, now)
        quiet = self._quiet_ranks.news(now)
        return RanksStalled(node=self._node, ranks=quiet) if quiet else None

    def places(self, ranks: Mapping[int, RankProcess], now: float) -> list[RankAt]:
        """Return where ranks are in their cells, as far as it has changed. Called in each turn."""
        if now < self._places_at:
            return []
        self._places_at = now + _PLACES_INTERVAL_S
        news: list[RankAt] = []
        for rank, reader in self._readers.items():
            run_id = ranks[rank].pipes.run_id if rank in ranks else None
            if run_id is None:
                continue
            with suppress(Exception):  # the rank may have overwritten its memory with anything
                place = place_of(rank, run_id, reader.operations(_SEARCHED), reader.last_line)
                if place is not None and place != self._place_by_rank.get(rank):
                    self._place_by_rank[rank] = place
                    news.append(place)
        return news

    def records(self, rank: int) -> tuple[int, tuple[Operation, ...]]:
        """Return ``(version, operations)`` of a rank, as far as they are readable."""
        reader = self._readers.get(rank)
        if reader is None:
            return 0, ()
        with suppress(Exception):  # the rank may have overwritten its memory with anything
            return reader.version, reader.operations()
        return reader.version, ()

    def last_line(self, rank: int) -> tuple[Site, int] | None:
        """Return a line of the user's code that a rank was at, and when; None: not known."""
        reader = self._readers.get(rank)
        with suppress(Exception):  # the rank may have overwritten its memory with anything
            return None if reader is None else reader.last_line
        return None

    def forget(self, rank: int) -> None:
        """Forget a rank whose process has ended."""
        self._readers.pop(rank, None)
        self._quiet_ranks.forget(rank)

    def close(self) -> None:
        """Release the memory."""
        self._readers.clear()
        if self._memory is not None:
            self._memory.close()
            self._memory = None
