"""The engine of Kubernetes, without a cluster."""

from pathlib import Path
from typing import Any, cast

import pytest

from nbddp.controller.launch import EngineOptions, make_engine, notebook_address, objects_text
from nbddp.controller.options import PoolOptions
from nbddp.errors import BadOptionError, PoolStartError
from nbddp.notebook.magics import pool_verbs
from nbddp.notebook.magics.verbs import find_verb
from tests.support import pretend_kubernetes


@pytest.fixture(autouse=True)
def _library() -> None:
    if reason := pretend_kubernetes.reason_to_skip():
        pytest.skip(reason)


def engine(**options: Any) -> Any:
    return make_engine("k8s", EngineOptions(2, 4, image="i", **options))


def test_an_image_is_needed():
    with pytest.raises(BadOptionError, match="legal: --image REGISTRY/NAME:TAG"):
        make_engine("k8s", EngineOptions(2, 4))


def test_the_address_is_that_of_the_pod_around_the_notebook(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(PoolStartError, match=r"not in a pod, .* --address IP with its address"):
        notebook_address(engine(), "")
    assert notebook_address(engine(), "10.0.0.7") == "10.0.0.7"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert notebook_address(engine(), "")


def test_a_template_is_read_before_anything_is_started(tmp_path: Path):
    path = tmp_path / "pod.yaml"
    with pytest.raises(BadOptionError, match="No such file or directory; legal: a file of YAML"):
        engine(template=str(path))
    path.write_text("spec: [")
    with pytest.raises(BadOptionError, match=r"pod\.yaml is not YAML: while parsing"):
        engine(template=str(path))
    path.write_text("kind: Deployment\n")
    with pytest.raises(BadOptionError, match="is not a template of pods"):
        engine(template=str(path))
    path.write_text("kind: Pod\nspec:\n  nodeSelector: {gpu: a100}\n")
    assert "gpu: a100" in engine(template=str(path)).text()
    with pytest.raises(BadOptionError, match="--k8s-template goes with --kind job or jobset"):
        engine(template=str(path), kind="trainjob")


def test_the_objects_are_written_without_the_credentials():
    import yaml

    options = PoolOptions.checked(2, nnodes=2, launcher="k8s", image="i", namespace="ml")
    job, service, secret = yaml.safe_load_all(objects_text(options))
    assert [made["kind"] for made in (job, service, secret)] == ["Job", "Service", "Secret"]
    assert {made["metadata"]["namespace"] for made in (job, service, secret)} == {"ml"}
    assert secret["stringData"] == {"connect.json": "(left out here: the credentials of the pool)"}
    assert job["spec"]["template"]["spec"]["volumes"][0]["secret"]["defaultMode"] == 0o400


@pytest.mark.parametrize(
    ("launcher", "more"), [("local", {}), ("ssh", {"hosts": ["a"]}), ("listen", {})]
)
def test_other_launchers_have_no_objects(launcher: str, more: dict[str, Any]):
    with pytest.raises(BadOptionError, match=f"and the launcher is {launcher}. Next: leave out"):
        objects_text(PoolOptions.checked(2, launcher=launcher, **more))


def test_print_shows_them_and_starts_nothing(capsys: pytest.CaptureFixture[str]):
    line = "-n 2 --launcher k8s --image i --kind trainjob --print"
    options = vars(find_verb("start")[0].parser.read(line))
    pool_verbs.start(cast("Any", None), **options)
    assert capsys.readouterr().out.startswith("apiVersion: trainer.kubeflow.org/v1alpha1\nkind: Tr")
