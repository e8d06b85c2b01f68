"""The check that a test leaves no process, thread, descriptor, folder or shared memory.

A snapshot before the test is compared with what there is after it. The shared pool of the session
is living all the time, so its processes are compared by number: after a restart they are others.
"""

import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from nbddp.settings import POOL_ID_ENV
from tests.support.polling import poll_until

#: Descriptors that libraries open once and keep (random numbers, logging, a ZeroMQ context), and
#: free segments of the shared pool's arena.
FD_TOLERANCE = 4
#: Programs of the session that start and end helpers when they like: a browser. Neither they nor
#: what descends from them belongs to a test.
LASTING: set[int] = set()
#: Ending processes, the hub thread's last step, a removed folder: none of it is instant. A worker
#: of a DataLoader looks only every 5 s whether its parent is alive (torch.utils.data._utils).
_SETTLE_S = 25.0


@dataclass(frozen=True)
class Process:
    """One process, told from a later one with the same number by the time of its start."""

    pid: int
    started: int

    def describe(self) -> str:
        try:
            process = psutil.Process(self.pid)
            command = " ".join(process.cmdline())
            return f"{self.pid} (parent {process.ppid()}, {process.status()}): {command}"
        except psutil.Error:
            return f"{self.pid}: ended meanwhile"


@dataclass(frozen=True)
class Snapshot:
    processes: frozenset[Process]
    shared_pool_processes: int
    hub_threads: frozenset[int]
    fds: frozenset[tuple[int, str]]
    folders: frozenset[str]
    shared_memory: frozenset[str]


def take_snapshot(shared_pool_id: str | None) -> Snapshot:
    """The current processes, threads, descriptors and folders."""
    ours = _our_processes()
    shared = {p for p, pool_id in ours.items() if pool_id and pool_id == shared_pool_id}
    return Snapshot(
        processes=frozenset(set(ours) - shared),
        shared_pool_processes=len(shared),
        hub_threads=frozenset(
            thread.ident or 0
            for thread in threading.enumerate()
            if thread.name.startswith("nbddp-")
        ),
        fds=_fds(),
        folders=frozenset(n for n in _names(tempfile.gettempdir()) if n.startswith("nbddp-")),
        shared_memory=_names("/dev/shm"),
    )


def assert_no_leaks(before: Snapshot, shared_pool_id: Callable[[], str | None]) -> None:
    """Wait until everything that came after ``before`` is gone; fail if it does not go."""

    def nothing_is_left() -> bool:
        found = differences(before, take_snapshot(shared_pool_id()))
        assert not found, "left behind:\n" + "\n".join(found)
        return True

    poll_until(nothing_is_left, _SETTLE_S)


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """The things that are there after and were not before, in words."""
    found = [f"process {p.describe()}" for p in after.processes - before.processes]
    if after.shared_pool_processes > before.shared_pool_processes:
        found.append(
            f"the shared pool has {after.shared_pool_processes} processes and had "
            f"{before.shared_pool_processes}"
        )
    # By number: a shared pool whose agent was lost restarts with another thread.
    if len(after.hub_threads) > len(before.hub_threads):
        new_threads = after.hub_threads - before.hub_threads
        found += [f"thread {_stack(ident)}" for ident in sorted(new_threads)]
    new_fds = sorted(after.fds - before.fds)
    if len(after.fds) - len(before.fds) > FD_TOLERANCE:
        found += [f"descriptor {fd} -> {target}" for fd, target in new_fds]
    found += [f"folder {name}" for name in sorted(after.folders - before.folders)]
    found += [f"/dev/shm/{name}" for name in sorted(after.shared_memory - before.shared_memory)]
    return found


def processes_of_pool(pool_id: str) -> list[str]:
    """Every living process of a pool, in words."""
    return [p.describe() for p, found in _our_processes().items() if found == pool_id]


def _our_processes() -> dict[Process, str]:
    """Descendants, and processes of pools that were started here, with the id of the pool."""
    me = os.getpid()
    rows = _process_table()
    lasting = LASTING | _descendants(LASTING, rows)
    descendants = _descendants({me}, rows) - lasting
    found: dict[Process, str] = {}
    for pid, row in rows.items():
        if row.is_zombie and _is_child_of_rank(pid):
            continue  # the rank has not asked yet how it ended
        if pid == me or (row.is_zombie and pid not in descendants):
            continue
        pool_id, is_ours = _pool_of(pid, me)
        if is_ours or pid in descendants:
            found[Process(pid, row.started)] = pool_id
    return found


class _Row(NamedTuple):
    parent: int
    started: int  #: in clock ticks since the machine started
    is_zombie: bool


def _process_table() -> dict[int, _Row]:
    """All processes. Each test asks twice and more, so it costs as little as it can."""
    rows = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - cheap
        fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
        if fields:
            rows[int(name)] = _Row(int(fields[1]), int(fields[19]), fields[0] == b"Z")
    return rows


def _read(path: str) -> bytes:
    """The content of a file of the system; empty: the process has ended."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - cheap
            return file.read()
    except OSError:
        return b""


def _descendants(ancestors: Collection[int], rows: Mapping[int, _Row]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, row in rows.items():
        children.setdefault(row.parent, []).append(pid)
    found: set[int] = set()
    waiting = list(ancestors)
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting += below
        found.update(below)
    return found


def _is_child_of_rank(pid: int) -> bool:
    """A rank is a fork of the fork server, and so is the name that it has."""
    try:
        parents = psutil.Process(pid).parents()[:2]
        commands = [" ".join(parent.cmdline()) for parent in parents]
    except psutil.Error:
        return False
    return len(commands) == 2 and all("multiprocessing.forkserver" in text for text in commands)


#: Set in the environment of everything that a test run starts.
RUN_ENV = "NBDDP_TEST_RUN"


def _pool_of(pid: int, run: int) -> tuple[str, bool]:
    """``(id of its pool, whether this run of the tests has started it)``."""
    environ = b"\0" + _read(f"/proc/{pid}/environ")
    _, found, rest = environ.partition(f"\0{POOL_ID_ENV}=".encode())
    if not found:
        return "", False
    pool_id = rest.partition(b"\0")[0].decode()
    return pool_id, bool(pool_id) and f"\0{RUN_ENV}={run}\0".encode() in environ


def _fds() -> frozenset[tuple[int, str]]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.add((int(fd.name), str(fd.readlink())))
        except OSError:
            continue  # the descriptor of the listing itself
    return frozenset(found)


def _names(folder: str) -> frozenset[str]:
    path = Path(folder)
    return frozenset(entry.name for entry in path.iterdir()) if path.is_dir() else frozenset()


def _stack(ident: int) -> str:
    frame = sys._current_frames().get(ident)
    lines = traceback.format_stack(frame) if frame is not None else ["  ended meanwhile\n"]
    return f"{ident}:\n{''.join(lines)}"
