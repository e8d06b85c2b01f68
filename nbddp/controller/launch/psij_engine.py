"""Agents in a job of PBS, LSF, Flux, or of whatever else PSI/J submits to.

Runs in: the notebook's process. A driver, `nbddp.controller.launch.psij_driver`, runs in a process
of its own. The invitation goes through its standard input, whose end cancels the job.
"""

import importlib.util
from itertools import chain

from nbddp.controller.launch.driver_process import DriverProcess
from nbddp.controller.launch.engine import EngineOptions, LostNode
from nbddp.controller.launch.psij_job import PsijJob
from nbddp.errors import PoolStartError
from nbddp.system import network
from nbddp.wire.invitation import Invitation

_DRIVER = "nbddp.controller.launch.psij_driver"
#: A busy scheduler takes long to submit a job and to cancel it.
_STOP_S = 20.0


class PsijEngine:
    """Submits one job, with an agent on each of its nodes.

    Args:
        launcher: the value of ``--launcher``: an executor of PSI/J, or ``psij``.
        options: of the user.

    Raises:
        BadOptionError: an option of the job is not legal.
    """

    #: A job may wait in the queue for hours; the stop button ends the wait.
    join_timeout_s: float | None = None
    owns_address = False

    def __init__(self, launcher: str, options: EngineOptions) -> None:
        self._launcher = launcher
        self._options = options
        self._job = PsijJob.checked(launcher, options)
        self._driver: DriverProcess | None = None

    def address(self) -> str:
        """Return the address of this machine's default route."""
        return network.own_address()

    def start(self, invitation: Invitation) -> None:
        """Start the driver.

        Raises:
            PoolStartError: PSI/J is not installed here.
        """
        if importlib.util.find_spec("psij") is None:
            raise PoolStartError(
                "the pool did not start: PSI/J is not installed in the environment of this "
                "notebook. Next: pip install 'nbddp[psij]'"
            )
        options = self._options
        words = [
            *("--launcher", self._launcher, "--device", options.device),
            *("--nnodes", str(options.nnodes), "--nproc-per-node", str(options.nproc_per_node)),
            *("--python", options.python),
            *chain(*(("--job", f"{name}={value}") for name, value in options.job.items())),
        ]
        self._driver = DriverProcess(_DRIVER, words, invitation, options.nnodes)

    def state(self) -> str:
        """Return the state of the job: ``PBS job 4711.head: QUEUED``."""
        title = self._job.scheduler.title
        return (self._driver is not None and self._driver.report().state) or title

    def end(self, node: int) -> str:
        """Return how the job has ended, and with it all agents."""
        if self._driver is None:
            return ""
        title = self._job.scheduler.title
        return self._driver.end(node, f"the driver of the {title} job {{how}}. Next: %ddp stop")

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        """Ask the driver for a job of one node, with the same options."""
        if self._driver is not None:
            self._driver.replace(lost.node)

    def withdraw(self, node: int) -> None:
        """Ask the driver to cancel that job."""
        if self._driver is not None:
            self._driver.withdraw(node)

    def stop(self) -> None:
        """Cancel its jobs, also while they are queued."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.stop(_STOP_S)
