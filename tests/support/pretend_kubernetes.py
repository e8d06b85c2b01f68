"""A pretend API server: the part of Kubernetes that `--launcher k8s` uses, with pods as processes.

It makes the pods of Jobs, JobSets and TrainJobs, and runs their commands, each as the first process
of a PID namespace where this machine allows that. It deletes objects with their owner. It has
neither a scheduler nor images nor accounts: `Scene` says what those do. So it tests the engine, and
says nothing about a real cluster.
"""

import base64
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

KubeObject: TypeAlias = dict[str, Any]

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
_KINDS = {"jobs": "Job", "jobsets": "JobSet", "trainjobs": "TrainJob"}
_INDEX = "batch.kubernetes.io/job-completion-index"
_SCHEMAS = "1.34"
_END_S = 20.0
_KILLED = 128 + signal.SIGKILL
_PATH_WORDS = "/usr/local/bin:/usr/bin:/bin"


def reason_to_skip() -> str:
    """Why pods cannot be made here; empty: they can."""
    if importlib.util.find_spec("kubernetes") is None:
        return "the client library of Kubernetes is not installed: pip install 'nbddp[k8s]'"
    return ""


def _namespace_words() -> list[str]:
    """The command that makes a PID namespace; empty where it is not allowed."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None:
        return []
    trial = subprocess.run([*words, "true"], capture_output=True, check=False)
    return [] if trial.returncode else words


@dataclass
class Scene:
    """What the cluster around the API server does."""

    #: Status of the pod of each node, in place of that of its process, which is not started.
    status_by_node: dict[int, KubeObject] = field(default_factory=dict)
    #: Verb and resource of requests that are forbidden: ("create", "secrets").
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    #: Events by the name of an object, `NODE` for the pod of a node.
    events_by_node: dict[int, list[KubeObject]] = field(default_factory=dict)
    job_events: list[KubeObject] = field(default_factory=list)
    #: Kinds that the cluster knows beside those that each cluster has.
    installed: set[str] = field(default_factory=lambda: {"jobsets", "trainjobs"})
    #: No pod is made, as without quota.
    makes_pods: bool = True


class Pod:
    """A pod, and its process if it has one.

    Args:
        name: of the pod.
        node: its index.
        labels: of the pod.
        owner: uid of the object that made it.
    """

    def __init__(self, name: str, node: int, labels: KubeObject, owner: str) -> None:
        self.node = node
        self.owner = owner
        self.container = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._is_killed = False  # `unshare` has an exit code of its own then
        self.log = Path()
        self.metadata: KubeObject = {
            "name": name,
            "labels": labels,
            "annotations": {_INDEX: str(node)},
        }

    def status(self) -> KubeObject:
        """Its status as a kubelet tells it."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return self._status("Running", {"running": {}})
        code = _KILLED if self._is_killed else code
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error"}
        return self._status("Failed" if code else "Succeeded", {"terminated": ended})

    def _status(self, phase: str, state: KubeObject) -> KubeObject:
        statuses = [{"name": self.container, "state": state}]
        return {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": statuses}

    def end(self, number: int) -> None:
        """Send a signal to the first process of the pod, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self._is_killed = number == signal.SIGKILL
            for pid in _first_processes(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)


def _first_processes(pid: int) -> list[int]:
    """The child of `unshare`, which is process 1 of the pod; else the process itself."""
    if Path(f"/proc/{pid}/comm").read_text().strip() != "unshare":
        return [pid]
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class PretendKubernetes:
    """The API server, with its pods.

    Args:
        folder: for the files of the pods.
        env: of all containers, as if it was in their image.
    """

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.scene = Scene()
        self.requests: list[str] = []
        self.objects: dict[tuple[str, str], KubeObject] = {}
        self.pods: dict[str, Pod] = {}
        self._all_pods: list[Pod] = []  # with those that were deleted
        self._folder = folder
        self._env = env
        self._lock = threading.RLock()
        self._uids = count(1)
        self._unshare = _namespace_words()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._config()))

    def _config(self) -> KubeObject:
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [
                {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}
            ],
            "current-context": "x",
        }

    def pod(self, node: int) -> Pod:
        """The pod of a node."""
        return next(pod for pod in self.pods.values() if pod.node == node)

    def delete_pod(self, node: int) -> None:
        """Delete a pod, as `kubectl delete pod --force` does."""
        with self._lock:
            pod = self.pod(node)
            del self.pods[pod.metadata["name"]]
        pod.end(signal.SIGKILL)

    def close(self) -> None:
        """End the server and all processes."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for pod in self._all_pods:
            pod.end(signal.SIGKILL)
            if pod.process is not None:
                pod.process.wait(_END_S)

    # --- requests ------------------------------------------------------------------------------

    def answer(self, verb: str, url: str, body: KubeObject) -> tuple[int, KubeObject | str]:
        """The status and the content of an answer."""
        split = urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        match = _PATH.fullmatch(split.path)
        if match is None:
            return 404, "404 page not found"
        plural, name = match["plural"], match["name"] or ""
        word = {"POST": "create", "DELETE": "delete"}.get(verb, "get" if name else "list")
        resource = f"{plural}{match['log'] or ''}"
        dry = "?dryRun" if "dryRun" in query else ""
        with self._lock:
            self.requests.append(f"{word} {resource}{dry}")
            if (word, resource) in self.scene.forbidden:
                return self._forbidden(word, resource, match)
            if plural in ("jobsets", "trainjobs") and plural not in self.scene.installed:
                return 404, "404 page not found"
            answers: dict[str, Callable[[], tuple[int, KubeObject | str]]] = {
                "create": lambda: self._create(plural, body, is_trial=bool(dry)),
                "delete": lambda: self._delete(plural, name, str(body)),
                "list": lambda: (200, {"items": self._list(plural, query)}),
                "get": lambda: self._get(plural, name, is_log=bool(match["log"])),
            }
            return answers[word]()

    def _forbidden(self, word: str, resource: str, match: re.Match[str]) -> tuple[int, KubeObject]:
        message = (
            f'{resource}.{match["group"] or ""} is forbidden: User "jo" cannot {word} resource '
            f'"{resource}" in API group "{match["group"] or ""}" in the namespace '
            f'"{match["namespace"]}"'
        )
        return _failure(403, "Forbidden", message)

    def _create(self, plural: str, made: KubeObject, *, is_trial: bool) -> tuple[int, KubeObject]:
        if reason := _invalid(made):
            return _failure(422, "Invalid", reason)
        name = made["metadata"]["name"]
        if is_trial:
            return 201, made
        if (plural, name) in self.objects:
            return _failure(409, "AlreadyExists", f'{plural} "{name}" already exists')
        made["metadata"]["uid"] = f"uid-{next(self._uids)}"
        self.objects[plural, name] = made
        self._make_pods()
        return 201, made

    def _get(self, plural: str, name: str, *, is_log: bool) -> tuple[int, KubeObject | str]:
        if is_log:
            return 200, self.pods[name].log.read_text()
        if plural == "pods" and name in self.pods:
            return 200, self._pod_object(self.pods[name])
        if (plural, name) in self.objects:
            return 200, self.objects[plural, name]
        return _failure(404, "NotFound", f'{plural} "{name}" not found', name)

    def _list(self, plural: str, query: dict[str, str]) -> list[KubeObject]:
        if plural == "events":
            name = query["fieldSelector"].partition("=")[2]
            if name in self.pods:
                return self.scene.events_by_node.get(self.pods[name].node, [])
            return self.scene.job_events
        key, _, value = query["labelSelector"].partition("=")
        return [
            self._pod_object(pod)
            for pod in self.pods.values()
            if pod.metadata["labels"].get(key) == value
        ]

    def _pod_object(self, pod: Pod) -> KubeObject:
        status = self.scene.status_by_node.get(pod.node) or pod.status()
        return {"metadata": pod.metadata, "status": status}

    def _delete(self, plural: str, name: str, options: str) -> tuple[int, KubeObject]:
        owner = self.objects.pop((plural, name), None)
        if owner is None:
            return _failure(404, "NotFound", f'{plural} "{name}" not found', name)
        uids = {owner["metadata"]["uid"]}
        for key, made in list(self.objects.items()):
            owners = {each["uid"] for each in made["metadata"].get("ownerReferences", [])}
            if not uids.isdisjoint(owners):
                uids.add(self.objects.pop(key)["metadata"]["uid"])
        if "Background" in options:
            for pod in [pod for pod in self.pods.values() if pod.owner in uids]:
                del self.pods[pod.metadata["name"]]
                pod.end(signal.SIGTERM)
        return 200, {"status": "Success"}

    # --- pods ----------------------------------------------------------------------------------

    def _make_pods(self) -> None:
        """Make the pods of jobs whose Secret is there."""
        for (plural, name), made in self.objects.items():
            if plural not in _KINDS or not self.scene.makes_pods:
                continue
            nodes, template, extra = _pods_of(plural, made)
            for node in range(nodes):
                pod_name = f"{name}-{node}"
                secrets = [v["secret"] for v in template["spec"]["volumes"] if "secret" in v]
                is_there = all(("secrets", each["secretName"]) in self.objects for each in secrets)
                if pod_name in self.pods or not is_there:
                    continue
                labels = {**template["metadata"].get("labels", {}), **extra}
                pod = Pod(pod_name, node, labels, made["metadata"]["uid"])
                if node not in self.scene.status_by_node:
                    self._run(pod, template["spec"])
                self.pods[pod_name] = pod
                self._all_pods.append(pod)

    def _run(self, pod: Pod, spec: KubeObject) -> None:
        """Run the command of the first container, with its Secrets as files."""
        container = spec["containers"][0]
        pod.container = container["name"]
        root = self._folder / str(pod.metadata["name"])
        root.mkdir()
        words = list(container["command"])
        paths = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        for volume in spec["volumes"]:
            if "secret" in volume:
                path = paths[volume["name"]]
                place = self._mount(root, path, volume["secret"])
                words = [word.replace(path, str(place)) for word in words]
        env = {entry["name"]: entry["value"] for entry in container.get("env", [])}
        pod.log = root / "log"
        with pod.log.open("wb") as log:
            pod.process = subprocess.Popen(
                [*self._unshare, *words],
                env={
                    "PATH": _PATH_WORDS,
                    "JOB_COMPLETION_INDEX": str(pod.node),
                    **self._env,
                    **env,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _mount(self, root: Path, path: str, volume: KubeObject) -> Path:
        """Write a Secret to files with the mode that its volume asks for."""
        secret = self.objects["secrets", volume["secretName"]]
        place = root / path.strip("/")
        place.mkdir(parents=True)
        values = {key: base64.b64decode(data) for key, data in secret.get("data", {}).items()}
        values |= {key: text.encode() for key, text in secret.get("stringData", {}).items()}
        for key, value in values.items():
            flags = os.O_WRONLY | os.O_CREAT
            with os.fdopen(os.open(place / key, flags, volume["defaultMode"]), "wb") as file:
                file.write(value)
        return place


def _pods_of(plural: str, made: KubeObject) -> tuple[int, KubeObject, KubeObject]:
    """The number of pods of an object, their template, and labels that the controller adds."""
    spec = made["spec"]
    owner = {"jobset.sigs.k8s.io/jobset-name": made["metadata"]["name"]}
    if plural == "jobs":
        return spec["completions"], spec["template"], {"job-name": made["metadata"]["name"]}
    if plural == "jobsets":
        job = spec["replicatedJobs"][0]["template"]["spec"]
        return job["completions"], job["template"], owner
    patch = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    pod = patch["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    trainer = spec["trainer"]
    container = {**pod["containers"][0], "command": trainer["command"], "image": trainer["image"]}
    template = {"metadata": {}, "spec": {**pod, "containers": [container]}}
    return trainer["numNodes"], template, owner


def _invalid(made: KubeObject) -> str:
    """What is wrong with an object by its schema; empty: nothing, or there is no schema."""
    if importlib.util.find_spec("kubernetes_validate") is None or made["kind"] in (
        "JobSet",
        "TrainJob",
    ):
        return ""
    import kubernetes_validate

    try:
        kubernetes_validate.validate(made, _SCHEMAS, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{made['kind']}: {'.'.join(map(str, error.path))}: {error.message}"
    return ""


def _failure(code: int, reason: str, message: str, name: str = "") -> tuple[int, KubeObject]:
    content = {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
    return code, {**content, "message": message, "details": {"name": name}}


def _handler(kube: PretendKubernetes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size) or b"{}")
            if self.command == "DELETE":  # the policy may be in the query, too
                body = {**body, "query": self.path}
            code, content = kube.answer(self.command, self.path, body)
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(code)
            kind = "text/plain" if isinstance(content, str) else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - names of http.server

    return Handler


@contextmanager
def pretend_kubernetes(folder: Path) -> Iterator[PretendKubernetes]:
    """An API server whose containers have this very nbddp."""
    made = PretendKubernetes(folder, {"PYTHONPATH": str(Path(__file__).parents[2])})
    try:
        yield made
    finally:
        made.close()


#: The interpreter in the image.
PYTHON = sys.executable
