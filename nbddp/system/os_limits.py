"""System limits that a pool may reach, with advice for the user.

Runs in: the notebook's process, agents.
"""

import errno
import os
import resource

#: File descriptors of an agent, and for each of its ranks; of a rank, and for each of its peers.
#: Measured on Linux with Gloo: 26 + 7, 31 + 1, 12; a rank that connects briefly has a few more.
_AGENT, _AGENT_PER_RANK = 34, 8
_RANK, _RANK_PER_PEER = 40, 2
#: Descriptors that the process which starts the pool needs in addition.
_NOTEBOOK = 20

_ADVICE_BY_ERRNO = {
    errno.EMFILE: "a process may open {files} files (`ulimit -n`): raise it before Jupyter starts",
    errno.ENFILE: "the whole system has no more open files (sysctl fs.file-max): close programs",
    errno.EFBIG: "files may have {size} only (`ulimit -f`): raise that before Jupyter starts",
    errno.ENOSPC: "the disk of the temporary folder is full: free some space, or set TMPDIR to a "
    "folder on another disk",
    errno.EDQUOT: "your disk quota is used up: free some space, or set TMPDIR to a folder on "
    "another disk",
    errno.EROFS: "the temporary folder cannot be written to: set TMPDIR to another folder",
    errno.EAGAIN: "no more processes may be started ({processes} for this user, `ulimit -u`, or "
    "the limit of the container): start fewer ranks, or end other programs",
    errno.ENOMEM: "there is not enough memory ({memory}, or the machine has no more): start fewer "
    "ranks, or end other programs",
}


def limit_advice(error: BaseException) -> str:
    """Return advice for an error of the system; empty: it is not an error of a limit."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    if number not in _ADVICE_BY_ERRNO:
        return ""
    return _ADVICE_BY_ERRNO[number].format(
        files=_soft(resource.RLIMIT_NOFILE),
        size=f"{_soft(resource.RLIMIT_FSIZE)} bytes",
        processes=_soft(resource.RLIMIT_NPROC),
        memory=f"{_soft(resource.RLIMIT_AS)} bytes for a process, `ulimit -v`",
    )


def too_few_descriptors(local_ranks: int, ranks: int) -> str:
    """Return why a pool of this size cannot start; empty: it can.

    Checked before anything is started, because a process without descriptors can hardly report what
    it lacks.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = max(
        _AGENT + _AGENT_PER_RANK * local_ranks,
        _RANK + _RANK_PER_PEER * ranks,
        _open_descriptors() + _NOTEBOOK,
    )
    if allowed == resource.RLIM_INFINITY or allowed >= needed:
        return ""
    count = "1 rank" if ranks == 1 else f"{ranks} ranks"
    return (
        f"a process may open {allowed} files (`ulimit -n`), and a pool of {count} needs up to "
        f"{needed} in one of its processes. Next: `ulimit -n 1024` in the shell that starts "
        "Jupyter, or fewer ranks"
    )


def _open_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a name is enough
    except FileNotFoundError:
        return 0  # a system without /proc
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # no descriptor is left


def _soft(limit: int) -> str:
    value = resource.getrlimit(limit)[0]
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"
