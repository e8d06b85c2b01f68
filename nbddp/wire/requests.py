"""Requests: from the hub to agents, and from the hub and agents to ranks.

Runs in: every process. Import them from `nbddp.wire.messages`.
"""

from typing import Annotated, Any, Literal

import msgspec

from nbddp.settings import Settings
from nbddp.wire.break_points import BreakPoint
from nbddp.wire.fault_types import Fault
from nbddp.wire.flight_recorder import GroupInfo
from nbddp.wire.message_types import (
    CommType,
    FreeReason,
    MessageBase,
    Node,
    OnMismatch,
    PoolSpec,
    Rank,
    RunId,
    ValueHeader,
)
from nbddp.wire.values.value_questions import ValueQuestion

# --- hub -> agent ------------------------------------------------------------------------------


class StartStore(MessageBase, frozen=True):
    """Start the process that hosts the TCPStore. Answered by `StoreReady` or `StartFailed`."""

    pool: PoolSpec
    host: str
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]  #: 0: any free port


class StartRanks(MessageBase, frozen=True):
    """Start this node's ranks. Answered by `RankReady` or `StartFailed` for each."""

    pool: PoolSpec
    master_addr: str
    master_port: int
    ranks: tuple[Rank, ...] = ()  #: only these; empty: all ranks of the node
    joins: bool = False  #: the ranks get their groups by `RebuildGroups`, and initialise none


class KillRanks(MessageBase, frozen=True):
    """End the processes of ``ranks`` at once. Answered by `RankExited` for each."""

    ranks: tuple[Rank, ...]


class DumpStack(MessageBase, frozen=True):
    """Describe ranks without their help. Answered by `StackDumped` for each living rank."""

    number: int
    ranks: tuple[Rank, ...]
    native: bool = False  #: with native frames, which takes a second or more
    stack: bool = True  #: False: no signal is sent, and no records are read
    memory: bool = False  #: with ``memory_bytes``, which takes some milliseconds


class ReadLog(MessageBase, frozen=True):
    """Read the end of the log of a rank of this node. Answered by `LogRead`."""

    number: int
    rank: Rank
    max_bytes: Annotated[int, msgspec.Meta(ge=0)]


class Interrupt(MessageBase, frozen=True):
    """Send SIGINT to each of ``ranks`` that still runs ``run_id``, and to its children.

    ``run_id`` may also be the request id of a running `PullValue` or `DescribeValue`.
    """

    run_id: RunId
    ranks: tuple[Rank, ...]


class StopRanks(MessageBase, frozen=True):
    """End ranks and store: ask, SIGTERM, SIGKILL. Answered by `RankExited`s and `RanksStopped`."""

    grace_s: float


class AdmitAgent(MessageBase, frozen=True):
    """Answer to `AgentJoined`: the agent serves this node of the pool."""

    node: Node
    nnodes: int
    settings: Settings


class GreetAgent(MessageBase, frozen=True):
    """Answer to `AgentJoined`: the agent is welcome, and waits for others."""

    missing: int  #: agents that have not come


class RefuseAgent(MessageBase, frozen=True):
    """Answer to `AgentJoined`: the agent is not needed, does not fit, or only asks. It ends."""

    reason: str
    #: To one that only asks: it could join, the pool has no place now, or it does not fit.
    answer: Literal["place", "no-place", "misfit"] = "no-place"


class ShutdownAgent(MessageBase, frozen=True):
    """End the ranks, then the agent itself."""

    grace_s: float


class DetachAgent(MessageBase, frozen=True):
    """Go on without a hub, for a time. Answered by `AgentDetached`, the last message."""

    keep_s: float


class AttachAgent(MessageBase, frozen=True):
    """Serve this hub from now on. Answered by `AgentAttached`, once for each number."""

    number: str  #: of the attempt, which is sent again and again
    #: The agent follows the end of this process, as `AgentLaunch` says; 0: it is elsewhere.
    controller_pid: int
    started: int  #: start of that process in clock ticks


class SettleRun(MessageBase, frozen=True):
    """The notebook has the outcome of this cell: keep nothing of it for another hub. No answer."""

    run_id: RunId


# --- hub -> rank -------------------------------------------------------------------------------


class Execute(MessageBase, frozen=True):
    """Run ``code`` on the main thread. Answered by `RunStarted`, then `RunFinished`."""

    run_id: RunId
    code: str
    execution_count: int  #: the notebook's, so that tracebacks name the cell that the user sees
    first_line: int  #: line of the notebook's cell on which ``code`` begins, from 1
    store_history: bool = True
    on_mismatch: OnMismatch = "raise"
    check: bool = False  #: ranks of several machines exchange fingerprints before each operation
    step: bool = False  #: ranks stop before each operation and ask what to do
    faults: tuple[Fault, ...] = ()  #: faults on purpose, of all ranks
    sanitize: bool = False  #: ranks check what the code does with tensors of operations
    sanitize_data: bool = False  #: ranks note what data loaders read
    break_points: tuple[BreakPoint, ...] = ()  #: operations before which ranks stop in any case
    parent_id: str = ""  #: id of the front end's request; an Output widget names it
    debugs: tuple[Rank, ...] = ()  #: ranks on which a bare ``%debug`` opens; empty: all
    dead: tuple[Rank, ...] = ()  #: ranks without a process: no group with them can complete
    failed: tuple[RunId, ...] = ()  #: the last cells that failed on some of their ranks
    ranks: tuple[Rank, ...] = ()  #: ranks that run the cell; empty: all
    #: Ranks that run it in a namespace of their own, which lasts while cells name the same
    #: `aside_id`: their variables stay as they are.
    aside: tuple[Rank, ...] = ()
    aside_id: str = ""


class InputReply(MessageBase, frozen=True):
    """Answer to `InputRequest`; ``value`` is None at the end of input, ``reason`` says why."""

    run_id: RunId
    question: int  #: as in the request
    value: str | None
    reason: str = ""


class AskWhileStuck(MessageBase, frozen=True):
    """Ask the user from a thread of its own, as a deadlock is proven and nobody is freed yet.

    Answered by `InputRequest` with ``is_stuck``, until a reply ends it.
    """

    run_id: RunId


class PullValue(MessageBase, frozen=True):
    """Evaluate ``expression`` in the user's namespace. Answered by `RunStarted`, `ValuePulled`."""

    request_id: str
    expression: str
    ranks: tuple[Rank, ...]  #: all ranks that get the request
    use_arena: bool = True  #: False: the notebook cannot open this rank's shared memory


class DescribeValue(MessageBase, frozen=True):
    """Describe values in the user's namespace. Answered by `RunStarted`, `ValueDescribed`."""

    request_id: str
    question: ValueQuestion
    ranks: tuple[Rank, ...]  #: all ranks that get the request


class DescribeAtPrompt(MessageBase, frozen=True):
    """Describe values in the frame at whose prompt the rank stands, inside a cell.

    Answered by `ValueDescribed`; the `InputRequest` stays open.
    """

    request_id: str
    run_id: RunId
    question: ValueQuestion


class ForgetValue(MessageBase, frozen=True):
    """Release the tensors that are kept for questions about the last `Tree`. No answer."""


class PushValue(MessageBase, frozen=True):
    """Build a value and hold it until `BindPushed`. Answered by `ValuePushed`.

    The value is a dict of variables by name. It may come in ``parts`` chunks, of which only the
    last one is answered. See `nbddp.wire.values.pickling` for the frames beside it.
    """

    request_id: str
    value: ValueHeader
    part: int = 0
    parts: int = 1


class BindPushed(MessageBase, frozen=True):
    """Bind the names of the value that the rank holds, or discard it. No answer."""

    request_id: str
    keep: bool  #: False: a rank could not build the value, or the user does not wait for it


class ReleaseSegment(MessageBase, frozen=True):
    """The notebook no longer uses shared-memory segment ``segment`` of this rank. No answer."""

    segment: int


class DescribeRank(MessageBase, frozen=True):
    """Describe the rank. The I/O thread answers `RankDescribed` at once."""

    number: int
    last: Annotated[int, msgspec.Meta(ge=0)] = (
        64  #: number of complete operations that are included
    )
    memory: bool = False  #: with ``gpu_bytes``
    #: Only the fields of `RankLook` that show whether the rank has changed since an earlier answer.
    is_brief: bool = False


class AbortOperations(MessageBase, frozen=True):
    """End blocked operations, in two phases; the I/O thread answers `OperationsAborted` at once.

    ``arm``: operations of the chosen groups that end from now on raise the exception of ``reason``.
    ``fire``: end the operations that the ``arm`` with the same ``number`` has chosen. The second
    phase begins when all ranks have answered the first, so that no rank sees a peer's closed
    connection as an error of its own.
    """

    number: int
    run_id: RunId
    phase: Literal["arm", "fire"]
    reason: FreeReason
    text: str = ""  #: message of the exception
    #: These groups, ``""`` for waits for the store; none: those in which a thread is blocked now.
    pg_ids: tuple[str, ...] = ()
    ranks: tuple[Rank, ...] = ()  #: and all groups that have one of these members
    #: And the `RebuildGroups` with this number, also on ranks that have not begun it.
    reform: int = 0


class RebuildGroups(MessageBase, frozen=True):
    """Rebuild groups, in place, on the main thread. Answered by `GroupsRebuilt`.

    All ranks of the pool get the same request. Each takes part in the groups of which it is a
    member, in the given order; a rank that joins creates those that it does not have.
    """

    number: int  #: never used before in this pool
    groups: tuple[GroupInfo, ...]
    group_count: int
    fresh: tuple[Rank, ...] = ()  #: ranks that have taken the place of others
    #: No rank that knows the groups is left: initialise the default group as at the start.
    initialises: bool = False


class InterruptCallback(MessageBase, frozen=True):
    """Raise `KeyboardInterrupt` in the running callback of a widget, if any. No answer."""


class Complete(MessageBase, frozen=True):
    """Complete a name. The side thread answers `Completed`, also while a cell runs."""

    number: int
    code: str
    cursor: Annotated[int, msgspec.Meta(ge=0)]  #: in code points


class Inspect(MessageBase, frozen=True):
    """Describe a name. The side thread answers `Inspected`, also while a cell runs."""

    number: int
    code: str
    cursor: Annotated[int, msgspec.Meta(ge=0)]  #: in code points
    detail_level: Literal[0, 1] = 0  #: 1: with its source
    is_glance: bool = (
        False  #: the value of the whole ``code`` instead, as far as no code runs for it
    )


class CommToRank(MessageBase, frozen=True):
    """A comm message of the front end for a widget of this rank, its buffers beside. No answer."""

    msg_type: CommType
    content: dict[str, Any]  #: as in Jupyter's message
    metadata: dict[str, Any]


class Debug(MessageBase, frozen=True):
    """A request of the Debug Adapter Protocol. Answered by `Debugged`."""

    number: int
    content: dict[str, Any]
    folder: str = ""  #: folder of the source files of cells; empty: one of the rank's own


class OutputDrained(MessageBase, frozen=True):
    """Agent -> rank: the agent has sent on the `InOrder` message with this number."""

    number: int


class Shutdown(MessageBase, frozen=True):
    """End the rank's process cleanly. Answered by `RankExited` from the agent."""
