"""Agents in pods of a Kubernetes cluster.

Runs in: the notebook's process. A driver, `nbddp.controller.launch.k8s_driver`, runs in a process
of its own, with the client library of Kubernetes. The invitation goes through its standard input,
whose end deletes the pods.
"""

import importlib.util
import os
from typing import Any

from nbddp.controller.launch.driver_process import DriverProcess
from nbddp.controller.launch.engine import EngineOptions, LostNode
from nbddp.controller.launch.k8s_objects import agent_objects
from nbddp.errors import BadOptionError, PoolStartError
from nbddp.system import network
from nbddp.wire.invitation import Invitation

_DRIVER = "nbddp.controller.launch.k8s_driver"
_STOP_S = 6.0
_DRIVER_ENDED = "the driver of the pods {how}. Next: try `kubectl get pods` in a terminal"
_IN_POD_ENV = "KUBERNETES_SERVICE_HOST"
_NOT_INSTALLED = (
    "the client library of Kubernetes is not installed in the environment of this notebook. "
    "Next: pip install 'nbddp[k8s]'"
)
_LEFT_OUT = "(left out here: the credentials of the pool)"


class K8sEngine:
    """Makes one pod for each node.

    Raises:
        BadOptionError: there is no image, or the client library is not installed.
    """

    #: Pods may wait for their place for hours; the stop button ends the wait.
    join_timeout_s: float | None = None
    owns_address = False

    def __init__(self, options: EngineOptions) -> None:
        if any(importlib.util.find_spec(name) is None for name in ("kubernetes", "yaml")):
            raise BadOptionError(f"--launcher k8s: {_NOT_INSTALLED}")
        from nbddp.controller.launch import k8s_options  # noqa: PLC0415 - it needs the extra

        self._values = _values(options)
        self._namespace = options.namespace
        self._pods = k8s_options.agent_pods(**self._values)
        self._driver: DriverProcess | None = None

    def address(self) -> str:
        """Return the address of the pod around the notebook.

        Raises:
            PoolStartError: the notebook is not in a pod.
        """
        if _IN_POD_ENV not in os.environ:
            raise PoolStartError(
                "the pool did not start: this notebook is not in a pod, and the pods of the agents "
                "have to reach it. Next: run the notebook in a pod of the cluster (JupyterHub, "
                "Kubeflow); or, if pods reach this machine, --address IP with its address towards "
                "them. A tunnel from outside does not exist yet"
            )
        return network.own_address()

    def text(self) -> str:
        """Return the objects that `start` would make, as YAML, without the invitation."""
        from nbddp.controller.launch import k8s_options  # noqa: PLC0415 - it needs the extra

        objects = agent_objects(self._pods, "POOL", _LEFT_OUT)
        if self._namespace:
            for made in objects:
                made["metadata"] = {**made["metadata"], "namespace": self._namespace}
        return k8s_options.as_yaml(objects)

    def start(self, invitation: Invitation) -> None:
        """Start the driver."""
        options = {**self._values, "namespace": self._namespace}
        words = [
            word
            for name, value in options.items()
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        self._driver = DriverProcess(_DRIVER, words, invitation, self._pods.nnodes)

    def state(self) -> str:
        """Return how far the pods have come."""
        driver = self._driver
        return (driver is not None and driver.report().state) or "Kubernetes"

    def end(self, node: int) -> str:
        """Return why a pod has ended or cannot start, or why there can be none."""
        driver = self._driver
        return "" if driver is None else driver.end(node, _DRIVER_ENDED)

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        """Ask the driver for a Job with another pod."""
        if self._driver is not None:
            self._driver.replace(lost.node)

    def withdraw(self, node: int) -> None:
        """Ask the driver to delete that Job."""
        if self._driver is not None:
            self._driver.withdraw(node)

    def stop(self) -> None:
        """Delete all that was made."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.stop(_STOP_S)


def _values(options: EngineOptions) -> dict[str, Any]:
    return {
        "nnodes": options.nnodes,
        "nproc_per_node": options.nproc_per_node,
        "image": options.image,
        "kind": options.kind,
        "device": options.device,
        "python": options.python,
        "template": options.template,
    }
