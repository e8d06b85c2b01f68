"""Agents of other machines without ranks: they join over TCP and CURVE, as real ones do.

Runs in: a process of its own, ``python -m tests.bench.simulated_machines INVITATION FIRST COUNT
PER_NODE``, in one thread for all of its agents. It prints a line when it is ready, and joins when
it reads one. It ends when the hub has told all of its agents to.

In a cell with the code `HANG` all ranks but the last one wait in an all_reduce, until they are
freed. Their answers to `DescribeRank` have what the answers of real ranks have: a thread that
waits, its operation, its groups with all members.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from nbddp.wire import codec, messages
from nbddp.wire.channels import Poller, RemoteUplink
from nbddp.wire.flight_recorder import RankLook
from nbddp.wire.invitation import Invitation
from nbddp.wire.message_types import ErrorInfo, NodeFacts
from nbddp.wire.messages import (
    AbortOperations,
    AdmitAgent,
    AgentHello,
    AgentJoined,
    DescribeRank,
    Execute,
    OperationsAborted,
    RankDescribed,
    RanksStalled,
    RunFinished,
    RunStarted,
)
from tests.bench.simulated_agents import SimulatedNode
from tests.support.looks import RUN, Ranks, brief

#: The code of a cell that the last rank leaves without a call of all_reduce.
HANG = "hang\n"
#: The run that a look is of.
HANG_RUN = RUN
PYTHON = "3"
_FREED = ErrorInfo(ename="CollectiveAbortedError", evalue="freed", traceback=["freed"])
_PATIENCE_S = 600.0
#: As a real agent, see `nbddp.agent.stall_monitor`.
_REPORT_EVERY_S = 0.5


class HangingWorld:
    """Ranks of which all but the last one wait in an all_reduce."""

    def __init__(self, ranks: int) -> None:
        self.last = ranks - 1
        self._world = Ranks(ranks)
        for state in self._world.states[:-1]:
            state.blocked("all_reduce", line=1)
        self._world.states[-1].finished()
        self._looks: dict[int, RankLook] = {}

    def look(self, rank: int, *, is_brief: bool) -> RankLook:
        """The answer of a rank to `DescribeRank`."""
        if rank not in self._looks:
            look = self._world[rank].view().look
            assert look is not None
            self._looks[rank] = look
        look = self._looks[rank]
        return brief(look) if is_brief else look


class SimulatedMachine:
    """An agent that joins, and answers for all of its ranks."""

    def __init__(
        self, invitation: Invitation, number: int, per_node: int, world: HangingWorld
    ) -> None:
        self._token = invitation.token
        self._per_node = per_node
        self._world = world
        self._node: SimulatedNode | None = None
        self._waiting: tuple[int, ...] = ()  #: its ranks that make no progress
        self.uplink = RemoteUplink(invitation, invitation.addresses[0], _PATIENCE_S)
        facts = NodeFacts(
            host=f"n{number}",
            address="127.0.0.1",
            python=PYTHON,
            torch="2",
            nbddp="0",
            cpus=per_node,
            machine_cpus=per_node,
            gpus=0,
            engine="simulated",
            engine_node=number,
        )
        self.uplink.send(
            AgentJoined(
                version=messages.PROTOCOL_VERSION, token=self._token, pid=os.getpid(), facts=facts
            )
        )

    @property
    def is_told_to_end(self) -> bool:
        return self._node is not None and self._node.is_told_to_end

    def serve_arrived(self) -> None:
        """Answer every request that has come."""
        for ranks, frames in self.uplink.receive():
            if ranks:
                self._serve_ranks(ranks, frames[0])
            else:
                self._serve(frames[0])
        self.uplink.flush()

    def _serve(self, payload: bytes) -> None:
        if self._node is not None:
            self._node.serve(payload)
            return
        request = codec.decode_agent_request(payload)
        if isinstance(request, AdmitAgent):
            self._node = SimulatedNode(self.uplink, request.node, self._per_node)
            self.uplink.send(
                AgentHello(
                    version=messages.PROTOCOL_VERSION,
                    token=self._token,
                    node=request.node,
                    pid=os.getpid(),
                    host="simulated",
                    address="127.0.0.1",
                )
            )

    def _serve_ranks(self, ranks: tuple[int, ...], payload: bytes) -> None:
        assert self._node is not None
        request = codec.decode_rank_request(payload)
        if isinstance(request, Execute) and request.code == HANG:
            self._hang(ranks, request)
        elif isinstance(request, Execute):
            self._node.execute(ranks, request)
        elif isinstance(request, DescribeRank):
            for rank in ranks:
                look = self._world.look(rank, is_brief=request.is_brief)
                described = RankDescribed(number=request.number, rank=rank, look=look)
                self._forward(described)
        elif isinstance(request, AbortOperations):
            self._abort(ranks, request)

    def _hang(self, ranks: tuple[int, ...], request: Execute) -> None:
        assert self._node is not None
        last = self._world.last
        self._node.forward(RunStarted(run_id=request.run_id, rank=rank) for rank in ranks)
        if last in ranks:
            self._node.forward([_finished(request.run_id, last, None)])
        self._waiting = tuple(rank for rank in ranks if rank != last)
        self.report_stalled()

    def report_stalled(self) -> None:
        """Say again that ranks make no progress, as a real agent does."""
        if self._node is not None and self._waiting:
            self._forward(RanksStalled(node=self._node.node, ranks=self._waiting))

    def _abort(self, ranks: tuple[int, ...], request: AbortOperations) -> None:
        last = self._world.last
        if request.phase == "fire":
            self._waiting = ()
        for rank in ranks:
            self._forward(
                OperationsAborted(number=request.number, rank=rank, phase=request.phase, pg_ids=())
            )
        if request.phase == "fire":
            assert self._node is not None
            self._node.forward(
                _finished(request.run_id, rank, _FREED) for rank in ranks if rank != last
            )

    def _forward(self, event: Any) -> None:
        self.uplink.forward([codec.encode(event)])


def _finished(run_id: str, rank: int, error: ErrorInfo | None) -> RunFinished:
    return RunFinished(
        run_id=run_id, rank=rank, elapsed_s=0.1, error=error, was_freed=error is not None
    )


def main(path: Path, first: int, count: int, per_node: int, nodes: int) -> None:
    """Serve all of them until they are told to end."""
    invitation = Invitation.parse(path.read_bytes())
    world = HangingWorld(nodes * per_node)
    print("ready", flush=True)
    sys.stdin.readline()
    poller = Poller()
    machines = [SimulatedMachine(invitation, first + i, per_node, world) for i in range(count)]
    by_socket: dict[object, SimulatedMachine] = {}
    for machine in machines:
        poller.add(machine.uplink)
        for socket in (machine.uplink.socket, *machine.uplink.side_sockets):
            by_socket[socket] = machine
    report_at = 0.0
    while not all(machine.is_told_to_end or machine.uplink.lost_reason() for machine in machines):
        for machine in {by_socket[source] for source in poller.wait(_REPORT_EVERY_S)}:
            machine.serve_arrived()
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + _REPORT_EVERY_S
            for machine in machines:
                machine.report_stalled()
                machine.uplink.flush()
    for machine in machines:
        machine.uplink.close(linger_s=0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:6]))
