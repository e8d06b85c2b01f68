"""The folder of a pool: whose it is, and whether anybody still uses it.

Runs in: the notebook's process and the agents. Each holds a lock on a file in it as long as it
lives, so that the remains of a pool are known even if all of its processes were killed at once.
"""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

PREFIX = "nbddp-"
#: Whoever uses the folder holds a shared lock on this file. Without it a folder is not of a pool.
_IN_USE = "in-use.lock"
#: Logs of a pool that was killed are left for so long: they may say why.
_KEPT_S = 24 * 60 * 60.0


def hold(folder: Path) -> int:
    """Use the folder until the descriptor is closed, or the process ends."""
    fd = os.open(folder / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # no locks here: then nobody else gets one, and nothing is removed
        fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def remove_remains(fresh: Path) -> None:
    """Remove the folders beside this one, which was just made, that pools have left behind.

    Only what this user's pools have made, what no process uses, and what is older than a day.
    """
    until = fresh.stat().st_mtime - _KEPT_S
    for folder in fresh.parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another notebook was quicker, or it is not ours
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if max(path.stat().st_mtime for path in (folder, *folder.iterdir())) < until:
                _remove_unused(folder)


def _remove_unused(folder: Path) -> None:
    fd = os.open(folder / _IN_USE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(fd)
