"""The time that the job of Slurm around an agent has left.

Runs in: the agent process on another machine, its main thread.

Sources: srun(1), OUTPUT ENVIRONMENT VARIABLES; squeue(1), -o "%L".
"""

import re
import subprocess
import time
from collections.abc import Mapping

from nbddp.agent.engine_variables import EnginePlace
from nbddp.wire.message_types import JOB_LEFT_UNKNOWN_S

_END_ENV = "SLURM_JOB_END_TIME"
_ASK_S = 2.0
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
    words = ["squeue", "-h", "-j", place.job, "-o", "%L"]
    try:
        answer = subprocess.run(
            words, capture_output=True, text=True, timeout=_ASK_S, check=False, env=dict(environ)
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return JOB_LEFT_UNKNOWN_S
    return read_time_left(answer)


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
