"""The folder of a pool: its owner, and the lock that says whether a process still uses it.

Runs in: the notebook's process and the agents. Each holds a lock on a file in the folder while it
lives, so that a stale folder is recognized even if all processes of its pool were killed at once.
"""

import fcntl
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nbddp.errors import PoolStartError
from nbddp.settings import POOLS_DIR_ENV

PREFIX = "nbddp-"
#: ``sun_path`` holds 108 bytes on Linux and 104 on macOS, including the closing zero.
_MAX_SOCKET_PATH_BYTES = 100
_NAME_BYTES = 15
#: Room for the names of sockets below the folder, multiprocessing's included.
_SOCKET_NAME_BYTES = 34
#: Each process that uses the folder holds a shared lock on this file. A folder without the file
#: does not belong to a pool.
IN_USE = "in-use.lock"
#: Logs of a pool that was killed are kept this long, because they may say why.
_KEPT_S = 24 * 60 * 60.0


def own_parent() -> str:
    """Return the folder that the user has named for pools; empty: none."""
    named = os.environ.get(POOLS_DIR_ENV, "")
    # Not `Path.expanduser`, which raises for a user that does not exist.
    return str(Path(os.path.expanduser(named)).absolute()) if named else ""  # noqa: PTH111


def where() -> str:
    """Say where the pools are that this process knows: ``on this machine``, or in which folder."""
    return f"in {POOLS_DIR_ENV}={own_parent()}" if own_parent() else "on this machine"


def parents() -> list[str]:
    """List the folders in which pools have their folders, the first choice first."""
    if own_parent():
        return [own_parent()]
    folders = (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), "/tmp")  # noqa: S108
    return list(dict.fromkeys(parent for parent in folders if parent))


def folders() -> list[Path]:
    """List the folders with the names of pools that are in any of `parents`."""
    return [folder for parent in parents() for folder in Path(parent).glob(f"{PREFIX}*")]


def make() -> Path:
    """Make a folder with mode 0700, whose path is short enough for the sockets in it.

    Raises:
        PoolStartError: all folders for it have longer paths, or the one that the user has named
            does not exist or cannot be written to.
    """
    room = _MAX_SOCKET_PATH_BYTES - _NAME_BYTES - _SOCKET_NAME_BYTES
    if own := own_parent():
        return _make_in(own, room)
    for parent in parents():
        if len(os.fsencode(parent)) <= room:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    raise PoolStartError(f"no folder for sockets has a path of {room} bytes or less; set TMPDIR")


def _make_in(own: str, room: int) -> Path:
    """Make a folder in the one that the user has named."""
    length = len(os.fsencode(own))
    if length > room:
        reason = f"its path has {length} bytes, and that of a folder for sockets at most {room}"
        step = f"set {POOLS_DIR_ENV} to a folder with a shorter path"
    else:
        try:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=own))
        except OSError as error:
            reason = f"{error.strerror}"
        step = f"mkdir -p {shlex.quote(own)}"
        if Path(own).exists():
            step = f"set {POOLS_DIR_ENV} to another"
    raise PoolStartError(f"no pool can be made in {POOLS_DIR_ENV}={own}: {reason}. Next: {step}")


def hold(folder: Path) -> int:
    """Lock the folder until the returned descriptor is closed, or the process ends."""
    fd = os.open(folder / IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # a disk without locks: no process gets one, so nothing is removed
        fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def remove_stale_folders(fresh: Path) -> None:
    """Remove stale folders of pools beside ``fresh``, a folder that was just made.

    A stale folder belongs to a pool of this user, is used by no process, and is older than a day.
    """
    until = fresh.stat().st_mtime - _KEPT_S
    for folder in fresh.parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another notebook was faster, or the folder is not ours
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if max(path.stat().st_mtime for path in (folder, *folder.iterdir())) < until:
                with unused(folder) as is_unused:
                    if is_unused:
                        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Keep processes from using the folder meanwhile; False: a process uses it, or it is no pool's.

    Other than the number of a process, the lock holds across containers that share the folder.
    """
    try:
        fd = os.open(folder / IN_USE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield _is_locked(fd)
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
