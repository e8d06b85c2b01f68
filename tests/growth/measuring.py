"""Memory, descriptors and threads of a pool's processes, and how fast they grow."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

#: The processes of a pool by what they are for.
ROLES = ("kernel", "agent", "fork server", "store", "ranks")


@dataclass(frozen=True)
class Usage:
    """The resources of all processes of one role."""

    processes: int = 0
    #: Pages that only this process has and that were written (Private_Dirty). Pages of libraries do
    #: not count: they are private or not as other programs with the same libraries begin and end.
    own_bytes: int = 0
    fds: int = 0
    threads: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.processes + other.processes,
            self.own_bytes + other.own_bytes,
            self.fds + other.fds,
            self.threads + other.threads,
        )


#: The resources of all processes after a number of cells.
Point = tuple[int, Mapping[str, Usage]]


def usage_of(pid: int) -> Usage:
    """The current resources of one process."""
    kib: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, value = line.split()[:2]
        kib[name] = int(value)
    return Usage(
        processes=1,
        own_bytes=(kib["Private_Dirty:"] + kib["Swap:"]) * 1024,
        fds=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        threads=len(list(Path(f"/proc/{pid}/task").iterdir())),
    )


def usage_by_role(kernel_pid: int, rank_pids: Sequence[int]) -> dict[str, Usage]:
    """The resources of the notebook's process and of the processes of its pool.

    The store is the child of the fork server that is no rank.
    """
    pids: dict[str, list[int]] = {"kernel": [kernel_pid]}
    if rank_pids:
        pids["ranks"] = list(rank_pids)
    for agent in psutil.Process(kernel_pid).children():
        if "nbddp.agent" not in agent.cmdline():
            continue
        pids.setdefault("agent", []).append(agent.pid)
        for helper in agent.children():
            if any("multiprocessing.forkserver" in word for word in helper.cmdline()):
                pids.setdefault("fork server", []).append(helper.pid)
                others = {child.pid for child in helper.children()} - set(rank_pids)
                pids.setdefault("store", []).extend(others)
    return {role: sum(map(usage_of, pids[role]), Usage()) for role in ROLES if role in pids}


@dataclass(frozen=True)
class Growth:
    """How the processes of one role have grown over the second half of the cells."""

    role: str
    processes: int
    cells: int  #: in that half
    bytes_per_cell: float  #: of one process, by least squares
    fds: int  #: more than at the begin of the half
    threads: int  #: the same for threads

    def broken(self, limit_bytes: float) -> list[str]:
        """The limits that are exceeded."""
        found = []
        if (self.bytes_per_cell - limit_bytes) * self.cells > _SLACK_BYTES:
            found.append(f"{self.bytes_per_cell:,.0f} bytes for each cell, limit {limit_bytes:,}")
        if self.fds > _SLACK_FDS * self.processes:
            found.append(f"{self.fds} more descriptors")
        if self.threads > _SLACK_THREADS * self.processes:
            found.append(f"{self.threads} more threads")
        return found


#: Of one process: pages that are touched once in a while, and buffers of libraries.
_SLACK_BYTES = 1_500_000
_SLACK_FDS = 3
_SLACK_THREADS = 1


def growths(points: Sequence[Point]) -> list[Growth]:
    """The growth of each role over the second half."""
    last = points[-1][0]
    half = [point for point in points if point[0] >= last / 2]
    found = []
    for role, usage in half[0][1].items():
        series = [(number, usages[role]) for number, usages in half]
        slope = statistics.linear_regression(
            [number for number, _ in series], [usage.own_bytes for _, usage in series]
        ).slope
        found.append(
            Growth(
                role,
                usage.processes,
                last - half[0][0],
                slope / max(1, usage.processes),
                series[-1][1].fds - series[0][1].fds,
                series[-1][1].threads - series[0][1].threads,
            )
        )
    return found
