"""Agents on the nodes of Slurm: a job of their own, or a step in the allocation of the notebook.

Runs in: the notebook's process. ``srun`` does everything; it ends with the notebook, and with it
the job. The invitation goes through its standard input, whose end also ends the agents. With
``--via LOGIN`` the commands of Slurm run on a login node.
"""

import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nbddp.controller.launch.engine import EngineOptions
from nbddp.controller.launch.relayed_commands import make_commands
from nbddp.errors import PoolStartError
from nbddp.system import network
from nbddp.wire.launch_specs import Invitation

if TYPE_CHECKING:
    from nbddp.controller.launch.commands import Program

_STOP_S = 2.0
_ASK_EVERY_S = 2.0
#: Options that replace a default: the short form, and the begin of the long one.
_CPU_OPTIONS = ("-c", "--cpus-per-task", "--exclusive")


class SlurmEngine:
    """Starts one task on each node by ``srun``."""

    #: A job may wait in the queue for hours; the stop button ends the wait.
    join_timeout_s: float | None = None

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        #: With ``--via`` it is that of the login node.
        self.owns_address = bool(options.via)
        self._commands = make_commands(options)
        self._environ: Mapping[str, str] = {} if options.via else os.environ
        self._process: Program | None = None
        self._job_name = ""
        self._job = self._environ.get("SLURM_JOB_ID", "")  # of the allocation around the notebook
        self._state = ""
        self._ask_at = 0.0

    def address(self) -> str:
        """Return the address of this machine's default route; with ``--via`` the loopback."""
        return "127.0.0.1" if self._options.via else network.own_address()

    def start(self, invitation: Invitation) -> None:
        """Start ``srun``.

        Raises:
            PoolStartError: there is none here.
        """
        if not self._options.via and shutil.which("srun") is None:
            raise PoolStartError(
                "the pool did not start: there is no srun on this machine. Next: start the "
                "notebook on a login node or in an allocation of Slurm, name a login node that ssh "
                "reaches with --via, or use --launcher ssh"
            )
        self._job_name = f"nbddp-{invitation.pool_id}"
        words = srun_words(self._options, self._job_name, self._environ)
        self._process = self._commands.start(words, invitation)

    def state(self) -> str:
        """Return the state of the job in the queue: ``Slurm job 4711: PENDING (Priority)``."""
        if connecting := self._commands.state():
            return connecting
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + _ASK_EVERY_S
            self._state = self._ask_queue() or self._state
        return self._state or "srun"

    def _ask_queue(self) -> str:
        choice = ["-j", self._job] if self._job else ["-n", self._job_name]
        return job_state(self._commands.ask(["squeue", "-h", *choice, "-o", "%i|%T|%r|%S"]))

    def end(self, node: int) -> str:
        """Return how ``srun`` has ended, and what it has written."""
        if failure := self._commands.failure():
            return failure
        how = "" if self._process is None else self._process.end()
        where = f"on {self._options.via}" if self._options.via else "in a terminal"
        return how and f"srun {how}. Next: try `srun hostname` {where}"

    def stop(self) -> None:
        """End the step, and the job if ``srun`` has made one, also while it is queued."""
        process, self._process = self._process, None
        if process is not None:
            process.stop(_STOP_S)
        self._commands.stop()


def srun_words(options: EngineOptions, job_name: str, environ: Mapping[str, str]) -> list[str]:
    """Return the command that starts one agent on each node.

    Args:
        options: of the user; their arguments come last, so that they win.
        job_name: names the job, or the step.
        environ: of the notebook, which may be in an allocation.
    """
    words = [
        "srun",
        f"--nodes={options.nnodes}",
        f"--ntasks={options.nnodes}",
        "--ntasks-per-node=1",
        f"--job-name={job_name}",
        "--input=all",
        "--kill-on-bad-exit=0",
        "--cpu-bind=none",
        "--unbuffered",
    ]
    if not any(word.startswith(_CPU_OPTIONS) for word in options.arguments):
        # One task gets one processor else, and all ranks of the node with it.
        words.append(f"--cpus-per-task={options.nproc_per_node}")
    if "SLURM_JOB_ID" in environ:
        words.append("--overlap")  # or the step waits for the processors of the notebook's own
    python = options.python or sys.executable
    return [*words, *options.arguments, python, "-P", "-m", "nbddp", "agent", "--connect", "-"]


def job_state(answer: str) -> str:
    """Return what the queue says of a job.

    Args:
        answer: of ``squeue -h -o '%i|%T|%r|%S'``.

    >>> job_state("4711|PENDING|Priority|2026-11-25T14:20:00")
    'Slurm job 4711: PENDING (Priority), starts about 2026-11-25 14:20'
    >>> job_state("4711|RUNNING|None|2026-11-25T14:20:00")
    'Slurm job 4711: RUNNING'
    """
    job, state, reason, start = (*answer.strip().partition("\n")[0].split("|"), "", "", "", "")[:4]
    if not job:
        return ""
    if state != "PENDING":
        return f"Slurm job {job}: {state}"
    when = "" if start in ("", "N/A") else f", starts about {start[:16].replace('T', ' ')}"
    return f"Slurm job {job}: {state} ({reason}){when}"
