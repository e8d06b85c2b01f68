"""How much memory ranks take.

Runs in: the agent's thread.

Ranks are forked from one process and share the pages of torch. Resident memory (RSS) counts these
for each rank; what is told counts of a shared page a rank's part (PSS), so that the ranks of a pool
sum up to what they take together. To count that, the kernel walks over all pages of a process: 6 ms
for an idle rank, and 25 ms for each GB, in which nothing can be mapped there. So a count is kept,
and corrected by how the resident memory, which costs 20 us, has changed since. It is made again
when it is old enough not to cost much.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from nbddp.system import process_tree

_LEAST_AGE_S = 1.0
#: Counts take 2 % of the agent's time, however many ranks and gigabytes there are.
_REST = 50


@dataclass(frozen=True)
class Memory:
    """Of a rank and its descendants."""

    size_bytes: int  #: 0: not known
    is_pss: bool  #: False: RSS, since the system does not tell more


@dataclass(frozen=True)
class _Count:
    """Of one process."""

    pss_bytes: int
    rss_bytes: int  #: at the same time
    made_at: float
    cost_s: float


class MemoryReader:
    """Reads the memory of ranks, and keeps what took time to count."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[int, _Count]] = {}  # by rank, by process

    def read(self, rank: int, pid: int, now: float) -> Memory:
        """Of a rank with this process, and of all that descends from it."""
        known = self._counts.get(rank, {})
        counts: dict[int, _Count] = {}
        rss_bytes = pss_bytes = 0
        is_pss = True
        for process in (pid, *process_tree.descendants_of(pid)):
            resident = _resident_bytes(process)
            rss_bytes += resident
            count = known.get(process)
            if count is None or self._is_old(count, now):
                count = _count(process, resident, now)
            if count is None:
                is_pss = is_pss and not resident  # else it has ended meanwhile
                continue
            counts[process] = count
            pss_bytes += max(0, count.pss_bytes + resident - count.rss_bytes)
        self._counts[rank] = counts
        return Memory(pss_bytes if is_pss else rss_bytes, is_pss)

    def forget(self, rank: int) -> None:
        """Its process has ended."""
        self._counts.pop(rank, None)

    def _is_old(self, count: _Count, now: float) -> bool:
        number = sum(map(len, self._counts.values()))
        return now - count.made_at > max(_LEAST_AGE_S, _REST * number * count.cost_s)


def _count(pid: int, resident: int, now: float) -> _Count | None:
    """None: it has ended, may not be looked at, or the system has no such count."""
    began = time.thread_time()
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        kilobytes = int(text.partition("\nPss:")[2].split(maxsplit=1)[0])
    except (OSError, IndexError, ValueError):
        return None
    return _Count(kilobytes * 1024, resident, now, time.thread_time() - began)


def _resident_bytes(pid: int) -> int:
    """0 where the system does not tell, and of a process that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
