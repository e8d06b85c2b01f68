"""The facts about a machine that the hub compares before a rank starts.

Runs in: the agent process on another machine, its main thread.
"""

import os
import platform
import socket
from importlib import metadata
from pathlib import Path

from nbddp.agent.engine_variables import SLURM_HOST_ENV, batch_job, engine_place
from nbddp.agent.job_time import told_left_s
from nbddp.system import process_tree
from nbddp.wire.message_types import NodeFacts

_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")


def node_facts(address: str, cwd: str = "") -> NodeFacts:
    """Return what the hub wants to know of this machine, without an import of torch.

    Args:
        address: of this machine, towards the hub.
        cwd: the folder that ranks must be able to enter; empty: none was asked for.
    """
    place, job = engine_place(os.environ), batch_job(os.environ)
    return NodeFacts(
        host=socket.gethostname(),
        address=address,
        python=".".join(platform.python_version_tuple()[:2]),
        torch=_version("torch"),
        nbddp=_version("nbddp"),
        cpus=len(os.sched_getaffinity(0)) if process_tree.IS_LINUX else os.cpu_count() or 1,
        machine_cpus=os.cpu_count() or 1,
        gpus=len(list(_GPU_FOLDER.iterdir())) if _GPU_FOLDER.is_dir() else 0,
        cwd_problem=_folder_problem(cwd) if cwd else "",
        engine=place.engine,
        engine_node=place.node,
        engine_host=os.environ.get(SLURM_HOST_ENV, ""),
        job=job.name or place.job,
        scheduler=job.scheduler,
        job_left_s=told_left_s(job, os.environ),
    )


def _folder_problem(folder: str) -> str:
    """Return why no process can enter a folder; empty: it can."""
    try:
        os.stat(os.path.join(folder, "."))  # noqa: PTH116, PTH118 - pathlib drops the dot
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""


def _version(package: str) -> str:
    try:
        # None, or an error of some versions of Python: the folder of the metadata is empty.
        return metadata.version(package) or ""
    except (metadata.PackageNotFoundError, KeyError):
        return ""
