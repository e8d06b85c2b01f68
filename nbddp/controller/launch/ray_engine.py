"""Agents on the nodes of a Ray cluster.

Runs in: the notebook's process. A driver, `nbddp.controller.launch.ray_driver`, runs in a process
of its own. The invitation goes through its standard input, whose end ends the job and the agents.
"""

import importlib.util
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from nbddp.controller.launch.driver_process import DriverProcess
from nbddp.controller.launch.engine import EngineOptions, LostNode
from nbddp.errors import PoolStartError
from nbddp.system import network
from nbddp.wire.invitation import Invitation

_DRIVER = "nbddp.controller.launch.ray_driver"
_ADDRESS_ENV = "RAY_ADDRESS"
_FOLDER_ENV = "RAY_TMPDIR"
#: The file in which `ray start` leaves the address of the cluster.
_CLUSTER_FILE = Path("ray") / "ray_current_cluster"
_STOP_S = 6.0
_DRIVER_ENDED = "the driver of the Ray job {how}. Next: try `ray status` in a terminal"


class RayEngine:
    """Starts one actor on each node, which starts the agent."""

    #: The cluster may be busy for hours; the stop button ends the wait.
    join_timeout_s: float | None = None
    #: As everywhere in Ray, which knows the address at which other machines reach this one.
    owns_address = True

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._driver: DriverProcess | None = None

    def address(self) -> str:
        """Return the address of this machine towards the head of the cluster."""
        with suppress(OSError):
            return network.address_towards(head_host(self._options.address))
        return network.own_address()

    def start(self, invitation: Invitation) -> None:
        """Start the driver.

        Raises:
            PoolStartError: Ray is not installed here.
        """
        if importlib.util.find_spec("ray") is None:
            raise PoolStartError(
                "the pool did not start: Ray is not installed in the environment of this notebook. "
                "Next: pip install 'nbddp[ray]', in the version that the cluster has"
            )
        options = self._options
        words = [
            *("--address", options.address or "auto"),
            *("--nnodes", str(options.nnodes), "--nproc-per-node", str(options.nproc_per_node)),
            *("--device", options.device, "--python", options.python),
        ]
        self._driver = DriverProcess(_DRIVER, words, invitation, options.nnodes)

    def state(self) -> str:
        """Return what the job waits for."""
        driver = self._driver
        return (driver is not None and driver.report().state) or "Ray"

    def end(self, node: int) -> str:
        """Return why the agent of a node, or the whole job, has ended."""
        driver = self._driver
        return "" if driver is None else driver.end(node, _DRIVER_ENDED)

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        """Ask the driver for another actor; Ray finds a node for it if the old one is lost."""
        if self._driver is not None:
            self._driver.replace(lost.node)

    def withdraw(self, node: int) -> None:
        """Ask the driver to end the actor."""
        if self._driver is not None:
            self._driver.withdraw(node)

    def stop(self) -> None:
        """End the job."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.stop(_STOP_S)


def head_host(address: str) -> str:
    """Return the host of the head of a Ray cluster.

    Args:
        address: the value of ``--address``; empty or ``auto``: that of the cluster on this machine.
    """
    if address in ("", "auto"):
        address = os.environ.get(_ADDRESS_ENV, "auto")
    if address == "auto":
        folder = Path(os.environ.get(_FOLDER_ENV) or tempfile.gettempdir())
        address = (folder / _CLUSTER_FILE).read_text(encoding="utf-8").strip()
    return address.rpartition("//")[2].rpartition(":")[0]
