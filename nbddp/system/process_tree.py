"""Processes that end with the process that made them.

Runs in: agent, fork server, ranks, store. Linux has the mechanism in the kernel
(``PR_SET_PDEATHSIG``, ``PR_SET_CHILD_SUBREAPER``, see prctl(2)); elsewhere a parent is watched by
its number.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 4
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)

IS_LINUX = sys.platform == "linux"


def die_with_parent(parent_pid: int) -> None:
    """Get SIGKILL when the parent ends.

    The signal follows the *thread* that made this process, so that thread must live as long as
    its process does. If ``parent_pid`` ended before this call, this process ends here.
    """
    if IS_LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def wake_with_parent() -> None:
    """Get SIGCONT when the parent, or the thread of it that made this process, ends.

    To a process that runs it means nothing; one that is stopped goes on, and can end in order.
    """
    if IS_LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants, so that they can be ended."""
    if IS_LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> set[int]:
    """The direct children of a process, empty where the system does not tell."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            found.update(int(child) for child in path.read_text().split())
    return found


def descendants_of(pid: int) -> set[int]:
    """All living descendants of a process."""
    found: set[int] = set()
    border = children_of(pid)
    while border:
        found |= border
        border = {child for parent in border for child in children_of(parent)} - found
    return found


def session_and_start(pid: int) -> tuple[int, int]:
    """Session of a process, and when it was started: with its number, that is who it is.

    ``(-1, -1)`` if it has ended, or where the system does not tell.
    """
    fields = _stat(pid)
    return (int(fields[3]), int(fields[19])) if fields else (-1, -1)


def is_stopped(pid: int) -> bool:
    """Whether a process stands still: by SIGSTOP, or because a debugger holds it."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in ("T", "t")


def is_held(pid: int) -> bool:
    """Whether a process stands still though it is told to go on, which this does."""
    if not is_stopped(pid):
        return False
    kill_quietly(pid, signal.SIGCONT)
    return is_stopped(pid)


def has_ended(pid: int) -> bool:
    """Whether there is no such process, or only its exit code is left."""
    fields = _stat(pid)
    return not fields or fields[0] in ("Z", "X")


def uncollected_end(pid: int) -> int | None:
    """The exit code of a process that has ended and that its parent has not collected yet.

    It is -n where signal n has ended it. None: the process lives, or it was collected, or the
    system does not tell.
    """
    fields = _stat(pid)
    if not fields or fields[0] != "Z":
        return None
    return os.waitstatus_to_exitcode(int(fields[49]))


def _stat(pid: int) -> list[str]:
    """``/proc/PID/stat`` from the state on, see proc(5); empty where there is none."""
    try:
        # Before each cell, for each rank: a third of the time of Path.read_text.
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return []
    try:
        # The name of the program is in parentheses and may hold anything.
        return os.read(fd, 4096).rpartition(b")")[2].decode().split()
    except OSError:
        return []  # it has ended meanwhile
    finally:
        os.close(fd)


def is_ending(pid: int) -> bool:
    """Whether a process has got SIGKILL, is on its way out, or has ended.

    False where the system does not tell. Source: proc_pid_stat(5); ``PF_EXITING`` is in
    ``include/linux/sched.h``. A fatal signal is pending in each thread at once
    (``complete_signal`` in ``kernel/signal.c``).
    """
    fields = _stat(pid)
    if not fields:
        return IS_LINUX
    state, flags, pending = fields[0], int(fields[6]), int(fields[28])
    return state in ("Z", "X") or bool(flags & _PF_EXITING or pending & _SIGKILL_BIT)


def processes() -> list[int]:
    """All processes, empty where the system does not tell."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def was_started_with(pid: int, name: str, value: str) -> bool:
    """Whether a process lives and had this variable in its environment when it was started."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # it has ended meanwhile, or belongs to somebody else
    return f"{name}={value}".encode() in environ.split(b"\0")


def processes_with(name: str, value: str) -> set[int]:
    """The living processes that were started with this variable in their environment."""
    return {pid for pid in processes() if was_started_with(pid, name, value)}


def kill_quietly(pid: int, signum: int, *, group: bool = False) -> None:
    """Signal a process that we started, or its group; it may have ended already."""
    # It has ended; PermissionError: its number belongs to somebody else by now.
    with suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, signum)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
