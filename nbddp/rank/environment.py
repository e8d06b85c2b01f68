"""The environment of a rank: the variables that torchrun sets, and the process group.

Runs in: the rank process, once, before the first cell.

Sources: torchrun's variables, ``torch/distributed/run.py`` ("Environment Variables") and
``torch/distributed/elastic/agent/server/local_elastic_agent.py``.
"""

import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nbddp.errors import BadOptionError
from nbddp.rank import torch_private
from nbddp.settings import AGENT_PID_ENV, POOL_ID_ENV, RANK_MARK_ENV, USER_PYTHONPATH_ENV
from nbddp.system import network
from nbddp.wire.launch_specs import RankLaunch
from nbddp.wire.message_types import PoolSpec

_ROLE = "default"
#: Time limits for the pool's store on another machine and for one try: TCP may lose packets, and
#: the limit of the whole start is longer.
_REACH_S = 20.0
_CONNECT_S = 2.0
_RETRY_S = 0.5


def prepare(launch: RankLaunch) -> None:
    """Set environment variables, working folder, import path and number of threads.

    Raises:
        OSError: the working folder cannot be entered.
        BadOptionError: it cannot, and was asked for, on another machine than the notebook.
    """
    os.environ.pop(AGENT_PID_ENV, None)
    python_path = os.environ.pop(USER_PYTHONPATH_ENV, "")
    if python_path:
        os.environ["PYTHONPATH"] = python_path
    else:
        os.environ.pop("PYTHONPATH", None)
    os.environ.update(variables(launch))
    _enter_folder(launch.pool)
    if launch.pool.has_machines:  # whose Python has paths of its own
        added = [path for path in launch.pool.sys_path if path not in sys.path]
        sys.path[:] = [*(path for path in added if not path or Path(path).exists()), *sys.path]
    else:
        sys.path[:] = launch.pool.sys_path
    sys.argv = [""]
    torch.set_num_threads(launch.pool.threads)


def _enter_folder(pool: PoolSpec) -> None:
    """Enter the working folder; the home folder where the notebook's own does not exist."""
    try:
        os.chdir(pool.cwd)
    except OSError as error:
        if pool.has_machines and pool.needs_cwd:
            raise BadOptionError(
                f"--cwd {pool.cwd} cannot be entered on host {socket.gethostname()}: "
                f"{error.strerror}; legal: a folder that exists on each host"
            ) from None
        if pool.needs_cwd or not isinstance(error, FileNotFoundError):
            raise
        os.chdir(Path.home())


def variables(launch: RankLaunch) -> dict[str, str]:
    """Return the environment variables of this rank; those of the user take precedence."""
    pool = launch.pool
    values = {
        "RANK": launch.rank,
        "LOCAL_RANK": launch.local_rank,
        "GROUP_RANK": launch.node,
        "ROLE_RANK": launch.rank,
        "ROLE_NAME": _ROLE,
        "WORLD_SIZE": pool.world_size,
        "LOCAL_WORLD_SIZE": pool.nproc_per_node,
        "GROUP_WORLD_SIZE": pool.nnodes,
        "ROLE_WORLD_SIZE": pool.world_size,
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": launch.master_port,
        "TORCHELASTIC_RUN_ID": pool.pool_id,
        "TORCHELASTIC_RESTART_COUNT": pool.generation,
        "TORCHELASTIC_MAX_RESTARTS": pool.generation,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "OMP_NUM_THREADS": pool.threads,
        POOL_ID_ENV: pool.pool_id,
        RANK_MARK_ENV: launch.mark,
    }
    defaults = {
        # Asking NVML instead of the CUDA runtime keeps fork possible.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    if network.is_loopback(launch.master_addr):
        # All ranks are on this machine: Gloo must not listen anywhere else.
        defaults["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    elif pool.has_machines and (interface := network.interface_towards(launch.master_addr)):
        # Gloo takes the address of the host's name else, which Debian sets to 127.0.1.1.
        defaults["GLOO_SOCKET_IFNAME"] = defaults["NCCL_SOCKET_IFNAME"] = interface
    missing = {name: value for name, value in defaults.items() if name not in os.environ}
    return {name: str(value) for name, value in values.items()} | missing | pool.env


def choose_device(launch: RankLaunch) -> tuple[str, str, str]:
    """Return ``(device, backend, note for the user)`` of this rank.

    Raises:
        BadOptionError: the requested device or backend does not exist here.
    """
    pool = launch.pool
    names = _backend_names(pool.backend)
    if "nccl" in names and pool.device == "cpu":
        raise BadOptionError(
            f"--backend {pool.backend} needs GPUs; with --device cpu use --backend gloo"
        )
    if pool.device != "cpu" and launch.forked and torch_private.is_in_bad_fork():
        raise BadOptionError(
            "CUDA was used before this rank was forked, so the rank cannot use it: a module of "
            "NBDDP_PRELOAD, or one that Python imports at its start, has used it. "
            "Next: %env NBDDP_START_METHOD=spawn, then %ddp start; or start with --device cpu"
        )
    has_cuda = pool.device != "cpu" and torch.cuda.is_available()
    cuda_option = _asks_for_cuda(pool)
    if cuda_option and not has_cuda:
        where, here = "this machine", "here"
        if pool.has_machines:
            where, here = socket.gethostname(), "there"
        raise BadOptionError(
            f"{cuda_option} needs a GPU, and torch {torch.__version__} sees none on {where}; "
            f"legal {here}: --device cpu with --backend gloo"
        )
    for name in names:
        if name != "auto" and not dist.is_backend_available(name):
            raise BadOptionError(
                f"backend {name!r} is not available in torch {torch.__version__}; "
                f"legal here: auto, {', '.join(_available_backends())}"
            )
    if not has_cuda:
        return "cpu", "gloo" if pool.backend == "auto" else pool.backend, ""
    count = torch.cuda.device_count()
    devices = pool.devices or tuple(range(count))
    if max(devices) >= count:
        raise BadOptionError(f"--devices: there are CUDA devices 0 to {count - 1}")
    # By global rank if all nodes are on this machine, and must not take the same devices.
    index, sharers = launch.rank, pool.world_size
    if pool.has_machines:
        index, sharers = launch.local_rank, pool.nproc_per_node
    device = f"cuda:{devices[index % len(devices)]}"
    if pool.backend != "auto":
        return device, pool.backend, ""
    if sharers <= len(set(devices)) and dist.is_nccl_available():
        return device, "nccl", ""
    return device, "gloo", f"{sharers} ranks share {len(set(devices))} GPUs: Gloo, not NCCL"


def _backend_names(backend: str) -> list[str]:
    """Return the names in ``backend``: ``cpu:gloo,cuda:nccl`` has one for each kind of device."""
    return [part.rpartition(":")[2] for part in backend.split(",")]


def _asks_for_cuda(pool: PoolSpec) -> str:
    """Return the option that needs a GPU; empty: no option needs one."""
    if "nccl" in _backend_names(pool.backend):
        return f"--backend {pool.backend}"
    if pool.devices:
        return f"--devices {','.join(map(str, pool.devices))}"
    return "--device cuda" if pool.device == "cuda" else ""


def _available_backends() -> list[str]:
    no_choice = (dist.Backend.UNDEFINED, "fake")
    names = (name for name in dist.Backend.backend_list if name not in no_choice)
    return [name for name in names if dist.is_backend_available(name)]


def init_process_group(launch: RankLaunch, backend: str) -> None:
    """Initialise the default process group as ``--init`` says."""
    pool = launch.pool
    options: dict[str, Any] = {"backend": backend}
    if pool.timeout_s:
        options["timeout"] = timedelta(seconds=pool.timeout_s)
    if pool.init != "none" and pool.has_machines and launch.node != 0:
        _reach_store(launch.master_addr, launch.master_port)
    match pool.init:
        case "none":
            return
        case "env":
            options["init_method"] = "env://"
        case "tcp":
            options["init_method"] = f"tcp://{launch.master_addr}:{launch.master_port}"
        case "file":
            options["init_method"] = f"file://{pool.init_file}"
    if pool.init != "env":
        options |= {"rank": launch.rank, "world_size": pool.world_size}
    dist.init_process_group(**options)


def _reach_store(host: str, port: int) -> None:
    """Check that the pool's store is reached: torch would only wait, longer than the start.

    Raises:
        ConnectionError: it is not.
    """
    address = f"tcp://{host}:{port}"
    give_up_at = time.monotonic() + _REACH_S
    while True:
        reached, _, failures = network.first_reachable([address], _CONNECT_S)
        if reached:
            return
        if time.monotonic() >= give_up_at:
            break
        time.sleep(_RETRY_S)
    reason = failures[0][1]
    perhaps = {
        network.NO_ANSWER: "Perhaps a firewall drops the packets between the hosts. ",
        network.REFUSED: "Perhaps a firewall rejects the connections between the hosts, or the "
        "store has ended. ",
    }
    raise ConnectionError(
        f"{socket.gethostname()} does not reach torch's store, which the host of node 0 serves at "
        f"{address} ({reason}, for {_REACH_S:g} s). {perhaps.get(reason, '')}Next: open all TCP "
        "ports between the hosts, since Gloo and NCCL take any free ones; or, if they reach each "
        "other on another network, name the address of node 0 there with --env MASTER_ADDR=ADDRESS"
    )
