"""An invitation as a file that only its owner can read, in a folder that the nodes see.

Runs in: the notebook's process, and the driver of a job of PSI/J.
"""

import platform
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from nbddp.errors import PoolStartError
from nbddp.system import process_tree
from nbddp.wire.invitation import Invitation

#: In the home folder, which the machines of a cluster share as a rule.
_FOLDER = ".nbddp"


def home_folder() -> Path:
    """Return the folder for invitations; it need not exist."""
    return Path.home() / _FOLDER


def remove_stale_files(folder: Path) -> None:
    """Remove the files of notebooks of this machine that have ended without removing theirs.

    With each file goes the folder of the same name, in which a job had its own files.
    """
    for path in folder.glob("*.json"):
        with suppress(OSError, msgspec.MsgspecError):  # another notebook was faster; not ours
            made = Invitation.parse(path.read_bytes())
            # An ended process that its parent has not collected still has its start time.
            is_ended = process_tree.uncollected_end(made.pid) is not None
            is_running = made.started == process_tree.start_time(made.pid) and not is_ended
            if made.host == platform.node() and not is_running:
                path.unlink()
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)


class InvitationFile:
    """The file of one pool; it takes the place of the one of the pool's last notebook.

    Args:
        folder: for the file; made if it is not there.
        invitation: to write.

    Raises:
        PoolStartError: it cannot be written.
    """

    def __init__(self, folder: Path, invitation: Invitation) -> None:
        self.path = folder / f"{invitation.pool_id}.json"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            remove_stale_files(folder)
            # Only a notebook that has the pool comes here: the last one left a file if it was
            # killed, perhaps under another host name.
            self.path.unlink(missing_ok=True)
            invitation.write(self.path)
        except OSError as error:
            raise PoolStartError(
                f"the pool cannot be reached: {self.path} cannot be written ({error.strerror}). "
                f"Next: see the rights and the space of {folder}"
            ) from None

    def remove(self) -> None:
        """Remove the file, and the folder if nothing else is there."""
        self.path.unlink(missing_ok=True)
        with suppress(OSError):  # other pools have files there
            self.path.parent.rmdir()
