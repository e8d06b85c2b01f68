"""What is told of pods, by what an API server says of them."""

from typing import Any

import pytest

from nbddp.controller.launch import k8s_states
from nbddp.controller.launch.k8s_states import pod_end, pod_state, states_text

_INDEX = "batch.kubernetes.io/job-completion-index"


def pod(phase: str, *, state: Any = None, **status: Any) -> dict[str, Any]:
    """A pod as the API server has it, of node 0."""
    if state is not None:
        other = {"name": "sidecar", "state": {"running": {}}}
        status["containerStatuses"] = [other, {"name": "agent", "state": state}]
    metadata = {"name": "nbddp-a-0", "annotations": {_INDEX: "0"}}
    return {"metadata": metadata, "status": {"phase": phase, **status}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def event(reason: str, message: str = "", kind: str = "Normal") -> dict[str, Any]:
    return {"type": kind, "reason": reason, "message": message}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are "
    "available: 3 No preemption victims found for incoming pod.",
}
DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
    "message": "default-scheduler: preempting to accommodate a higher priority pod",
}


@pytest.mark.parametrize(
    ("given", "events", "text"),
    [
        (pod("Pending"), [], "Pending"),
        (
            pod("Pending", conditions=[UNSCHEDULABLE]),
            [],
            "Pending, Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        ),
        (pod("Pending", state=waiting("ContainerCreating")), [], "Pending, the container is made"),
        (
            pod("Pending", state=waiting("ContainerCreating")),
            [event("Scheduled"), event("Pulling")],
            "Pending, the image is pulled",
        ),
        (
            pod("Pending", state=waiting("ContainerCreating")),
            [event("Pulling"), event("Pulled")],
            "Pending, the image is there, the container is made",
        ),
        (
            pod("Pending", state=waiting("ContainerCreating")),
            [event("FailedMount", 'secret "a" not found', "Warning")],
            'Pending, FailedMount: secret "a" not found',
        ),
        (pod("Pending", state=waiting("PodInitializing")), [], "Pending, the init containers run"),
        (
            pod("Pending", state=waiting("ErrImagePull", "no such\n host")),
            [],
            "Pending, ErrImagePull: no such host",
        ),
        (pod("Running", state={"running": {}}), [], "Running"),
        (pod("Failed", state=ended(1)), [], "Failed"),
    ],
)
def test_how_far_a_pod_has_come(given: dict[str, Any], events: list[Any], text: str):
    assert pod_state(given, "agent", events) == text


@pytest.mark.parametrize(
    "given",
    [
        pod("Pending"),
        pod("Pending", conditions=[UNSCHEDULABLE]),
        pod("Pending", state=waiting("ErrImagePull", "a try has failed")),
        pod("Running", state={"running": {}}),
        pod("Running", state={"running": {}}, conditions=[DISRUPTED]),
    ],
)
def test_a_pod_that_may_still_come(given: dict[str, Any]):
    assert pod_end(given, "agent") == ""


_PULL = 'Failed to pull image "i": not found'
_IMAGE_NEXT = (
    "Next: check --image, and that the cluster may pull it: a private registry needs "
    "imagePullSecrets in --k8s-template"
)


@pytest.mark.parametrize(
    ("given", "events", "log", "text"),
    [
        (
            pod("Pending", state=waiting("ImagePullBackOff", 'Back-off pulling image "i"')),
            [event("Failed", _PULL, "Warning"), event("Failed", "Error: ImagePullBackOff")],
            "",
            f'cannot start: ImagePullBackOff: Back-off pulling image "i"; {_PULL}. {_IMAGE_NEXT}',
        ),
        (
            pod("Pending", state=waiting("InvalidImageName")),
            [],
            "",
            f"cannot start: InvalidImageName. {_IMAGE_NEXT}",
        ),
        (
            pod("Pending", state=waiting("CreateContainerConfigError", 'secret "s" not found')),
            [],
            "",
            'cannot start: CreateContainerConfigError: secret "s" not found. Next: correct the '
            "--k8s-template; `kubectl describe pod nbddp-a-0` says more",
        ),
        (
            pod("Failed", state=ended(128, "StartError", "python: not found")),
            [],
            "",
            "cannot start: StartError: python: not found. Next: --python PATH of the image",
        ),
        (
            pod("Failed", state=ended(1)),
            [],
            "nbddp: cannot reach\n",
            "has ended (Failed): its container exited with code 1 and said: nbddp: cannot reach",
        ),
        (
            pod("Failed", state=ended(137, "OOMKilled")),
            [],
            "",
            "has ended (Failed): its container exited with code 137 (OOMKilled: it had more "
            "memory than its limit, which --k8s-template can raise)",
        ),
        (
            pod("Failed", reason="Evicted", message="The node was low on resource: memory."),
            [],
            "",
            "has ended (Failed): Evicted: The node was low on resource: memory.",
        ),
        (
            pod("Failed", state=ended(143), conditions=[DISRUPTED]),
            [],
            "",
            "has ended (Failed): PreemptionByScheduler: default-scheduler: preempting to "
            "accommodate a higher priority pod; its container exited with code 143",
        ),
        (pod("Failed"), [], "", "has ended (Failed): no reason is given"),
        (
            pod("Succeeded", state=ended(0, "Completed")),
            [],
            "",
            "has ended (Succeeded): its container exited with code 0",
        ),
    ],
)
def test_why_a_pod_has_ended(given: dict[str, Any], events: list[Any], log: str, text: str):
    assert pod_end(given, "agent", events, log) == f"its pod nbddp-a-0 {text}"


def test_the_youngest_pod_of_a_node_is_the_one():
    def made(name: str, index: str, at: str) -> dict[str, Any]:
        labels = {_INDEX: index} if index else {}
        return {"metadata": {"name": name, "labels": labels, "creationTimestamp": at}}

    pods = [
        made("b", "0", "2026-01-01T00:00:02Z"),
        made("a", "0", "2026-01-01T00:00:01Z"),
        made("c", "1", "2026-01-01T00:00:01Z"),
        made("other", "", "2026-01-01T00:00:03Z"),
    ]
    latest = k8s_states.latest_by_agent(pods)
    assert {node: pod["metadata"]["name"] for node, pod in latest.items()} == {0: "b", 1: "c"}


def test_events_are_asked_for_where_only_they_say_more():
    def needs(given: dict[str, Any]) -> bool:
        return k8s_states.needs_events(given, "agent")

    assert needs(pod("Pending"))
    assert needs(pod("Pending", state=waiting("ContainerCreating")))
    assert not needs(pod("Pending", conditions=[UNSCHEDULABLE]))
    assert not needs(pod("Running", state={"running": {}}))
    assert not needs(pod("Failed", state=ended(1)))


def test_a_container_that_ran_has_a_log():
    assert k8s_states.has_log(pod("Failed", state=ended(1)), "agent")
    assert not k8s_states.has_log(pod("Failed", state=ended(128, "StartError")), "agent")
    assert not k8s_states.has_log(pod("Running", state={"running": {}}), "agent")


def test_the_end_of_the_object_that_makes_the_pods():
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "late"}
    assert k8s_states.job_end(None, "JobSet") == "its JobSet was deleted"
    assert k8s_states.job_end({"status": {}}, "Job") == ""
    text = "its Job has failed: DeadlineExceeded: late"
    assert k8s_states.job_end({"status": {"conditions": [failed]}}, "Job") == text


def test_equal_states_are_told_once():
    states = {0: "Running", 1: "Pending", 2: "Running", 3: "Running"}
    assert states_text(states, 4, "") == "Kubernetes: pods 0,2-3: Running; pod 1: Pending"


def test_pods_that_are_not_made_yet():
    refused = event("FailedCreate", "exceeded quota", "Warning")
    why = k8s_states.why_no_pod({}, "Job", [event("SuccessfulCreate"), refused])
    assert states_text({0: "Running"}, 3, why) == (
        "Kubernetes: pod 0: Running; pods 1-2: not made yet: FailedCreate: exceeded quota"
    )
    assert states_text({}, 1, "") == "Kubernetes: pod 0: not made yet"
    suspended = k8s_states.why_no_pod({"spec": {"suspend": True}}, "Job", [refused])
    assert suspended == "its Job is suspended, as by a queue"


def test_a_long_message_is_cut():
    text = pod_state(pod("Pending", state=waiting("ErrImagePull", "x" * 900)), "agent")
    assert len(text) < 330
    assert text.endswith("x ...")
