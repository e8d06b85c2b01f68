"""The options of a pool have one definition; a bad value is refused with the legal ones."""

import argparse
import importlib.util
import inspect
import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nbddp
from nbddp.controller.options import LINE_OPTIONS, PoolOptions, checks
from nbddp.controller.state.config import LEGAL_CONFIG, Config, with_changes
from nbddp.errors import BadOptionError, NoTorchError
from nbddp.notebook import session

#: A value of each option that is not the default.
OTHER: dict[str, Any] = {
    "nproc_per_node": 3,
    "nnodes": 2,
    "backend": "gloo",
    "device": "cuda",
    "devices": (0, 1),
    "init": "file",
    "threads": 7,
    "env": {"A": "1", "B": "x=y z"},
    "cwd": "/",
    "timeout": 5.0,
    "cluster": "lab",
    "launcher": "ssh",
    "hosts": ("a", "b"),
    "python": "/opt/python",
    "tunnel": True,
    "via": "login",
    "address": "10.0.0.1",
    "port": 7777,
    "slurm": "--partition=gpu --time=10",
    "image": "registry/torch:1",
    "kind": "jobset",
    "namespace": "ml",
    "k8s_template": "pod.yaml",
    "job": {"queue": "gpu", "l": "x=y z"},
    "keep": 14400.0,
    "plain": True,
}
OF_K8S = ("image", "kind", "namespace", "k8s_template")
OF_SSH = ("hosts", "tunnel", "via")
#: For whatever starts the agents, and not for ranks.
OF_ENGINES = ("cluster", *OF_SSH, "python", "address", "port", "slurm", "job", *OF_K8S)
#: For agents, and not for ranks.
OF_AGENTS = ("keep",)
#: What an option needs beside itself.
COMPANIONS: dict[str, dict[str, Any]] = {
    "hosts": {"launcher": "ssh"},
    "python": {"launcher": "ssh"},
    "tunnel": {"launcher": "ssh"},
    "via": {"launcher": "slurm"},
    "port": {"launcher": "listen"},
    "address": {"launcher": "listen"},
    "slurm": {"launcher": "slurm"},
    **{name: {"launcher": "k8s"} for name in OF_K8S},
    "job": {"launcher": "pbs"},
}
#: Options that go together, with a second value for each that is legal then.
SETS: list[dict[str, Any]] = [
    {name: value for name, value in OTHER.items() if name not in ("launcher", *OF_ENGINES)},
    {
        name: value
        for name, value in OTHER.items()
        if name not in ("init", "slurm", "job", *OF_K8S, "keep", "via", "address")
    },
    {"cluster": "lab", "nproc_per_node": 5},
    {"launcher": "slurm", "slurm": "--partition=gpu", "nnodes": 3, "via": "login"},
    {"launcher": "listen", "nnodes": 3, "address": "10.0.0.1"},
    {"launcher": "k8s", "nnodes": 3} | {name: OTHER[name] for name in OF_K8S},
    {"launcher": "pbs", "job": {"queue": "gpu", "pbs.c": "n"}, "nnodes": 3},
]


@pytest.fixture(autouse=True)
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cluster, `lab`."""
    monkeypatch.setenv("NBDDP_CONFIG_DIR", str(tmp_path))
    (tmp_path / "clusters.toml").write_text("[lab]\nnproc_per_node = 3\nthreads = 2\n")


def checked(name: str) -> PoolOptions:
    """Options of which one has another value than the default, and what that needs."""
    return PoolOptions.checked(**{name: OTHER[name]}, **COMPANIONS.get(name, {}))


# --- one definition ------------------------------------------------------------------------------


def test_each_option_has_a_second_value_in_this_test():
    options = PoolOptions(**OTHER)
    assert options.differences(PoolOptions.checked()) == [f.name for f in fields(PoolOptions)]
    assert list(OTHER) == list(LINE_OPTIONS)


def test_start_shows_the_options_with_their_defaults_and_explains_them():
    parameters = inspect.signature(nbddp.start).parameters
    assert list(parameters) == list(LINE_OPTIONS)
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert PoolOptions.checked(**defaults) == PoolOptions.checked()
    text = inspect.getdoc(nbddp.start) or ""
    assert [name for name in LINE_OPTIONS if f"\n    {name}: " not in text] == []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[PoolOptions]:
    """Options of the pools that were started; each of them has ended at once."""
    found: list[PoolOptions] = []

    def make_pool(options: PoolOptions, *_: object, kept: object) -> SimpleNamespace:
        found.append(options)
        return SimpleNamespace(options=options, is_stopped=True)

    monkeypatch.setattr(session, "_current", None)
    monkeypatch.setattr(session, "Pool", make_pool)
    monkeypatch.setattr(session, "_connect_listeners", lambda pool: None)
    monkeypatch.setattr(session, "write_kernel_file", lambda pool: None)
    return found


@pytest.mark.parametrize("options", SETS)
def test_start_hands_every_option_on_and_a_pool_like_the_last_one_has_them(
    started: list[PoolOptions], options: dict[str, Any]
):
    nbddp.start(**options)
    session.start_like_last()
    assert started == [PoolOptions.checked(**options)] * 2


@pytest.mark.parametrize("name", LINE_OPTIONS)
def test_an_option_as_it_is_written_is_read_as_the_same(name: str):
    parser = argparse.ArgumentParser()
    for option in LINE_OPTIONS.values():
        option.add_to(parser)
    assert vars(parser.parse_args([])) == {}  # the defaults stand in one place
    options = checked(name)
    assert vars(parser.parse_args(options.words([name]))) == {name: OTHER[name]}


@pytest.mark.parametrize(
    "name", [name for name in LINE_OPTIONS if name not in (*OF_ENGINES, *OF_AGENTS)]
)
def test_ranks_are_told_every_option(name: str):
    def spec(options: PoolOptions) -> object:
        return options.spec(
            pool_id="p", generation=1, init_file="/init", sys_path=["/a"], use_arena=True
        )

    assert spec(checked(name)) != spec(PoolOptions.checked())


def test_there_are_no_other_options():
    with pytest.raises(TypeError, match="nnode"):
        PoolOptions.checked(2, nnode=2)


@pytest.mark.parametrize("name", [*OF_SSH, "python", "port", "slurm", "job", *OF_K8S])
def test_an_option_of_a_launcher_is_refused_without_it(name: str):
    with pytest.raises(BadOptionError, match=rf"--{name.replace('_', '-')} .*goes with --launcher"):
        PoolOptions.checked(**{name: OTHER[name]})


def test_an_option_of_another_launcher_is_left_out_or_gets_its_launcher():
    words = "the launcher is slurm. Next: leave out --hosts or --hostfile, or name the launcher ssh"
    with pytest.raises(BadOptionError, match=words):
        PoolOptions.checked(launcher="slurm", hosts=["a"])


def test_a_tunnel_has_no_address():
    with pytest.raises(BadOptionError, match="with --tunnel the notebook listens on its loopback"):
        PoolOptions.checked(launcher="ssh", hosts=["a"], tunnel=True, address="10.0.0.1")


@pytest.mark.parametrize("job", [{"n": 4}, "n=4", {1: "x"}])
def test_options_of_a_job_are_texts(job: Any):
    with pytest.raises(BadOptionError, match="legal: a mapping of names to text"):
        PoolOptions.checked(launcher="pbs", job=job)


def test_a_file_of_this_machine_starts_no_group_on_others():
    with pytest.raises(BadOptionError, match="legal with --launcher ssh: --init env, tcp, none"):
        PoolOptions.checked(launcher="ssh", hosts=["a"], init="file")


def test_nodes_are_counted_by_hosts_or_by_the_allocation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    assert PoolOptions.checked(launcher="ssh", hosts=["a", "b"]).nnodes == 2
    assert PoolOptions.checked(launcher="slurm").nnodes == 3
    assert PoolOptions.checked().nnodes == 1


# --- single options ------------------------------------------------------------------------------


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
        timeout=5.0,
    )
    assert found.world_size == 6
    assert found.describe() == (
        "-n 3 --nnodes 2 --backend gloo --device cuda --devices 0,1 --init file --threads 4 "
        "--timeout 5.0"
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
            "--threads 4 and --env OMP_NUM_THREADS=5 disagree. Next: leave out one of the two",
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
        ({"port": 99999}, "port is 99999; legal: a whole number from 0 to 65535"),
        ({"port": -5}, "port is -5; legal: a whole number from 0 to 65535"),
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
            "--devices 0,1 names CUDA devices, and --device cpu uses none. Next: leave out",
        ),
        ({"timeout": 0.0}, "--timeout 0 is not a positive number of seconds"),
        ({"timeout": -1.5}, "--timeout -1.5 is not a positive number of seconds"),
        ({"timeout": float("nan")}, "--timeout nan is not a positive number of seconds"),
        ({"timeout": float("inf")}, "--timeout inf is not a positive number of seconds"),
        ({"timeout": "x"}, "--timeout 'x' is not a positive number of seconds"),
        ({"devices": [-1]}, "--devices -1: legal: numbers of CUDA devices, such as 0,1"),
        ({"devices": ["a"]}, "--devices a: legal: numbers of CUDA devices, such as 0,1"),
        ({"devices": "0,1"}, "devices is '0,1'; legal: a list of numbers, such as [0, 1]"),
        ({"devices": 1}, "devices is 1; legal: a list of numbers, such as [0, 1]"),
        ({"backend": None}, "--backend None is not the name of a backend; legal: auto, gloo"),
        ({"env": "A=1"}, "env is 'A=1'; legal: a mapping of names to text"),
        ({"env": {1: "1"}}, "--env 1 is not a name that a variable can have"),
        ({"cwd": 3}, "cwd is 3; legal: a path"),
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
        (
            {"cwd": "/no/such/folder"},
            "--cwd '/no/such/folder' is not a folder that exists on this machine. Next: name",
        ),
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


def test_options_without_torch(monkeypatch: pytest.MonkeyPatch):
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
        checks.check_torch()


def test_plain_groups():
    found = PoolOptions.checked(plain=True)
    assert found.plain
    assert found.describe() == "-n 2 --plain"
    assert found.differences(PoolOptions.checked()) == ["plain"]
    with pytest.raises(BadOptionError, match="plain is 'no'; legal: True or False"):
        PoolOptions.checked(plain="no")


# --- what may be configured while the pool lives -------------------------------------------------


def test_a_change_of_the_configuration():
    found = with_changes(Config(), {"on_deadlock": "report", "on_death": "keep"})
    assert found == Config(on_deadlock="report", on_mismatch="raise", on_death="keep")
    assert with_changes(found, {}) == found


def test_the_defaults_come_first():
    assert {name: legal[0] for name, legal in LEGAL_CONFIG.items()} == vars(Config())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"on_death": "cry"}, "on_death=cry is unknown; legal: on_death=respawn or on_death=keep"),
        ({"on_deadlock": ""}, "on_deadlock has no value; legal: on_deadlock=abort or on_deadlock"),
        (
            {"on_fire": "run"},
            "'on_fire' is unknown; legal: on_deadlock=abort|report|debug, on_mismatch=",
        ),
    ],
)
def test_configuration_that_is_refused(changes: dict[str, str], words: str):
    with pytest.raises(BadOptionError) as caught:
        with_changes(Config(), {"on_mismatch": "off"} | changes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("via", "job", "where"),
    [
        ("", "", ""),
        ("", "7", "start the notebook on a login node, outside of this allocation; then "),
        ("login", "7", ""),
    ],
)
def test_a_step_of_srun_is_not_let_go_and_the_next_step_is_not_refused(
    via: str, job: str, where: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    options = PoolOptions.checked(1, nnodes=1, launcher="slurm", via=via or None)
    step = f"Next: {where}%ddp start --launcher slurm --keep 4h, which uses sbatch"
    with pytest.raises(BadOptionError, match=f"{re.escape(step)}$"):
        options.keep_after_detach("1h")
