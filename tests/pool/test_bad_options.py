"""Options that only the ranks or the system can check: a message, and no process is left."""

import socket
import sys
from collections.abc import Callable

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import BadOptionError, PoolStartError
from nbddp.settings import Settings


@pytest.mark.full
def test_an_unknown_backend(fresh_pool: Callable[..., Pool]):
    with pytest.raises(BadOptionError) as caught:
        fresh_pool(2, backend="gluu")
    assert "backend 'gluu' is not available in torch" in str(caught.value)
    assert "legal here: auto, gloo" in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ("--backend nccl", {"backend": "nccl"}),
        pytest.param(
            "--backend cpu:gloo,cuda:nccl",
            {"backend": "cpu:gloo,cuda:nccl"},
            marks=pytest.mark.slow,
        ),
        pytest.param("--device cuda", {"device": "cuda"}, marks=pytest.mark.slow),
        pytest.param("--devices 0,1", {"devices": [0, 1]}, marks=pytest.mark.full),
    ],
)
def test_gpus_where_there_are_none(
    fresh_pool: Callable[..., Pool], asked: str, options: dict[str, object]
):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there are GPUs")
    with pytest.raises(BadOptionError) as caught:
        fresh_pool(1, **options)
    assert str(caught.value).startswith(f"{asked} needs a GPU, and torch ")
    assert "legal here: --device cpu with --backend gloo" in str(caught.value)


@pytest.mark.full
def test_a_backend_for_each_kind_of_device(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(2, backend="cpu:gloo", device="cpu")
    assert pool.pull("dist.get_backend_config()") == ["cpu:gloo"] * 2


def test_a_port_that_is_taken(fresh_pool: Callable[..., Pool]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadOptionError) as caught:
            fresh_pool(2, env={"MASTER_PORT": str(port)})
    assert str(caught.value) == (
        f"the store cannot listen on MASTER_ADDR 127.0.0.1, MASTER_PORT {port}: "
        "Address already in use; legal: an address of this machine and a free port; "
        "without --env MASTER_PORT=... a free port is chosen"
    )
    pool = fresh_pool(1, env={"MASTER_PORT": str(port)})  # free again
    assert pool.pull("__import__('os').environ['MASTER_PORT']", ranks=0) == str(port)


def test_an_address_of_another_machine(fresh_pool: Callable[..., Pool]):
    with pytest.raises(BadOptionError, match=r"MASTER_ADDR 192\.0\.2\.1, .*: Cannot assign"):
        fresh_pool(1, env={"MASTER_ADDR": "192.0.2.1"})  # reserved for documentation


def test_a_start_that_takes_too_long(fresh_pool: Callable[..., Pool]):
    with pytest.raises(PoolStartError) as caught:
        fresh_pool(1, settings=Settings(start_timeout_s=0.05))
    assert "the start took longer than 0.05 s" in str(caught.value)


def test_a_python_without_the_gil(fresh_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(PoolStartError, match=r"without the GIL, which nbddp needs.*PYTHON_GIL=1"):
        fresh_pool(1)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True)
    assert fresh_pool(1).pull("rank") == [0]


@pytest.mark.full
def test_ranks_of_a_free_threaded_python_have_the_gil(
    fresh_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: int(name == "Py_GIL_DISABLED"))
    assert fresh_pool(1).pull("__import__('os').environ.get('PYTHON_GIL')") == ["1"]
