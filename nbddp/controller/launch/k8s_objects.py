"""The objects that a pool makes in a Kubernetes cluster.

Runs in: the notebook's process and the driver of Kubernetes agents. Pure.

The first one starts the pods. The others belong to it, so Kubernetes deletes them with it.
"""

from collections.abc import Mapping
from typing import Any

from nbddp.controller.launch.k8s_pods import (
    AGENT_LABEL,
    CONNECT_FILE,
    CONTAINER,
    POOL_LABEL,
    AgentPods,
    KubeObject,
    connect_mount,
    connect_volume,
    pod_template,
)
from nbddp.settings import NODE_ENV

_MANAGED = {"app.kubernetes.io/managed-by": "nbddp"}
#: Seconds for which a job that has ended stays, to be looked at.
_KEPT_S = 300
#: The TrainingRuntime of Kubeflow Trainer, its only job, and the container in it.
_RUNTIME = "torch-distributed"
_RUNTIME_PART = "node"
_PATCH_MANAGER = "nbddp/launcher"


def object_name(start_id: str) -> str:
    """Return the name of all objects of one start of a pool."""
    return f"nbddp-{start_id}"


def pod_selector(kind: str, start_id: str) -> str:
    """Return the selector of the pods of one start of a pool, by labels.

    >>> pod_selector("job", "k3f9")
    'nbddp/pool=k3f9'
    """
    if kind == "trainjob":  # its pods have the labels of the TrainingRuntime
        return f"jobset.sigs.k8s.io/jobset-name={object_name(start_id)}"
    return f"{POOL_LABEL}={start_id}"


def job_name(kind: str, start_id: str) -> str:
    """Return the name of the Job that makes the pods: a JobSet makes one with a name of its own."""
    part = {"job": "", "jobset": f"-{CONTAINER}-0", "trainjob": f"-{_RUNTIME_PART}-0"}[kind]
    return f"{object_name(start_id)}{part}"


def agent_container(kind: str) -> str:
    """Return the name of the container with the agent."""
    return _RUNTIME_PART if kind == "trainjob" else CONTAINER


def agent_objects(pods: AgentPods, start_id: str, secret: str) -> list[KubeObject]:
    """Return the objects in the order in which they are made.

    Args:
        pods: options of the user.
        start_id: names one start of one pool: what the one before it made may still be deleted.
        secret: the invitation, as text.
    """
    name = object_name(start_id)
    labels = {**_MANAGED, POOL_LABEL: start_id}
    given = pods.template.get("metadata", {}).get("labels") or {}  # such as Kueue's queue name
    metadata = {"name": name, "labels": {**given, **labels}}
    made = {"job": _job, "jobset": _jobset, "trainjob": _trainjob}[pods.kind]
    objects = [made(pods, name, metadata)]
    if pods.kind == "job":  # a JobSet makes its Service itself
        objects.append(_service(metadata, {POOL_LABEL: start_id}))
    content = {CONNECT_FILE: secret}
    return [*objects, _head("v1", "Secret", metadata) | {"type": "Opaque", "stringData": content}]


def replacing_name(start_id: str, number: int) -> str:
    """Return the name of the Job with an agent that takes the place of a lost one."""
    return f"{object_name(start_id)}-{number}"


def replacing_job(pods: AgentPods, start_id: str, number: int) -> KubeObject:
    """Return the Job with an agent that takes the place of a lost one.

    It is a Job also where a JobSet or a TrainJob has made the first pods.

    Args:
        pods: options of the user.
        start_id: names the start of the pool.
        number: of the agent.
    """
    labels = {POOL_LABEL: start_id, AGENT_LABEL: str(number)}
    template = pod_template(pods, object_name(start_id), labels)
    agent, *others = template["spec"]["containers"]
    node = {"name": NODE_ENV, "value": str(number % pods.nnodes)}
    agent = {**agent, "env": [*(agent.get("env") or []), node]}
    spec = _job_spec(pods, object_name(start_id)) | {
        "completions": 1,
        "parallelism": 1,
        "template": {**template, "spec": {**template["spec"], "containers": [agent, *others]}},
    }
    metadata = {"name": replacing_name(start_id, number), "labels": {**_MANAGED, **labels}}
    return _head("batch/v1", "Job", metadata) | {"spec": spec}


def owned(made: Mapping[str, Any], owner: Mapping[str, Any]) -> KubeObject:
    """Return an object that Kubernetes deletes with its owner.

    Args:
        made: the object.
        owner: an object of the cluster, in the same namespace.
    """
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [reference]}}


def _head(version: str, kind: str, metadata: KubeObject) -> KubeObject:
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _job(pods: AgentPods, name: str, metadata: KubeObject) -> KubeObject:
    spec = _job_spec(pods, name) | {"ttlSecondsAfterFinished": _KEPT_S}
    return _head("batch/v1", "Job", metadata) | {"spec": spec}


def _job_spec(pods: AgentPods, name: str) -> KubeObject:
    """Return the spec of an Indexed Job.

    A pod that ends is not made again, since its ranks cannot come back into the groups. Without a
    limit for each index, its end would end the pods of all other nodes.
    """
    labels = {POOL_LABEL: name.removeprefix(object_name(""))}
    return {
        "completionMode": "Indexed",
        "completions": pods.nnodes,
        "parallelism": pods.nnodes,
        "backoffLimitPerIndex": 0,
        "template": pod_template(pods, name, labels),
    }


def _jobset(pods: AgentPods, name: str, metadata: KubeObject) -> KubeObject:
    part = {"name": CONTAINER, "replicas": 1, "template": {"spec": _job_spec(pods, name)}}
    spec = {
        "network": {
            "enableDNSHostnames": True,
            "publishNotReadyAddresses": True,
            "subdomain": name,
        },
        "failurePolicy": {"maxRestarts": 0},
        "ttlSecondsAfterFinished": _KEPT_S,
        "replicatedJobs": [part],
    }
    return _head("jobset.x-k8s.io/v1alpha2", "JobSet", metadata) | {"spec": spec}


def _trainjob(pods: AgentPods, name: str, metadata: KubeObject) -> KubeObject:
    container = {"name": _RUNTIME_PART, "volumeMounts": [connect_mount()]}
    pod = {"spec": {"volumes": [connect_volume(name)], "containers": [container]}}
    part = {"name": _RUNTIME_PART, "template": {"spec": {"template": pod}}}
    patch = {"template": {"spec": {"replicatedJobs": [part]}}}
    spec = {
        "runtimeRef": {"name": _RUNTIME},
        "trainer": {
            "image": pods.image,
            "command": pods.command(),
            "numNodes": pods.nnodes,
            "resourcesPerNode": pods.resources(),
        },
        "runtimePatches": [{"manager": _PATCH_MANAGER, "trainingRuntimeSpec": patch}],
    }
    return _head("trainer.kubeflow.org/v1alpha1", "TrainJob", metadata) | {"spec": spec}


def _service(metadata: KubeObject, selector: Mapping[str, str]) -> KubeObject:
    """Return the Service that gives the pods names: ``nbddp-k3f9-0.nbddp-k3f9``."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict(selector),
    }
    return _head("v1", "Service", metadata) | {"spec": spec}
