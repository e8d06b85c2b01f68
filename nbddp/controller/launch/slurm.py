"""Agents on the nodes of Slurm: a job of their own, or a step in the allocation of the notebook.

Runs in: the notebook's process. ``srun`` does everything; it ends with the notebook, and with it
the job. The invitation goes through its standard input, whose end also ends the agents. With
``--via LOGIN`` the commands of Slurm run on a login node.
"""

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from nbddp.controller.launch.damaged_packages import damaged_package_step
from nbddp.controller.launch.engine import EngineOptions, LostNode
from nbddp.controller.launch.engine_end import EngineEnd
from nbddp.controller.launch.engine_state import EngineState
from nbddp.controller.launch.missing_packages import missing_package
from nbddp.controller.launch.relayed_commands import make_commands
from nbddp.errors import BadOptionError, PoolStartError
from nbddp.settings import NODE_ENV
from nbddp.system import network
from nbddp.wire.invitation import Invitation
from nbddp.wire.rank_set import RankSet

if TYPE_CHECKING:
    from nbddp.controller.launch.commands import Program

_STOP_S = 2.0
_ASK_EVERY_S = 2.0
#: Options that replace a default: the short form, and the begin of the long one.
CPU_OPTIONS = ("-c", "--cpus-per-task", "--exclusive")
#: Options about all nodes of the pool, which say nothing about a single one.
_NODE_OPTIONS = ("-N", "--nodes", "-w", "--nodelist", "-n", "--ntasks", "--exclusive")
_SINGLE = frozenset({"--exclusive"})  # without a value of its own
#: The variables of an allocation, in which `srun` would make a step.
_ALLOCATION = "SLURM_"
_KEPT_ENV = "SLURM_CONF"
#: ``srun: error: n2: task 1: Exited with exit code 1``
_TASK_END = re.compile(r"srun: error: \S+: tasks? (?P<tasks>[\d,-]+): .+")
#: `srun` in an allocation of fewer nodes than the pool has.
_TOO_FEW_NODES = re.compile(r"srun: error: Only allocated (\d+) nodes? asked for")
#: States of a node that can run a step now; a star behind them means that it does not respond.
_WELL = frozenset({"allocated", "mixed", "idle", "completing"})
#: Reasons for which a job is queued that time alone does not change, mostly; in words.
_LASTING_REASONS = {
    "PartitionNodeLimit": "it asks for more nodes than its partition gives, or nodes that it needs "
    "are down",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "PartitionConfig": "it asks for more than a node of its partition has, or than the partition "
    "allows",
    "BadConstraints": "no node can have what it asks for",
}


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
        self._replaced: dict[int, Program] = {}  #: by node, those that were started later
        #: The words of ``srun`` about tasks, and the end of the lines that were read.
        self._read: tuple[Mapping[int, str], int] = ({}, 0)
        self._job_name = ""
        self._asked_name = ""  #: of the job that is awaited
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
        self._job_name = self._asked_name = f"nbddp-{invitation.pool_id}"
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
        is_own = self._asked_name != self._job_name or not self._job
        choice = ["-n", self._asked_name] if is_own else ["-j", self._job]
        return job_state(self._commands.ask(["squeue", "-h", *choice, "-o", "%i|%T|%r|%S"]))

    def end(self, node: int) -> str:
        """Return how ``srun`` has ended, and what it has written."""
        if failure := self._commands.failure():
            return failure
        later, process = self._replaced.get(node), self._process
        if later is None and process is not None and (how := self._task_ends(process).get(node)):
            return f"srun says: {how}"
        how = process.end() if later is None and process else later.end() if later else ""
        python = self._options.python or sys.executable
        if lacks := missing_package(how, python, "a node of the job", by_ssh=False):
            return lacks
        if too_few := _TOO_FEW_NODES.search(how):
            return EngineEnd.of(f"srun {how}", f"--nnodes {too_few[1]}, or a larger allocation")
        where = f"on {self._options.via}" if self._options.via else "in a terminal"
        srun = shlex.join(["srun", *self._options.arguments])
        step = damaged_package_step(how, shlex.quote(python), srun, where)
        return how and EngineEnd.of(f"srun {how}", step or f"try `{srun} hostname` {where}")

    def _task_ends(self, process: "Program") -> Mapping[int, str]:
        """Return what ``srun`` has written about tasks that ended while others go on."""
        ends, since = self._read
        lines, end = process.lines(since)
        if lines:
            ends = {**task_ends(lines, self._options.nnodes), **ends}
            self._read = ends, end  # both at once: several threads read
        return ends

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        """Start an agent in a step on the node, if that is well, or in a job of its own."""
        self.withdraw(lost.node)
        is_step = self._is_well(lost)
        name = self._job_name if is_step else f"{self._job_name}-{lost.node}"
        words = replacement_words(self._options, name, lost, is_step=is_step)
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_ALLOCATION) or name == _KEPT_ENV
        }
        self._asked_name, self._state, self._ask_at = name, "", 0.0
        self._replaced[lost.node] = self._commands.start(words, invitation, env)

    def _is_well(self, lost: LostNode) -> bool:
        """Return whether the job of a lost agent still has its node."""
        if not (lost.job and lost.place):
            return False
        # A job goes on without a node that was down, also when that is well again.
        words = ["squeue", "-h", "-j", lost.job, "-w", lost.place, "-t", "RUNNING", "-o", "%i"]
        return bool(self._commands.ask(words).strip()) and can_take_step(
            self._commands.ask(["sinfo", "-h", "-N", "-n", lost.place, "-o", "%T"])
        )

    def withdraw(self, node: int) -> None:
        """End the step or the job that was started for a node."""
        process = self._replaced.pop(node, None)
        if process is not None:
            process.stop(_STOP_S)

    def stop(self) -> None:
        """End all steps, and the jobs that ``srun`` has made, also while they are queued."""
        for node in list(self._replaced):
            self.withdraw(node)
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
    words = _srun(options, options.nnodes, job_name)
    if "SLURM_JOB_ID" in environ:
        words.append("--overlap")  # or the step waits for the processors of the notebook's own
    return [*words, *options.arguments, *agent_words(options)]


def replacement_words(
    options: EngineOptions, job_name: str, lost: LostNode, *, is_step: bool
) -> list[str]:
    """Return the command that starts one agent in the place of a lost one.

    Args:
        options: of the user; those about all nodes are left out.
        job_name: names the job, or the step.
        lost: the node.
        is_step: a step in the job that the agent was in; False: a job of its own.
    """
    words = _srun(options, 1, job_name)
    if is_step:
        # The step that was lost may still hold the processors.
        words += [f"--jobid={lost.job}", f"--nodelist={lost.place}", "--overlap"]
    arguments = without_node_options(options.arguments)
    return [*words, *arguments, "env", f"{NODE_ENV}={lost.node}", *agent_words(options)]


def without_node_options(arguments: Sequence[str]) -> list[str]:
    """Leave out the options that say which and how many nodes a pool has.

    >>> without_node_options(["-N", "2", "--gres=gpu:4", "--nodelist=n1,n2", "-wn1", "-A", "x"])
    ['--gres=gpu:4', '-A', 'x']
    """
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if name not in _NODE_OPTIONS:
            kept.append(word)
        elif word == name and name not in _SINGLE:
            next(words, None)
    return kept


def task_ends(lines: Iterable[str], nnodes: int) -> dict[int, str]:
    """Return what ``srun`` says about the ends of tasks, by their numbers, which are the nodes'.

    >>> task_ends(["srun: error: n2: task 1: Killed", "nbddp agent on n1: node 0 of 2"], 2)
    {1: 'n2: task 1: Killed'}
    """
    ends = {}
    for line in lines:
        if match := _TASK_END.fullmatch(line.strip()):
            with suppress(BadOptionError):  # not a task of ours
                for task in RankSet.parse(match["tasks"], nnodes):
                    ends[task] = match[0].removeprefix("srun: error: ")
    return ends


def can_take_step(answer: str) -> bool:
    """Return whether a node can run a step.

    Args:
        answer: of ``sinfo -h -N -o '%T'``; a line for each partition.

    >>> can_take_step("mixed"), can_take_step("allocated*"), can_take_step("down")
    (True, False, False)
    """
    states = answer.split()
    return bool(states) and set(states) <= _WELL


def _srun(options: EngineOptions, nnodes: int, job_name: str) -> list[str]:
    words = [
        "srun",
        f"--nodes={nnodes}",
        f"--ntasks={nnodes}",
        "--ntasks-per-node=1",
        f"--job-name={job_name}",
        "--input=all",
        "--kill-on-bad-exit=0",
        "--no-kill",  # the others go on when a node is lost
        "--cpu-bind=none",
        "--unbuffered",
    ]
    if not any(word.startswith(CPU_OPTIONS) for word in options.arguments):
        # One task gets one processor else, and all ranks of the node with it.
        words.append(f"--cpus-per-task={options.nproc_per_node}")
    return words


def agent_words(options: EngineOptions, source: str = "-") -> list[str]:
    """Return the command that starts an agent.

    Args:
        options: of the user.
        source: of the invitation; ``-``: its standard input.
    """
    python = options.python or sys.executable
    return [python, "-P", "-m", "nbddp", "agent", "--connect", source]


def job_state(answer: str) -> EngineState:
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
        return EngineState("")
    if state != "PENDING":
        return EngineState(f"Slurm job {job}: {state}")
    more, lasting = "", ""
    if start not in ("", "N/A"):
        more = f", starts about {start[:16].replace('T', ' ')}"
    elif lasting := _LASTING_REASONS.get(reason, ""):
        more = f": perhaps it never starts: {lasting}"
    words = f"Slurm job {job}: {state} ({reason}){more}"
    return EngineState(words, may_never_start=bool(lasting))
