"""Agents in a job of Slurm that outlives the notebook, which reaches a login node by ssh only.

    notebook --ssh--> relay: sh writes the invitation, then is sbatch --> job: agents --> relay

Runs in: the notebook's process. All is as in `slurm_job`, but the commands run on the login node,
and the invitation, with the address of the relay there, is in a file of the home folder there.
"""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nbddp.controller.launch.engine import EngineOptions, LostNode
from nbddp.controller.launch.engine_end import EngineEnd
from nbddp.controller.launch.lasting_ssh import REACH_S
from nbddp.controller.launch.relayed_commands import RelayedCommands, relay_place
from nbddp.controller.launch.slurm import job_state
from nbddp.controller.launch.slurm_job import (
    ALL,
    ASK_EVERY_S,
    ENDED,
    LAST_LINES,
    output_path,
    sbatch_words,
)
from nbddp.settings import AGENT_SAYS
from nbddp.wire.invitation import Invitation

if TYPE_CHECKING:
    from nbddp.controller.launch.commands import Program

#: The answer of ``sbatch --parsable``, perhaps between other lines.
_NUMBER = re.compile(r"(\d+)(;.*)?")
#: Stands for the home folder of the login node until the shell there knows it.
_HOME = "/@HOME@"
#: For the number of a job that was queued just now, when the pool ends.
_NUMBER_S = 5.0
_POLL_S = 0.05


class RelayedJobEngine:
    """Starts a job from a login node, and finds it again for another notebook."""

    #: A job may wait in the queue for hours; the stop button ends the wait.
    join_timeout_s: float | None = None
    #: ``--address`` is that of the login node.
    owns_address = True
    reach_s = REACH_S

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._relay = RelayedCommands(relay_place(options))
        self._path = Path()  #: of the invitation
        self._name = ""  #: of the job
        self._queueing: dict[int, Program] = {}  #: each `sbatch`, by node or `ALL`
        self._jobs: dict[int, str] = {}  #: numbers, in the same way
        self._awaited = ALL  #: a key of them: `state` is about that job
        self._states: dict[int, str] = {}  #: by the same keys, as the queue said last
        self._ask_at = 0.0

    def address(self) -> str:
        """Return the loopback, which ssh connects with."""
        return "127.0.0.1"

    def start(self, invitation: Invitation) -> None:
        """Begin to queue the job.

        Raises:
            PoolStartError: this machine has no ssh.
        """
        self._note_pool(invitation)
        self._queue(ALL, self._name, invitation)

    def _note_pool(self, invitation: Invitation) -> None:
        self._name = f"nbddp-{invitation.pool_id}"
        self._path = Path(f"{_HOME}/.nbddp/{invitation.pool_id}.json")

    def _queue(self, key: int, name: str, invitation: Invitation) -> None:
        self._awaited, self._ask_at = key, 0.0
        words = sbatch_words(self._options, name, self._path, key)
        script = f"{self._writing} && exec {shell_text(words)}"
        self._queueing[key] = self._relay.start(["sh", "-c", script], invitation, needs="sbatch")

    @property
    def _writing(self) -> str:
        """The commands that write the invitation to a file which only the user can read."""
        folder, path = (shell_text([str(each)]) for each in (self._path.parent, self._path))
        line = "IFS= read -r line && printf '%s\\n' \"$line\""
        return f"umask 077 && mkdir -p {folder} && {line} > {path}"

    def _job(self, key: int) -> str:
        """Return the number of a job; empty: it is not known yet."""
        program = self._queueing.get(key)
        if key not in self._jobs and program is not None:
            for line in program.lines(0)[0]:
                if number := _NUMBER.fullmatch(line.strip()):
                    self._jobs[key] = number[1]
        return self._jobs.get(key, "")

    def state(self) -> str:
        """Return the state of the job in the queue: ``Slurm job 4711: PENDING (Priority)``."""
        if connecting := self._relay.state():
            return connecting
        job = self._job(self._awaited)
        if job and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_EVERY_S
            numbers = ",".join(self._jobs.values())
            words = ["squeue", "-h", "-t", "all", "-j", numbers, "-o", "%i|%T|%r|%S"]
            lines = self._relay.ask(words).splitlines()
            line_by_number = {line.partition("|")[0]: line for line in lines}
            for key, number in self._jobs.items():
                if number in line_by_number:
                    self._states[key] = job_state(line_by_number[number])
        return self._states.get(self._awaited) or (f"Slurm job {job}" if job else "sbatch")

    def end(self, node: int) -> str:
        """Return why there is no job, or how it has ended, and what its agents have said."""
        if failure := self._relay.failure():
            return failure
        key = node if node in self._queueing or node in self._jobs else ALL
        program = self._queueing.get(key)
        if not self._job(key):
            how = "" if program is None else program.end()
            return how and EngineEnd(f"sbatch {how}", f"try `sbatch` on {self._options.via}")
        state = self._states.get(key, "")
        if state.rpartition(": ")[2] not in ENDED:
            return ""
        output = shell_text([str(output_path(self._path, key))])
        text = self._relay.ask(["sh", "-c", f"tail -n 100 {output}"])
        lines = [line for line in text.splitlines() if not line.startswith(AGENT_SAYS)]
        said = "\n".join(lines[-LAST_LINES:])
        return f"{state}{f', and said: {said}' if said else ''}"

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        """Begin to queue a job of its own for one agent.

        Raises:
            PoolStartError: this machine has no ssh.
        """
        self.withdraw(lost.node)
        self._queue(lost.node, f"{self._name}-{lost.node}", invitation)

    def withdraw(self, node: int) -> None:
        """End the job of one node, if it has one of its own."""
        job = self._job(node)
        self._queueing.pop(node, None)
        self._jobs.pop(node, None)
        self._states.pop(node, None)
        if job:
            self._relay.ask(["scancel", job])
            self._awaited = ALL
            self._remove([output_path(self._path, node)])

    @property
    def mark(self) -> str:
        """Jobs and relay: ``4711;10.0.0.1:5555``; with one of node 1 alone: ``4711,1:4712;...``."""
        jobs = [
            f"{f'{key}:' if key != ALL else ''}{job}"
            for key in sorted({*self._queueing, *self._jobs})
            if (job := self._job(key))
        ]
        return f"{','.join(jobs)};{self._relay.listens}"

    def reach(self, mark: str, invitation: Invitation) -> None:
        """Start the relay where the agents look for it.

        Raises:
            PoolStartError: this machine has no ssh.
        """
        jobs, _, listens = mark.partition(";")
        for word in filter(None, jobs.split(",")):
            node, _, job = word.rpartition(":")
            self._jobs[int(node or ALL)] = job
        self._note_pool(invitation)
        self._relay.keep(invitation, listens)

    def obstacle(self) -> str:
        """Return why there is no relay."""
        return self._relay.failure()

    def take_back(self, mark: str, invitation: Invitation) -> None:
        """Write the invitation again: an agent may come in the place of a lost one."""
        self._relay.start(["sh", "-c", self._writing], invitation)

    def leave(self) -> None:
        """Remove the invitation, since no agent can join now, and end the relay."""
        self._remove([self._path])
        self._relay.stop()

    def stop(self) -> None:
        """End the jobs, also while they are queued, and the relay."""
        give_up_at = time.monotonic() + _NUMBER_S
        keys = {*self._queueing, *self._jobs}
        for key in keys:
            while not self._job(key) and time.monotonic() < give_up_at:
                if self._relay.failure() or self._queueing[key].end():
                    break
                time.sleep(_POLL_S)
            if job := self._job(key):
                self._relay.ask(["scancel", job])
        self._remove([self._path, *(output_path(self._path, key) for key in keys)])
        self._relay.stop()

    def _remove(self, paths: Sequence[Path]) -> None:
        if self._name:
            folder = shell_text([str(self._path.parent)])
            files = shell_text([str(path) for path in paths])
            self._relay.ask(["sh", "-c", f"rm -f {files}; rmdir {folder} 2>/dev/null"])


def shell_text(words: Sequence[str]) -> str:
    """Return words for a shell, which puts the home folder where they stand for it.

    >>> print(shell_text(["--output=/@HOME@/a.out"]))
    '--output='"$HOME"'/a.out'
    """
    quoted = ["'" + word.replace("'", "'\\''") + "'" for word in words]
    return " ".join(quoted).replace(_HOME, "'\"$HOME\"'")
