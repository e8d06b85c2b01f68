"""Finds kept pools whose job of Slurm has ended while they had no notebook.

Runs in: the notebook's process. The agents of such a pool ended with the job and could tell nobody,
since the record is on the notebook's machine, and would stay until the time of the pool is over.
"""

import subprocess
from collections.abc import Callable, Sequence

from nbddp.controller.launch import ENDED_STATES
from nbddp.system import kept_pools
from nbddp.system.kept_pools import KnownPool

_ASK_S = 5.0
#: Slurm forgets a job some minutes after its end, and says this of it then.
_FORGOTTEN = "Invalid job id"


def note_ended_jobs(ask: Callable[[Sequence[str]], tuple[str, str]] | None = None) -> None:
    """Leave a note in the place of each kept pool whose jobs of Slurm have all ended.

    A pool of which that is not known, as where ``squeue`` gives no answer, stays as it is.

    Args:
        ask: runs a command and returns what it writes to stdout and to stderr; None: it is run.
    """
    for pool in kept_pools.detached_pools():
        jobs = _jobs(pool)
        states = [_state(job, ask or _ask) for job in jobs]
        if states and all(states):
            kept_pools.note_end(pool.folder, f"{kept_pools.JOB_ENDED}{jobs[0]} {states[0]}")


def _jobs(pool: KnownPool) -> list[str]:
    """Return the numbers of the jobs, that of all nodes first."""
    record = kept_pools.read(pool.folder) if pool.hosts else None
    if record is None or record.machines is None:
        return []
    if record.options.get("launcher") != "slurm" or record.options.get("via"):
        return []
    return [word.rpartition(":")[2] for word in record.machines.mark.split(",") if word]


def _state(job: str, ask: Callable[[Sequence[str]], tuple[str, str]]) -> str:
    """Return the state of a job that has ended; empty: it has not, or that is not known."""
    answer, complaint = ask(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"])
    state = answer.strip()
    if not state and _FORGOTTEN in complaint:
        return "unknown"
    return state if state in ENDED_STATES else ""


def _ask(words: Sequence[str]) -> tuple[str, str]:
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    return answer.stdout, answer.stderr
