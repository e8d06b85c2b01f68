"""The API server of a Kubernetes cluster, as far as agents in pods need it.

Runs in: the driver of Kubernetes agents. The client library finds the cluster: the kubeconfig of
the user, else the service account of the pod around the notebook.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from nbddp.controller.launch.k8s_pods import KubeObject
from nbddp.settings import AGENT_SAYS

#: Seconds to connect, and between bytes of an answer.
_TIMEOUT_S = (5.0, 15.0)
_LOG_LINES = 20
_LAST_LINES = 8
_CRDS = {
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "TrainJob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
}
_INSTALL = {"JobSet": "JobSet", "TrainJob": "Kubeflow Trainer 2.2 or newer"}
_DEFAULT_NAMESPACE = "default"
#: In each pod with a service account.
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NOT_FOUND = 404


class KubeError(Exception):
    """The API server refuses a request, or does not answer; the text says what to do.

    Args:
        text: for the user.
        code: the HTTP status; 0: there was no answer.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class KubeApi:
    """Requests about one namespace.

    Args:
        namespace: of the objects; empty: that of the configuration.

    Raises:
        KubeError: there is no configuration.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = _load(namespace)
        self._core = client.CoreV1Api()
        self._batch = client.BatchV1Api()
        self._custom = client.CustomObjectsApi()

    def create(self, made: KubeObject, *, is_trial: bool = False) -> KubeObject:
        """Create an object.

        Args:
            made: the object.
            is_trial: the API server only checks it, and the rights to make it.

        Returns:
            The object as it is now.

        Raises:
            KubeError: it is refused.
        """
        kind = made["kind"]
        how: dict[str, Any] = {"dry_run": "All"} if is_trial else {}
        if kind in _CRDS:
            return _ask(
                f"create a {kind}",
                self._custom.create_namespaced_custom_object,
                *_place(kind, self.namespace),
                made,
                hint=f"the administrator has to install {_INSTALL[kind]}; or leave out --kind",
                **how,
            )
        create = {
            "Job": self._batch.create_namespaced_job,
            "Secret": self._core.create_namespaced_secret,
            "Service": self._core.create_namespaced_service,
        }[kind]
        return _ask(f"create a {kind}", create, self.namespace, made, **how)

    def read(self, kind: str, name: str) -> KubeObject | None:
        """Return a Job, JobSet, TrainJob or Pod; None: there is none. Raises `KubeError`."""
        try:
            if kind in _CRDS:
                read = self._custom.get_namespaced_custom_object
                return _ask(f"read a {kind}", read, *_place(kind, self.namespace), name)
            reads = {"Job": self._batch.read_namespaced_job, "Pod": self._core.read_namespaced_pod}
            return _ask(f"read a {kind}", reads[kind], name, self.namespace)
        except KubeError as error:
            if error.code == _NOT_FOUND:
                return None
            raise

    def delete(self, kind: str, name: str) -> None:
        """Delete a Job, JobSet or TrainJob, and what belongs to it. Raises `KubeError`."""
        how = {"propagation_policy": "Background"}
        try:
            if kind in _CRDS:
                delete = self._custom.delete_namespaced_custom_object
                _ask(f"delete a {kind}", delete, *_place(kind, self.namespace), name, **how)
            else:
                delete = self._batch.delete_namespaced_job
                _ask(f"delete a {kind}", delete, name, self.namespace, **how)
        except KubeError as error:
            if error.code != _NOT_FOUND:  # somebody else has deleted it
                raise

    def pods(self, selector: str) -> list[KubeObject]:
        """Return the pods with these labels. Raises `KubeError`."""
        answer = _ask(
            "list pods",
            self._core.list_namespaced_pod,
            self.namespace,
            label_selector=selector,
        )
        return list(answer["items"])

    def events(self, name: str) -> list[KubeObject]:
        """Return the events about an object, in order; none without the right to read them."""
        try:
            answer = _ask(
                "list events",
                self._core.list_namespaced_event,
                self.namespace,
                field_selector=f"involvedObject.name={name}",
            )
        except KubeError:
            return []
        return sorted(answer["items"], key=_last_seen)

    def log(self, pod: str, container: str) -> str:
        """Return the last lines of a container without those of a healthy agent.

        Nothing is returned without the right to read them.
        """
        try:
            answer = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                tail_lines=_LOG_LINES,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
        except (client.ApiException, HTTPError):
            return ""
        lines = answer.data.decode("utf-8", "replace").splitlines()
        return "\n".join([line for line in lines if not line.startswith(AGENT_SAYS)][-_LAST_LINES:])


def _place(kind: str, namespace: str) -> tuple[str, str, str, str]:
    group, version, plural = _CRDS[kind]
    return group, version, namespace, plural


def _last_seen(event: KubeObject) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _load(namespace: str) -> str:
    """Load the configuration, and return the namespace."""
    try:
        config.load_kube_config()
        own = config.list_kube_config_contexts()[1]["context"].get("namespace")
    except config.ConfigException as no_file:
        try:
            config.load_incluster_config()
        except config.ConfigException as no_pod:
            raise KubeError(
                f"no cluster is configured: {no_file}; {no_pod}. Next: `kubectl get pods` has to "
                "work here, or the notebook has to run in a pod with a service account"
            ) from None
        own = _pod_namespace()
    return str(namespace or own or _DEFAULT_NAMESPACE)


def _pod_namespace() -> str:
    return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()


def _ask(what: str, call: Callable[..., Any], *args: Any, hint: str = "", **how: Any) -> KubeObject:
    """Send a request, and return the JSON of its answer.

    Raises:
        KubeError: it is refused, or there is no answer.
    """
    try:
        answer = call(*args, **how, _preload_content=False, _request_timeout=_TIMEOUT_S)
    except client.ApiException as error:
        raise KubeError(_refusal(what, error, hint), int(error.status or 0)) from None
    except HTTPError as error:
        host = client.Configuration.get_default_copy().host
        raise KubeError(
            f"the API server at {host} does not answer: {error}. Next: `kubectl get pods` in a "
            "terminal"
        ) from None
    content: KubeObject = json.loads(answer.data)
    return content


_NEXT = {
    401: "Next: log in to the cluster again; `kubectl get pods` has to work here",
    403: "Next: ask for the Role in docs/machines.md, section Kubernetes",
    _NOT_FOUND: "Next: --namespace NAME of one that is there",
}


def _refusal(what: str, error: Any, hint: str) -> str:
    """Return the words of the API server, and what to do."""
    try:
        content: Mapping[str, Any] = json.loads(error.body)
        message = str(content.get("message") or error.reason)
    except (TypeError, ValueError):
        content, message = {}, str(error.reason)
    # Without the details there is no object that is not found, but no such kind of objects.
    if error.status == _NOT_FOUND and hint and not content.get("details", {}).get("name"):
        return f"Kubernetes cannot {what}: the cluster does not know that kind. Next: {hint}"
    next_step = _NEXT.get(error.status, "")
    return f"Kubernetes refuses to {what}: {message}{'. ' if next_step else ''}{next_step}"
