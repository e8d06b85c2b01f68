"""Every bad option: what is wrong, and what is legal."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from nbddp.controller.pool import options
from nbddp.controller.pool.options import LEGAL_CONFIG, PoolOptions, changed
from nbddp.controller.state.config import Config
from nbddp.errors import BadOptionError, NoTorchError


def test_defaults(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = PoolOptions.checked()
    assert found == PoolOptions(cwd=str(Path.cwd().resolve()))
    assert found.world_size == 2
    assert found.describe() == "-n 2"
    assert found.differences(PoolOptions.checked()) == []


def test_all_options(tmp_path: Path):
    found = PoolOptions.checked(
        3,
        nnodes=2,
        backend="GLOO",
        device="cuda",
        devices=[0, 1],
        init="file",
        threads=4,
        env={"A": "1"},
        cwd=tmp_path,
        timeout=5.0,
    )
    assert found == PoolOptions(
        nproc_per_node=3,
        nnodes=2,
        backend="gloo",
        device="cuda",
        devices=(0, 1),
        init="file",
        threads=4,
        env={"A": "1"},
        cwd=str(tmp_path.resolve()),
        timeout_s=5.0,
    )
    assert found.world_size == 6
    assert found.describe() == (
        "-n 3 --nnodes 2 --backend gloo --device cuda --init file --threads 4 --devices 0,1"
    )
    assert PoolOptions.checked(3).differences(PoolOptions.checked(4, threads=2)) == [
        "nproc_per_node",
        "threads",
    ]


@pytest.mark.parametrize(
    ("inherited", "given", "threads"),
    [
        ("", {}, 1),
        ("3", {}, 3),
        ("4,2", {}, 4),
        ("many", {}, 1),
        ("0", {}, 1),
        ("3", {"threads": 2}, 2),
        ("3", {"env": {"OMP_NUM_THREADS": "5"}}, 5),
        ("", {"env": {"OMP_NUM_THREADS": "5"}, "threads": 5}, 5),
    ],
)
def test_threads_are_as_many_as_with_torchrun(
    inherited: str, given: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", inherited)
    assert PoolOptions.checked(**given).threads == threads


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"env": {"OMP_NUM_THREADS": "5"}, "threads": 4},
            "--threads 4 and --env OMP_NUM_THREADS=5 disagree; leave out one of the two",
        ),
        (
            {"env": {"OMP_NUM_THREADS": "x"}},
            "--env OMP_NUM_THREADS=x is not a number of threads; legal: 1 to 4096",
        ),
        ({"nproc_per_node": 0}, "nproc_per_node (-n) is 0; legal: a whole number from 1 to 1024"),
        ({"nproc_per_node": -3}, "nproc_per_node (-n) is -3; legal: a whole number"),
        ({"nproc_per_node": 1025}, "nproc_per_node (-n) is 1025; legal: a whole number from 1"),
        ({"nproc_per_node": "4"}, "nproc_per_node (-n) is '4'; legal: a whole number"),
        ({"nproc_per_node": 2.0}, "nproc_per_node (-n) is 2.0; legal: a whole number"),
        ({"nproc_per_node": True}, "nproc_per_node (-n) is True; legal: a whole number"),
        ({"nnodes": 0}, "nnodes is 0; legal: a whole number from 1 to 1024"),
        ({"nproc_per_node": 512, "nnodes": 4}, "nproc_per_node x nnodes is 2048; legal: a whole"),
        ({"threads": 0}, "threads is 0; legal: a whole number from 1 to 4096"),
        ({"device": "tpu"}, "--device 'tpu' is unknown; legal: auto, cpu, cuda"),
        ({"init": "mpi"}, "--init 'mpi' is unknown; legal: env, tcp, file, none"),
        ({"backend": ""}, "--backend '' is not the name of a backend; legal: auto, gloo, nccl"),
        ({"backend": "a b"}, "--backend 'a b' is not the name of a backend; legal: auto, gloo"),
        (
            {"backend": "nccl", "device": "cpu"},
            "--backend nccl needs GPUs; with --device cpu use --backend gloo or auto",
        ),
        (
            {"backend": "cpu:gloo,cuda:NCCL", "device": "cpu"},
            "--backend cpu:gloo,cuda:NCCL needs GPUs; with --device cpu use --backend gloo",
        ),
        (
            {"devices": [0, 1], "device": "cpu"},
            "--devices 0,1 names CUDA devices, and --device cpu uses none; leave out one",
        ),
        ({"timeout": 0.0}, "--timeout 0 is not a positive number of seconds"),
        ({"timeout": -1.5}, "--timeout -1.5 is not a positive number of seconds"),
        ({"timeout": float("nan")}, "--timeout nan is not a positive number of seconds"),
        ({"timeout": float("inf")}, "--timeout inf is not a positive number of seconds"),
        ({"timeout": "x"}, "--timeout 'x' is not a positive number of seconds"),
        ({"devices": [-1]}, "--devices -1: legal: numbers of CUDA devices, such as 0,1"),
        ({"env": {"RANK": "3"}}, "--env RANK: nbddp sets RANK itself, for each rank"),
        ({"env": {"WORLD_SIZE": "3"}}, "--env WORLD_SIZE: nbddp sets WORLD_SIZE itself"),
        ({"env": {"A=B": "3"}}, "--env 'A=B' is not a name that a variable can have"),
        ({"env": {"A": 1}}, "--env A is 1; legal: text"),
        ({"env": {"A": "a\0b"}}, "--env A is 'a\\x00b'; legal: text"),
        ({"env": {"MASTER_PORT": "x"}}, "--env MASTER_PORT=x is not a port; legal: 0 to 65535"),
        (
            {"env": {"MASTER_PORT": "65536"}},
            "--env MASTER_PORT=65536 is not a port; legal: 0 to 65535",
        ),
        ({"cwd": "/no/such/folder"}, "--cwd '/no/such/folder' is not a folder that exists"),
        ({"cwd": __file__}, "is not a folder that exists"),
    ],
)
def test_bad_options(given: dict[str, Any], words: str):
    with pytest.raises(BadOptionError) as caught:
        PoolOptions.checked(**given)
    assert words in str(caught.value)


def test_a_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadOptionError) as caught:
        PoolOptions.checked()
    assert str(caught.value) == (
        "the folder in which this process works was deleted. Next: %cd to another one"
    )
    assert PoolOptions.checked(cwd=tmp_path).cwd == str(tmp_path.resolve())


def test_a_home_folder_may_be_abbreviated():
    assert PoolOptions.checked(cwd="~").cwd == str(Path.home().resolve())


def test_without_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoTorchError) as caught:
        PoolOptions.checked()
    assert str(caught.value) == (
        "torch is not installed in the environment of this notebook, and the ranks run there. "
        "Next: pip install torch, then %ddp start"
    )


def test_a_broken_torch_counts_as_none(monkeypatch: pytest.MonkeyPatch):
    def broken(name: str) -> None:
        raise ValueError("torch.__spec__ is None")

    monkeypatch.setattr(importlib.util, "find_spec", broken)
    with pytest.raises(NoTorchError):
        options.check_torch()


def test_plain_groups():
    found = PoolOptions.checked(plain=True)
    assert found.plain
    assert found.describe() == "-n 2 --plain"
    assert found.differences(PoolOptions.checked()) == ["plain"]
    with pytest.raises(BadOptionError, match="plain is 'no'; legal: True or False"):
        PoolOptions.checked(plain="no")  # type: ignore[arg-type]  # what the test is about


# --- what may be configured while the pool lives -------------------------------------------------


def test_a_change_of_the_configuration():
    found = changed(Config(), {"on_deadlock": "report", "on_death": "keep"})
    assert found == Config(on_deadlock="report", on_mismatch="raise", on_death="keep")
    assert changed(found, {}) == found


def test_the_defaults_come_first():
    assert {name: legal[0] for name, legal in LEGAL_CONFIG.items()} == vars(Config())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"on_death": "cry"}, "on_death='cry' is unknown; legal: respawn, keep"),
        ({"on_deadlock": ""}, "on_deadlock='' is unknown; legal: abort, report"),
        ({"on_fire": "run"}, "'on_fire' cannot be configured; legal: on_deadlock, on_mismatch"),
    ],
)
def test_what_cannot_be_configured(changes: dict[str, str], words: str):
    with pytest.raises(BadOptionError) as caught:
        changed(Config(), {"on_mismatch": "off"} | changes)
    assert words in str(caught.value)
