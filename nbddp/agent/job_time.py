"""The time that the batch job around an agent has left, asked for again and again.

Runs in: the agent process on another machine: its main thread until it has joined, and then the
thread ``nbddp-lifeline``.

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
#: A question without an answer ends after this time. Answers are wrong by at most a half of it.
_ASK_S = 30.0
#: Just before the notebook warns, the answer has to be new.
_BEFORE_WARNING_S = 20.0
_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_LSF_LEFT = re.compile(r"(\d+):(\d+)(?: [LEXP])?")
#: Flux answers with the largest integer of C if the job has no limit.
_FLUX_UNLIMITED_S = 2**32 - 1
_PBS_STARTED = "%a %b %d %H:%M:%S %Y"


def told_left_s(job: BatchJob, environ: Mapping[str, str]) -> float:
    """Return what newer versions of Slurm say in a variable, and without a question.

    Args:
        job: around this agent.
        environ: the variables of the agent.

    Returns:
        The seconds until the end of the job; `JOB_LEFT_UNKNOWN_S`: no variable says it.
    """
    if job.scheduler == "slurm" and environ.get(_END_ENV, "").isdecimal():
        return max(0.0, int(environ[_END_ENV]) - time.time_ns() / 1e9)
    return JOB_LEFT_UNKNOWN_S


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
    """Asks the scheduler at once if nothing is known, and again when its time has come.

    Limits of running jobs are changed. Only the agent of the first node of a job asks: one question
    for each node would be too many. No thread waits for the answer.

    Args:
        job: around the agent.
        left_s: what is known now, or `JOB_LEFT_UNKNOWN_S`.
        every_s: seconds between questions, at most.
        now: `time.monotonic`, here and below.
    """

    def __init__(self, job: BatchJob, left_s: float, every_s: float, now: float) -> None:
        self._every_s = every_s
        self.is_news = False  #: the hub has not been told of the last answer
        self._job = job
        self._ends_at = math.inf if left_s == JOB_LEFT_UNKNOWN_S else now + left_s
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_at, self._ask_at = now, math.inf
        if job.scheduler in _QUESTIONS and job.node <= 0:
            is_known = self._ends_at != math.inf
            self._ask_at = now + next_question_s(left_s, every_s) if is_known else now

    def ask_every(self, every_s: float, now: float) -> None:
        """Ask as often as the hub says, from now on."""
        self._every_s = every_s
        if self._ask_at != math.inf:
            self._ask_at = min(self._ask_at, now + every_s)

    def left_s(self, now: float) -> float:
        """Return the seconds that the job has left, or `JOB_LEFT_UNKNOWN_S`."""
        return JOB_LEFT_UNKNOWN_S if self._ends_at == math.inf else max(0.0, self._ends_at - now)

    def advance(self, now: float) -> bool:
        """Ask if it is time, and never wait; returns whether an answer has come."""
        process = self._process
        if process is None:
            if now >= self._ask_at:
                self._ask(now)
            return False
        if process.poll() is None:
            if now >= self._asked_at + _ASK_S:
                process.kill()
            return False
        self._process = None
        answer = process.stdout.read() if process.stdout is not None else b""
        process.communicate()
        left_s = _QUESTIONS[self._job.scheduler][1](answer.decode("utf-8", "replace"))
        if left_s == JOB_LEFT_UNKNOWN_S:
            if not answer and self._ends_at == math.inf:  # it was killed, or the scheduler is busy
                self._ask_at = min(self._ask_at, now + _ASK_S)
            return False
        # The scheduler has counted at some time between the question and the answer.
        self._ends_at = (self._asked_at + now) / 2 + left_s
        self._ask_at = now + next_question_s(self._ends_at - now, self._every_s)
        self.is_news = True
        return True

    def _ask(self, now: float) -> None:
        self._ask_at, self._asked_at = now + self._every_s, now
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
