"""The objects that a pool makes in Kubernetes."""

import importlib.util
from typing import Any

import pytest

from nbddp.controller.launch.k8s_objects import (
    agent_objects,
    job_name,
    owned,
    pod_selector,
    replacing_job,
)
from nbddp.controller.launch.k8s_pods import AgentPods, checked_template
from nbddp.controller.launch.k8s_states import agent_of
from nbddp.errors import BadOptionError

_LABELS = {"app.kubernetes.io/managed-by": "nbddp", "nbddp/pool": "k3f9"}
_METADATA = {"name": "nbddp-k3f9", "labels": _LABELS}
_COMMAND = ["python", "-P", "-m", "nbddp", "agent", "--connect", "/run/nbddp/connect.json"]
_CONNECT = {"name": "nbddp-connect", "mountPath": "/run/nbddp", "readOnly": True}
_CONNECT_VOLUME = {
    "name": "nbddp-connect",
    "secret": {"secretName": "nbddp-k3f9", "defaultMode": 0o400},
}
_SHM = {"name": "nbddp-shm", "mountPath": "/dev/shm"}
_SHM_VOLUME = {"name": "nbddp-shm", "emptyDir": {"medium": "Memory"}}
_APART = {
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": {"nbddp/pool": "k3f9"}},
                },
            }
        ]
    }
}
_SPEC = {
    "restartPolicy": "Never",
    "subdomain": "nbddp-k3f9",
    "terminationGracePeriodSeconds": 10,
    "automountServiceAccountToken": False,
    "securityContext": {"fsGroup": 100},
    "affinity": _APART,
    "containers": [
        {
            "resources": {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": "4"}},
            "name": "agent",
            "image": "torch:1",
            "command": _COMMAND,
            "volumeMounts": [_CONNECT, _SHM],
        }
    ],
    "volumes": [_CONNECT_VOLUME, _SHM_VOLUME],
}
_JOB_SPEC = {
    "completionMode": "Indexed",
    "completions": 2,
    "parallelism": 2,
    "backoffLimitPerIndex": 0,
    "template": {"metadata": {"labels": {"nbddp/pool": "k3f9"}}, "spec": _SPEC},
}
_SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": _METADATA,
    "type": "Opaque",
    "stringData": {"connect.json": "secret"},
}


def objects(kind: str = "job", **more: Any) -> list[dict[str, Any]]:
    given = {"nnodes": 2, "nproc_per_node": 4, "image": "torch:1", "device": "cuda", **more}
    return agent_objects(AgentPods(kind=kind, **given), "k3f9", "secret")


def pod_spec(template: dict[str, Any], **more: Any) -> dict[str, Any]:
    spec: dict[str, Any] = objects(template=template, **more)[0]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_a_lost_agent_is_replaced_by_a_job_with_the_same_pod(kind: str):
    env = [{"name": "A", "value": "b"}]
    template: dict[str, Any] = {"spec": {"containers": [{"name": "agent", "env": env}]}}
    pods = AgentPods(2, 4, "torch:1", kind=kind, device="cuda", template=template)
    job = replacing_job(pods, "k3f9", 5)
    assert job["metadata"] == {
        "name": "nbddp-k3f9-5",
        "labels": {**_LABELS, "nbddp/agent": "5"},
    }
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (1, 1)
    pod = job["spec"]["template"]
    assert pod["metadata"]["labels"] == {"nbddp/pool": "k3f9", "nbddp/agent": "5"}
    assert agent_of(pod) == 5
    (agent,) = pod["spec"]["containers"]
    assert agent.pop("env") == [{"name": "A", "value": "b"}, {"name": "NBDDP_NODE", "value": "1"}]
    spec: dict[str, Any] = _SPEC
    assert agent == spec["containers"][0]
    assert pod["spec"]["volumes"] == spec["volumes"]


def test_a_job_with_a_service_and_a_secret():
    job, service, secret = objects()
    assert job == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _METADATA,
        "spec": {**_JOB_SPEC, "ttlSecondsAfterFinished": 300},
    }
    assert service == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _METADATA,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"nbddp/pool": "k3f9"},
        },
    }
    assert secret == _SECRET


def test_a_jobset_which_makes_its_service_itself():
    jobset, secret = objects("jobset")
    assert jobset == {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _METADATA,
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "publishNotReadyAddresses": True,
                "subdomain": "nbddp-k3f9",
            },
            "failurePolicy": {"maxRestarts": 0},
            "ttlSecondsAfterFinished": 300,
            "replicatedJobs": [{"name": "agent", "replicas": 1, "template": {"spec": _JOB_SPEC}}],
        },
    }
    assert secret == _SECRET


def test_a_trainjob_whose_runtime_has_the_pods():
    trainjob, secret = objects("trainjob")
    pod = {
        "volumes": [_CONNECT_VOLUME],
        "containers": [{"name": "node", "volumeMounts": [_CONNECT]}],
    }
    part = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    patch = {"template": {"spec": {"replicatedJobs": [part]}}}
    assert trainjob == {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _METADATA,
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": "torch:1",
                "command": _COMMAND,
                "numNodes": 2,
                "resourcesPerNode": {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": "4"}},
            },
            "runtimePatches": [{"manager": "nbddp/launcher", "trainingRuntimeSpec": patch}],
        },
    }
    assert secret == _SECRET


def test_no_gpu_is_asked_for_without_device_cuda():
    assert AgentPods(1, 2, "i").resources() == {"requests": {"cpu": "2"}}


def test_the_template_wins_over_defaults():
    spec = pod_spec(
        {
            "spec": {
                "nodeSelector": {"gpu": "a100"},
                "securityContext": None,
                "restartPolicy": "Always",
                "containers": [
                    {"name": "sidecar", "image": "s"},
                    {
                        "name": "agent",
                        "image": "other",
                        "args": ["x"],
                        "env": [{"name": "A", "value": "b"}],
                        "resources": {"limits": {"amd.com/gpu": "1"}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    },
                ],
                "volumes": [{"name": "data", "emptyDir": {}}],
            }
        }
    )
    agent, sidecar = spec["containers"]
    assert agent == {
        "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"amd.com/gpu": "1"}},
        "name": "agent",
        "image": "torch:1",
        "command": _COMMAND,
        "volumeMounts": [_CONNECT, _SHM, {"name": "data", "mountPath": "/data"}],
    }
    assert sidecar == {"name": "sidecar", "image": "s"}
    assert spec["volumes"] == [_CONNECT_VOLUME, _SHM_VOLUME, {"name": "data", "emptyDir": {}}]
    assert spec["nodeSelector"] == {"gpu": "a100"}
    assert spec["securityContext"] is None
    assert spec["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("given", "context"),
    [
        ({"runAsUser": 7}, {"fsGroup": 100, "runAsUser": 7}),
        ({"fsGroup": 7}, {"fsGroup": 7}),
        ({"fsGroup": None}, {"fsGroup": None}),
    ],
)
def test_the_group_that_can_read_the_secret(given: dict[str, Any], context: dict[str, Any]):
    assert pod_spec({"spec": {"securityContext": given}})["securityContext"] == context


def test_a_shared_memory_of_the_template_is_the_one():
    mount = {"name": "big", "mountPath": "/dev/shm"}
    volume = {"name": "big", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    agent = {"name": "agent", "volumeMounts": [mount]}
    spec = pod_spec({"spec": {"containers": [agent], "volumes": [volume]}})
    assert spec["containers"][0]["volumeMounts"] == [_CONNECT, mount]
    assert spec["volumes"] == [_CONNECT_VOLUME, volume]


def test_labels_and_annotations_of_the_template():
    metadata = {"name": "x", "labels": {"team": "ml"}, "annotations": {"a": "b"}}
    job = objects(template={"metadata": metadata})[0]
    assert job["metadata"]["labels"] == {"team": "ml", **_LABELS}  # where Kueue looks
    assert job["spec"]["template"]["metadata"] == {
        "annotations": {"a": "b"},
        "labels": {"team": "ml", "nbddp/pool": "k3f9"},
    }


def test_an_object_that_belongs_to_another_one():
    owner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "n", "uid": "u"}}
    made = owned(objects()[1], owner)
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "n", "uid": "u"}
    assert made["metadata"] == {**_METADATA, "ownerReferences": [reference]}
    assert "ownerReferences" not in objects()[1]["metadata"]


@pytest.mark.parametrize(
    ("kind", "selector", "job"),
    [
        ("job", "nbddp/pool=k3f9", "nbddp-k3f9"),
        ("jobset", "nbddp/pool=k3f9", "nbddp-k3f9-agent-0"),
        ("trainjob", "jobset.sigs.k8s.io/jobset-name=nbddp-k3f9", "nbddp-k3f9-node-0"),
    ],
)
def test_the_pods_and_the_job_of_each_kind(kind: str, selector: str, job: str):
    assert pod_selector(kind, "k3f9") == selector
    assert job_name(kind, "k3f9") == job


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not a template of pods"),
        (["a"], "is not a template of pods"),
        ({"kind": "Deployment", "spec": {}}, "is not a template of pods; legal: a Pod"),
        ({"kind": "Pod", "metadata": None}, "has no metadata or spec"),
        ({"spec": "x"}, "has no metadata or spec"),
        ({"spec": {"containers": {"name": "agent"}}}, "spec.containers is not a list of mappings"),
        ({"spec": {"volumes": ["a"]}}, "spec.volumes is not a list of mappings"),
    ],
)
def test_a_template_that_is_none(content: Any, words: str):
    with pytest.raises(BadOptionError, match=f"--k8s-template pod.yaml.*{words}"):
        checked_template(content, "pod.yaml")


def test_a_template_of_each_kind():
    parts = {"spec": {"nodeSelector": {"a": "b"}}}
    assert checked_template(parts, "f") == parts
    assert checked_template({"kind": "Pod", "apiVersion": "v1", **parts}, "f") == parts
    assert checked_template({"kind": "PodTemplate", "template": parts}, "f") == parts


@pytest.mark.parametrize("version", ["1.29", "1.34", "1.37"])
def test_the_objects_keep_to_the_schemas(version: str):
    """Strictly: a misspelt field is an error, too. JobSet and TrainJob have none here."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed; `make test-engines` installs it")
    import kubernetes_validate

    for made in objects():
        kubernetes_validate.validate(made, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**objects()[0], "spek": {}}, version, strict=True)
