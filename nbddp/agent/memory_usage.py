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
class _PageCount:
    """A count of the pages of one process."""

    pss_bytes: int
    rss_bytes: int  #: read at the same time
    made_at: float
    cost_s: float


class MemoryReader:
    """Reads the memory of ranks, and keeps the counts that are expensive."""

    def __init__(self) -> None:
        self._page_counts: dict[int, dict[int, _PageCount]] = {}  # by rank, by process

    def read(self, rank: int, pid: int, now: float) -> Memory:
        """Return the memory of a rank with this process, and of all its descendants."""
        old_page_counts = self._page_counts.get(rank, {})
        page_counts: dict[int, _PageCount] = {}
        rss_bytes = pss_bytes = 0
        is_pss = True
        for process in (pid, *process_tree.descendants_of(pid)):
            resident = _resident_bytes(process)
            rss_bytes += resident
            page_count = old_page_counts.get(process)
            if page_count is None or self._is_old(page_count, now):
                page_count = _count_pages(process, resident, now)
            if page_count is None:
                is_pss = is_pss and not resident  # resident is 0 if the process has ended
                continue
            page_counts[process] = page_count
            pss_bytes += max(0, page_count.pss_bytes + resident - page_count.rss_bytes)
        self._page_counts[rank] = page_counts
        return Memory(pss_bytes if is_pss else rss_bytes, is_pss)

    def forget(self, rank: int) -> None:
        """Forget the counts of a rank whose process has ended."""
        self._page_counts.pop(rank, None)

    def _is_old(self, page_count: _PageCount, now: float) -> bool:
        total = sum(map(len, self._page_counts.values()))
        return now - page_count.made_at > max(_LEAST_AGE_S, _REST * total * page_count.cost_s)


def _count_pages(pid: int, resident: int, now: float) -> _PageCount | None:
    """Count; None: the process has ended or is not accessible, or the system has no such count."""
    began = time.thread_time()
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        kilobytes = int(text.partition("\nPss:")[2].split(maxsplit=1)[0])
    except (OSError, IndexError, ValueError):
        return None
    return _PageCount(kilobytes * 1024, resident, now, time.thread_time() - began)


def _resident_bytes(pid: int) -> int:
    """Return the resident memory; 0: the process has ended, or the system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
