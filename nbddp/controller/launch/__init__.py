"""Starts agents: on this machine, or on others through an engine such as ssh or Slurm."""

from nbddp.controller.launch.adopted import AdoptedAgent
from nbddp.controller.launch.engine import (
    Engine,
    EngineOptions,
    LastingEngine,
    LostNode,
    ReachingEngine,
    ReplacingEngine,
    mark_of,
    state_of,
)
from nbddp.controller.launch.engine_end import EngineEnd
from nbddp.controller.launch.engine_state import EngineState
from nbddp.controller.launch.engines import (
    engine_options,
    make_engine,
    notebook_address,
    objects_text,
)
from nbddp.controller.launch.local import LocalAgent
from nbddp.controller.launch.remote_agent import RemoteAgent
from nbddp.controller.launch.slurm_job import ENDED as ENDED_STATES

__all__ = [
    "ENDED_STATES",
    "AdoptedAgent",
    "Engine",
    "EngineEnd",
    "EngineOptions",
    "EngineState",
    "LastingEngine",
    "LocalAgent",
    "LostNode",
    "ReachingEngine",
    "RemoteAgent",
    "ReplacingEngine",
    "engine_options",
    "make_engine",
    "mark_of",
    "notebook_address",
    "objects_text",
    "state_of",
]
