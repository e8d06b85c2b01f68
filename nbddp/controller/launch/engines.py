"""The engines by name: those of nbddp, and those that packages add.

Runs in: the notebook's process.
"""

import shlex
from collections.abc import Callable
from functools import partial
from importlib import metadata

from nbddp.controller.launch.engine import Engine, EngineOptions
from nbddp.controller.launch.k8s_engine import K8sEngine
from nbddp.controller.launch.listen import ListenEngine
from nbddp.controller.launch.psij_engine import PsijEngine
from nbddp.controller.launch.ray_engine import RayEngine
from nbddp.controller.launch.relayed_job import RelayedJobEngine
from nbddp.controller.launch.slurm import SlurmEngine
from nbddp.controller.launch.slurm_job import SlurmJobEngine
from nbddp.controller.launch.ssh import SshEngine
from nbddp.controller.options import ENTRY_POINTS, PSIJ_LAUNCHERS, PoolOptions, launcher_names
from nbddp.errors import BadOptionError


def _slurm(options: EngineOptions) -> Engine:
    if not options.keep_s:
        return SlurmEngine(options)
    return RelayedJobEngine(options) if options.via else SlurmJobEngine(options)


_ENGINES: dict[str, Callable[[EngineOptions], Engine]] = {
    "listen": ListenEngine,
    "ssh": SshEngine,
    "slurm": _slurm,
    "ray": RayEngine,
    "k8s": K8sEngine,
    **{name: partial(PsijEngine, name) for name in PSIJ_LAUNCHERS},
}


def engine_options(options: PoolOptions) -> EngineOptions:
    """Return what an engine gets of the options of a pool."""
    return EngineOptions(
        nnodes=options.nnodes,
        nproc_per_node=options.nproc_per_node,
        hosts=options.hosts,
        python=options.python,
        tunnel=options.tunnel,
        device=options.device,
        address=options.address,
        image=options.image,
        kind=options.kind,
        namespace=options.namespace,
        template=options.k8s_template,
        keep_s=options.keep,
        port=options.port,
        via=options.via,
        arguments=tuple(shlex.split(options.slurm)),
        job=dict(options.job),
    )


def notebook_address(engine: Engine, address: str) -> str:
    """Return the address of the notebook's machine at which the agents reach it.

    Args:
        engine: starts the agents.
        address: the value of ``--address``; empty: the user has given none.

    Raises:
        BadOptionError: hosts would not reach the notebook there.
    """
    own = "" if getattr(engine, "owns_address", False) else address
    if own and isinstance(engine, SshEngine):
        engine.check_address(own)
    return own or engine.address()


def make_engine(name: str, options: EngineOptions) -> Engine:
    """Make an engine.

    Args:
        name: as of ``--launcher``.
        options: for it.

    Raises:
        BadOptionError: there is no engine of this name, or it does not take these options.
    """
    if name in _ENGINES:
        return _ENGINES[name](options)
    for entry in metadata.entry_points(group=ENTRY_POINTS, name=name):
        engine: Engine = entry.load()(options)
        return engine
    raise BadOptionError(f"--launcher {name}; legal: {', '.join(launcher_names())}")


def objects_text(options: PoolOptions) -> str:
    """Write the objects that a pool would make in Kubernetes, as YAML, without its credentials.

    Raises:
        BadOptionError: the launcher makes none, or does not take these options.
    """
    engine = None
    if options.has_machines:
        engine = make_engine(options.launcher, engine_options(options))
    if not isinstance(engine, K8sEngine):
        raise BadOptionError(
            f"--print goes with --launcher k8s, and the launcher is {options.launcher}; leave out "
            "one of the two"
        )
    return engine.text()
