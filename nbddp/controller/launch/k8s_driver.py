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
from collections.abc import Collection, Iterable
from contextlib import suppress

from nbddp.controller.launch import driver_report, k8s_objects, k8s_states
from nbddp.controller.launch.driver_output import DriverOutput, read_input
from nbddp.controller.launch.k8s_api import KubeApi, KubeError
from nbddp.controller.launch.k8s_options import agent_pods
from nbddp.controller.launch.k8s_pods import CONTAINER, AgentPods, KubeObject
from nbddp.controller.launch.k8s_states import KubeAnswer
from nbddp.errors import BadOptionError
from nbddp.system import network
from nbddp.wire.invitation import Invitation

#: While a pod waits, and later.
_LOOK_S = 1.0
_CALM_LOOK_S = 3.0
#: Pods for whose events we ask, at most: one request for each.
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
        self._numbers = list(range(pods.nnodes))  #: of the agents, by node
        self._seen: set[int] = set()  #: numbers of agents that have had a pod
        self._ended: set[int] = set()

    def serve(self) -> None:
        """Serve until the standard input ends.

        Raises:
            KubeError: the API server refuses an object.
        """
        try:
            self._create()
            look_s = _LOOK_S
            while (asked := read_input(look_s)) != b"":
                self._follow((asked or b"").decode())
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

    def _follow(self, asked: str) -> None:
        """Make or delete Jobs with agents in the places of lost ones."""
        for is_start, number in driver_report.read_requests(asked):
            node = number % self._pods.nnodes
            self._delete_replacing(self._numbers[node])
            if is_start:
                self._numbers[node] = number
                made = k8s_objects.replacing_job(self._pods, self._start_id, number)
                try:
                    self._api.create(k8s_objects.owned(made, self._owner))
                except KubeError as error:
                    self._note_end(number, str(error))

    def _delete_replacing(self, number: int) -> None:
        """Delete the Job of an agent, if it has one of its own."""
        if number >= self._pods.nnodes:
            with suppress(KubeError):  # it goes with the others
                self._api.delete("Job", k8s_objects.replacing_name(self._start_id, number))

    def _look(self) -> bool:
        """Tell what has become of the pods; return whether one of them still has to come."""
        try:
            pods = k8s_states.latest_by_agent(self._read_pods())
            states = {number: self._note_pod(number, pod) for number, pod in sorted(pods.items())}
            for number in sorted(self._seen - pods.keys()):
                self._note_end(number, "its pod was deleted")
            self._seen |= pods.keys()
            why = self._note_jobs({number for number in self._numbers if number not in pods})
        except KubeError as error:
            if error.code in _NO_RIGHT and not self._seen:  # later, the agents do without it
                raise
            self._output.tell_state(str(error))
            return True
        by_node = {node: states[n] for node, n in enumerate(self._numbers) if n in states}
        self._output.tell_state(k8s_states.states_text(by_node, self._pods.nnodes, why))
        return len(by_node) < self._pods.nnodes or any(
            state != "Running" and self._numbers[node] not in self._ended
            for node, state in by_node.items()
        )

    def _read_pods(self) -> list[KubeObject]:
        pods = self._api.pods(self._selector)
        own = k8s_objects.pod_selector("job", self._start_id)
        if own != self._selector and max(self._numbers) >= self._pods.nnodes:
            pods += self._api.pods(own)
        return pods

    def _note_pod(self, number: int, pod: KubeAnswer) -> str:
        """Note whether a pod has ended, and return how far it has come."""
        name, nnodes = pod["metadata"]["name"], self._pods.nnodes
        container = self._container if number < nnodes else CONTAINER
        events = []
        if number % nnodes < _MAX_ASKED and k8s_states.needs_events(pod, container):
            events = self._api.events(name)
        log = ""
        if number not in self._ended and k8s_states.has_log(pod, container):
            log = self._api.log(name, container)
        if how := k8s_states.pod_end(pod, container, events, log):
            self._note_end(number, how)
        return k8s_states.pod_state(pod, container, events)

    def _note_jobs(self, missing: Collection[int]) -> str:
        """Note whether the makers of pods have ended, and return why they have not made them all.

        Args:
            missing: numbers of agents that have no pod.
        """
        first = [number for number in range(self._pods.nnodes) if number in missing]
        why = ""
        if first:
            job = k8s_objects.job_name(self._pods.kind, self._start_id)
            numbers = range(self._pods.nnodes)
            why = self._note_job(self._owner["kind"], self._name, job, numbers)
        for number in sorted(set(missing).difference(first)):
            name = k8s_objects.replacing_name(self._start_id, number)
            why = self._note_job("Job", name, name, [number]) or why
        return why

    def _note_job(self, kind: str, name: str, job_name: str, numbers: Iterable[int]) -> str:
        """Note whether the maker of some pods has ended, and return why it has not made them.

        Args:
            kind: of the maker.
            name: of the maker.
            job_name: of the Job, which may be a part of it.
            numbers: of the agents in its pods.
        """
        job = self._api.read(kind, name)
        if how := k8s_states.job_end(job, kind):
            for number in numbers:
                self._note_end(number, how)
        return k8s_states.why_no_pod(job or {}, kind, self._api.events(job_name))

    def _note_end(self, number: int, how: str) -> None:
        if number not in self._ended:
            self._ended.add(number)
            self._output.tell_end(number, how)

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
