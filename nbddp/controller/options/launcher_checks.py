"""Checks of the options that say what starts the agents.

Runs in: the notebook's process.
"""

import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from nbddp.controller.options.host_slots import name_problem
from nbddp.errors import BadOptionError

#: The launcher that starts agents on the notebook's own machine.
LOCAL = "local"
#: The launchers that submit a batch job through PSI/J.
PSIJ_LAUNCHERS = ("pbs", "lsf", "flux", "psij")
#: The options of launchers, and the launchers that take them; others take all of them.
TAKEN_BY = {
    "hosts": ("ssh",),
    "tunnel": ("ssh",),
    "via": ("slurm", "ssh"),
    "slurm": ("slurm",),
    "image": ("k8s",),
    "kind": ("k8s",),
    "namespace": ("k8s",),
    "k8s_template": ("k8s",),
    "job": PSIJ_LAUNCHERS,
    "python": ("ssh", "slurm", "ray", "k8s", *PSIJ_LAUNCHERS),
    "address": ("ssh", "slurm", "ray", "k8s", *PSIJ_LAUNCHERS, "listen"),
    "port": ("ssh", "slurm", "ray", "k8s", *PSIJ_LAUNCHERS, "listen"),
}
#: The launchers of nbddp, with their help.
LAUNCHERS = {
    LOCAL: "local",
    "ssh": "ssh",
    "slurm": "slurm",
    "ray": "ray",
    "k8s": "k8s",
    **{name: name for name in PSIJ_LAUNCHERS},
    "listen": "listen (you start them)",
}
#: The objects of Kubernetes that can make the pods.
KINDS = ("job", "jobset", "trainjob")
#: The launchers whose agents can outlive the notebook.
KEPT_BY = (LOCAL, "ssh", "slurm", "listen")
#: The group of entry points that packages add theirs to.
ENTRY_POINTS = "nbddp.launchers"
_ALLOCATION = "SLURM_JOB_ID"
_ALLOCATION_NODES = "SLURM_JOB_NUM_NODES"


def launcher_names() -> list[str]:
    """Return the legal values of ``--launcher``: those of nbddp, and those that packages add."""
    added = {entry.name for entry in metadata.entry_points(group=ENTRY_POINTS)}
    return [*LAUNCHERS, *sorted(added - LAUNCHERS.keys())]


def check_launcher(
    launcher: Any,
    options: Mapping[str, Any],
    init: str,
    *,
    is_given: bool = True,
    of_cluster: bool = False,
) -> None:
    """Check that the launcher takes the options that are given.

    Args:
        launcher: the value of ``--launcher``.
        options: values by names; one that is empty was not given.
        init: the value of ``--init``.
        is_given: the user has named the launcher.
        of_cluster: options come from a table of a file.

    Raises:
        BadOptionError: it does not; the message says what is legal.
    """
    if not isinstance(launcher, str) or launcher not in launcher_names():
        raise BadOptionError(f"launcher is {launcher!r}; legal: {', '.join(launcher_names())}")
    for name, value in options.items():
        takers = TAKEN_BY[name]
        if value and launcher in LAUNCHERS and launcher not in takers:
            option = "--hosts or --hostfile" if name == "hosts" else f"--{name.replace('_', '-')}"
            goes_with = f"{option} goes with --launcher {' or '.join(takers)}"
            if is_given:
                raise BadOptionError(
                    f"{goes_with}, and the launcher is {launcher}. Next: leave out {option}, or "
                    f"name the launcher {' or '.join(takers)}"
                )
            named = f"--launcher {' or '.join(takers)}"
            if of_cluster:
                named = " or ".join(f'launcher = "{taker}"' for taker in takers)
            raise BadOptionError(f"{goes_with}, and there is no launcher. Next: add {named}")
    if via := options.get("via"):
        problem = name_problem(via) or ("it has a comma in it" if "," in via else "")
        if problem:
            raise BadOptionError(f"--via {via}: {problem}; legal: the name of one login node")
    if via and options.get("tunnel"):
        raise BadOptionError(
            "--via and --tunnel are two ways for agents to reach the notebook. Next: "
            "leave out one of the two"
        )
    if options.get("tunnel") and options.get("address"):
        raise BadOptionError(
            "with --tunnel the notebook listens on its loopback only, where ssh carries the "
            "connections, and --address names another place. Next: leave out one of the two"
        )
    if launcher != LOCAL and init == "file":
        raise BadOptionError(
            "--init file needs a file that all machines share; legal with --launcher "
            f"{launcher}: --init env, tcp, none"
        )


def check_hosts(hosts: Sequence[str], nnodes: int) -> None:
    """Check that ssh has a host for each node.

    Raises:
        BadOptionError: there are too few; the message says what to write.
    """
    count = len(hosts)
    if count >= nnodes:
        return
    are = f"there {'is' if count == 1 else 'are'} {count or 'no'} host{'s' * (count != 1)}"
    named = ",".join([*hosts, *["HOST"] * (nnodes - count)])
    fewer = f", or --nnodes {count}" if count else ""
    raise BadOptionError(
        f"--launcher ssh needs a host for each node, and {are} for {nnodes} "
        f"node{'s' * (nnodes != 1)}; legal: --hosts {named} or --hostfile FILE{fewer}"
    )


def checked_job(job: Any) -> dict[str, str]:
    """Return the options of a batch job; None counts as no options.

    Raises:
        BadOptionError: it is no mapping of names to text.
    """
    pairs = {} if job is None else job
    if not isinstance(pairs, Mapping) or not all(
        isinstance(each, str) for pair in pairs.items() for each in pair
    ):
        raise BadOptionError(f"job is {job!r}; legal: a mapping of names to text")
    return dict(pairs)


def check_kept(launcher: str, *, command: str) -> None:
    """Check that the agents of a launcher can outlive the notebook.

    Args:
        launcher: the value of ``--launcher``.
        command: names what the user has typed.

    Raises:
        BadOptionError: they cannot; the message says what the user can do.
    """
    if launcher not in KEPT_BY:
        raise BadOptionError(
            f"{command} goes with --launcher {', '.join(KEPT_BY)}: agents of --launcher {launcher} "
            "end with their notebook. Next: `%ddp listen --keep 4h`, and start the agents yourself "
            "with one of the lines that it prints"
        )


def count_nodes(launcher: str, hosts: Sequence[str]) -> int:
    """Return the number of nodes if the user has not said it: hosts, or nodes of the allocation."""
    if launcher == "ssh":
        return max(1, len(hosts))
    if launcher == "slurm" and os.environ.get(_ALLOCATION_NODES, "").isdecimal():
        return int(os.environ[_ALLOCATION_NODES])
    return 1


def kept_job_step(via: str) -> str:
    """Return how the user starts a pool of Slurm that outlives the notebook.

    Args:
        via: the login node, which is in no allocation; empty: none, and the notebook may be in one.
    """
    step = "%ddp start --launcher slurm --keep 4h, which uses sbatch"
    if via or _ALLOCATION not in os.environ:
        return step
    return f"start the notebook on a login node, outside of this allocation; then {step}"
