"""The time that the batch job around an agent has left.

Runs in: the agent process on another machine, its main thread.

Sources: srun(1), OUTPUT ENVIRONMENT VARIABLES; squeue(1), -o "%L"; flux-job(1), TIMELEFT; bjobs -o
time_left of LSF 10.1; qstat -f of OpenPBS and of Torque (Walltime.Remaining).
"""

import re
import subprocess
import time
from collections.abc import Callable, Mapping

from nbddp.agent.engine_variables import BatchJob
from nbddp.wire.message_types import JOB_LEFT_UNKNOWN_S

_END_ENV = "SLURM_JOB_END_TIME"
_ASK_S = 2.0
_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_LSF_LEFT = re.compile(r"(\d+):(\d+)(?: [LEXP])?")
#: Flux answers with the largest integer of C if the job has no limit.
_FLUX_UNLIMITED_S = 2**32 - 1
_PBS_STARTED = "%a %b %d %H:%M:%S %Y"


def job_left_s(job: BatchJob, node: int, environ: Mapping[str, str]) -> float:
    """Return the seconds until the end of the job; `JOB_LEFT_UNKNOWN_S`: none is known.

    The variable of newer versions of Slurm says it. Otherwise the agent of the first node asks the
    scheduler: one question for each node would be too many.

    Args:
        job: around this agent.
        node: of this agent, in its engine; -1: not known.
        environ: the variables of the agent.
    """
    if job.scheduler == "slurm" and environ.get(_END_ENV, "").isdecimal():
        return max(0.0, int(environ[_END_ENV]) - time.time_ns() / 1e9)
    if job.scheduler not in _QUESTIONS or node > 0:
        return JOB_LEFT_UNKNOWN_S
    question, read = _QUESTIONS[job.scheduler]
    try:
        answer = subprocess.run(
            [word.format(job=job.name) for word in question],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
            env=dict(environ),
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return JOB_LEFT_UNKNOWN_S
    return read(answer)


def read_time_left(text: str) -> float:
    """Read the time of ``squeue``; `JOB_LEFT_UNKNOWN_S` for words such as ``UNLIMITED``.

    >>> read_time_left("9:30"), read_time_left("1-02:00:00"), read_time_left("UNLIMITED")
    (570.0, 93600.0, -1.0)
    """
    match = _LEFT.fullmatch(text.strip())
    if match is None:
        return JOB_LEFT_UNKNOWN_S
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def read_flux_time_left(text: str) -> float:
    """Read the answer of ``flux job timeleft``.

    >>> read_flux_time_left("3599"), read_flux_time_left("4294967295"), read_flux_time_left("")
    (3599.0, -1.0, -1.0)
    """
    seconds = text.strip()
    if not seconds.isdecimal() or int(seconds) >= _FLUX_UNLIMITED_S:
        return JOB_LEFT_UNKNOWN_S
    return float(seconds)


def read_lsf_time_left(text: str) -> float:
    """Read the answer of ``bjobs -o time_left``: hours and minutes, and where they are from.

    >>> read_lsf_time_left("2:05 L"), read_lsf_time_left("-")
    (7500.0, -1.0)
    """
    match = _LSF_LEFT.fullmatch(text.strip())
    if match is None:
        return JOB_LEFT_UNKNOWN_S
    return float((int(match[1]) * 60 + int(match[2])) * 60)


def read_pbs_time_left(text: str) -> float:
    r"""Read the answer of ``qstat -f``: what Torque says is left, or the walltime since the start.

    >>> read_pbs_time_left("Job Id: 7\n    Walltime.Remaining = 3540\n")
    3540.0
    >>> read_pbs_time_left("Job Id: 7\n    Resource_List.walltime = 01:00:00\n")
    3600.0
    """
    facts = dict(re.findall(r"^\s+(\S+) = (.*)$", text, re.MULTILINE))
    if facts.get("Walltime.Remaining", "").isdecimal():
        return float(facts["Walltime.Remaining"])
    limit = read_time_left(facts.get("Resource_List.walltime", ""))
    if limit == JOB_LEFT_UNKNOWN_S:
        return limit
    try:
        started = time.mktime(time.strptime(facts.get("stime", ""), _PBS_STARTED))
    except ValueError:
        return limit  # it is not told: the job has just begun
    return max(0.0, min(limit, limit + started - time.time_ns() / 1e9))


#: The question to each scheduler, and what reads its answer.
_QUESTIONS: dict[str, tuple[tuple[str, ...], Callable[[str], float]]] = {
    "slurm": (("squeue", "-h", "-j", "{job}", "-o", "%L"), read_time_left),
    "flux": (("flux", "job", "timeleft", "{job}"), read_flux_time_left),
    "lsf": (("bjobs", "-noheader", "-o", "time_left", "{job}"), read_lsf_time_left),
    "pbs": (("qstat", "-f", "{job}"), read_pbs_time_left),
}
