"""The time that the job of Slurm around an agent has left, asked for again and again.

Runs in: the agent process on another machine: its main thread before it joins, and then the thread
``nbddp-lifeline``.

Sources: srun(1), OUTPUT ENVIRONMENT VARIABLES; squeue(1), -o "%L".
"""

import math
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from nbddp.agent.engine_variables import EnginePlace
from nbddp.wire.message_types import JOB_LEFT_UNKNOWN_S

_END_ENV = "SLURM_JOB_END_TIME"
_ASK_S = 2.0
#: Seconds before the end at which the notebook warns; just before, the answer has to be new.
_WARN_S = (600.0, 300.0, 60.0)
_BEFORE_WARNING_S = 20.0
_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


def job_left_s(place: EnginePlace, environ: Mapping[str, str]) -> float:
    """Return the seconds until the end of the job; `JOB_LEFT_UNKNOWN_S`: none is known.

    The variable of newer versions of Slurm says it. Otherwise the agent of the first node asks
    ``squeue``: one for each node would be too many for a controller.

    Args:
        place: of this agent in the job.
        environ: the variables of the agent.
    """
    if environ.get(_END_ENV, "").isdecimal():
        return max(0.0, int(environ[_END_ENV]) - time.time_ns() / 1e9)
    if not place.job or place.node > 0:
        return JOB_LEFT_UNKNOWN_S
    try:
        answer = subprocess.run(
            _question(place),
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
            env=dict(environ),
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return JOB_LEFT_UNKNOWN_S
    return read_time_left(answer)


def _question(place: EnginePlace) -> Sequence[str]:
    return ["squeue", "-h", "-j", place.job, "-o", "%L"]


def next_question_s(left_s: float, every_s: float) -> float:
    """Return the seconds after which the time is asked for again.

    Args:
        left_s: that the job has left, or `JOB_LEFT_UNKNOWN_S`.
        every_s: the longest wait.

    >>> next_question_s(7200.0, 300.0), next_question_s(700.0, 300.0), next_question_s(15.0, 300.0)
    (300.0, 80.0, 300.0)
    """
    waits = [left_s - before - _BEFORE_WARNING_S for before in _WARN_S]
    return min([every_s, *(wait for wait in waits if wait > _BEFORE_WARNING_S)])


class JobWatch:
    """Asks ``squeue`` again when its time has come: limits of running jobs are changed.

    Only the agent of the first node of a job asks.

    Args:
        place: of the agent in the job.
        left_s: what was known when the agent came.
        every_s: seconds between questions, at most.
        now: `time.monotonic`, here and below.
    """

    def __init__(self, place: EnginePlace, left_s: float, every_s: float, now: float) -> None:
        self._place = place
        self._every_s = every_s
        self._process: subprocess.Popen[bytes] | None = None
        self._give_up_at = math.inf
        is_asking = bool(place.job) and place.node <= 0
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
        left_s = read_time_left(answer.decode("utf-8", "replace"))
        if left_s != JOB_LEFT_UNKNOWN_S:
            self._ask_at = now + next_question_s(left_s, self._every_s)
        return left_s

    def _ask(self, now: float) -> None:
        self._ask_at, self._give_up_at = now + self._every_s, now + _ASK_S
        with suppress(OSError):  # no squeue, or no process can be made now
            self._process = subprocess.Popen(
                _question(self._place),
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
