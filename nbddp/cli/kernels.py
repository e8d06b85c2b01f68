"""``nbddp kernel``: kernel specs of nbddp, in the folders that Jupyter searches.

Runs in: a process of its own, which ends at once.
"""

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbddp.controller.options import HOSTFILE, LINE_OPTIONS, PoolOptions, without_slots
from nbddp.errors import BadOptionError

#: The key that marks nbddp kernels in the metadata of ``kernel.json``.
_MARK = "nbddp"


@dataclass(frozen=True)
class InstalledKernel:
    """An nbddp kernel that Jupyter finds."""

    name: str
    display_name: str
    pool: str  #: options of ``%ddp start``
    folder: str


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``nbddp kernel`` to the command line."""
    kernel = commands.add_parser(
        "kernel", help="a Jupyter kernel all of whose cells are distributed"
    )
    kernel.set_defaults(run=lambda _: kernel.format_help().splitlines())
    actions = kernel.add_subparsers(title="commands", metavar="COMMAND")
    _add_install(actions.add_parser("install", help="add one to Jupyter"))
    listing = actions.add_parser("list", help="list the installed kernels")
    listing.set_defaults(run=_list)
    remove = actions.add_parser("remove", help="remove one")
    remove.add_argument("name", nargs="?", help="as `nbddp kernel list` shows it")
    remove.set_defaults(run=_remove)


def _add_install(parser: argparse.ArgumentParser) -> None:
    pool = parser.add_argument_group("the pool, as in %ddp start")
    hosts = pool.add_mutually_exclusive_group()
    for name, option in LINE_OPTIONS.items():
        option.add_to(hosts if name == "hosts" else pool)
    HOSTFILE.add_to(hosts, dest="hosts")
    parser.add_argument("--name", help="of the kernel in Jupyter (nbddp-N, nbddp-CLUSTER)")
    parser.add_argument("--display-name", help='in the launcher ("Python (nbddp, N ranks)")')
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for you, in every environment")
    where.add_argument(
        "--sys-prefix",
        action="store_true",
        help="in this environment (default, if it can be written)",
    )
    where.add_argument("--prefix", help="in that environment")
    parser.set_defaults(run=_install)


def _install(arguments: argparse.Namespace) -> list[str]:
    pool_options = without_slots(
        {name: value for name, value in vars(arguments).items() if name in LINE_OPTIONS}
    )
    options = PoolOptions.checked(**pool_options)
    size = options.world_size
    name = (arguments.name or f"nbddp-{options.cluster or size}").lower()
    display_name = arguments.display_name or (
        f"Python (nbddp, {options.cluster or _count(size, 'rank')})"
    )
    existing = _specs().get(name)
    if existing is not None and _MARK not in existing["spec"].get("metadata", {}):
        raise BadOptionError(
            f"--name {name}: a kernel that is not an nbddp kernel has this name "
            f"({existing['resource_dir']}). Next: another name"
        )
    # The table of a cluster is read at each start.
    of_pool = pool_options if options.cluster else ["nproc_per_node", *pool_options]
    pool = shlex.join(options.words(of_pool))
    folder = _write(name, _kernel_json(display_name, pool), arguments)
    return [
        f'installed "{display_name}" in {folder}',
        f"  start it   choose it in JupyterLab, or: jupyter console --kernel {name}",
        f"  remove it  nbddp kernel remove {name}",
    ]


def _kernel_json(display_name: str, pool: str) -> dict[str, Any]:
    return {
        # Frozen modules have no source: a debugger would print a warning at each start.
        "argv": [
            sys.executable, "-Xfrozen_modules=off", "-m", "nbddp.notebook.ipykernel_app",
            "-f", "{connection_file}", f"--NbddpKernel.pool={pool}",
        ],
        "display_name": display_name,
        "metadata": {_MARK: {"pool": pool}, "debugger": True},
    }  # fmt: skip


def _write(name: str, kernel_json: dict[str, Any], arguments: argparse.Namespace) -> str:
    """Install a kernel spec, with ipykernel's logos.

    Args:
        name: the name of the kernel.
        kernel_json: overrides of ipykernel's ``kernel.json``.
        arguments: of the command line; they choose the environment.

    Returns:
        The folder of the kernel spec.

    Raises:
        BadOptionError: the name is not legal.
    """
    from ipykernel.kernelspec import write_kernel_spec  # noqa: PLC0415 - `nbddp --help` is quick
    from jupyter_client.kernelspec import KernelSpecManager  # noqa: PLC0415 - as above

    prefix = arguments.prefix
    if not (arguments.user or arguments.prefix):
        is_writable = arguments.sys_prefix or os.access(sys.prefix, os.W_OK)
        prefix = sys.prefix if is_writable else None
    staging = Path(tempfile.mkdtemp(prefix="nbddp-kernel-"))
    try:
        source = write_kernel_spec(str(staging / name), overrides=kernel_json)
        folder = KernelSpecManager().install_kernel_spec(
            source, kernel_name=name, user=prefix is None, prefix=prefix
        )
    except ValueError as error:
        raise BadOptionError(f"--name {name}: {error}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return str(folder)


def _list(_: argparse.Namespace) -> list[str]:
    kernels = _installed()
    if not kernels:
        return ["no nbddp kernel is installed. Next: nbddp kernel install -n 4"]
    width = max(len(kernel.name) for kernel in kernels)
    return [f"{kernel.name:<{width}}  {kernel.display_name}  {kernel.folder}" for kernel in kernels]


def _remove(arguments: argparse.Namespace) -> list[str]:
    kernels = {kernel.name: kernel for kernel in _installed()}
    name = arguments.name
    if name not in kernels:
        legal = f"Legal: {', '.join(kernels)}" if kernels else "None is installed."
        problem = "a name is missing." if name is None else f"{name!r} is not an nbddp kernel."
        raise BadOptionError(f"kernel remove: {problem} {legal}")
    shutil.rmtree(kernels[name].folder)
    return [f'removed "{kernels[name].display_name}" from {kernels[name].folder}']


def _specs() -> dict[str, Any]:
    from jupyter_client.kernelspec import KernelSpecManager  # noqa: PLC0415 - `nbddp --help`

    specs: dict[str, Any] = KernelSpecManager().get_all_specs()
    return specs


def _installed() -> list[InstalledKernel]:
    kernels = []
    for name, entry in sorted(_specs().items()):
        metadata = entry["spec"].get("metadata", {}).get(_MARK)
        if isinstance(metadata, dict):
            display_name = entry["spec"]["display_name"]
            kernels.append(
                InstalledKernel(name, display_name, metadata.get("pool", ""), entry["resource_dir"])
            )
    return kernels


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
