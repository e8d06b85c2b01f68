"""Every message of nbddp, once.

Runs in: every process. Requests go down (hub -> agent -> rank), events go up (rank -> agent ->
hub). Decoding a message cannot run code: `msgspec` checks types and builds plain structs. Values
of users travel as extra frames beside a message, pickled only between the ends of one pool.

    hub  -- AgentRequest -->  agent  -- RankRequest -->  rank
    hub  <--   Event    ---   agent  <--   Event   ---   rank

A frame list on the wire is ``[payload, *buffers]``; between hub and agent a request carries the
ranks it is for in front: ``[ranks, payload, *buffers]``, with no ranks for the agent itself.
"""

from typing import TypeAlias

from nbddp.wire.events import (
    AgentHello,
    ClearOutput,
    CommFromRank,
    Completed,
    DebugEvent,
    Debugged,
    Display,
    Freed,
    HelperStopped,
    InputRequest,
    Inspected,
    Looked,
    Output,
    Peeked,
    Quiet,
    RankExited,
    RankReady,
    RankSpawned,
    RanksStopped,
    Reformed,
    Result,
    RunFinished,
    RunStarted,
    SegmentReleased,
    StartFailed,
    StoreExited,
    StoreReady,
    ValueDescribed,
    ValuePulled,
    ValuePushed,
)
from nbddp.wire.message_types import CommType, FreeReason, Node, OnMismatch, Rank, RunId, Stream
from nbddp.wire.requests import (
    BindPushed,
    CommToRank,
    Complete,
    Debug,
    DescribeValue,
    Execute,
    ForgetValue,
    Free,
    InputReply,
    Inspect,
    Interrupt,
    InterruptCallback,
    KillRanks,
    Look,
    Peek,
    PullValue,
    PushValue,
    Reform,
    ReleaseSegment,
    Shutdown,
    ShutdownAgent,
    StartRanks,
    StartStore,
    StopRanks,
    Synced,
)

__all__ = [
    "PROTOCOL_VERSION",
    "AgentEvent",
    "AgentHello",
    "AgentRequest",
    "BindPushed",
    "ClearOutput",
    "CommFromRank",
    "CommToRank",
    "CommType",
    "Complete",
    "Completed",
    "Debug",
    "DebugEvent",
    "Debugged",
    "DescribeValue",
    "Display",
    "Event",
    "Execute",
    "ForgetValue",
    "Free",
    "FreeReason",
    "Freed",
    "HelperStopped",
    "InputReply",
    "InputRequest",
    "Inspect",
    "Inspected",
    "Interrupt",
    "InterruptCallback",
    "KillRanks",
    "Look",
    "Looked",
    "Message",
    "Node",
    "OnMismatch",
    "Output",
    "Peek",
    "Peeked",
    "PullValue",
    "PushValue",
    "Quiet",
    "Rank",
    "RankEvent",
    "RankExited",
    "RankReady",
    "RankRequest",
    "RankSpawned",
    "RanksStopped",
    "Reform",
    "Reformed",
    "ReleaseSegment",
    "Result",
    "RunFinished",
    "RunId",
    "RunStarted",
    "SegmentReleased",
    "Shutdown",
    "ShutdownAgent",
    "StartFailed",
    "StartRanks",
    "StartStore",
    "StopRanks",
    "StoreExited",
    "StoreReady",
    "Stream",
    "Synced",
    "ValueDescribed",
    "ValuePulled",
    "ValuePushed",
]

#: Both ends come from one install, so there are no adapters: unequal versions end the start.
PROTOCOL_VERSION = 1

AgentRequest: TypeAlias = (
    StartStore | StartRanks | KillRanks | Peek | Interrupt | StopRanks | ShutdownAgent
)
RankRequest: TypeAlias = (
    Execute
    | InputReply
    | PullValue
    | DescribeValue
    | ForgetValue
    | PushValue
    | BindPushed
    | ReleaseSegment
    | Look
    | Free
    | Reform
    | InterruptCallback
    | Complete
    | Inspect
    | CommToRank
    | Debug
    | Synced
    | Shutdown
)
AgentEvent: TypeAlias = (
    AgentHello
    | StoreReady
    | StoreExited
    | HelperStopped
    | StartFailed
    | RankSpawned
    | RankExited
    | RanksStopped
    | Quiet
    | Peeked
    | Output
)
RankEvent: TypeAlias = (
    RankReady
    | StartFailed
    | RunStarted
    | Display
    | Result
    | ClearOutput
    | InputRequest
    | RunFinished
    | ValuePulled
    | ValueDescribed
    | ValuePushed
    | SegmentReleased
    | Looked
    | Freed
    | Reformed
    | Completed
    | Inspected
    | CommFromRank
    | Debugged
    | DebugEvent
)
Event: TypeAlias = AgentEvent | RankEvent
Message: TypeAlias = AgentRequest | RankRequest | Event
