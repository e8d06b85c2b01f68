"""Starts agents: on this machine, or on others through an engine such as ssh or Slurm."""

from typing import TypeAlias

from nbddp.controller.launch.engine import Engine, EngineOptions, RemoteAgent
from nbddp.controller.launch.engines import make_engine
from nbddp.controller.launch.local import LocalAgent

#: The agent of one node, as the notebook knows it.
AgentHandle: TypeAlias = LocalAgent | RemoteAgent

__all__ = [
    "AgentHandle",
    "Engine",
    "EngineOptions",
    "LocalAgent",
    "RemoteAgent",
    "make_engine",
]
