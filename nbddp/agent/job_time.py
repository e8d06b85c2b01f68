"""The time that the batch job around an agent has left, asked for again and again.

Runs in: the agent process on another machine: its main thread before it joins, and then the thread
``nbddp-lifeline``.

Sources: srun(1), OUTPUT ENVIRONMENT VARIABLES; squeue(1), -o "%L"; flux-job(1), TIMELEFT; bjobs -o
time_left of LSF 10.1; qstat -f of OpenPBS and of Torque (Walltime.Remaining).
"""

import math
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from nbddp.agent.engine_variables import BatchJob
from nbddp.wire.message_types import JOB_LEFT_UNKNOWN_S, JOB_WARNINGS_S

_END_ENV = "SLURM_JOB_END_TIME"
_ASK_S = 2.0
#: Just before the notebook warns, the answer has to be new.
_BEFORE_WARNING_S = 20.0
_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_LSF_LEFT = re.compile(r"(\d+):(\d+)(?: [LEXP])?")
#: Flux answers with the largest integer of C if the job has no limit.
_FLUX_UNLIMITED_S = 2**32 - 1
_PBS_STARTED = "%a %b %d %H:%M:%S %Y"


def job_left_s(job: BatchJob, environ: Mapping[str, str]) -> float:
    """Return the seconds until the end of the job; `JOB_LEFT_UNKNOWN_S`: none is known.

    The variable of newer versions of Slurm says it. Otherwise the agent of the first node asks the
    scheduler: one question for each node would be too many.

    Args:
        job: around this agent.
        environ: the variables of the agent.
    """
    if job.scheduler == "slurm" and environ.get(_END_ENV, "").isdecimal():
        return max(0.0, int(environ[_END_ENV]) - time.time_ns() / 1e9)
    if job.scheduler not in _QUESTIONS or job.node > 0:
        return JOB_LEFT_UNKNOWN_S
    try:
        answer = subprocess.run(
            _question(job),
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
            env=dict(environ),
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return JOB_LEFT_UNKNOWN_S
    return _QUESTIONS[job.scheduler][1](answer)


def _question(job: BatchJob) -> Sequence[str]:
    return [word.format(job=job.name) for word in _QUESTIONS[job.scheduler][0]]


def next_question_s(left_s: float, every_s: float) -> float:
    """Return the seconds after which the time is asked for again.

    Args:
        left_s: that the job has left, or `JOB_LEFT_UNKNOWN_S`.
        every_s: the longest wait.

    >>> next_question_s(7200.0, 300.0), next_question_s(700.0, 300.0), next_question_s(15.0, 300.0)
    (300.0, 80.0, 300.0)
    """
    waits = [left_s - before - _BEFORE_WARNING_S for before in JOB_WARNINGS_S]
    return min([every_s, *(wait for wait in waits if wait > _BEFORE_WARNING_S)])


class JobWatch:
    """Asks the scheduler again when its time has come: limits of running jobs are changed.

    Only the agent of the first node of a job asks.

    Args:
        job: around the agent.
        left_s: what was known when the agent came.
        every_s: seconds between questions, at most.
        now: `time.monotonic`, here and below.
    """

    def __init__(self, job: BatchJob, left_s: float, every_s: float, now: float) -> None:
        self._job = job
        self._every_s = every_s
        self._process: subprocess.Popen[bytes] | None = None
        self._give_up_at = math.inf
        is_asking = job.scheduler in _QUESTIONS and job.node <= 0
        self._ask_at = now + next_question_s(left_s, every_s) if is_asking else math.inf

    def advance(self, now: float) -> float:
        """Ask if it is time, and never wait.

        Returns:
            The seconds that the job has left, if an answer has come; or `JOB_LEFT_UNKNOWN_S`.
        """
        process = self._process
        if process is None:
            if now >= self._ask_at:
                self._ask(now)
            return JOB_LEFT_UNKNOWN_S
        if process.poll() is None:
            if now >= self._give_up_at:
                process.kill()
            return JOB_LEFT_UNKNOWN_S
        self._process = None
        answer = process.stdout.read() if process.stdout is not None else b""
        process.communicate()
        left_s = _QUESTIONS[self._job.scheduler][1](answer.decode("utf-8", "replace"))
        if left_s != JOB_LEFT_UNKNOWN_S:
            self._ask_at = now + next_question_s(left_s, self._every_s)
        return left_s

    def _ask(self, now: float) -> None:
        self._ask_at, self._give_up_at = now + self._every_s, now + _ASK_S
        with suppress(OSError):  # no such program, or no process can be made now
            self._process = subprocess.Popen(
                _question(self._job),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )


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
