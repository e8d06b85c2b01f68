"""The pods that run the agents in a Kubernetes cluster, as the objects that describe them.

Runs in: the notebook's process and the driver of Kubernetes agents. Pure.

    AgentPods --+--> pod_template --> k8s_objects: Job or JobSet, with a Secret and a Service
                +--> k8s_objects: TrainJob, whose TrainingRuntime has the pods
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nbddp.errors import BadOptionError

#: An object of Kubernetes, or a part of one, as its JSON has it.
KubeObject: TypeAlias = dict[str, Any]

#: The container with the agent. One of this name in the user's template is its base.
CONTAINER = "agent"
#: The file with the invitation, from the key of this name in the Secret.
CONNECT_FILE = "connect.json"
_CONNECT_FOLDER = "/run/nbddp"
_CONNECT_VOLUME = "nbddp-connect"
_SHM_VOLUME = "nbddp-shm"
_SHM_FOLDER = "/dev/shm"  # noqa: S108 - of the container
_OWNER_ONLY = 0o400
#: Secrets belong to root. With a group, the user of an image who is not root can read the one of
#: the pod. It is the group of users, which Kubeflow gives to its notebooks.
_GROUP = 100
_GRACE_S = 10
POOL_LABEL = "nbddp/pool"
#: Of a pod in the place of a lost one: the number of its agent, see `driver_report`.
AGENT_LABEL = "nbddp/agent"
_HOST_KEY = "kubernetes.io/hostname"
#: Fields of a pod that nbddp sets, and a template cannot.
_OWN_FIELDS = ("restartPolicy", "subdomain", "containers", "volumes")
_OWN_CONTAINER_FIELDS = ("command", "args")


@dataclass(frozen=True)
class AgentPods:
    """Options of the user about the pods.

    >>> AgentPods(nnodes=2, nproc_per_node=4, image="torch:1", device="cuda").resources()
    {'requests': {'cpu': '4'}, 'limits': {'nvidia.com/gpu': '4'}}
    """

    nnodes: int
    nproc_per_node: int
    image: str
    kind: str = "job"  #: ``job``, ``jobset`` or ``trainjob``
    device: str = "auto"
    python: str = "python"
    #: The user's pod, or a template of one: its metadata and spec.
    template: Mapping[str, Any] = field(default_factory=dict)

    def resources(self) -> KubeObject:
        """Return what a pod asks for: a processor for each rank; with ``cuda`` a GPU, too."""
        count = str(self.nproc_per_node)  # a number is refused: quantities are text
        asked: KubeObject = {"requests": {"cpu": count}}
        if self.device == "cuda":
            asked["limits"] = {"nvidia.com/gpu": count}
        return asked

    def command(self) -> list[str]:
        """Return the command of the container."""
        connect = ["--connect", f"{_CONNECT_FOLDER}/{CONNECT_FILE}"]
        return [self.python, "-P", "-m", "nbddp", "agent", *connect]


def connect_volume(name: str) -> KubeObject:
    """Return the volume with the Secret, which only the owner of its files can read."""
    secret = {"secretName": name, "defaultMode": _OWNER_ONLY}
    return {"name": _CONNECT_VOLUME, "secret": secret}


def connect_mount() -> KubeObject:
    """Return the place of that volume in a container."""
    return {"name": _CONNECT_VOLUME, "mountPath": _CONNECT_FOLDER, "readOnly": True}


def pod_template(pods: AgentPods, name: str, labels: Mapping[str, str]) -> KubeObject:
    """Return the template of the pods: the user's, with the agent.

    Args:
        pods: options of the user. Their template wins over the defaults.
        name: of the objects.
        labels: for the pods.
    """
    metadata, spec = pods.template.get("metadata", {}), pods.template.get("spec", {})
    given = {part: spec.get(part) or [] for part in ("containers", "volumes")}
    if isinstance(spec.get("securityContext"), dict):
        spec = {**spec, "securityContext": {"fsGroup": _GROUP, **spec["securityContext"]}}
    defaults = {
        "terminationGracePeriodSeconds": _GRACE_S,
        "automountServiceAccountToken": False,
        "securityContext": {"fsGroup": _GROUP},
        "affinity": _apart(labels),
    }
    agent, volumes = _agent_container(pods, _named(given["containers"]))
    others = [each for each in given["containers"] if each.get("name") != CONTAINER]
    return {
        "metadata": {
            **{k: v for k, v in metadata.items() if k == "annotations"},
            "labels": {**(metadata.get("labels") or {}), **labels},
        },
        "spec": {
            "restartPolicy": "Never",
            "subdomain": name,
            **{key: value for key, value in (defaults | spec).items() if key not in _OWN_FIELDS},
            "containers": [agent, *others],
            "volumes": [connect_volume(name), *volumes, *given["volumes"]],
        },
    }


def _agent_container(pods: AgentPods, given: KubeObject) -> tuple[KubeObject, list[KubeObject]]:
    """Return the container of the agent, and the volumes that it needs beside the Secret."""
    mounts = given.get("volumeMounts") or []
    own_mounts, volumes = [connect_mount()], []
    if not any(mount.get("mountPath") == _SHM_FOLDER for mount in mounts):
        # The default of 64 MB is too small for the workers of a DataLoader.
        own_mounts.append({"name": _SHM_VOLUME, "mountPath": _SHM_FOLDER})
        volumes.append({"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory"}})
    rest = {k: v for k, v in given.items() if k not in _OWN_CONTAINER_FIELDS}
    agent = {
        "resources": pods.resources(),
        **rest,
        "name": CONTAINER,
        "image": pods.image,
        "command": pods.command(),
        "volumeMounts": [*own_mounts, *mounts],
    }
    return agent, volumes


def _named(containers: list[KubeObject]) -> KubeObject:
    return next((each for each in containers if each.get("name") == CONTAINER), {})


def _apart(labels: Mapping[str, str]) -> KubeObject:
    """Return the wish that each pod of a pool has a node of its own."""
    term = {"topologyKey": _HOST_KEY, "labelSelector": {"matchLabels": dict(labels)}}
    wish = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish}}


def checked_template(content: Any, where: str) -> KubeObject:
    """Check the content of the file of ``--k8s-template``.

    Args:
        content: a Pod, a PodTemplate, or a mapping with ``spec``.
        where: names the file, in messages.

    Returns:
        Its ``metadata`` and ``spec``.

    Raises:
        BadOptionError: it is none of these.

    >>> checked_template({"kind": "Pod", "spec": {"nodeSelector": {"gpu": "a100"}}}, "pod.yaml")
    {'spec': {'nodeSelector': {'gpu': 'a100'}}}
    """
    legal = "legal: a Pod, a PodTemplate, or a mapping with metadata and spec"
    if isinstance(content, dict) and content.get("kind") == "PodTemplate":
        content = content.get("template")
    if not isinstance(content, dict) or content.get("kind", "Pod") != "Pod":
        raise BadOptionError(f"--k8s-template {where} is not a template of pods; {legal}")
    parts = {key: content[key] for key in ("metadata", "spec") if content.get(key) is not None}
    if not parts or not all(isinstance(part, dict) for part in parts.values()):
        raise BadOptionError(f"--k8s-template {where} has no metadata or spec; {legal}")
    for key in ("containers", "volumes"):
        items = parts.get("spec", {}).get(key) or []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise BadOptionError(f"--k8s-template {where}: spec.{key} is not a list of mappings")
    return parts
