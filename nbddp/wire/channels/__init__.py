"""Sockets: the only package that uses ZeroMQ.

Runs in: every process. One thread owns each channel; other threads pass their messages to the
owner through a queue and wake it with a `Waker`.

    HubChannel (ROUTER)  <-- ipc:// -->  AgentUplink (DEALER)             one per node
    RemoteHubChannel     <-- tcp:// -->  RemoteUplink                     the same, other machines
    AgentDownlink (ROUTER)  <-- ipc:// -->  RankChannel (DEALER)          one per rank

Sockets of one machine are ``ipc://`` files in a folder that only their owner can enter. A peer
connects with an *identity* that holds a secret, which it got before it had a socket: no other
process can send as that peer, or receive its messages. The identity is sent once per connection.
"""

from nbddp.wire.channels.hub import AgentsChannel, HubChannel
from nbddp.wire.channels.peers import agent_identity, rank_identity
from nbddp.wire.channels.ranks import AgentDownlink, RankChannel
from nbddp.wire.channels.remote_hub import RemoteHubChannel
from nbddp.wire.channels.remote_uplink import RemoteUplink
from nbddp.wire.channels.sockets import (
    Channel,
    Frame,
    HasFileno,
    Poller,
    Waker,
    ipc_address,
)
from nbddp.wire.channels.uplink import AgentUplink, Uplink

__all__ = [
    "AgentDownlink",
    "AgentUplink",
    "AgentsChannel",
    "Channel",
    "Frame",
    "HasFileno",
    "HubChannel",
    "Poller",
    "RankChannel",
    "RemoteHubChannel",
    "RemoteUplink",
    "Uplink",
    "Waker",
    "agent_identity",
    "ipc_address",
    "rank_identity",
]
