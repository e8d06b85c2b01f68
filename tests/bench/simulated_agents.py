"""Agents without ranks: they speak the real protocol and answer at once for all their ranks.

Runs in: a process of its own, ``python -m tests.bench.simulated_agents ADDRESS TOKEN FIRST COUNT
PER_NODE``; one thread for all of its agents. It ends when the hub has told all of them to.
"""

import os
import sys
from collections.abc import Iterable

from nbddp.agent.folded_runs import FoldedRuns
from nbddp.wire import codec, messages
from nbddp.wire.channels import AgentUplink, Poller, Uplink
from nbddp.wire.messages import (
    AgentHello,
    Execute,
    RankReady,
    RankSpawned,
    RunFinished,
    RunStarted,
    ShutdownAgent,
    StartRanks,
    StartStore,
    StoreReady,
)


class SimulatedNode:
    """The ranks of one node, and what their agent says of itself."""

    def __init__(self, uplink: Uplink, node: int, per_node: int) -> None:
        self.node = node
        self._ranks = range(node * per_node, (node + 1) * per_node)
        self._uplink = uplink
        self._folded = FoldedRuns()
        self.is_told_to_end = False

    def serve(self, payload: bytes) -> None:
        """Answer a request to the agent."""
        match codec.decode_agent_request(payload):
            case StartStore():
                self._uplink.send(StoreReady(host="simulated", port=1, pid=os.getpid()))
            case StartRanks():
                for rank in self._ranks:
                    self._start(rank)
            case ShutdownAgent():
                self.is_told_to_end = True
            case _:
                pass

    def _start(self, rank: int) -> None:
        self._uplink.send(
            RankSpawned(rank=rank, node=self.node, pid=os.getpid(), log_path=f"rank{rank}.log")
        )
        self._uplink.send(
            RankReady(
                rank=rank,
                pid=os.getpid(),
                local_rank=rank - self._ranks.start,
                device="cpu",
                backend="gloo",
            )
        )

    def execute(self, ranks: tuple[int, ...], request: Execute) -> None:
        """Begin and end a cell on ranks at the same time."""
        self.forward(RunStarted(run_id=request.run_id, rank=rank) for rank in ranks)
        self._uplink.flush()  # real ranks need some time to finish
        self.forward(
            RunFinished(run_id=request.run_id, rank=rank, elapsed_s=0.0, error=None)
            for rank in ranks
        )

    def forward(self, events: Iterable[RunStarted | RunFinished]) -> None:
        """Forward events as a real agent: decoded, folded and encoded again."""
        for event in events:
            found = codec.decode_event(codec.encode(event))
            assert isinstance(found, RunStarted | RunFinished)
            self._folded.add(found, 0.0)
        for folded in self._folded.take():
            self._uplink.forward([codec.encode(folded)])


class SimulatedAgent:
    """An agent on the notebook's machine."""

    def __init__(self, address: str, token: str, node: int, per_node: int) -> None:
        self.uplink = AgentUplink(address, node, token)
        self._node = SimulatedNode(self.uplink, node, per_node)
        self.uplink.send(
            AgentHello(
                version=messages.PROTOCOL_VERSION,
                token=token,
                node=node,
                pid=os.getpid(),
                host="simulated",
            )
        )

    @property
    def is_told_to_end(self) -> bool:
        return self._node.is_told_to_end

    def serve_arrived(self) -> None:
        """Answer every request that has come."""
        for ranks, frames in self.uplink.receive():
            if not ranks:
                self._node.serve(frames[0])
            elif isinstance(request := codec.decode_rank_request(frames[0]), Execute):
                self._node.execute(ranks, request)
        self.uplink.flush()


def main(address: str, token: str, first: int, count: int, per_node: int) -> None:
    """Serve all of them until they are told to end."""
    poller = Poller()
    agents = [SimulatedAgent(address, token, first + i, per_node) for i in range(count)]
    for agent in agents:
        poller.add(agent.uplink)
    while not all(agent.is_told_to_end for agent in agents):
        poller.wait(1.0)
        for agent in agents:
            agent.serve_arrived()
    for agent in agents:
        agent.uplink.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:6]))
