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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nbddp.controller.launch.engine import EngineOptions, LostNode
from nbddp.controller.launch.engine_process import ask
from nbddp.controller.launch.invitation_file import InvitationFile, home_folder
from nbddp.controller.launch.slurm import CPU_OPTIONS, agent_words, job_state, without_node_options
from nbddp.errors import PoolStartError
from nbddp.settings import AGENT_SAYS, NODE_ENV
from nbddp.system import kept_pools, network
from nbddp.wire.invitation import Invitation

ASK_EVERY_S = 2.0
LAST_LINES = 8
#: Stands for the job of all nodes where the number of a node stands for that of one.
ALL = -1
#: The states of a job that runs no longer.
ENDED = frozenset(
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
        self._file: InvitationFile | None = None
        self._path: Path | None = None  #: of the invitation, also when that was removed
        self._name = ""  #: of the job
        self._jobs: dict[int, str] = {}  #: numbers by node; that of all nodes: `ALL`
        self._awaited = ALL  #: a key of them: `state` is about that job
        self._states: dict[int, str] = {}  #: by the same keys, as the queue said last
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
                "notebook on a login node of Slurm, name one that ssh reaches with --via, or use "
                "--launcher ssh"
            )
        path = self._write(invitation)
        words = sbatch_words(self._options, self._name, path)
        self._jobs[ALL] = _queued(words)

    def _write(self, invitation: Invitation) -> Path:
        self._name = f"nbddp-{invitation.pool_id}"
        _remove_stale_outputs(home_folder())
        self._file = InvitationFile(home_folder(), invitation)
        self._path = self._file.path
        return self._path

    @property
    def mark(self) -> str:
        """The numbers of the jobs: ``4711``; of node 1 alone: ``4711,1:4712``."""
        jobs = sorted(self._jobs.items())  # all at once: the hub thread asks during `replace`
        return ",".join(job if key == ALL else f"{key}:{job}" for key, job in jobs)

    def take_back(self, mark: str, invitation: Invitation) -> None:
        """Go on with jobs that another notebook has queued."""
        for word in mark.split(","):
            node, _, job = word.rpartition(":")
            self._jobs[int(node or ALL)] = job
        self._write(invitation)

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        """Queue a job of its own for one agent: a step of ``srun`` would end with the notebook.

        Raises:
            PoolStartError: Slurm does not take it.
        """
        self.withdraw(lost.node)
        if self._path is not None:
            name = f"{self._name}-{lost.node}"
            words = sbatch_words(self._options, name, self._path, lost.node)
            self._jobs[lost.node] = _queued(words)
            self._awaited, self._ask_at = lost.node, 0.0

    def withdraw(self, node: int) -> None:
        """End the job of one node, if it has one of its own."""
        job = self._jobs.pop(node, "")
        self._states.pop(node, None)
        if job:
            ask(["scancel", job])
            self._awaited = ALL
            if self._path is not None:
                output_path(self._path, node).unlink(missing_ok=True)

    def state(self) -> str:
        """Return the state of the job in the queue: ``Slurm job 4711: PENDING (Priority)``."""
        job = self._jobs.get(self._awaited, "")
        if job and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_EVERY_S
            numbers = ",".join(self._jobs.values())
            answer = ask(["squeue", "-h", "-t", "all", "-j", numbers, "-o", "%i|%T|%r|%S"])
            line_by_number = {line.partition("|")[0]: line for line in answer.splitlines()}
            for key, number in self._jobs.items():
                if number in line_by_number:
                    self._states[key] = job_state(line_by_number[number])
        return self._states.get(self._awaited) or f"Slurm job {job}"

    def end(self, node: int) -> str:
        """Return how the job has ended, as `state` has seen it, and what its agents have said."""
        job = node if node in self._jobs else ALL
        state = self._states.get(job, "")
        if state.rpartition(": ")[2] not in ENDED:
            return ""
        text = ""
        with suppress(OSError):  # the file appears with the first line
            if self._path is not None:
                text = output_path(self._path, job).read_text(errors="replace")
        lines = [line for line in text.splitlines() if not line.startswith(AGENT_SAYS)]
        said = "\n".join(lines[-LAST_LINES:])
        return f"{state}{f', and said: {said}' if said else ''}"

    def leave(self) -> None:
        """Remove the invitation: no agent can join while there is no notebook."""
        file, self._file = self._file, None
        if file is not None:
            file.remove()

    def stop(self) -> None:
        """End the jobs, also while they are queued."""
        for key in list(self._jobs):
            self.withdraw(key)
        self.leave()


def output_path(path: Path, key: int) -> Path:
    """Return what the agents of a job write to."""
    return path.with_suffix(".out" if key == ALL else f".{key}.out")


def _remove_stale_outputs(folder: Path) -> None:
    """Remove those of pools that ended while they had no notebook."""
    for path in folder.glob("*.out"):
        pool_id = path.name.partition(".")[0]
        is_invited = (folder / f"{pool_id}.json").exists()
        if not is_invited and not kept_pools.has_record_of_machines(pool_id):
            path.unlink(missing_ok=True)


def _queued(words: Sequence[str]) -> str:
    """Queue a job, and return its number. Raises `PoolStartError`: Slurm does not take it."""
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise PoolStartError(
            f"the pool did not start: sbatch ended with exit code {answer.returncode} and "
            f"said: {answer.stderr.strip()}"
        )
    return answer.stdout.strip().partition(";")[0]


def sbatch_words(options: EngineOptions, job_name: str, path: Path, node: int = ALL) -> list[str]:
    """Return the command that queues a job.

    Args:
        options: of the user; their arguments come last, so that they win.
        job_name: names the job.
        path: of the invitation.
        node: whose agent it starts; those of all nodes if it is not given.
    """
    arguments, nnodes, agent = options.arguments, options.nnodes, agent_words(options, str(path))
    if node != ALL:
        arguments, nnodes = tuple(without_node_options(arguments)), 1
        agent = ["env", f"{NODE_ENV}={node}", *agent]
    given = [word for word in arguments if word.startswith(CPU_OPTIONS)]
    cpus = given or [f"--cpus-per-task={options.nproc_per_node}"]
    step = ["srun", "--kill-on-bad-exit=0", "--no-kill", "--cpu-bind=none", "--unbuffered", *cpus]
    return [
        "sbatch",
        "--parsable",
        f"--nodes={nnodes}",
        f"--ntasks={nnodes}",
        "--ntasks-per-node=1",
        f"--job-name={job_name}",
        f"--output={output_path(path, node)}",
        "--no-requeue",
        "--no-kill",  # the others go on when a node is lost
        *([] if given else cpus),
        *arguments,
        f"--wrap=exec {shlex.join([*step, *agent])}",
    ]
