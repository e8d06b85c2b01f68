"""The engine that the user is: it waits for agents that any program starts.

Runs in: the notebook's process.
"""

import sys

from nbddp.controller.launch.engine import EngineOptions, LostNode
from nbddp.controller.launch.invitation_file import InvitationFile, home_folder
from nbddp.system import network
from nbddp.wire.invitation import Invitation


class ListenEngine:
    """Writes the invitation to a file, and waits."""

    join_timeout_s: float | None = None
    owns_address = False

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._file: InvitationFile | None = None
        self._is_replacing = False  #: all agents had come, and some were lost

    def address(self) -> str:
        """Return the address of this machine's default route."""
        return network.own_address()

    def start(self, invitation: Invitation) -> None:
        """Write the file.

        Raises:
            PoolStartError: it cannot be written.
        """
        self._file = InvitationFile(home_folder(), invitation)

    def state(self) -> str:
        """Return the lines that start agents."""
        nodes = self._options.nnodes
        path = "" if self._file is None else self._file.path
        module = f"-m nbddp agent --connect {path}"
        agent = f"{sys.executable} {module}"
        if self._is_replacing:
            return f"Start one on a machine that sees the file:\n  {agent}"
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

    def check_words(self) -> str:
        """Return the command that says on a host whether an agent could join."""
        path = "FILE" if self._file is None else self._file.path
        return f"{sys.executable} -m nbddp agent --connect {path} --check"

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        """Wait for another agent, which the user starts with the same file."""
        self._is_replacing = True

    def withdraw(self, node: int) -> None:
        """Do nothing: an agent that comes all the same gets the place."""

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
        file, self._file = self._file, None
        if file is not None:
            file.remove()
