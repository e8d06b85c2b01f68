"""The words for the options of a start: in the error of a second pool, and in a line to type."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import nbddp
from nbddp.controller.launch import Engine
from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.node_replacement import EngineAgents
from nbddp.errors import PoolExistsError
from nbddp.notebook import session
from nbddp.notebook.failed_start import no_pool_text
from nbddp.wire.invitation import Invitation


def refused_flags(
    monkeypatch: pytest.MonkeyPatch, running: PoolOptions, given: dict[str, Any]
) -> str:
    """The flags that the error of a second pool names."""
    pool = SimpleNamespace(options=running)
    monkeypatch.setattr(session, "make_current", lambda options, on_progress: (pool, False))
    with pytest.raises(PoolExistsError) as caught:
        nbddp.start(**given)
    return str(caught.value).partition("(different: ")[2].partition(")")[0]


def test_the_error_of_a_second_pool_has_the_folders_and_the_names_of_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    env = {"A": "1", "TOKEN": "secret", "SAME": "3"}
    running = PoolOptions.checked(1, env=env)
    changed = {"SAME": "3", "B": "1"}
    given: dict[str, Any] = {"nproc_per_node": 1, "env": changed, "cwd": str(tmp_path)}
    flags = refused_flags(monkeypatch, running, given)
    assert flags == "--env A B TOKEN, --cwd"
    with pytest.raises(PoolExistsError) as caught:
        nbddp.start(**given)
    said = str(caught.value)
    assert (
        f"it has -n 1 --cwd {Path.cwd().resolve()}, you asked for -n 1 --cwd {tmp_path} (" in said
    )
    assert "secret" not in said


def test_the_error_of_a_second_pool_says_that_values_of_variables_differ(
    monkeypatch: pytest.MonkeyPatch,
):
    running = PoolOptions.checked(1, env={"A": "1", "B": "1", "C": "1"})

    def flags(**env: str) -> str:
        return refused_flags(monkeypatch, running, {"nproc_per_node": 1, "env": env})

    assert flags(A="2", B="1", C="1") == "--env A with another value"
    assert flags(A="2", B="2", D="1") == "--env C D, --env A B with other values"


def test_a_folder_that_nobody_typed_is_no_difference(monkeypatch: pytest.MonkeyPatch):
    slurm: dict[str, Any] = {"nproc_per_node": 2, "nnodes": 2, "launcher": "slurm"}
    here, there = PoolOptions.checked(2), PoolOptions.checked(**slurm)
    assert "cwd" not in refused_flags(monkeypatch, here, slurm)
    assert "cwd" not in refused_flags(monkeypatch, there, {"nproc_per_node": 2})
    typed = slurm | {"cwd": "/data"}
    assert "cwd" in refused_flags(monkeypatch, here, typed)
    assert "cwd" in refused_flags(monkeypatch, there, typed)


def test_a_folder_of_other_machines_is_in_the_words_even_if_it_is_the_current_one():
    here = str(Path.cwd().resolve())
    options = PoolOptions.checked(2, launcher="ssh", hosts=["a", "b"], cwd=here)
    assert f"-n 2 --nnodes 2 --cwd {here} --launcher" in options.start_words()
    engine = SimpleNamespace(join_timeout_s=None, mark="a,b")
    agents = EngineAgents(cast("Engine", engine), "ssh", cast("Invitation", None), options)
    said = f"--cwd {here} --launcher ssh --hosts a,OTHER, with another host in the place of OTHER"
    assert said in agents.way_out([1], "%ddp restart")


def test_the_words_of_a_start_have_what_is_not_the_default_but_variables(tmp_path: Path):
    assert PoolOptions.checked(3).start_words() == "-n 3"
    (folder := tmp_path / "a b").mkdir()
    options = PoolOptions.checked(2, cwd=str(folder), env={"TOKEN": "secret"})
    assert options.start_words() == f"-n 2 --cwd '{folder}'"
    with_env = f"-n 2 --env TOKEN=secret --cwd '{folder}'"
    assert options.start_words(with_env=True) == with_env


def test_no_pool_names_the_last_options_with_the_folder_and_says_what_is_left_out(tmp_path: Path):
    assert "Next: %ddp start -n 2, or nbddp.start(2)" in no_pool_text(None)
    assert "Next: %ddp start -n 2 (the last options)" in no_pool_text(PoolOptions.checked(2))
    options = PoolOptions.checked(2, cwd=str(tmp_path), env={"TOKEN": "secret"})
    said = f"Next: %ddp start -n 2 --cwd {tmp_path} (the last options, without --env)"
    assert said in no_pool_text(options)
