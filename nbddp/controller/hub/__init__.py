"""The one thread with the one socket to all agents, and the runs it serves."""

from nbddp.controller.hub.listeners import NO_RANK, BackgroundEvent, Listeners
from nbddp.controller.hub.queries import RankQueries
from nbddp.controller.hub.run import CellEvent, Run
from nbddp.controller.hub.thread import HubThread
from nbddp.controller.hub.transfer import (
    Answer,
    RequestRefusedError,
    Transfer,
    WaitInterrupt,
    interrupt_as_error,
)

__all__ = [
    "NO_RANK",
    "Answer",
    "BackgroundEvent",
    "CellEvent",
    "HubThread",
    "Listeners",
    "RankQueries",
    "RequestRefusedError",
    "Run",
    "Transfer",
    "WaitInterrupt",
    "interrupt_as_error",
]
