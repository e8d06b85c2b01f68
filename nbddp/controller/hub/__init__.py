"""The one thread with the one socket to all agents, and the runs it serves."""

from nbddp.controller.hub.agent_processes import Agents
from nbddp.controller.hub.attachment import Attachment, attach_agents
from nbddp.controller.hub.hub_thread import HubThread
from nbddp.controller.hub.listeners import NO_RANK, BackgroundEvent, Listeners
from nbddp.controller.hub.machine_attachment import attach_machines
from nbddp.controller.hub.rank_requests import RankRequests
from nbddp.controller.hub.remote_nodes import NodeView, RemoteNodes
from nbddp.controller.hub.run import CellEvent, Run
from nbddp.controller.hub.transfer import (
    Answer,
    RequestRefusedError,
    Transfer,
    WaitInterrupt,
    interrupt_as_error,
)
from nbddp.controller.hub.waiting_commands import check_not_withdrawn

__all__ = [
    "NO_RANK",
    "Agents",
    "Answer",
    "Attachment",
    "BackgroundEvent",
    "CellEvent",
    "HubThread",
    "Listeners",
    "NodeView",
    "RankRequests",
    "RemoteNodes",
    "RequestRefusedError",
    "Run",
    "Transfer",
    "WaitInterrupt",
    "attach_agents",
    "attach_machines",
    "check_not_withdrawn",
    "interrupt_as_error",
]
