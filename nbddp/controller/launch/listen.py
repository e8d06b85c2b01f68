"""The engine that the user is: it waits for agents that any program starts.

Runs in: the notebook's process.
"""

import platform
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from nbddp.controller.launch.engine import EngineOptions
from nbddp.errors import PoolStartError
from nbddp.system import network, process_tree
from nbddp.wire.launch_specs import Invitation

#: In the home folder, which the machines of a cluster share as a rule.
_FOLDER = ".nbddp"


def remove_stale_files(folder: Path) -> None:
    """Remove the files of notebooks of this machine that have ended without removing theirs."""
    for path in folder.glob("*.json"):
        with suppress(OSError, msgspec.MsgspecError):  # another notebook was faster; not ours
            made = Invitation.parse(path.read_bytes())
            is_running = made.started == process_tree.start_time(made.pid)
            if made.host == platform.node() and not is_running:
                path.unlink()


class ListenEngine:
    """Writes the invitation to a file, and waits."""

    join_timeout_s: float | None = None
    owns_address = False

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._path: Path | None = None

    def address(self) -> str:
        """Return the address of this machine's default route."""
        return network.own_address()

    def start(self, invitation: Invitation) -> None:
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
        self._path = path

    def state(self) -> str:
        """Return the lines that start agents."""
        nodes = self._options.nnodes
        module = f"-m nbddp agent --connect {self._path}"
        agent = f"{sys.executable} {module}"
        return "\n".join(
            [
                "Start one agent on each node, in one of these ways; each node must see the file:",
                f"  a shell on each node  {agent}",
                f"  Slurm     srun -N {nodes} --ntasks-per-node=1 --cpu-bind=none {agent}",
                f"  Open MPI  mpirun -np {nodes} --map-by node --bind-to none {agent}",
                f"  torchrun  torchrun --nnodes {nodes} --nproc-per-node 1 --rdzv-backend c10d "
                f"--rdzv-endpoint HOST:PORT {module}",
                "            (HOST: one of the nodes; PORT: a free one there)",
            ]
        )

    def end(self, node: int) -> str:
        """Return nothing: only the agents themselves say what becomes of them."""
        return ""

    def leave(self) -> None:
        """Remove the file: no agent can join while there is no notebook."""
        self.stop()

    def take_back(self, mark: str, invitation: Invitation) -> None:
        """Write the file again: an agent may come in the place of a lost one."""
        self.start(invitation)

    def stop(self) -> None:
        """Remove the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            with suppress(OSError):  # other pools have files there
                self._path.parent.rmdir()
            self._path = None
