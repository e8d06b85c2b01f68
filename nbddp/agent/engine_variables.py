"""The environment variables of the program that has started an agent.

Runs in: agents on other machines. Pure.

Sources: srun(1), OUTPUT ENVIRONMENT VARIABLES; mpirun(1) of Open MPI 4.1; the page of torchrun,
Environment Variables; https://kubernetes.io/docs/concepts/workloads/controllers/job/ (Indexed);
https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html.
"""

from collections.abc import Mapping
from dataclasses import dataclass

#: Slurm's own name of a machine, where it is known under several ones.
SLURM_HOST_ENV = "SLURMD_NODENAME"
_SLURM = ("slurm", "SLURM_NODEID", "SLURM_JOB_ID")
#: Engine, the variable with the number of the node, the variable with the name of the job. The
#: innermost engine comes first: mpirun and torchrun may run in a job of Slurm.
_ENGINES = (
    ("ssh", "NBDDP_NODE", ""),
    ("mpirun", "OMPI_COMM_WORLD_RANK", ""),
    ("torchrun", "GROUP_RANK", "TORCHELASTIC_RUN_ID"),
    ("kubeflow", "PET_NODE_RANK", ""),
    _SLURM,
    ("pmi", "PMI_RANK", ""),
    ("kubernetes", "JOB_COMPLETION_INDEX", "JOB_NAME"),
    ("skypilot", "SKYPILOT_NODE_RANK", "SKYPILOT_TASK_ID"),
)
#: Variables of the agent's own step. A library in a rank would take them for its own: Lightning
#: believes SLURM_PROCID, mpi4py joins the job of mpirun.
_STEP_PREFIXES = ("OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "PET_", "SLURM_STEP", "PRTE_")
_STEP_NAMES = frozenset(
    {
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
        *("SLURM_TASK_PID", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_GTIDS"),
        *("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE"),
        *("SLURM_CPU_BIND_VERBOSE", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"),
        *("SLURM_SRUN_COMM_PORT", "SLURM_UMASK", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
        *("LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME"),
        *("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NBDDP_NODE"),
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


def slurm_place(environ: Mapping[str, str]) -> EnginePlace:
    """Find the job of Slurm around an agent, which another engine may have started in it.

    >>> slurm_place({"SLURM_JOB_ID": "4711", "OMPI_COMM_WORLD_RANK": "1"})
    EnginePlace(engine='slurm', node=-1, job='4711')
    """
    engine, node_name, job_name = _SLURM
    if job_name not in environ:
        return EnginePlace()
    node = environ.get(node_name, "")
    return EnginePlace(engine, int(node) if node.isdecimal() else -1, environ[job_name])


def step_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of the agent's step, which its ranks must not see.

    >>> step_variables({"SLURM_PROCID": "0", "SLURM_JOB_ID": "4711", "OMPI_COMM_WORLD_RANK": "1"})
    ['SLURM_PROCID', 'OMPI_COMM_WORLD_RANK']
    """
    return [n for n in environ if n in _STEP_NAMES or n.startswith(_STEP_PREFIXES)]
