"""The batch job that a pool asks for, in the terms of PSI/J (the package ``psij-python``).

Runs in: the notebook's process, which checks it, and the driver of the job. Pure.

PSI/J writes the script, submits it and asks for the state. Its own launchers start a process for
each slot of the job; the job here has a slot for each rank and starts one agent on each node, so it
brings lines of its own for that.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nbddp.controller.launch.engine import EngineOptions
from nbddp.durations import parse_duration
from nbddp.errors import BadOptionError

#: The options of ``--launcher psij`` name the executor.
PSIJ = "psij"
_CLOCK = re.compile(r"(\d+):(\d\d)(?::(\d\d))?")
#: Names in ``--job`` that every executor has; they are for this module.
_EXECUTOR, _FOLDER, _START_BY = "executor", "folder", "start_by"
#: Names in ``--job`` that PSI/J writes as each scheduler has them.
_DURATION, _QUEUE, _ACCOUNT, _RESERVATION = "duration", "queue", "account", "reservation"
#: More of each chunk of ``-l select`` of PBS, whose first ``select`` wins: PSI/J writes that.
_SELECT = "select"

_NODES = "hosts=$1 nodes=$2 ranks=$3; shift 3; "
#: Programs in the job that start one agent on each node, as lines of a shell. Their arguments: a
#: path for a file, the number of nodes, the ranks on each, the command of an agent. No agent is
#: bound to a processor, or all of its ranks would be.
_STARTERS = {
    "mpirun": _NODES
    + 'sort -u "${LSB_DJOB_HOSTFILE:-$PSIJ_NODEFILE}" > "$hosts"; '
    + "export OMPI_MCA_hwloc_base_binding_policy=none I_MPI_PIN=off; "
    + "export PRTE_MCA_hwloc_default_binding_policy=none; "
    + 'exec mpirun -np "$nodes" -machinefile "$hosts" "$@"',
    "srun": _NODES
    + 'exec srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpu-bind=none '
    + '--cpus-per-task="$ranks" --kill-on-bad-exit=0 "$@"',
    "jsrun": _NODES
    + 'exec jsrun --nrs "$nodes" --rs_per_host 1 --tasks_per_rs 1 --cpu_per_rs ALL_CPUS '
    + '--gpu_per_rs ALL_GPUS --bind none "$@"',
}


@dataclass(frozen=True)
class Scheduler:
    """The scheduler behind an executor of PSI/J."""

    title: str
    look: str = ""  #: a command that shows a job to the user
    prefix: str = ""  #: of custom attributes; empty: the executor takes none
    name_option: str = ""  #: that names the job; PSI/J 0.9.11 writes no name
    start_by: str = "mpirun"
    #: It starts the command once for each node by itself.
    starts_tasks: bool = False
    takes: tuple[str, ...] = (_DURATION, _QUEUE, _ACCOUNT, _RESERVATION)


SCHEDULERS = {
    "pbs": Scheduler("PBS", "qstat -xf", "pbs", "N"),
    "pbs_classic": Scheduler("PBS", "qstat -f", "pbs", "N"),
    "lsf": Scheduler("LSF", "bjobs -l", "lsf", "J", start_by="jsrun"),
    "flux": Scheduler("Flux", "flux job eventlog", starts_tasks=True, takes=(_DURATION,)),
    "slurm": Scheduler("Slurm", "scontrol show job", "slurm", "job-name", start_by="srun"),
    "local": Scheduler("local", starts_tasks=True, takes=()),
}


@dataclass(frozen=True)
class PsijJob:
    """A job, checked."""

    executor: str  #: of PSI/J
    nnodes: int
    nproc_per_node: int
    device: str
    options: Mapping[str, str]  #: the value of ``--job``

    @classmethod
    def checked(cls, launcher: str, asked: EngineOptions) -> "PsijJob":
        """Check what can be checked here; the scheduler checks the rest.

        Args:
            launcher: the value of ``--launcher``: an executor, or `PSIJ`.
            asked: by the user.

        Raises:
            BadOptionError: an option is not legal; the message says what is.
        """
        options = asked.job
        executor = options.get(_EXECUTOR, "" if launcher == PSIJ else launcher)
        if not executor:
            raise BadOptionError(
                f"--launcher {PSIJ} needs --job executor=NAME; legal: "
                f"{', '.join(SCHEDULERS)}, or another that PSI/J has"
            )
        job = cls(executor, asked.nnodes, asked.nproc_per_node, asked.device, options)
        job.scheduler_options()
        if _DURATION in options:
            read_duration(options[_DURATION])
        elif executor == "lsf":
            raise BadOptionError("a job of LSF needs a time limit; legal: --job duration=1:00:00")
        if options.get(_START_BY, job.scheduler.start_by) not in _STARTERS:
            raise BadOptionError(
                f"--job {_START_BY}={options[_START_BY]}; legal: {', '.join(_STARTERS)}"
            )
        return job

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler; of executors that other packages have brought, only the name is known."""
        return SCHEDULERS.get(self.executor) or Scheduler(self.executor, prefix=self.executor)

    @property
    def folder(self) -> str:
        """The folder for files of the job, which all nodes see; empty: the usual one."""
        return self.options.get(_FOLDER, "")

    @property
    def duration_s(self) -> float | None:
        """The time limit; None: that of the scheduler."""
        text = self.options.get(_DURATION)
        return None if text is None else read_duration(text)

    def attribute(self, name: str) -> str | None:
        """Return ``queue``, ``account`` or ``reservation``; None: not given."""
        return self.options.get(name)

    def scheduler_options(self) -> dict[str, str]:
        """Return the options that the scheduler gets as they are, by its own names.

        Raises:
            BadOptionError: the executor passes on none of them.
        """
        scheduler = self.scheduler
        own = {_EXECUTOR, _FOLDER, _START_BY, *scheduler.takes}
        if self.executor == "pbs":
            own.add(_SELECT)
            if self.options.get("l", "").startswith("select="):
                raise BadOptionError(
                    "--job l=select=...: PBS keeps the first select, which PSI/J writes; legal: "
                    "--job select=ngpus=4 for more of each chunk"
                )
        rest = {name: value for name, value in self.options.items() if name not in own}
        if rest and not scheduler.prefix:
            raise BadOptionError(
                f"--job {next(iter(rest))}: PSI/J passes that to no job of {scheduler.title}; "
                f"legal: {', '.join(sorted(own - {_START_BY}))}"
            )
        return rest

    def custom_attributes(self, name: str) -> dict[str, str]:
        """Return PSI/J's custom attributes: the scheduler's own options, and the name of the job.

        >>> PsijJob("pbs", 1, 1, "cpu", {"c": "n"}).custom_attributes("nbddp-x")
        {'pbs.N': 'nbddp-x', 'pbs.c': 'n'}
        """
        scheduler = self.scheduler
        named = {scheduler.name_option: name} if scheduler.name_option else {}
        options = named | self.scheduler_options()
        return {f"{scheduler.prefix}.{option}": value for option, value in options.items()}

    def resources(self) -> dict[str, int]:
        """Return the arguments of PSI/J's ``ResourceSpecV1``: a slot for each rank.

        >>> PsijJob("pbs", 2, 4, "cpu", {}).resources()
        {'node_count': 2, 'processes_per_node': 4}
        >>> PsijJob("flux", 2, 4, "cpu", {}).resources()
        {'node_count': 2, 'process_count': 2, 'cpu_cores_per_process': 4}
        """
        nodes, ranks = self.nnodes, self.nproc_per_node
        if self.executor == "local":
            return {"process_count": nodes}
        if self.scheduler.starts_tasks:
            amounts = {"node_count": nodes, "process_count": nodes, "cpu_cores_per_process": ranks}
        else:
            amounts = {"node_count": nodes, "processes_per_node": ranks}
        gpus = {"flux": ranks, "lsf": 1, "pbs_classic": ranks}  # as their templates count
        if self.device == "cuda" and self.executor in gpus:
            amounts["gpu_cores_per_process"] = gpus[self.executor]
        return amounts

    def chunk(self) -> str:
        """Return what follows the number of nodes in ``-l select`` of PBS; empty: nothing.

        >>> PsijJob("pbs", 2, 4, "cuda", {}).chunk()
        ':ngpus=4'
        >>> PsijJob("pbs", 2, 4, "auto", {"select": "ngpus=4:system=a"}).chunk()
        ':ngpus=4:system=a'
        """
        if self.executor != "pbs":
            return ""
        default = f"ngpus={self.nproc_per_node}" if self.device == "cuda" else ""
        more = self.options.get(_SELECT, default)
        return more and f":{more}"

    def command(self, agent: Sequence[str], hosts_file: str) -> list[str]:
        """Return the words that start one agent on each node, run once in the job or by each node.

        Args:
            agent: the command of an agent.
            hosts_file: path for a file of the command.
        """
        if self.nnodes == 1 or self.scheduler.starts_tasks:
            return list(agent)
        starter = _STARTERS[self.options.get(_START_BY, self.scheduler.start_by)]
        numbers = (str(self.nnodes), str(self.nproc_per_node))
        return ["/bin/sh", "-c", starter, "nbddp", hosts_file, *numbers, *agent]


def read_duration(text: str) -> float:
    """Read ``1:30:00``, ``1:30`` (hours and minutes) or ``90min``, in seconds.

    >>> read_duration("1:30"), read_duration("1:30:00"), read_duration("90min")
    (5400.0, 5400.0, 5400.0)

    Raises:
        BadOptionError: it is none of them.
    """
    if match := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float((hours * 60 + minutes) * 60 + seconds)
    duration = parse_duration(text)
    if not duration:
        raise BadOptionError(f"--job {_DURATION}={text}; legal: 1:30:00, 1:30, 90min, 2h")
    return duration
