"""``python -m nbddp.controller.launch.ray_driver``: the driver of a Ray job that runs agents.

Runs in: a process of its own, which ends with its standard input, and its job and agents with it.
So the notebook's process stays free of Ray, and may have a job of its own there.

    notebook --invitation, on stdin--> driver --an argument--> actor on each node --stdin--> agent

The class of the actors is in the main module, so Ray sends its code to the nodes.
"""

import argparse
import logging
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from nbddp.controller.launch import driver_report, ray_resources
from nbddp.controller.launch.driver_output import DriverOutput, read_input
from nbddp.controller.launch.engine_process import EngineProcess
from nbddp.settings import NODE_ENV
from nbddp.wire.invitation import Invitation

_LOOK_S = 0.3
_END_S = 4.0
_AGENT_STOP_S = 1.0


class AgentKeeper:
    """An actor: has one agent, which ends with it."""

    def __init__(self) -> None:
        self._agent: EngineProcess | None = None

    def run(self, invitation: str, node: int, python: str) -> str:
        """Start the agent, and return how it has ended.

        Args:
            invitation: for the agent, as text.
            node: its number.
            python: its interpreter; empty: that of Ray's worker.
        """
        program = [python or sys.executable, "-P", "-m", "nbddp", "agent", "--connect", "-"]
        words = ["env", f"{NODE_ENV}={node}", *program]
        self._agent = EngineProcess(words, Invitation.parse(invitation.encode()))
        while not (how := self._agent.end()):
            time.sleep(_LOOK_S)
        return how

    def end(self) -> None:
        """End the agent, and with it its ranks."""
        if self._agent is not None:
            self._agent.close_input()
            self._agent.stop(_AGENT_STOP_S)


@dataclass(frozen=True)
class _Start:
    """The start of an agent."""

    number: int  #: of the agent
    keeper: Any
    is_ready: Any  #: ends well when the actor has come
    nodes: frozenset[str]  #: that Ray took for alive before


class Driver:
    """Starts an agent on each of some nodes of a Ray cluster, and tells what becomes of them."""

    def __init__(self, options: argparse.Namespace, invitation: str, output: DriverOutput) -> None:
        self._options = options
        self._output = output
        self._invitation = invitation
        self._keepers: dict[int, Any] = {}  #: by node
        self._starts_by_call: dict[Any, _Start] = {}
        self._asked = ""  #: lines of the engine that wait

    def serve(self) -> None:
        """Serve until the standard input ends.

        Raises:
            ValueError: the cluster is too small.
        """
        group = self._place()
        if group is None:
            return
        self._start_agents(group)
        while not self._input_has_ended(0.0 if self._starts_by_call else _LOOK_S):
            self._note_ends(group)
            self._follow_requests(group)
        calls = [keeper.end.remote() for keeper in self._keepers.values()]
        ray.wait(calls, num_returns=len(calls), timeout=_END_S)

    def _place(self) -> Any:
        """Return the group of bundles, one on each node; None: the input has ended."""
        options = self._options
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = ray_resources.bundle(options.nproc_per_node, options.nnodes, options.device, nodes)
        if failure := ray_resources.too_small_text(wanted, options.nnodes, nodes):
            raise ValueError(failure)
        group = placement_group([dict(wanted)] * options.nnodes, strategy="STRICT_SPREAD")
        while not group.wait(_LOOK_S):
            free = ray.available_resources()
            self._output.tell_state(ray_resources.waiting_text(wanted, options.nnodes, free))
            if self._input_has_ended(0.0):
                return None
        return group

    def _start_agents(self, group: Any) -> None:
        options = self._options
        self._output.tell_state(f"Ray: starts agents on {options.nnodes} nodes")
        for node in range(options.nnodes):
            self._start_agent(group, node)

    def _start_agent(self, group: Any, number: int) -> None:
        """Start an agent; Ray waits for a node for it where that of its bundle is lost."""
        node = number % self._options.nnodes
        amounts = group.bundle_specs[node]
        keeper = (
            ray.remote(AgentKeeper)
            .options(
                num_cpus=amounts["CPU"],
                num_gpus=amounts.get("GPU", 0),
                max_concurrency=2,  # `end` is called during `run`
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=node
                ),
            )
            .remote()
        )
        self._keepers[node] = keeper
        start = _Start(number, keeper, keeper.__ray_ready__.remote(), _living_nodes())
        call = keeper.run.remote(self._invitation, node, self._options.python)
        self._starts_by_call[call] = start

    def _follow_requests(self, group: Any) -> None:
        asked, self._asked = self._asked, ""
        for is_start, number in driver_report.read_requests(asked):
            node = number % self._options.nnodes
            if node in self._keepers:
                with suppress(ray.exceptions.RayError):  # it went with its node
                    ray.kill(self._keepers.pop(node))
            if is_start:
                self._output.tell_state(f"Ray: starts another agent for node {node}")
                self._start_agent(group, number)

    def _input_has_ended(self, wait_s: float) -> bool:
        text = read_input(wait_s)
        self._asked += (text or b"").decode()
        return text == b""

    def _note_ends(self, group: Any) -> None:
        if not self._starts_by_call:
            return
        for call in ray.wait(list(self._starts_by_call), timeout=_LOOK_S)[0]:
            start = self._starts_by_call.pop(call)
            try:
                how = f"its process {ray.get(call)}"
            except ray.exceptions.RayError as error:
                if self._was_put_on_a_lost_node(start):
                    self._start_agent(group, start.number)
                    continue
                how = f"Ray says: {_first_lines(error)}"
            self._output.tell_end(start.number, how)

    def _was_put_on_a_lost_node(self, start: _Start) -> bool:
        """Whether the actor in the place of a lost one never came, since a node was lost.

        Ray learns some 15 s late that a node is lost, and puts actors there until then.
        """
        node = start.number % self._options.nnodes
        is_replacement = start.number != node and self._keepers.get(node) is start.keeper
        if not is_replacement or start.nodes <= _living_nodes():
            return False
        try:
            ray.get(start.is_ready, timeout=_LOOK_S)
        except ray.exceptions.RayError:
            return True
        return False


def _living_nodes() -> frozenset[str]:
    return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:6])


def main() -> None:
    """Read the invitation, and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--nnodes", type=int, required=True)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--python", required=True)
    options = parser.parse_args()
    invitation = os.read(sys.stdin.fileno(), 65536).decode()
    output = DriverOutput()
    output.tell_state("Ray: connects to the cluster")
    try:
        ray.init(address=options.address, log_to_driver=False, logging_level=logging.ERROR)
        Driver(options, invitation, output).serve()
    except (ConnectionError, ValueError, RuntimeError) as error:  # of Ray, too: other versions
        output.tell_failure(_first_lines(error))
        sys.exit(1)
    finally:
        with suppress(Exception):
            ray.shutdown()


if __name__ == "__main__":
    main()
