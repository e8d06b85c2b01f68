"""The file with the invitation of a pool, for agents that share the home folder.

Runs in: the notebook's process.
"""

import platform
from contextlib import suppress
from pathlib import Path

import msgspec

from nbddp.errors import PoolStartError
from nbddp.system import process_tree
from nbddp.wire.launch_specs import Invitation

#: In the home folder, which the machines of a cluster share as a rule.
_FOLDER = ".nbddp"


class InvitationFile:
    """The file, once it is written."""

    def __init__(self) -> None:
        self.path: Path | None = None

    def write(self, invitation: Invitation) -> Path:
        """Write the file.

        Raises:
            PoolStartError: it cannot be written.
        """
        path = Path.home() / _FOLDER / f"{invitation.pool_id}.json"
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            remove_stale_files(path.parent)
            invitation.write(path)
        except OSError as error:
            raise PoolStartError(
                f"the pool did not start: {path} cannot be written ({error.strerror})"
            ) from None
        self.path = path
        return path

    def remove(self) -> None:
        """Remove the file."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            with suppress(OSError):  # other pools have files there
                self.path.parent.rmdir()
            self.path = None


def remove_stale_files(folder: Path) -> None:
    """Remove the files of notebooks of this machine that have ended without removing theirs."""
    for path in folder.glob("*.json"):
        with suppress(OSError, msgspec.MsgspecError):  # another notebook was faster; not ours
            made = Invitation.parse(path.read_bytes())
            is_running = made.started == process_tree.start_time(made.pid)
            if made.host == platform.node() and not is_running:
                path.unlink()
