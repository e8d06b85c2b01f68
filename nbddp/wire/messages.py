"""All messages of nbddp.

Runs in: every process. Requests go down (hub -> agent -> rank), events go up (rank -> agent ->
hub). Decoding a message cannot run code: `msgspec` checks types and builds plain structs. The
user's values travel as extra frames beside a message, pickled only between the ends of one pool.

    hub  -- AgentRequest -->  agent  -- RankRequest -->  rank
    hub  <--   Event    ---   agent  <--   Event   ---   rank

A frame list on the wire is ``[payload, *buffers]``; between hub and agent a request begins with
its target ranks: ``[ranks, payload, *buffers]``. No ranks: it is for the agent itself.
"""

from typing import TypeAlias

from nbddp.wire.events import (
    MATCH_TYPES_KEY,
    AgentAttached,
    AgentDetached,
    AgentEnded,
    AgentHello,
    AgentJoined,
    ClearOutput,
    CommFromRank,
    Completed,
    DebugEvent,
    Debugged,
    Display,
    FaultStruck,
    GroupsRebuilt,
    HelperStopped,
    ImportChanged,
    InputRequest,
    Inspected,
    JobTimeLeft,
    LogRead,
    OperationsAborted,
    Output,
    RankAt,
    RankDescribed,
    RankExited,
    RankReady,
    RankSpawned,
    RanksStalled,
    RanksStopped,
    Result,
    RunFinished,
    RunsFinished,
    RunsStarted,
    RunStarted,
    SegmentReleased,
    StackDumped,
    StartFailed,
    StoreExited,
    StoreReady,
    ValueDescribed,
    ValuePulled,
    ValuePushed,
)
from nbddp.wire.message_types import (
    CommType,
    FreeReason,
    Node,
    NodeFacts,
    OnMismatch,
    Rank,
    RunId,
    Stream,
)
from nbddp.wire.requests import (
    AbortOperations,
    AdmitAgent,
    AskWhileStuck,
    AttachAgent,
    BindPushed,
    CommToRank,
    Complete,
    Debug,
    DescribeAtPrompt,
    DescribeRank,
    DescribeValue,
    DetachAgent,
    DumpStack,
    Execute,
    ForgetValue,
    InputReply,
    Inspect,
    Interrupt,
    InterruptCallback,
    KillRanks,
    OutputDrained,
    PullValue,
    PushValue,
    ReadLog,
    RebuildGroups,
    RefuseAgent,
    ReleaseSegment,
    SettleRun,
    Shutdown,
    ShutdownAgent,
    StartRanks,
    StartStore,
    StopRanks,
)

__all__ = [
    "MATCH_TYPES_KEY",
    "PROTOCOL_VERSION",
    "AbortOperations",
    "AdmitAgent",
    "AgentAttached",
    "AgentDetached",
    "AgentEnded",
    "AgentEvent",
    "AgentHello",
    "AgentJoined",
    "AgentRequest",
    "AskWhileStuck",
    "AttachAgent",
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
    "DescribeAtPrompt",
    "DescribeRank",
    "DescribeValue",
    "DetachAgent",
    "Display",
    "DumpStack",
    "Event",
    "Execute",
    "FaultStruck",
    "ForgetValue",
    "FreeReason",
    "GroupsRebuilt",
    "HelperStopped",
    "ImportChanged",
    "InputReply",
    "InputRequest",
    "Inspect",
    "Inspected",
    "Interrupt",
    "InterruptCallback",
    "JobTimeLeft",
    "KillRanks",
    "LogRead",
    "Message",
    "Node",
    "NodeFacts",
    "OnMismatch",
    "OperationsAborted",
    "Output",
    "OutputDrained",
    "PullValue",
    "PushValue",
    "Rank",
    "RankAt",
    "RankDescribed",
    "RankEvent",
    "RankExited",
    "RankReady",
    "RankRequest",
    "RankSpawned",
    "RanksStalled",
    "RanksStopped",
    "ReadLog",
    "RebuildGroups",
    "RefuseAgent",
    "ReleaseSegment",
    "Result",
    "RunFinished",
    "RunId",
    "RunStarted",
    "RunsFinished",
    "RunsStarted",
    "SegmentReleased",
    "SettleRun",
    "Shutdown",
    "ShutdownAgent",
    "StackDumped",
    "StartFailed",
    "StartRanks",
    "StartStore",
    "StopRanks",
    "StoreExited",
    "StoreReady",
    "Stream",
    "ValueDescribed",
    "ValuePulled",
    "ValuePushed",
]

#: Both ends come from one install, so there are no adapters: unequal versions end the start.
PROTOCOL_VERSION = 1

AgentRequest: TypeAlias = (
    AdmitAgent
    | RefuseAgent
    | StartStore
    | StartRanks
    | KillRanks
    | DumpStack
    | ReadLog
    | Interrupt
    | StopRanks
    | ShutdownAgent
    | DetachAgent
    | AttachAgent
    | SettleRun
)
RankRequest: TypeAlias = (
    Execute
    | InputReply
    | AskWhileStuck
    | DescribeAtPrompt
    | PullValue
    | DescribeValue
    | ForgetValue
    | PushValue
    | BindPushed
    | ReleaseSegment
    | DescribeRank
    | AbortOperations
    | RebuildGroups
    | InterruptCallback
    | Complete
    | Inspect
    | CommToRank
    | Debug
    | OutputDrained
    | Shutdown
)
AgentEvent: TypeAlias = (
    AgentHello
    | AgentJoined
    | AgentEnded
    | JobTimeLeft
    | AgentDetached
    | AgentAttached
    | StoreReady
    | StoreExited
    | HelperStopped
    | StartFailed
    | RankSpawned
    | RankExited
    | RanksStopped
    | RanksStalled
    | RankAt
    | StackDumped
    | LogRead
    | Output
    | RunsStarted
    | RunsFinished
)
RankEvent: TypeAlias = (
    RankReady
    | StartFailed
    | RunStarted
    | ImportChanged
    | Display
    | Result
    | ClearOutput
    | InputRequest
    | FaultStruck
    | RunFinished
    | ValuePulled
    | ValueDescribed
    | ValuePushed
    | SegmentReleased
    | RankDescribed
    | OperationsAborted
    | GroupsRebuilt
    | Completed
    | Inspected
    | CommFromRank
    | Debugged
    | DebugEvent
)
Event: TypeAlias = AgentEvent | RankEvent
Message: TypeAlias = AgentRequest | RankRequest | Event
