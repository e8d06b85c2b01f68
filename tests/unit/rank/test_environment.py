"""The environment variables of a rank are those of torchrun."""

import ast
import inspect
import socket
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from nbddp.errors import BadOptionError
from nbddp.rank import environment
from nbddp.settings import POOL_ID_ENV
from nbddp.wire.launch_specs import InheritedFd, RankLaunch
from nbddp.wire.message_types import PoolSpec
from tests.support.machines import make_spec


def launch(rank: int = 3, master_addr: str = "127.0.0.1", **changes: Any) -> RankLaunch:
    pool: PoolSpec = msgspec.structs.replace(make_spec(n=2, nnodes=2), threads=5, **changes)
    fields: dict[str, Any] = {
        "pool": pool,
        "rank": rank,
        "local_rank": rank % 2,
        "node": rank // 2,
        "master_addr": master_addr,
        "master_port": 29500,
        "agent_address": "ipc:///none",
        "agent_pid": 1,
        "forked": True,
    }
    descriptors = {name: InheritedFd(-1) for name in RankLaunch.__dataclass_fields__}
    return RankLaunch(**(descriptors | fields))


def variables_of_torchrun() -> set[str]:
    """Every name that the installed torchrun's agent gives to its workers."""
    from torch.distributed.elastic.agent.server import local_elastic_agent

    tree = ast.parse(inspect.getsource(local_elastic_agent))
    keys: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys += node.keys
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "worker_env":
            keys.append(node.slice)
    found = {key.value for key in keys if isinstance(key, ast.Constant)}
    names = {name for name in found if isinstance(name, str) and name.isupper()}
    # If not so, the source of torchrun's agent is not what it was: look there.
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= names
    return names


#: Variables that torchrun sets and `variables` does not, with the reason.
EXCEPTIONS = {
    "CUDA_VISIBLE_DEVICES",  # passed on as it is; another only with --virtual-local-rank
}


def test_no_variable_of_torchrun_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    ours = set(environment.variables(launch()))
    assert variables_of_torchrun() - ours - EXCEPTIONS == set()


def test_values():
    found = environment.variables(launch(rank=3, pool_id="abc", generation=2))
    expected = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
        "ROLE_NAME": "default",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "abc",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "5",
        POOL_ID_ENV: "abc",
    }
    assert {name: found[name] for name in expected} == expected


def test_variables_of_the_user_win(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RES_OPTIONS", "timeout:9")
    found = environment.variables(launch(env={"OMP_NUM_THREADS": "9", "MY_OWN": "x"}))
    assert found["OMP_NUM_THREADS"] == "9"
    assert found["MY_OWN"] == "x"
    assert "RES_OPTIONS" not in found  # it is in the environment already


@pytest.mark.parametrize(("address", "is_local"), [("127.0.0.1", True), ("10.0.0.1", False)])
def test_gloo_listens_on_the_loopback_only_where_all_ranks_are_here(
    monkeypatch: pytest.MonkeyPatch, address: str, is_local: bool
):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    found = environment.variables(launch(master_addr=address))
    assert ("GLOO_SOCKET_IFNAME" in found) == is_local


# --- devices -------------------------------------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch on a machine with four."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda _: True)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("rank", "options", "found"),
    [
        (3, {}, ("cuda:3", "nccl")),  # local rank 1 of node 1: global ranks do not share
        (3, {"devices": (2, 1)}, ("cuda:1", "gloo")),
        (0, {"backend": "cpu:gloo,cuda:nccl"}, ("cuda:0", "cpu:gloo,cuda:nccl")),
        (0, {"device": "cpu"}, ("cpu", "gloo")),
    ],
)
def test_devices(rank: int, options: dict[str, Any], found: tuple[str, str]):
    assert environment.choose_device(launch(rank, **options))[:2] == found


@pytest.mark.usefixtures("gpus")
def test_cuda_that_was_touched_before_the_fork(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda._is_in_bad_fork", lambda: True)
    with pytest.raises(BadOptionError, match="NBDDP_START_METHOD=spawn"):
        environment.choose_device(launch())
    assert environment.choose_device(launch(device="cpu"))[0] == "cpu"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "cpu:gloo,cuda:nccl", "device": "cpu"}, "--backend cpu:gloo,cuda:nccl needs"),
        ({"backend": "cpu:gloo,cuda:gluu"}, "backend 'gluu' is not available"),
    ],
)
def test_each_part_of_a_backend_is_checked(options: dict[str, Any], words: str):
    with pytest.raises(BadOptionError, match=words):
        environment.choose_device(launch(**options))


def test_the_host_that_has_no_gpu_is_named_if_it_is_another_machine(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("socket.gethostname", lambda: "n7")
    with pytest.raises(BadOptionError, match="sees none on n7; legal there: --device cpu"):
        environment.choose_device(launch(device="cuda", has_machines=True))
    with pytest.raises(BadOptionError, match="sees none on this machine; legal here: --device cpu"):
        environment.choose_device(launch(device="cuda"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A store is given up after its first try; gets the options of each process group."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(environment, "_REACH_S", 0.0)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda **given: made.append(given))
    return made


def test_a_rank_that_does_not_reach_the_store_of_another_machine_says_so(
    impatient: list[dict[str, Any]],
):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        far = replace(launch(has_machines=True), master_port=port)
        with pytest.raises(ConnectionError) as caught:
            environment.init_process_group(far, "gloo")
    said = str(caught.value)
    assert f"{socket.gethostname()} does not reach torch's store" in said
    assert f"at tcp://127.0.0.1:{port} (Connection refused, for 0 s). Perhaps a firewall" in said
    assert "Next: open all TCP ports between the hosts" in said
    assert impatient == []


def test_only_ranks_of_other_machines_than_that_of_the_store_look_for_it(
    impatient: list[dict[str, Any]],
):
    with socket.create_server(("127.0.0.1", 0)) as store:
        far = replace(launch(has_machines=True), master_port=store.getsockname()[1])
        environment.init_process_group(far, "gloo")
    near = replace(launch(rank=1, has_machines=True), master_port=1)
    for other in (near, replace(launch(), master_port=1)):
        environment.init_process_group(other, "gloo")
    environment.init_process_group(launch(has_machines=True, init="none"), "gloo")
    assert len(impatient) == 3
