"""Events: from agents and ranks to the hub.

Runs in: every process. Import them from `nbddp.wire.messages`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, Self

from msgspec.structs import replace

from nbddp.wire.flight_recorder import (
    GroupInfo,
    GroupMark,
    LoopVariable,
    Mismatch,
    Operation,
    RankLook,
    SanitizerReport,
    Site,
)
from nbddp.wire.mesh_ranks import Mesh
from nbddp.wire.message_types import (
    AgentEnd,
    CommType,
    ErrorInfo,
    ExitCause,
    ForkServerEnd,
    KeptRank,
    LostAgent,
    MessageBase,
    Node,
    NodeFacts,
    PoolSpec,
    Rank,
    RunId,
    Stream,
    UnknownStatus,
    ValueHeader,
)
from nbddp.wire.requests import Execute
from nbddp.wire.values.value_questions import ValueAnswer

# --- agent -> hub ------------------------------------------------------------------------------


class AgentHello(MessageBase, frozen=True):
    """First message of an agent.

    An agent on another machine that has lost its hub sends it to each hub that it meets. One that
    takes the pool back answers with `AttachAgent`, one that has given the agent up with
    `RefuseAgent`.
    """

    version: int
    token: str  #: from the connection file: proves that this is our agent
    node: Node
    pid: int
    host: str
    address: str = ""  #: of its machine, towards the hub; empty: it is the notebook's machine


class AgentJoined(MessageBase, frozen=True):
    """First message of an agent on another machine, answered by `AdmitAgent`, or `RefuseAgent`.

    `GreetAgent` may come before.
    """

    version: int
    token: str  #: from the invitation
    pid: int
    facts: NodeFacts
    only_asks: bool = False  #: whether the pool needs it: ``--check``. `RefuseAgent` answers


class AgentEnded(MessageBase, frozen=True):
    """Last message of an agent on another machine: its ranks have ended."""

    node: int  #: -1: it had none yet
    end: AgentEnd


class JobTimeLeft(MessageBase, frozen=True):
    """The time that the job around an agent has left, which was asked for again."""

    node: Node
    left_s: float


class AgentDetached(MessageBase, frozen=True):
    """Answer to `DetachAgent`, and the last message to this hub."""

    node: Node
    problem: str = ""  #: why the agent stays attached; empty: it goes on without a hub


class AgentAttached(MessageBase, frozen=True):
    """Answer to `AttachAgent`: what a new hub has to know; the events that were kept follow.

    States are those before these events. So a rank is in a cell whose end follows.
    """

    number: str  #: as in the request
    version: int
    token: str  #: see `AgentHello`
    node: Node
    pid: int
    pool: PoolSpec
    master_addr: str
    master_port: int
    store_is_lost: bool
    ranks: tuple[KeptRank, ...]  #: of this node
    #: The last cell, unless its end was settled: its ranks are in it, or its end follows.
    run: Execute | None
    run_age_s: float = 0.0  #: since its begin
    kept_events: int = 0  #: so many of them follow at once
    facts: NodeFacts | None = None  #: None: the agent is on the notebook's machine


class StoreReady(MessageBase, frozen=True):
    """The TCPStore listens."""

    host: str
    port: int
    pid: int


class StoreExited(MessageBase, frozen=True):
    """The process of the TCPStore has ended, and nbddp did not end it."""

    pid: int
    exit_code: int  #: negative: ended by that signal; meaningless if there is a ``cause``
    cause: UnknownStatus | ForkServerEnd | None = None  #: None: the exit code shows it


class HelperStopped(MessageBase, frozen=True):
    """A process behind the ranks was stopped, for example by SIGSTOP, and was sent SIGCONT."""

    node: Node
    name: str  #: "the fork server"
    pid: int
    goes_on: bool  #: whether it runs again


class InOrder(MessageBase, frozen=True, kw_only=True):
    """Base of events that keep their place between the texts that the rank prints.

    The rank prints nothing until `OutputDrained` says that its agent has the message.
    """

    sync: int = 0  #: number that `OutputDrained` repeats; counts up per rank


class StartFailed(InOrder, frozen=True, kw_only=True):
    """The store (``rank`` None) or a rank could not be started.

    A rank ends only when its agent has the message, so that its exit is reported after it.
    """

    node: Node
    rank: Rank | None
    error: ErrorInfo


class RankSpawned(MessageBase, frozen=True):
    """The process of ``rank`` exists; it is not ready yet."""

    rank: Rank
    node: Node
    pid: int
    log_path: str


class RankExited(MessageBase, frozen=True):
    """The process of ``rank`` has ended; all of its output came before this message."""

    rank: Rank
    pid: int
    exit_code: int  #: negative: ended by that signal; meaningless if there is a ``cause``
    out_of_memory: bool  #: the operating system killed a process of this control group for memory
    last_output: str  #: the end of its output
    fault: str = ""  #: the Python stack at a fatal signal, as `faulthandler` writes it
    cause: ExitCause | None = None  #: None: the exit code shows it
    #: Whether the operating system counts the processes that it kills for memory.
    counts_memory_kills: bool = False
    last_operation: Operation | None = None  #: that it issued; None: none, or it is not known
    last_line: Site | None = None  #: of the user's code, that was seen; None: none was
    last_line_age_s: float = 0.0  #: seconds between that and the notice of the end
    memory_available: int = 0  #: of its machine, in bytes, when its end was noticed; 0: not known
    memory_total: int = 0
    age_s: float = 0.0  #: since the end was noticed, if it was kept for a hub that came later

    @property
    def lost_agent(self) -> bool:
        """Whether its agent was lost: its records are not known, and it cannot be replaced."""
        return isinstance(self.cause, LostAgent)

    @property
    def was_lost(self) -> bool:
        """Whether it counts as exited with its node: perhaps its process still runs."""
        return isinstance(self.cause, LostAgent) and self.cause.is_unseen


class RanksStopped(MessageBase, frozen=True):
    """Answer to `StopRanks`: this node has no rank, store or child of them any more."""

    node: Node


class Output(MessageBase, frozen=True):
    """Text from file descriptor 1 or 2 of one rank, cut at line ends where possible."""

    run_id: RunId | None  #: None: printed while no cell ran
    rank: Rank
    stream: Stream
    text: str
    dropped_bytes: int = 0  #: size of the text left out just before ``text``; the log has it


class RanksStalled(MessageBase, frozen=True):
    """These ranks run a cell and have open operations without progress for a while."""

    node: Node
    ranks: tuple[Rank, ...]


class RankAt(MessageBase, frozen=True):
    """Where a rank is in its cell, as its records say; sent when it has changed, twice a second."""

    run_id: RunId
    rank: Rank
    line: int  #: of the user's code; 0: not known
    iteration: tuple[LoopVariable, ...] = ()  #: see `Operation.iteration`


class StackDumped(MessageBase, frozen=True):
    """Answer to `DumpStack`: the state of a rank as its agent sees it from outside."""

    number: int
    rank: Rank
    version: int
    operations: tuple[Operation, ...]
    stack: str  #: of the main thread, by `faulthandler`; empty: the process does not run at all
    native: str = ""  #: with native frames, if py-spy is installed
    process_state: str = ""  #: of the main thread: R, S, D, T (stopped), Z
    cpu_s: float = 0.0  #: processor time of the main thread so far
    memory_bytes: int = 0  #: of the process and its descendants; 0: not known, or not asked for
    memory_is_pss: bool = False  #: shared pages count in part; False: resident memory


class LogRead(MessageBase, frozen=True):
    """Answer to `ReadLog`."""

    number: int
    rank: Rank
    text: str
    size: int  #: bytes of the whole file
    problem: str = ""  #: why it cannot be read; empty: it was


# --- rank -> hub -------------------------------------------------------------------------------


class RankReady(MessageBase, frozen=True):
    """The rank accepts requests; its process group is initialised unless ``init="none"``."""

    rank: Rank
    pid: int
    local_rank: int
    device: str  #: ``cpu`` or ``cuda:0``
    backend: str  #: of the default group; empty: not initialised
    note: str = ""  #: note for the user, for example about a fallback


class RunStarted(MessageBase, frozen=True):
    """The cell, `PullValue` or `DescribeValue` begins on ``rank`` and can be interrupted."""

    run_id: RunId
    rank: Rank


class ImportChanged(MessageBase, frozen=True):
    """The cell now imports this module of a library, seen at intervals of a quarter of a second."""

    run_id: RunId
    rank: Rank
    module: str  #: the one that was asked for, not those that it needs; empty: no longer any


class Display(InOrder, frozen=True, kw_only=True):
    """Rich output, with the content of Jupyter's ``display_data`` and ``update_display_data``."""

    run_id: RunId | None
    rank: Rank
    data: dict[str, Any]
    metadata: dict[str, Any]
    transient: dict[str, Any]
    update: bool = False


class Result(InOrder, frozen=True, kw_only=True):
    """The value of the cell's last expression, as a MIME bundle."""

    run_id: RunId | None
    rank: Rank
    data: dict[str, Any]
    metadata: dict[str, Any]


class ClearOutput(InOrder, frozen=True, kw_only=True):
    """One rank called ``clear_output``."""

    run_id: RunId | None
    rank: Rank
    wait: bool


class InputRequest(InOrder, frozen=True, kw_only=True):
    """One rank waits in ``input()``, ``getpass()`` or a debugger. Answered by `InputReply`."""

    run_id: RunId
    rank: Rank
    question: int  #: counts up per rank; its threads may ask at the same time
    prompt: str
    password: bool
    debugger: Site | None = None  #: the line that a debugger is at; None: no debugger asks
    stop: Operation | None = None  #: the operation before which the rank stopped: ``%%ddp --step``
    group: GroupInfo | None = None  #: of the operation; None: it is the default group
    break_points: tuple[int, ...] = ()  #: numbers of the break points that it has stopped at
    #: The reason of the stop, of which ``stop`` is `Mismatch.mine`.
    mismatch: Mismatch | None = None
    is_final: bool = False  #: other machines have compared ``stop``: it cannot be left out
    is_stuck: bool = False  #: the rank is where it was when a deadlock was proven: `AskWhileStuck`


class FaultStruck(InOrder, frozen=True, kw_only=True):
    """A fault on purpose strikes on ``rank`` now; a rank that is killed ends after this message."""

    run_id: RunId
    rank: Rank
    number: int  #: in `Execute.faults`, from 0; -1: `nbddp.faults.inject` has made it
    text: str  #: ``rank 2 was delayed 2 s before all_reduce #3, cell [4], line 7``


class RunFinished(MessageBase, frozen=True):
    """The cell has ended on ``rank``; all of its output came before this message."""

    run_id: RunId
    rank: Rank
    elapsed_s: float
    error: ErrorInfo | None  #: None: it ended without an exception
    failed_at_ns: int = 0  #: CLOCK_REALTIME of the exception; orders failures of one machine
    was_freed: bool = False  #: ``error`` was raised because `AbortOperations` ended an operation
    mismatches: tuple[Mismatch, ...] = ()  #: those that this rank saw, raised or not
    marks: tuple[GroupMark, ...] = ()  #: of the groups that were used, or are broken
    torn: tuple[str, ...] = ()  #: operations whose tensors may hold partial results
    group_count: int = 0  #: torch's number for the next group, which becomes its name
    made_groups: bool = False  #: the rank became a member of a new group in the cell
    sanitizer: SanitizerReport | None = None  #: None: the cell was not sanitized
    #: Those that variables of the rank hold; None: the same as after the cell before.
    meshes: tuple[Mesh, ...] | None = None


class RunsStarted(MessageBase, frozen=True):
    """The `RunStarted` of several ranks of a node; their agent has folded them."""

    run_id: RunId
    ranks: tuple[Rank, ...]

    def each(self) -> Iterator[RunStarted]:
        """Give the message of each rank."""
        return (RunStarted(run_id=self.run_id, rank=rank) for rank in self.ranks)


class RunsFinished(MessageBase, frozen=True):
    """The `RunFinished` of several ranks of a node, equal but for the times; see `RunsStarted`."""

    finished: RunFinished  #: that of the first rank
    ranks: tuple[Rank, ...]
    elapsed_s: tuple[float, ...]  #: of each of them
    failed_at_ns: tuple[int, ...]

    @classmethod
    def of(cls, alike: Sequence[RunFinished]) -> Self:
        """Fold messages."""
        return cls(
            finished=alike[0],
            ranks=tuple(each.rank for each in alike),
            elapsed_s=tuple(each.elapsed_s for each in alike),
            failed_at_ns=tuple(each.failed_at_ns for each in alike),
        )

    @property
    def run_id(self) -> RunId:
        """The cell."""
        return self.finished.run_id

    @property
    def is_sound(self) -> bool:
        """Whether each rank is there once, and has its times."""
        count = len(set(self.ranks))
        return len(self.ranks) == len(self.elapsed_s) == len(self.failed_at_ns) == count > 0

    def each(self) -> Iterator[RunFinished]:
        """Give the message of each rank."""
        for rank, elapsed_s, failed_at_ns in zip(
            self.ranks, self.elapsed_s, self.failed_at_ns, strict=True
        ):
            yield replace(self.finished, rank=rank, elapsed_s=elapsed_s, failed_at_ns=failed_at_ns)


class ValuePulled(MessageBase, frozen=True):
    """Answer to `PullValue`, with the value's buffers; a large value comes in ``parts`` chunks."""

    request_id: str
    rank: Rank
    value: ValueHeader | None
    error: ErrorInfo | None = None
    part: int = 0
    parts: int = 1


class ValueDescribed(MessageBase, frozen=True):
    """Answer to `DescribeValue`: the description, or the error that prevented it.

    `BlockContents` come with frames beside the message.
    """

    request_id: str
    rank: Rank
    answer: ValueAnswer | None
    error: ErrorInfo | None = None


class ValuePushed(MessageBase, frozen=True):
    """Answer to `PushValue`."""

    request_id: str
    rank: Rank
    error: ErrorInfo | None = None


class SegmentReleased(MessageBase, frozen=True):
    """The rank no longer uses shared-memory segment ``segment`` of the notebook."""

    rank: Rank
    segment: int


class RankDescribed(MessageBase, frozen=True):
    """Answer to `DescribeRank`."""

    number: int
    rank: Rank
    look: RankLook


class OperationsAborted(MessageBase, frozen=True):
    """Answer to `AbortOperations`."""

    number: int
    rank: Rank
    phase: Literal["arm", "fire"]
    pg_ids: tuple[str, ...]  #: groups that are armed, or whose operations were ended
    #: Reason why the cell may not end: ``in Python code that ignores interrupts``.
    stuck: str = ""


class GroupsRebuilt(MessageBase, frozen=True):
    """Answer to `RebuildGroups`."""

    number: int
    rank: Rank
    error: ErrorInfo | None = None
    torn: tuple[str, ...] = ()  #: as in `RunFinished`, which comes before


#: ipykernel's key for the types of matches, in the metadata of a `Completed`.
MATCH_TYPES_KEY: Final = "_jupyter_types_experimental"


class Completed(MessageBase, frozen=True):
    """Answer to `Complete`, as in Jupyter's ``complete_reply``."""

    number: int
    rank: Rank
    matches: tuple[str, ...]
    start: int  #: the matches replace the text from here to ``end``, in code points
    end: int
    metadata: dict[str, Any]


class Inspected(MessageBase, frozen=True):
    """Answer to `Inspect`, as in Jupyter's ``inspect_reply``."""

    number: int
    rank: Rank
    found: bool
    data: dict[str, Any]
    metadata: dict[str, Any]


class CommFromRank(MessageBase, frozen=True):
    """A comm message of a widget in this rank for the front end, its buffers beside."""

    run_id: RunId | None
    rank: Rank
    msg_type: CommType
    content: dict[str, Any]  #: as in Jupyter's message
    metadata: dict[str, Any]


class Debugged(MessageBase, frozen=True):
    """Answer to `Debug`: a response of the Debug Adapter Protocol."""

    number: int
    rank: Rank
    content: dict[str, Any]


class DebugEvent(MessageBase, frozen=True):
    """An event of the Debug Adapter Protocol, which answers no request."""

    rank: Rank
    content: dict[str, Any]
