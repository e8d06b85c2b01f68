"""Agents in a job of Slurm that outlives the notebook.

Runs in: the notebook's process. ``sbatch`` queues the job, whose script starts an agent on each
node. The agents read the invitation from a file in the home folder, since a job has no standard
input, and Slurm keeps the environment of a job where administrators see it.
"""

import os
import shlex
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from nbddp.controller.launch.engine import EngineOptions
from nbddp.controller.launch.engine_process import ask
from nbddp.controller.launch.invitation_file import InvitationFile
from nbddp.controller.launch.slurm import CPU_OPTIONS, agent_words, job_state
from nbddp.errors import PoolStartError
from nbddp.settings import AGENT_SAYS
from nbddp.system import network
from nbddp.wire.launch_specs import Invitation

_ASK_EVERY_S = 2.0
_LAST_LINES = 8
_ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
    }
)


class SlurmJobEngine:
    """Starts a job, and finds it again for another notebook.

    Raises:
        PoolStartError: the notebook is in an allocation, which ends with it.
    """

    #: A job may wait in the queue for hours; the stop button ends the wait.
    join_timeout_s: float | None = None
    owns_address = False

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._file = InvitationFile()
        self.mark = ""  #: number of the job
        self._output: Path | None = None
        self._state = ""
        self._ask_at = 0.0

    def address(self) -> str:
        """Return the address of this machine's default route."""
        return network.own_address()

    def start(self, invitation: Invitation) -> None:
        """Queue the job.

        Raises:
            PoolStartError: Slurm does not take it, or there is none here.
        """
        if "SLURM_JOB_ID" in os.environ:
            raise PoolStartError(
                "the pool did not start: --keep needs a job of its own, and this notebook is in an "
                "allocation of Slurm, which ends with it. Next: leave out --keep, or start the "
                "notebook on a login node"
            )
        if shutil.which("sbatch") is None:
            raise PoolStartError(
                "the pool did not start: there is no sbatch on this machine. Next: start the "
                "notebook on a login node of Slurm, or use --launcher ssh"
            )
        path = self._file.write(invitation)
        self._output = path.with_suffix(".out")
        words = sbatch_words(self._options, f"nbddp-{invitation.pool_id}", path)
        answer = subprocess.run(words, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise PoolStartError(
                f"the pool did not start: sbatch ended with exit code {answer.returncode} and "
                f"said: {answer.stderr.strip()}"
            )
        self.mark = answer.stdout.strip().partition(";")[0]

    def take_back(self, mark: str, invitation: Invitation) -> None:
        """Go on with a job that another notebook has queued."""
        self.mark = mark
        self._output = self._file.write(invitation).with_suffix(".out")

    def state(self) -> str:
        """Return the state of the job in the queue: ``Slurm job 4711: PENDING (Priority)``."""
        if self.mark and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + _ASK_EVERY_S
            words = ["squeue", "-h", "-t", "all", "-j", self.mark, "-o", "%i|%T|%r|%S"]
            self._state = job_state(ask(words)) or self._state
        return self._state or f"Slurm job {self.mark}"

    def end(self, node: int) -> str:
        """Return how the job has ended, as `state` has seen it, and what its agents have said."""
        if self._state.rpartition(": ")[2] not in _ENDED:
            return ""
        text = ""
        with suppress(OSError):  # the file appears with the first line
            if self._output is not None:
                text = self._output.read_text(errors="replace")
        lines = [line for line in text.splitlines() if not line.startswith(AGENT_SAYS)]
        said = "\n".join(lines[-_LAST_LINES:])
        return f"{self._state}{f', and said: {said}' if said else ''}"

    def leave(self) -> None:
        """Remove the invitation: no agent can join while there is no notebook."""
        self._file.remove()

    def stop(self) -> None:
        """End the job, also while it is queued."""
        if self.mark:
            ask(["scancel", self.mark])
            self.mark = ""
        if self._output is not None:
            self._output.unlink(missing_ok=True)
        self._file.remove()


def sbatch_words(options: EngineOptions, job_name: str, path: Path) -> list[str]:
    """Return the command that queues the job.

    Args:
        options: of the user; their arguments come last, so that they win.
        job_name: names the job.
        path: of the invitation.
    """
    given = [word for word in options.arguments if word.startswith(CPU_OPTIONS)]
    cpus = given or [f"--cpus-per-task={options.nproc_per_node}"]
    step = [
        *("srun", "--kill-on-bad-exit=0", "--cpu-bind=none", "--unbuffered", *cpus),
        *agent_words(options, str(path)),
    ]
    return [
        "sbatch",
        "--parsable",
        f"--nodes={options.nnodes}",
        f"--ntasks={options.nnodes}",
        "--ntasks-per-node=1",
        f"--job-name={job_name}",
        f"--output={path.with_suffix('.out')}",
        "--no-requeue",
        *([] if given else cpus),
        *options.arguments,
        f"--wrap=exec {shlex.join(step)}",
    ]
