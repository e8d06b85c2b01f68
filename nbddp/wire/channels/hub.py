"""The notebook's end of the connections to agents: on its own machine here, see also `remote_hub`.

Runs in: the notebook's process.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import zmq

from nbddp.errors import BadMessageError
from nbddp.wire import codec
from nbddp.wire.channels.peers import Peers, agent_identity
from nbddp.wire.channels.sockets import EVENT_HIGH_WATER, Channel, Frame, ipc_address, send_frames
from nbddp.wire.channels.uplink import BATCH_MARK
from nbddp.wire.messages import AgentRequest, Event, RankRequest


class AgentsChannel(Channel):
    """The notebook's end of the connections to all agents."""

    def __init__(self) -> None:
        super().__init__(zmq.ROUTER)
        self._socket.rcvhwm = EVENT_HIGH_WATER
        self._peers = Peers()

    def send_to_agent(self, node: int, request: AgentRequest) -> None:
        """Send one request for the agent itself."""
        self._put(node, [codec.encode_ranks(()), codec.encode(request)])

    def send_to_ranks(
        self,
        ranks_by_node: Mapping[int, tuple[int, ...]],
        request: RankRequest,
        frames: Sequence[Frame] = (),
    ) -> None:
        """Send one request for some ranks, once to each node; its agent copies it to each rank."""
        payload = codec.encode(request)
        for node, ranks in ranks_by_node.items():
            self._put(node, [codec.encode_ranks(ranks), payload, *frames])

    def receive(self) -> Iterator[tuple[int, Event, list[bytes]]]:
        """Yield ``(node, event, buffers)`` of each event; bad frames are dropped and counted."""
        for identity, *frames in self._messages():
            try:
                node = self._peers.number(identity)
                if frames[0] != BATCH_MARK:
                    yield node, codec.decode_event(frames[0]), frames[1:]
                    continue
                payloads = codec.decode_batch(frames[1])
            except (BadMessageError, IndexError):
                self.bad_frames += 1
                continue
            for payload in payloads:
                try:
                    event = codec.decode_event(payload)
                except BadMessageError:
                    self.bad_frames += 1
                else:
                    yield node, event, []

    def _put(self, node: int, frames: list[Frame]) -> None:
        send_frames(self._socket, [self._peers.identity(node), *frames])

    def _messages(self) -> Iterator[list[bytes]]:
        return self._receive_all()


class HubChannel(AgentsChannel):
    """The end of the connections to agents of this machine.

    Args:
        path: path of the socket.
        token: the secret of the agents.
        nnodes: number of agents.
        takes_back: the agents live already, and had another hub.
    """

    def __init__(self, path: Path, token: str, nnodes: int, *, takes_back: bool = False) -> None:
        super().__init__()
        for node in range(nnodes):
            self._peers.admit(node, agent_identity(node, token))
        # An agent that is taken back may have a new connection before the old one is known to end.
        self._socket.router_handover = takes_back
        self._socket.bind(ipc_address(path))

    def keep_connections(self) -> None:
        """Let no later connection of an agent take the place of the one that it has.

        An agent that is let go waits for the next hub at the same address. If that connection took
        over, last words that are still unread would come from a stranger, and be dropped.
        """
        self._socket.router_handover = False
