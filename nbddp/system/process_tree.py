"""Parents, descendants and states of processes; processes that end with their parent.

Runs in: agent, fork server, ranks, store. The Linux kernel ends a process with its parent
(``PR_SET_PDEATHSIG``, ``PR_SET_CHILD_SUBREAPER``, see prctl(2)); on other systems a process watches
its parent's number.
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
    """Have the kernel send SIGKILL to this process when the parent ends.

    The kernel sends it when the *thread* that made this process ends, so that thread must live as
    long as its process does. If ``parent_pid`` ended before this call, this process ends here.
    """
    if IS_LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def wake_with_parent() -> None:
    """Have the kernel send SIGCONT when the parent, or its thread that made this process, ends.

    The signal has no effect on a running process; a stopped one goes on, and can end in order.
    """
    if IS_LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants, so that this process can end them."""
    if IS_LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> set[int]:
    """Return the direct children of a process; empty where the system does not report them."""
    # Not glob: it raises FileNotFoundError when the process is collected while it looks.
    children: set[int] = set()
    folder = Path(f"/proc/{pid}/task")
    with suppress(OSError):  # the process has ended meanwhile
        for thread in os.listdir(folder):  # noqa: PTH208 - a name is enough
            with suppress(OSError):  # the thread has ended meanwhile
                children.update(map(int, (folder / thread / "children").read_text().split()))
    return children


def descendants_of(pid: int) -> set[int]:
    """Return all living descendants of a process."""
    descendants: set[int] = set()
    frontier = children_of(pid)
    while frontier:
        descendants |= frontier
        frontier = {child for parent in frontier for child in children_of(parent)} - descendants
    return descendants


def session_and_start(pid: int) -> tuple[int, int]:
    """Return session and start time of a process; with the process id, they identify it.

    ``(-1, -1)``: it has ended, or the system does not report them.
    """
    fields = _stat(pid)
    return (int(fields[3]), int(fields[19])) if fields else (-1, -1)


def start_time(pid: int) -> int:
    """Return the start of a process in clock ticks since the machine started.

    With it, a process is told from a later one that has the same number.
    """
    return session_and_start(pid)[1]


def lives_since(pid: int, started: int) -> bool:
    """Return whether the process with this number and this start time has not ended."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in ("Z", "X") and int(fields[19]) == started


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by SIGSTOP or because a debugger holds it."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in ("T", "t")


def is_held(pid: int) -> bool:
    """Send SIGCONT to a stopped process, and return whether it is still stopped."""
    if not is_stopped(pid):
        return False
    kill_quietly(pid, signal.SIGCONT)
    return is_stopped(pid)


def has_ended(pid: int) -> bool:
    """Return whether there is no such process, or only its exit code is left."""
    fields = _stat(pid)
    return not fields or fields[0] in ("Z", "X")


def uncollected_end(pid: int) -> int | None:
    """Return the exit code of an ended process that its parent has not collected yet.

    The code is -n if signal n has ended it. None: the process lives, or was collected, or the
    system does not report the code.
    """
    fields = _stat(pid)
    if not fields or fields[0] != "Z":
        return None
    return os.waitstatus_to_exitcode(int(fields[49]))


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on, see proc(5); empty: no file."""
    try:
        # Called before each cell for each rank; takes a third of the time of Path.read_text.
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
    """Return whether a process has got SIGKILL, is exiting, or has ended.

    False where the system does not report it. Source: proc_pid_stat(5); ``PF_EXITING`` is in
    ``include/linux/sched.h``. A fatal signal is pending in each thread at once
    (``complete_signal`` in ``kernel/signal.c``). A thread that takes it runs for a moment before
    it has the flag; then only the signals of the whole process show it.
    """
    fields = _stat(pid)
    if not fields:
        return IS_LINUX
    state, flags, pending = fields[0], int(fields[6]), int(fields[28])
    if state in ("Z", "X") or flags & _PF_EXITING or pending & _SIGKILL_BIT:
        return True
    return state == "R" and has_got_sigkill(pid)


def has_got_sigkill(pid: int) -> bool:
    """Return whether a process has got SIGKILL or has ended. Takes four times as long as stat."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return True
    _, _, pending = status.partition(b"\nShdPnd:")
    return bool(int(pending.split(b"\n", 1)[0] or b"0", 16) & _SIGKILL_BIT)


def processes() -> list[int]:
    """Return all processes; empty where the system does not report them."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def was_started_with(pid: int, name: str, value: str) -> bool:
    """Return whether a process lives and was started with this variable in its environment."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # it has ended meanwhile, or belongs to another user
    return f"{name}={value}".encode() in environ.split(b"\0")


def processes_with(name: str, value: str) -> set[int]:
    """Return the living processes that were started with this variable in their environment."""
    return {pid for pid in processes() if was_started_with(pid, name, value)}


def kill_quietly(pid: int, signum: int, *, group: bool = False) -> None:
    """Send a signal to a process that we started, or to its group; it may have ended already."""
    # It has ended; PermissionError: its number belongs to a process of another user by now.
    with suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, signum)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
