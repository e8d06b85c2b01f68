"""The environment variables of the program that has started an agent.

Runs in: agents on other machines. Pure.

Sources: srun(1), OUTPUT ENVIRONMENT VARIABLES; mpirun(1) of Open MPI 4.1; the page of torchrun,
Environment Variables; https://kubernetes.io/docs/concepts/workloads/controllers/job/ (Indexed);
https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html; flux-environment(7);
qsub(1B) of OpenPBS; "Environment variables set for job execution" of LSF 10.1; jsrun(1).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nbddp.settings import NODE_ENV

#: Slurm's own name of a machine, where it is known under several ones.
SLURM_HOST_ENV = "SLURMD_NODENAME"
#: Engine, the variable with the number of the node, the variable with the name of the job. The
#: innermost engine comes first: mpirun and torchrun may run in a job of Slurm.
_ENGINES = (
    ("ssh", NODE_ENV, ""),
    ("mpirun", "OMPI_COMM_WORLD_RANK", ""),
    ("torchrun", "GROUP_RANK", "TORCHELASTIC_RUN_ID"),
    ("kubeflow", "PET_NODE_RANK", ""),
    ("flux", "FLUX_TASK_RANK", "FLUX_JOB_ID"),
    ("slurm", "SLURM_NODEID", "SLURM_JOB_ID"),
    ("jsrun", "JSM_NAMESPACE_RANK", "LSB_JOBID"),
    ("pals", "PALS_RANKID", "PBS_JOBID"),
    ("pmi", "PMI_RANK", ""),
    ("pbs", "PBS_NODENUM", "PBS_JOBID"),
    ("kubernetes", "JOB_COMPLETION_INDEX", "JOB_NAME"),
    ("skypilot", "SKYPILOT_NODE_RANK", "SKYPILOT_TASK_ID"),
)
#: Schedulers of batch jobs, and the variable with the name of the job. An instance of Flux may be a
#: job of another one.
_SCHEDULERS = (
    ("flux", "FLUX_JOB_ID"),
    ("slurm", "SLURM_JOB_ID"),
    ("pbs", "PBS_JOBID"),
    ("lsf", "LSB_JOBID"),
)
#: Variables of the agent's own step. A library in a rank would take them for its own: Lightning
#: believes SLURM_PROCID, mpi4py joins the job of mpirun.
_STEP_PREFIXES = (
    *("OMPI_", "PMI_", "PMIX_", "PRTE_", "TORCHELASTIC_", "PET_", "SLURM_STEP"),
    *("FLUX_TASK_", "JSM_NAMESPACE_", "PALS_"),
)
_STEP_NAMES = frozenset(
    {
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
        *("SLURM_TASK_PID", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_GTIDS"),
        *("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE"),
        *("SLURM_CPU_BIND_VERBOSE", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"),
        *("SLURM_SRUN_COMM_PORT", "SLURM_UMASK", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
        *("LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME"),
        *("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", NODE_ENV),
        *("PBS_NODENUM", "PBS_TASKNUM", "LSF_PM_TASKID", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    }
)


@dataclass(frozen=True)
class EnginePlace:
    """The place of an agent in the engine that has started it."""

    engine: str = ""  #: empty: not known
    node: int = -1  #: -1: not known
    job: str = ""


def engine_place(environ: Mapping[str, str]) -> EnginePlace:
    """Find the engine and the number of the node.

    >>> engine_place({"SLURM_NODEID": "1", "SLURM_JOB_ID": "4711"})
    EnginePlace(engine='slurm', node=1, job='4711')
    """
    for engine, node_name, job_name in _ENGINES:
        if environ.get(node_name, "").isdecimal():
            return EnginePlace(engine, int(environ[node_name]), environ.get(job_name, ""))
    return EnginePlace()


@dataclass(frozen=True)
class BatchJob:
    """The job of a scheduler."""

    scheduler: str = ""  #: ``slurm``, ``pbs``, ``lsf``, ``flux``; empty: there is no job
    name: str = ""  #: as the scheduler names it: ``4711``
    node: int = -1  #: number of the agent among those of the job; -1: not known


def batch_job(environ: Mapping[str, str]) -> BatchJob:
    """Find the job around an agent, which another engine may have started in it.

    >>> batch_job({"SLURM_JOB_ID": "4711", "OMPI_COMM_WORLD_RANK": "1"})
    BatchJob(scheduler='slurm', name='4711', node=1)
    """
    for scheduler, job_name in _SCHEDULERS:
        if environ.get(job_name):
            return BatchJob(scheduler, environ[job_name], _node_in_job(environ))
    return BatchJob()


def _node_in_job(environ: Mapping[str, str]) -> int:
    """Return the number of an agent among those of its job; -1: not known.

    An agent in the place of a lost one has the number of that one in the pool, and may be the only
    one of a job of its own.
    """
    place = engine_place({name: environ[name] for name in environ if name != NODE_ENV})
    return (place if place.engine else engine_place(environ)).node


def step_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of the agent's step, which its ranks must not see.

    >>> step_variables({"SLURM_PROCID": "0", "SLURM_JOB_ID": "4711", "OMPI_COMM_WORLD_RANK": "1"})
    ['SLURM_PROCID', 'OMPI_COMM_WORLD_RANK']
    """
    return [n for n in environ if n in _STEP_NAMES or n.startswith(_STEP_PREFIXES)]
