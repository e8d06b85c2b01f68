"""The types of which messages consist.

Runs in: every process.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from nbddp.wire.flight_recorder import ExceptionLine, Site
from nbddp.wire.mesh_ranks import Mesh

RunId: TypeAlias = str
Rank: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Node: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Stream: TypeAlias = Literal["stdout", "stderr"]
InitMethod: TypeAlias = Literal["env", "tcp", "file", "none"]
Device: TypeAlias = Literal["auto", "cpu", "cuda"]
#: Jupyter's messages between the two ends of a comm.
CommType: TypeAlias = Literal["comm_open", "comm_msg", "comm_close"]
#: The reaction of a rank that sees a mismatch before its data moves.
OnMismatch: TypeAlias = Literal["raise", "warn", "off"]
#: The reason for ending blocked operations: it decides which exception the user's code gets.
FreeReason: TypeAlias = Literal["deadlock", "interrupt", "death", "error", "mismatch"]

#: Why an agent has ended, or cannot come.
AgentEndCause: TypeAlias = Literal[
    "asked",  #: the notebook asked it to
    "exited",  #: its process ended with the exit code ``number`` (-n: by signal n)
    "signal",  #: it got the signal ``number``
    "starter-ended",  #: the program that has started it ended
    "notebook-ended",  #: the notebook's process ended, and the pool is not kept
    "notebook-lost",  #: it heard nothing of the notebook
    "not-attached",  #: no notebook attached in the time for which the pool was kept
    "not-known",  #: its process ended, and only its parent, which has gone, could know how
    "refused",  #: the notebook had no place for it, such as one that another agent has by now
    "silent",  #: nothing was heard of the machine ``text`` for ``number`` seconds
    "no-answer",  #: it did not end when it was asked to
    "engine",  #: its engine says so in ``text``, and what to do in ``advice``
    "taken-away",  #: it got SIGTERM, and was in the job ``text`` of Slurm
    "time-limit",  #: the same, at the end of the job
    "job-over",  #: the same, and the end of the job is not known: perhaps it has come
]


class MessageBase(
    msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True, gc=False
):
    """Base of all messages: immutable, tagged by class name, unknown fields are errors."""


class AgentEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of an agent, as facts; `nbddp.controller.state.exit_text` has the words."""

    cause: AgentEndCause
    number: int = 0
    text: str = ""
    advice: str = ""

    def is_of_job(self, job: str) -> bool:
        """Return whether this job ends, with all of its agents."""
        return self.cause in ("taken-away", "time-limit", "job-over") and self.text == job


class _ExitCause(
    msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Base of the causes of an exit; `nbddp.controller.state.exit_text` has the words."""


class UnknownStatus(_ExitCause, frozen=True):
    """The exit status of the process is not known."""


class ForkServerEnd(_ExitCause, frozen=True):
    """The fork server ended, and all processes that it made end with it."""

    exit_code: int | None  #: of the fork server, -n: signal n ended it; None: not known


class KillRequest(_ExitCause, frozen=True):
    """`KillRanks` asked for the end of this rank."""


class LostAgent(_ExitCause, frozen=True):
    """The agent has ended; perhaps the processes of its ranks still run."""

    node: int
    end: AgentEnd
    never_came: str = ""  #: the machine, if the agent never came

    @property
    def is_unseen(self) -> bool:
        """Whether nothing has told its end: the connection was given up, and it may still run."""
        return not self.never_came and self.end.cause in ("silent", "no-answer", "engine")


#: The cause of an exit of a process, where its exit code does not show it.
ExitCause: TypeAlias = UnknownStatus | ForkServerEnd | KillRequest | LostAgent


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that all ranks of a pool have in common."""

    pool_id: str
    generation: int  #: number of restarts of the pool
    nproc_per_node: int
    nnodes: int
    backend: str  #: ``auto`` or a backend that torch knows
    device: Device
    devices: tuple[int, ...]  #: CUDA devices, assigned by global rank; empty: all
    init: InitMethod
    init_file: str  #: path for ``init="file"``
    threads: int  #: intra-op threads of a rank (OMP_NUM_THREADS)
    timeout_s: float  #: timeout of the default process group; 0: torch's default
    cwd: str
    sys_path: tuple[str, ...]
    env: dict[str, str]  #: set in each rank, after everything else
    use_arena: bool
    plain: bool = False  #: stock process groups: nothing is traced, freed or re-formed
    #: Nodes are machines of their own: ``sys_path`` has only what the user has added, and devices
    #: are counted on each node.
    has_machines: bool = False
    needs_cwd: bool = True  #: ``cwd`` was asked for; else a node without it uses the home folder

    @property
    def world_size(self) -> int:
        """The number of ranks of the pool."""
        return self.nproc_per_node * self.nnodes


#: The time that the job around an agent has left is not known, or has no end, or there is no job.
JOB_LEFT_UNKNOWN_S = -1.0
#: Seconds before the end of a job at which the user is warned.
JOB_WARNINGS_S = (600.0, 300.0, 60.0)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about the node of an agent on another machine."""

    host: str  #: name of the machine
    address: str  #: of the machine, towards the hub
    python: str  #: ``3.11``
    torch: str  #: version of the installed package; empty: there is none
    nbddp: str
    cpus: int  #: that its processes may use
    machine_cpus: int  #: that the machine has
    gpus: int  #: CUDA devices that the driver shows; 0 where there is no driver
    cwd_problem: str = ""  #: why ranks cannot enter their folder: ``/data: Permission denied``
    engine: str = ""  #: what started it: ``slurm``; empty: not known
    engine_node: int = -1  #: number of the node in the engine; -1: it gives none
    engine_host: str = ""  #: the engine's own name of the machine; empty: it gives none
    job: str = ""  #: the engine's name of the job: ``4711``
    scheduler: str = ""  #: of the batch job around it: ``slurm``, ``pbs``, ``lsf``, ``flux``
    #: Seconds until the end of the job, when this was written, or `JOB_LEFT_UNKNOWN_S`.
    job_left_s: float = JOB_LEFT_UNKNOWN_S


class KeptRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank as its agent knows it, for a hub that takes the pool back: see `AgentAttached`."""

    rank: Rank
    pid: int  #: 0: its process could not be made
    log_path: str = ""
    is_ready: bool = False  #: it has initialised its process group, or waits for its groups
    device: str = ""
    backend: str = ""
    note: str = ""
    run_id: RunId | None = None  #: of the cell that it is in, or whose end the hub has not settled
    joins: bool = False  #: it has taken the place of another, and has no groups yet
    is_replacement: bool = False  #: it had a predecessor in this pool
    meshes: tuple[Mesh, ...] = ()  #: that its variables hold, as of the end of its last cell


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exception as text; ``traceback`` has ANSI colours and no frames of nbddp."""

    ename: str
    evalue: str
    traceback: list[str]
    #: The library of each part of ``traceback`` that is a frame of one, else empty; the last parts
    #: may have none. Empty: the traceback is to be shown as it is.
    libraries: tuple[str, ...] = ()
    site: Site | None = None  #: its innermost line of a cell; None: there is none
    #: The exception that the rank handled when an operation raised this: perhaps the real reason.
    handling: ExceptionLine | None = None
    name: str = ""  #: of a NameError: the name that is not defined


class ValueHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place of the bytes of a pickled value; see `nbddp.wire.values.pickling`."""

    pickle_bytes: int  #: length of the pickle stream
    buffer_bytes: tuple[int, ...]  #: lengths of its out-of-band buffers
    segment: int = -1  #: number of the shared-memory segment; -1: the bytes are frames
    segment_path: str = ""  #: path that opens the segment in another process
    segment_size: int = 0
