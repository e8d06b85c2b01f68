"""Takes back the agents that another notebook has left.

Runs in: the notebook's process, in the thread that attaches, before there is a hub thread.

    AttachAgent, again and again --> agents --AgentAttached, kept events--> Attachment
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from nbddp.controller.launch import LocalAgent
from nbddp.errors import PoolAttachError
from nbddp.system.kept_pools import ProcessId
from nbddp.wire.channels import HubChannel, Poller
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AgentAttached,
    AttachAgent,
    DetachAgent,
    Event,
    RankExited,
)

#: An agent without a notebook looks for a new one some times a second.
_ASK_S = 0.1
LAST_WORDS_S = 1.0

#: An event, its node, and the frames beside it.
EarlyEvent: TypeAlias = tuple[int, Event, list[bytes]]


@dataclass
class Attachment:
    """The answers of the agents so far.

    Another agent may be waited for meanwhile, for a minute: ages grow.
    """

    by_node: dict[int, AgentAttached] = field(default_factory=dict)
    _early: list[tuple[float, EarlyEvent]] = field(default_factory=list)
    _came_at: dict[int, float] = field(default_factory=dict)
    _to_come: dict[int, int] = field(default_factory=dict)  #: kept events of a node

    def put_answer(self, node: int, answer: AgentAttached, frames: list[bytes], now: float) -> None:
        """Take the answer of an agent."""
        self.by_node[node] = answer
        self._came_at[node] = now
        self._early.append((now, (node, answer, frames)))
        self._to_come[node] = answer.kept_events

    def put_event(self, node: int, event: Event, frames: list[bytes], now: float) -> None:
        """Take an event for the hub; the first ones are those that the agent has kept."""
        self._early.append((now, (node, event, frames)))
        self._to_come[node] = max(0, self._to_come.get(node, 0) - 1)

    def has_come(self, node: int) -> bool:
        """Whether a node has answered, and has sent the events that it kept."""
        return node in self.by_node and not self._to_come[node]

    def agents(self, now: float) -> list[AgentAttached]:
        """The answers, by node, with the ages that cells have now."""
        return [
            replace(answer, run_age_s=answer.run_age_s + now - self._came_at[node])
            if answer.run is not None
            else answer
            for node, answer in sorted(self.by_node.items())
        ]

    def early(self, now: float) -> list[EarlyEvent]:
        """The events for the hub, in order, with the ages that ends of ranks have now."""
        return [
            (node, replace(event, age_s=event.age_s + now - at), frames)
            if isinstance(event, RankExited)
            else (node, event, frames)
            for at, (node, event, frames) in self._early
        ]


def attach_agents(
    channel: HubChannel,
    agents: Sequence[LocalAgent],
    notebook: ProcessId,
    *,
    keep_s: float,
    limit_s: float,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> Attachment:
    """Ask the agents to serve this process, and wait for all of them.

    Args:
        channel: at the address and with the token that the agents know; closed after a failure.
        agents: those that live.
        notebook: this process; the agents follow its end from now on.
        keep_s: seconds for which they go on if not all of them answer.
        limit_s: time for that, in seconds.
        is_interrupted: asked again and again.

    Raises:
        KeyboardInterrupt: the user has interrupted the wait.
        PoolAttachError: an agent does not answer, or is of another version of nbddp.
    """
    attachment = Attachment()
    try:
        _attach(
            attachment, channel, agents, notebook, limit_s=limit_s, is_interrupted=is_interrupted
        )
    except BaseException:
        for node in attachment.by_node:
            channel.send_to_agent(node, DetachAgent(keep_s=keep_s))
        channel.close(linger_s=LAST_WORDS_S)
        raise
    channel.keep_connections()
    return attachment


def _attach(
    attachment: Attachment,
    channel: HubChannel,
    agents: Sequence[LocalAgent],
    notebook: ProcessId,
    *,
    limit_s: float,
    is_interrupted: Callable[[], bool],
) -> None:
    number = secrets.token_hex(8)
    missing = {agent.node for agent in agents}
    poller = Poller()
    poller.add(channel)
    give_up_at = time.monotonic() + limit_s
    ask_at = 0.0
    while missing:
        now = time.monotonic()
        missing -= {agent.node for agent in agents if agent.has_exited()}
        if is_interrupted():
            raise KeyboardInterrupt
        if now >= give_up_at:
            missing -= attachment.by_node.keys()
            if not missing:
                break
            nodes = ", ".join(map(str, sorted(missing)))
            raise PoolAttachError(
                f"the agent of node {nodes} does not answer in {limit_s:g} s. Next: try again; "
                "the pool ends by itself when its time is over"
            )
        if now >= ask_at:
            ask_at = now + _ASK_S
            for node in missing - attachment.by_node.keys():
                request = AttachAgent(
                    number=number, controller_pid=notebook.pid, started=notebook.started
                )
                channel.send_to_agent(node, request)
        poller.wait(_ASK_S)
        for node, event, frames in channel.receive():
            if isinstance(event, AgentAttached):
                if event.number == number:
                    check_version(event)
                    attachment.put_answer(node, event, frames, time.monotonic())
            elif node in attachment.by_node:  # else it was sent to the last notebook
                attachment.put_event(node, event, frames, time.monotonic())
        missing = {node for node in missing if not attachment.has_come(node)}
    if not attachment.by_node:
        raise PoolAttachError("the agents of the pool have ended. Next: %ddp start")


def check_version(answer: AgentAttached) -> None:
    """Raise `PoolAttachError` if an agent speaks another version of the protocol."""
    if answer.version != PROTOCOL_VERSION:
        raise PoolAttachError(
            "the pool was started by another version of nbddp. Next: attach with that one, or let "
            "the pool end when its time is over"
        )
