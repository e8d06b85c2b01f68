"""The batch job that a pool asks for, in the terms of PSI/J."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from nbddp.controller.launch import EngineOptions, make_engine
from nbddp.controller.launch.psij_job import PsijJob
from nbddp.errors import BadOptionError, PoolStartError
from nbddp.wire.invitation import Invitation


def job(launcher: str, device: str = "cpu", **options: str) -> PsijJob:
    """Of two nodes with 4 ranks each."""
    return PsijJob.checked(launcher, EngineOptions(2, 4, device=device, job=options))


@pytest.mark.parametrize(
    ("launcher", "options", "words"),
    [
        ("psij", {}, "needs --job executor=NAME; legal: pbs, pbs_classic, lsf, flux, slurm, local"),
        ("lsf", {}, "a job of LSF needs a time limit; legal: --job duration=1:00:00"),
        ("pbs", {"duration": "60"}, "--job duration=60; legal: 1:30:00, 1:30, 90min, 2h"),
        ("pbs", {"start_by": "ssh"}, "--job start_by=ssh; legal: mpirun, srun, jsrun"),
        ("pbs", {"l": "select=2:ncpus=1"}, "PBS keeps the first select, which PSI/J writes"),
        ("flux", {"queue": "q"}, "--job queue: PSI/J passes that to no job of Flux; legal: dur"),
        ("psij", {"executor": "local", "n": "1"}, "--job n: PSI/J passes that to no job of local"),
    ],
)
def test_what_can_be_refused_here_is(launcher: str, options: dict[str, str], words: str):
    with pytest.raises(BadOptionError, match=words):
        make_engine(launcher, EngineOptions(2, 4, job=options))


def test_other_names_go_to_the_scheduler_as_they_are():
    options = {"queue": "gpu", "W": "umask=077", "executor": "pbs_classic", "folder": "/scratch"}
    asked = PsijJob.checked("pbs", EngineOptions(2, 4, job=options))
    assert asked.custom_attributes("nbddp-x") == {"pbs.N": "nbddp-x", "pbs.W": "umask=077"}
    assert asked.attribute("queue") == "gpu"
    assert asked.folder == "/scratch"
    assert job("psij", executor="cobalt", x="1").custom_attributes("n") == {"cobalt.x": "1"}
    assert job("pbs", N="mine").custom_attributes("nbddp-x") == {"pbs.N": "mine"}


def test_gpus_are_asked_for_as_each_template_counts_them():
    assert job("pbs", device="cuda").chunk() == ":ngpus=4"
    assert job("pbs_classic", device="cuda").resources()["gpu_cores_per_process"] == 4
    assert job("lsf", device="cuda", duration="1h").resources()["gpu_cores_per_process"] == 1
    assert job("flux", device="cuda").resources() == {
        "node_count": 2,
        "process_count": 2,
        "cpu_cores_per_process": 4,
        "gpu_cores_per_process": 4,
    }


def test_one_node_and_schedulers_that_start_tasks_need_no_starter():
    alone = PsijJob.checked("pbs", EngineOptions(1, 4))
    assert alone.command(["agent"], "/hosts") == ["agent"]
    assert job("flux").command(["agent"], "/hosts") == ["agent"]


@pytest.mark.parametrize("start_by", ["mpirun", "srun", "jsrun"])
def test_a_starter_starts_one_agent_on_each_node(
    start_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / start_by
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    nodes = tmp_path / "nodes"
    nodes.write_text("n2\nn2\nn1\nn1\n")
    words = job("pbs", start_by=start_by).command(["/py", "a b"], str(tmp_path / "hosts"))
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PSIJ_NODEFILE": str(nodes)}
    said = subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-2:] == ["/py", "a b"]
    count = {
        "mpirun": ["-np", "2", "-machinefile", str(tmp_path / "hosts")],
        "srun": ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpu-bind=none"],
        "jsrun": ["--nrs", "2", "--rs_per_host", "1"],
    }[start_by]
    assert said.splitlines()[: len(count)] == count
    if start_by == "mpirun":
        assert (tmp_path / "hosts").read_text() == "n1\nn2\n"


def test_psij_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    engine = make_engine("pbs", EngineOptions(1, 1))
    invitation = Invitation(
        pool_id="p", addresses=(), token="t", server_key="s", public_key="p", secret_key="k"
    )
    with pytest.raises(PoolStartError, match=r"Next: pip install 'nbddp\[psij\]'"):
        engine.start(invitation)
    assert engine.state() == "PBS"
    assert engine.end(0) == ""
    engine.stop()
