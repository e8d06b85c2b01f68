"""The states of the pods of a pool, told from the answers of the API server.

Runs in: the driver of Kubernetes agents. Pure: it reads the JSON of pods, jobs and events.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from nbddp.controller.launch.k8s_pods import AGENT_LABEL
from nbddp.wire.rank_set import RankSet

#: An object as the API server answers it.
KubeAnswer: TypeAlias = Mapping[str, Any]

_INDEX = "batch.kubernetes.io/job-completion-index"
#: Reasons to wait that do not pass by themselves, and what the user can do.
_IMAGE_NEXT = (
    "Next: check --image, and that the cluster may pull it: a private registry needs "
    "imagePullSecrets in --k8s-template"
)
_CONFIG_NEXT = "Next: correct the --k8s-template; `kubectl describe pod {pod}` says more"
_HOPELESS = {
    "ImagePullBackOff": _IMAGE_NEXT,
    "InvalidImageName": _IMAGE_NEXT,
    "ErrImageNeverPull": _IMAGE_NEXT,
    "CreateContainerConfigError": _CONFIG_NEXT,
    "CreateContainerError": _CONFIG_NEXT,
    "RunContainerError": _CONFIG_NEXT,
}
#: A container that cannot begin: its command is not there.
_START_REASONS = ("StartError", "ContainerCannotRun")
_WORDS = {
    "Pulling": "the image is pulled",
    "Pulled": "the image is there, the container is made",
    "ContainerCreating": "the container is made",
    "PodInitializing": "the init containers run",
}
#: The scheduler goes on with why it evicts no other pod.
_ASIDE = " preemption: "
_MAX_TEXT = 300


def node_of(pod: KubeAnswer) -> int:
    """Return the number of the node that a pod of an Indexed Job has; -1: none yet.

    >>> node_of({"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": "1"}}})
    1
    """
    metadata = pod.get("metadata", {})
    for part in ("annotations", "labels"):
        index = (metadata.get(part) or {}).get(_INDEX, "")
        if index.isdecimal():
            return int(index)
    return -1


def agent_of(pod: KubeAnswer) -> int:
    """Return the number of the agent in a pod, see `driver_report`; -1: none yet.

    >>> agent_of({"metadata": {"labels": {"nbddp/agent": "3"}}})
    3
    """
    number = (pod.get("metadata", {}).get("labels") or {}).get(AGENT_LABEL, "")
    return int(number) if number.isdecimal() else node_of(pod)


def latest_by_agent(pods: Iterable[KubeAnswer]) -> dict[int, KubeAnswer]:
    """Return the youngest pod of each agent, by its number."""
    latest: dict[int, KubeAnswer] = {}
    for pod in sorted(pods, key=_made_at):
        if (number := agent_of(pod)) >= 0:
            latest[number] = pod
    return latest


def _made_at(pod: KubeAnswer) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")


def _status(pod: KubeAnswer) -> KubeAnswer:
    status: KubeAnswer = pod.get("status") or {}
    return status


def _container(pod: KubeAnswer, name: str) -> KubeAnswer:
    """Return the state of a container: ``{"waiting": {...}}``, or running, or terminated."""
    statuses = _status(pod).get("containerStatuses") or ()
    states = [status.get("state") for status in statuses if status.get("name") == name]
    return (states and states[0]) or {}


def _condition(answer: KubeAnswer, kind: str, value: str) -> KubeAnswer:
    for condition in _status(answer).get("conditions") or ():
        if (condition.get("type"), condition.get("status")) == (kind, value):
            return cast("KubeAnswer", condition)
    return {}


def _said(part: KubeAnswer) -> str:
    """Return ``Reason: message`` of a part that has these two."""
    message = " ".join(str(part.get("message") or "").partition(_ASIDE)[0].split())
    texts = [str(part.get("reason") or ""), message]
    text = ": ".join(text for text in texts if text)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."


def pod_state(pod: KubeAnswer, container: str, events: Sequence[KubeAnswer] = ()) -> str:
    """Say how far a pod has come.

    Args:
        pod: as the API server has it.
        container: the name of the agent's container in it.
        events: about the pod, in order.

    >>> pod_state({"status": {"phase": "Running"}}, "agent")
    'Running'
    """
    phase = str(_status(pod).get("phase") or "Pending")
    if phase != "Pending":
        return phase
    if refused := _condition(pod, "PodScheduled", "False"):
        return f"{phase}, {_said(refused)}"
    waiting = _container(pod, container).get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    last = events[-1] if events else {}
    if reason in ("", "ContainerCreating", "PodInitializing"):
        if last.get("type") == "Warning":
            return f"{phase}, {_said(last)}"
        known = _WORDS.get(str(last.get("reason")), "") or _WORDS.get(reason, "")
        return f"{phase}, {known}" if known else phase
    return f"{phase}, {_said(waiting)}"


def pod_end(
    pod: KubeAnswer, container: str, events: Sequence[KubeAnswer] = (), log: str = ""
) -> str:
    """Say why a pod has ended or cannot start; empty: it runs, or may still do so.

    Args:
        pod: as the API server has it.
        container: the name of the agent's container in it.
        events: about the pod, in order.
        log: last lines of the container.
    """
    name = pod["metadata"]["name"]
    state = _container(pod, container)
    waiting = state.get("waiting") or {}
    if next_step := _HOPELESS.get(str(waiting.get("reason"))):
        why = [text for text in (_said(waiting), _failure(events)) if text]
        return f"its pod {name} cannot start: {'; '.join(why)}. {next_step.format(pod=name)}"
    phase, ended = _status(pod).get("phase"), state.get("terminated") or {}
    if phase not in ("Failed", "Succeeded") and not ended:
        return ""
    # Kubernetes' own reasons, such as an eviction, explain more than the exit code.
    reasons = [_said(_status(pod)), _said(_condition(pod, "DisruptionTarget", "True"))]
    how = next((reason for reason in reasons if reason), "")
    if ended.get("reason") in _START_REASONS:
        return f"its pod {name} cannot start: {_said(ended)}. Next: --python PATH of the image"
    if ended:
        code = f"its container exited with code {ended.get('exitCode')}"
        how = "; ".join(text for text in (how, code + _oom(ended)) if text)
    said = f" and said: {log.strip()}" if log.strip() and not how.startswith("Evicted") else ""
    return f"its pod {name} has ended ({phase}): {how or 'no reason is given'}{said}"


def _oom(ended: KubeAnswer) -> str:
    if ended.get("reason") != "OOMKilled":
        return ""
    return " (OOMKilled: it had more memory than its limit, which --k8s-template can raise)"


def has_log(pod: KubeAnswer, container: str) -> bool:
    """Return whether the container has run and ended by itself."""
    ended = _container(pod, container).get("terminated") or {}
    return bool(ended) and ended.get("reason") not in _START_REASONS


def needs_events(pod: KubeAnswer, container: str) -> bool:
    """Return whether only events say what a pod waits for."""
    is_placed = not _condition(pod, "PodScheduled", "False")
    is_pending = _status(pod).get("phase", "Pending") == "Pending"
    return is_pending and is_placed and "running" not in _container(pod, container)


def _failure(events: Sequence[KubeAnswer]) -> str:
    """Return the last message of a failed try to pull the image, if there is one."""
    failed = [each for each in events if each.get("reason") == "Failed"]
    texts = [_said({"message": each.get("message")}) for each in failed]
    pulls = [text for text in texts if "pull" in text]
    return pulls[-1] if pulls else ""


def job_end(job: KubeAnswer | None, kind: str) -> str:
    """Say why the object that makes the pods has ended; empty: it has not.

    Args:
        job: as the API server has it; None: it is gone.
        kind: the name of its kind, such as ``Job``.
    """
    if job is None:
        return f"its {kind} was deleted"
    failed = _condition(job, "Failed", "True")
    return f"its {kind} has failed: {_said(failed)}" if failed else ""


def why_no_pod(job: KubeAnswer, kind: str, events: Sequence[KubeAnswer]) -> str:
    """Say why an object has not made all of its pods; empty: it is not known.

    Args:
        job: the object as the API server has it.
        kind: the name of its kind.
        events: about the Job that makes the pods, in order.
    """
    if (job.get("spec") or {}).get("suspend"):
        return f"its {kind} is suspended, as by a queue"
    refusals = [each for each in events if each.get("type") == "Warning"]
    return _said(refusals[-1]) if refusals else ""


def states_text(states: Mapping[int, str], nnodes: int, why_missing: str) -> str:
    """Say how far all pods have come, equal ones together.

    Args:
        states: of the pods that there are, by node.
        nnodes: number of pods that there should be.
        why_missing: why there are not as many; empty: it is not known.

    >>> states_text({0: "Running", 1: "Pending", 2: "Pending"}, 3, "")
    'Kubernetes: pod 0: Running; pods 1-2: Pending'
    """
    nodes_by_state: dict[str, list[int]] = {}
    for node in sorted(states):
        nodes_by_state.setdefault(states[node], []).append(node)
    if missing := set(range(nnodes)) - states.keys():
        why = f": {why_missing}" if why_missing else ""
        nodes_by_state[f"not made yet{why}"] = sorted(missing)
    texts = [
        f"pod{'s' if len(nodes) > 1 else ''} {RankSet.of(nodes)}: {state}"
        for state, nodes in nodes_by_state.items()
    ]
    return f"Kubernetes: {'; '.join(texts)}"
