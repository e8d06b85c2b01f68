"""``python -m nbddp.controller.launch.k8s_driver``: makes pods with agents, and watches them.

Runs in: a process of its own, which deletes all that it has made when its standard input ends. So
the client library of Kubernetes is not in the notebook's process, and a notebook that is killed
leaves nothing in the cluster.

    notebook --invitation, on stdin--> driver --Secret--> pod of each node: nbddp agent
"""

import argparse
import os
import secrets
import signal
import sys
import time

from nbddp.controller.launch import k8s_objects, k8s_states
from nbddp.controller.launch.driver_output import DriverOutput, read_input
from nbddp.controller.launch.k8s_api import KubeApi, KubeError
from nbddp.controller.launch.k8s_options import agent_pods
from nbddp.controller.launch.k8s_pods import AgentPods, KubeObject
from nbddp.controller.launch.k8s_states import KubeAnswer
from nbddp.errors import BadOptionError
from nbddp.system import network
from nbddp.wire.launch_specs import Invitation

#: While a pod waits, and later.
_LOOK_S = 1.0
_CALM_LOOK_S = 3.0
#: Events are asked for about so many pods at most: one request for each.
_MAX_ASKED = 4
_DELETE_TRIES = 3
#: Statuses of HTTP that stay as they are, unlike those of a server that is busy.
_NO_RIGHT = (401, 403)
_IN_POD_ENV = "KUBERNETES_SERVICE_HOST"
#: In a pod: its name.
_POD_NAME_ENV = "HOSTNAME"


class Driver:
    """The objects of one start of a pool."""

    def __init__(
        self, api: KubeApi, pods: AgentPods, invitation: Invitation, output: DriverOutput
    ) -> None:
        self._api = api
        self._output = output
        self._pods = pods
        self._invitation = invitation
        self._start_id = f"{invitation.pool_id}-{secrets.token_hex(2)}"
        self._name = k8s_objects.object_name(self._start_id)
        self._selector = k8s_objects.pod_selector(pods.kind, self._start_id)
        self._container = k8s_objects.agent_container(pods.kind)
        self._owner: KubeObject = {}  #: the first object, which owns the others; empty: not made
        self._seen: set[int] = set()  #: nodes that have had a pod
        self._ended: set[int] = set()

    def serve(self) -> None:
        """Serve until the standard input ends.

        Raises:
            KubeError: the API server refuses an object.
        """
        try:
            self._create()
            look_s = _LOOK_S
            while read_input(look_s) != b"":
                look_s = _LOOK_S if self._look() else _CALM_LOOK_S
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SIGKILL ends a wait that is too long
            self._delete()

    def _create(self) -> None:
        objects = k8s_objects.agent_objects(self._pods, self._start_id, self._invitation.text())
        for made in objects:  # one that is refused leaves nothing behind
            self._api.create(made, is_trial=True)
        first, *others = objects
        if notebook := self._notebook_pod():
            first = k8s_objects.owned(first, notebook)
        self._owner = first  # it may be there, also if no answer comes
        try:
            self._owner = {**first, **self._api.create(first)}
        except KubeError as error:
            if error.code:
                self._owner = {}
            raise
        for made in others:
            self._api.create(k8s_objects.owned(made, self._owner))
        self._output.tell_state(f"Kubernetes: {self._owner['kind']} {self._name} is made")

    def _notebook_pod(self) -> KubeObject:
        """Return the pod around the notebook, if it is in the same namespace: all ends with it."""
        if _IN_POD_ENV not in os.environ:
            return {}
        try:
            pod = self._api.read("Pod", os.environ.get(_POD_NAME_ENV, ""))
        except KubeError:
            return {}
        own = [network.split_address(address)[0] for address in self._invitation.addresses]
        if pod is None or pod.get("status", {}).get("podIP") not in own:
            return {}  # another one of this name
        return {"apiVersion": "v1", "kind": "Pod", **pod}

    def _look(self) -> bool:
        """Tell what has become of the pods; return whether one of them still has to come."""
        try:
            pods = k8s_states.latest_by_node(self._api.pods(self._selector))
            states = {node: self._note_pod(node, pod) for node, pod in sorted(pods.items())}
            for node in sorted(self._seen - pods.keys()):
                self._note_end(node, "its pod was deleted")
            self._seen |= pods.keys()
            why = self._note_job() if len(pods) < self._pods.nnodes else ""
        except KubeError as error:
            if error.code in _NO_RIGHT and not self._seen:  # later, the agents do without it
                raise
            self._output.tell_state(str(error))
            return True
        self._output.tell_state(k8s_states.states_text(states, self._pods.nnodes, why))
        return len(pods) < self._pods.nnodes or any(
            state != "Running" for node, state in states.items() if node not in self._ended
        )

    def _note_pod(self, node: int, pod: KubeAnswer) -> str:
        """Note whether a pod has ended, and return how far it has come."""
        name = pod["metadata"]["name"]
        events = []
        if node < _MAX_ASKED and k8s_states.needs_events(pod, self._container):
            events = self._api.events(name)
        log = ""
        if node not in self._ended and k8s_states.has_log(pod, self._container):
            log = self._api.log(name, self._container)
        if how := k8s_states.pod_end(pod, self._container, events, log):
            self._note_end(node, how)
        return k8s_states.pod_state(pod, self._container, events)

    def _note_job(self) -> str:
        """Note whether the maker of the pods has ended, and return why it has not made them all."""
        kind = self._owner["kind"]
        job = self._api.read(kind, self._name)
        if how := k8s_states.job_end(job, kind):
            for node in range(self._pods.nnodes):
                self._note_end(node, how)
        events = self._api.events(k8s_objects.job_name(self._pods.kind, self._start_id))
        return k8s_states.why_no_pod(job or {}, kind, events)

    def _note_end(self, node: int, how: str) -> None:
        if node not in self._ended:
            self._ended.add(node)
            self._output.tell_end(node, how)

    def _delete(self) -> None:
        """Delete the first object, and with it the others."""
        if not self._owner:
            return
        for _ in range(_DELETE_TRIES):
            try:
                self._api.delete(self._owner["kind"], self._name)
            except KubeError:  # the agents end by themselves, and the job is deleted later
                time.sleep(_LOOK_S)
            else:
                return


def main() -> None:
    """Read the invitation, and serve."""
    parser = argparse.ArgumentParser()
    for option in ("--nnodes", "--nproc-per-node"):
        parser.add_argument(option, type=int, required=True)
    for option in ("--image", "--kind", "--device", "--python", "--template", "--namespace"):
        parser.add_argument(option, required=True)
    options = vars(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the objects are deleted
    invitation = Invitation.parse(os.read(sys.stdin.fileno(), 65536))
    output = DriverOutput()
    output.tell_state("Kubernetes: connects to the API server")
    namespace = options.pop("namespace")
    try:
        Driver(KubeApi(namespace), agent_pods(**options), invitation, output).serve()
    except (KubeError, BadOptionError) as error:
        output.tell_failure(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
