"""Memory usage of ranks.

Runs in: the agent's thread.

Ranks are forked from one process and share the pages of torch. Resident memory (RSS) counts a
shared page once for each rank. The reported number counts only a rank's part of it (PSS), so that
the numbers of all ranks sum up to the memory that the pool uses. To count PSS, the kernel walks
over all pages of a process: 6 ms for an idle rank, and 25 ms for each GB, during which the process
cannot map memory. So a count is kept, and corrected by the change of the resident memory, which
takes 20 us to read. A count is made again when it is old enough for the cost to be small.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from nbddp.system import process_tree

_LEAST_AGE_S = 1.0
#: Counts take 2 % of the agent's time at most, for any number of ranks and gigabytes.
_REST = 50


@dataclass(frozen=True)
class Memory:
    """Memory of a rank and its descendants."""

    size_bytes: int  #: 0: not known
    is_pss: bool  #: False: RSS, because the system does not report PSS


@dataclass(frozen=True)
class _Count:
    """A count of the pages of one process."""

    pss_bytes: int
    rss_bytes: int  #: read at the same time
    made_at: float
    cost_s: float


class MemoryReader:
    """Reads the memory of ranks, and keeps the counts that are expensive."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[int, _Count]] = {}  # by rank, by process

    def read(self, rank: int, pid: int, now: float) -> Memory:
        """Return the memory of a rank with this process, and of all its descendants."""
        old_counts = self._counts.get(rank, {})
        counts: dict[int, _Count] = {}
        rss_bytes = pss_bytes = 0
        is_pss = True
        for process in (pid, *process_tree.descendants_of(pid)):
            resident = _resident_bytes(process)
            rss_bytes += resident
            count = old_counts.get(process)
            if count is None or self._is_old(count, now):
                count = _count(process, resident, now)
            if count is None:
                is_pss = is_pss and not resident  # resident is 0 if the process has ended
                continue
            counts[process] = count
            pss_bytes += max(0, count.pss_bytes + resident - count.rss_bytes)
        self._counts[rank] = counts
        return Memory(pss_bytes if is_pss else rss_bytes, is_pss)

    def forget(self, rank: int) -> None:
        """Forget the counts of a rank whose process has ended."""
        self._counts.pop(rank, None)

    def _is_old(self, count: _Count, now: float) -> bool:
        total = sum(map(len, self._counts.values()))
        return now - count.made_at > max(_LEAST_AGE_S, _REST * total * count.cost_s)


def _count(pid: int, resident: int, now: float) -> _Count | None:
    """Count; None: the process has ended or is not accessible, or the system has no such count."""
    began = time.thread_time()
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        kilobytes = int(text.partition("\nPss:")[2].split(maxsplit=1)[0])
    except (OSError, IndexError, ValueError):
        return None
    return _Count(kilobytes * 1024, resident, now, time.thread_time() - began)


def _resident_bytes(pid: int) -> int:
    """Return the resident memory; 0: the process has ended, or the system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
