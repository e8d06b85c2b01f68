"""Pools in pods of a pretend Kubernetes, whose pods are processes of this machine."""

import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from nbddp.controller.launch import k8s_engine
from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import PoolSnapshot
from nbddp.errors import (
    DeadlockError,
    PoolBrokenError,
    PoolInterruptedError,
    PoolStartError,
    RankExitedError,
)
from tests.support import pretend_kubernetes
from tests.support.polling import poll_until
from tests.support.pretend_kubernetes import PYTHON, PretendKubernetes
from tests.support.remote_pools import start, waiting_start

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool, pytest.mark.timeout(200)]
_WAIT_S = 60.0
_NOTEBOOK = f"""
import nbddp
pool = nbddp.start(
    1, nnodes=2, launcher="k8s", image="i", python={PYTHON!r}, address="127.0.0.1"
)
print("up", flush=True)
input()
"""


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendKubernetes]:
    """A cluster that the configuration of the user names."""
    if reason := pretend_kubernetes.reason_to_skip():
        pytest.skip(reason)
    with pretend_kubernetes.pretend_kubernetes(tmp_path) as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig))
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield made


def options(n: int = 1, **more: Any) -> PoolOptions:
    given = {"image": "registry/torch:1", "python": PYTHON, "address": "127.0.0.1", **more}
    return PoolOptions.checked(n, nnodes=2, launcher="k8s", **given)


def processes(kube: PretendKubernetes) -> list[psutil.Process]:
    """All processes of the pods."""
    roots = [psutil.Process(p.process.pid) for p in kube.pods.values() if p.process is not None]
    return [each for root in roots for each in [root, *root.children(recursive=True)]]


def has_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; the server collects those of its pods at the end only."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


def is_shown(states: list[str], text: str) -> Callable[[], bool]:
    return lambda: any(text in state for state in states)


def test_a_pool_in_pods(kube: PretendKubernetes):
    pool = start(options(2))
    left = processes(kube)
    try:
        pool.run("import os\nt = torch.ones(1) * rank\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [6.0] * 4
        assert pool.pull("os.environ['LOCAL_RANK'], os.environ['GROUP_RANK']") == [
            *(("0", "0"), ("1", "0"), ("0", "1"), ("1", "1"))
        ]
        with pytest.raises(DeadlockError, match="Ranks 1-3 never called all_reduce"):
            pool.run("if rank == 0:\n    dist.all_reduce(t)")
        with pytest.raises(RankExitedError, match="rank 3 exited with code 3"):
            pool.run("if rank == 3:\n    os._exit(3)\ndist.barrier()")
        pool.push({"sent": 5})
        pool.run("t = torch.ones(1) * sent\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [20.0] * 4
        left += processes(kube)
    finally:
        pool.stop()
    assert kube.objects == {}
    assert kube.pods == {}
    poll_until(lambda: all(has_gone(process) for process in left))


def test_the_credentials_are_in_a_file_of_the_pod_only(kube: PretendKubernetes):
    pool = start(options())
    try:
        (secret,) = [made for made in kube.objects.values() if made["kind"] == "Secret"]
        token = secret["stringData"]["connect.json"]
        (path,) = kube.kubeconfig.parent.glob("*-0/run/nbddp/connect.json")
        assert path.read_text() == token
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
        keys = ("secret_key", "token")
        values = [word for key in keys for word in [token.partition(f'"{key}":"')[2][:20]]]
        assert all(len(value) == 20 for value in values)
        for process in processes(kube):
            told = " ".join([*process.cmdline(), *process.environ().values()])
            assert not [value for value in values if value in told]
    finally:
        pool.stop()


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_a_pool_of_another_kind_of_object_without_the_right_to_read_events(
    kind: str, kube: PretendKubernetes
):
    kube.scene.forbidden = {("list", "events"), ("get", "pods/log")}
    pool = start(options(kind=kind, namespace="other"))
    try:
        assert pool.pull("rank") == [0, 1]
    finally:
        pool.stop()
    assert kube.objects == {}


def run_and_strike(pool: Pool, rank: int, path: Path, strike: Callable[[], None]) -> str:
    """Run a cell, do something while it waits for a rank, and give the error of the cell."""

    def wait() -> None:
        poll_until(path.exists, _WAIT_S)
        strike()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        pool.run("import time")
        with pytest.raises(RankExitedError) as caught:
            pool.run(
                f"if rank == {rank}:\n    open({str(path)!r}, 'w')\n    time.sleep(60)\n"
                "dist.barrier()"
            )
        return " ".join(str(caught.value).split())
    finally:
        thread.join()


def test_the_pool_starts_again_after_a_lost_pod(kube: PretendKubernetes, tmp_path: Path):
    pool = start(options())
    try:
        error = run_and_strike(pool, 1, tmp_path / "a", lambda: kube.pod(1).end(signal.SIGKILL))
        assert "node 1 was lost (its pod nbddp-" in error
        assert "has ended (Failed): its container exited with code 137" in error
        assert pool.pull("rank", ranks="0") == [0]
        with pytest.raises(PoolBrokenError):
            pool.run("dist.barrier()")
        pool.restart()
        assert pool.pull("rank") == [0, 1]
    finally:
        pool.stop()
    assert kube.objects == {}


@pytest.mark.parametrize("kind", ["job", "trainjob"])
def test_another_pod_takes_the_place_of_a_lost_one(kind: str, kube: PretendKubernetes):
    pool = start(options(kind=kind))
    try:
        pool.run("x = rank")
        for last in (kube.pod(1), None):
            lost = last or next(pod for name, pod in kube.pods.items() if name.endswith("-3-0"))
            lost.end(signal.SIGKILL)
            poll_until(lambda: pool.snapshot.lost_agents == {1})
            pool.restart(1)
            pool.run("t = torch.ones(1)\ndist.all_reduce(t)")
            assert pool.pull("t.item()") == [2.0] * 2
        assert pool.pull("'x' in globals()") == [True, False]
        jobs = [name for plural, name in kube.objects if plural == "jobs"]
        assert [name.rpartition("-")[2] for name in jobs][-1] == "5"  # that of agent 3 is deleted
        assert not any(name.endswith("-3") for name in jobs)
    finally:
        pool.stop()
    assert kube.objects == {}
    assert kube.pods == {}


def test_a_pod_that_cannot_be_replaced_is_told(
    kube: PretendKubernetes, monkeypatch: pytest.MonkeyPatch
):
    pool = start(options())
    try:
        pool.run("x = rank")
        kube.pod(1).end(signal.SIGKILL)
        poll_until(lambda: pool.snapshot.lost_agents == {1})
        kube.scene.forbidden = {("create", "jobs")}
        with pytest.raises(PoolBrokenError, match='User "jo" cannot create resource "jobs"'):
            pool.restart(1)
        kube.scene.forbidden.clear()
        kube.scene.makes_pods = False
        kube.scene.job_events = [{"type": "Warning", "reason": "FailedCreate", "message": "none"}]

        def progress(snapshot: PoolSnapshot) -> None:
            if "pod 1: not made yet: FailedCreate: none" in snapshot.waits_for:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(pool.listeners, "progress", progress)
            with pytest.raises(PoolInterruptedError):
                pool.restart(1)
        poll_until(lambda: [plural for plural, _ in kube.objects].count("jobs") == 1)
        kube.scene.makes_pods = True
        pool.restart(1)
        assert pool.pull("rank") == [0, 1]
    finally:
        pool.stop()


def test_a_pod_that_was_deleted_is_told(kube: PretendKubernetes, tmp_path: Path):
    pool = start(options())
    try:
        error = run_and_strike(pool, 0, tmp_path / "a", lambda: kube.delete_pod(0))
        assert "node 0 was lost (its pod was deleted)" in error
    finally:
        pool.stop()


def test_pods_without_a_place_are_waited_for(kube: PretendKubernetes):
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: none is lower."
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Pending", "conditions": [{**refused, "message": message}]}
    kube.scene.status_by_node = {0: status, 1: status}
    text = (
        "Kubernetes: pods 0-1: Pending, Unschedulable: 0/3 nodes are available: "
        "3 Insufficient nvidia.com/gpu."
    )
    with waiting_start(options()) as states:
        poll_until(lambda: text in states, _WAIT_S)
    assert kube.objects == {}
    assert kube.pods == {}


def test_an_image_that_is_pulled_and_then_is_not_there(kube: PretendKubernetes):
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "agent", "state": waiting}]}
    kube.scene.status_by_node = {0: status}
    kube.scene.events_by_node = {0: [{"type": "Normal", "reason": "Pulling"}]}
    with waiting_start(options()) as states:
        poll_until(is_shown(states, "pod 0: Pending, the image is pulled"), _WAIT_S)
    said = 'Back-off pulling image "registry/torch:1"'
    waiting["waiting"] = {"reason": "ImagePullBackOff", "message": said}
    with pytest.raises(PoolStartError) as caught:
        start(options())
    assert f"cannot start: ImagePullBackOff: {said}. Next: check --image" in str(caught.value)
    assert kube.objects == {}


def test_pods_that_no_quota_allows(kube: PretendKubernetes):
    kube.scene.makes_pods = False
    refused = {"type": "Warning", "reason": "FailedCreate", "message": "exceeded quota: small"}
    kube.scene.job_events = [refused]
    with waiting_start(options()) as states:
        text = "Kubernetes: pods 0-1: not made yet: FailedCreate: exceeded quota: small"
        poll_until(lambda: text in states, _WAIT_S)


def test_a_container_that_ends_at_once_is_told_with_its_words(kube: PretendKubernetes):
    with pytest.raises(PoolStartError) as caught:
        start(options(python="/bin/echo"))
    words = "has ended (Succeeded): its container exited with code 0 and said: -P -m nbddp agent"
    assert words in str(caught.value)


def test_without_the_right_to_see_pods_nothing_is_left(kube: PretendKubernetes):
    kube.scene.forbidden = {("list", "pods")}
    with pytest.raises(PoolStartError, match='cannot list resource "pods" in API group "" in the'):
        start(options())
    assert kube.objects == {}


@pytest.mark.parametrize("resource", ["jobs", "services", "secrets"])
def test_a_missing_right_is_named_and_nothing_is_made(resource: str, kube: PretendKubernetes):
    kube.scene.forbidden = {("create", resource)}
    with pytest.raises(PoolStartError) as caught:
        start(options())
    assert f'User "jo" cannot create resource "{resource}"' in str(caught.value)
    assert 'in the namespace "ml". Next: ask for the Role' in str(caught.value)
    assert all(request.endswith("?dryRun") for request in kube.requests)


def test_a_kind_that_the_cluster_does_not_know(kube: PretendKubernetes):
    kube.scene.installed = set()
    with pytest.raises(PoolStartError, match="the administrator has to install JobSet; or leave"):
        start(options(kind="jobset"))


def test_there_is_no_cluster(
    kube: PretendKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(PoolStartError, match=r"no cluster is configured: .* has to work here"):
        start(options())


def test_a_job_of_a_notebook_in_a_pod_belongs_to_that_pod(
    kube: PretendKubernetes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HOSTNAME", "notebook-0")
    metadata = {"name": "notebook-0", "uid": "u7"}
    notebook = {"kind": "Pod", "metadata": metadata, "status": {"podIP": "127.0.0.1"}}
    kube.objects["pods", "notebook-0"] = notebook
    pool = start(options())
    try:
        (job,) = [made for made in kube.objects.values() if made["kind"] == "Job"]
        (owner,) = job["metadata"]["ownerReferences"]
        assert owner == {"apiVersion": "v1", "kind": "Pod", "name": "notebook-0", "uid": "u7"}
    finally:
        pool.stop()


def test_a_driver_that_is_ended_by_a_signal_leaves_nothing(kube: PretendKubernetes):
    """As by a stop that has waited in vain for an answer of the API server, which comes later."""
    pool = start(options())
    try:
        (driver,) = [
            child for child in psutil.Process().children() if k8s_engine._DRIVER in child.cmdline()
        ]
        kube.scene.forbidden.add(("delete", "jobs"))
        driver.terminate()
        poll_until(lambda: "delete jobs" in kube.requests)
        driver.terminate()
        kube.scene.forbidden.clear()
        poll_until(lambda: not kube.objects, _WAIT_S)
    finally:
        pool.stop()


def test_a_notebook_that_is_killed_leaves_nothing(kube: PretendKubernetes):
    notebook = subprocess.Popen(
        [sys.executable, "-c", _NOTEBOOK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert notebook.stdout is not None
    assert notebook.stdin is not None
    assert notebook.stdout.readline() == "up\n"
    left = processes(kube)
    left += psutil.Process(notebook.pid).children(recursive=True)
    notebook.kill()
    notebook.wait()
    notebook.stdin.close()
    notebook.stdout.close()
    poll_until(lambda: all(has_gone(process) for process in left), _WAIT_S)
    poll_until(lambda: not kube.objects)
