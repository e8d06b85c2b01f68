"""Takes back the agents on other machines that another notebook has left.

Runs in: the notebook's process, in the thread that attaches, before there is a hub thread.

    agents --AgentHello--> this port, which they know
    agents <--AttachAgent-- Attachment <--AgentAttached, kept events-- agents
"""

import secrets
import time
from collections.abc import Callable, Sequence

from nbddp.controller.hub.attachment import LAST_WORDS_S, Attachment, check_version
from nbddp.errors import PoolAttachError
from nbddp.wire.channels import Poller, RemoteHubChannel
from nbddp.wire.messages import (
    AgentAttached,
    AgentHello,
    AttachAgent,
    DetachAgent,
    RefuseAgent,
)

_LOOK_S = 0.1
#: Agents that live come in this time; a wait that is longer is told.
_TOLD_AFTER_S = 5.0


def attach_machines(
    channel: RemoteHubChannel,
    token: str,
    agents: Sequence[tuple[str, int]],
    *,
    keep_s: float,
    first_s: float,
    all_s: float,
    is_interrupted: Callable[[], bool] = lambda: False,
    obstacle: Callable[[], str] = str,
    on_missing: Callable[[Sequence[int], float], None] = lambda nodes, limit_s: None,
) -> Attachment:
    """Take the agents that come, until all have come.

    Args:
        channel: at the address and with the keys that the agents know; closed after a failure.
        token: agents show it.
        agents: host and process of each, by node; another one had its node before.
        keep_s: seconds for which the agents go on if this fails.
        first_s: time for the first agent, in seconds.
        all_s: time for all of them; those that have not come then are lost.
        is_interrupted: asked again and again.
        obstacle: says why agents do not reach this machine; empty: that is not known.
        on_missing: gets the nodes whose agents have not come for a while, again and again, and the
            limit of the wait.

    Raises:
        KeyboardInterrupt: the user has interrupted the wait.
        PoolAttachError: no agent comes, or one is of another version of nbddp.
    """
    arrivals = _Arrivals(channel, token, agents)
    try:
        while not arrivals.are_complete(first_s, all_s):
            arrivals.wait(is_interrupted, on_missing)
        arrivals.check(obstacle)
    except BaseException:
        for node in arrivals.attachment.by_node:
            channel.send_to_agent(node, DetachAgent(keep_s=keep_s))
        channel.close(linger_s=LAST_WORDS_S)
        raise
    return arrivals.attachment


class _Arrivals:
    """The agents that have come."""

    def __init__(
        self, channel: RemoteHubChannel, token: str, agents: Sequence[tuple[str, int]]
    ) -> None:
        self._channel = channel
        self._token = token.encode()
        self._agents = agents
        self._number = secrets.token_hex(16)
        self._began, self._limit_s = time.monotonic(), 0.0
        self._poller = Poller()
        self._poller.add(channel)
        self.attachment = Attachment()

    def are_complete(self, first_s: float, all_s: float) -> bool:
        """Whether all agents have come, or the time is over; see `attach_machines`."""
        if not self._missing:
            return True
        self._limit_s = all_s if self.attachment.by_node else first_s
        return time.monotonic() - self._began >= self._limit_s

    @property
    def _missing(self) -> list[int]:
        return [node for node, _ in enumerate(self._agents) if not self.attachment.has_come(node)]

    def wait(
        self,
        is_interrupted: Callable[[], bool],
        on_missing: Callable[[Sequence[int], float], None],
    ) -> None:
        """Wait a moment for agents."""
        if is_interrupted():
            raise KeyboardInterrupt
        self._poller.wait(_LOOK_S)
        self._channel.beat(time.monotonic())
        self._receive()
        if self._missing and time.monotonic() - self._began >= _TOLD_AFTER_S:
            on_missing(self._missing, self._limit_s)

    def check(self, obstacle: Callable[[], str]) -> None:
        """Raise `PoolAttachError` if no agent has come."""
        if self.attachment.by_node:
            return
        reason = obstacle() or "their machines are off, they were ended, or do not reach this one"
        raise PoolAttachError(
            f"no agent of the pool has come in {self._limit_s:g} s: {reason}. Next: try again; the "
            "pool ends by itself when its time is over"
        )

    def _receive(self) -> None:
        """Take what has come: an agent that says hello is asked, one that answers is taken."""
        request = AttachAgent(number=self._number, controller_pid=0, started=0)
        for sender, event, frames in self._channel.receive():
            if sender >= 0:
                self.attachment.put_event(sender, event, frames, time.monotonic())
            elif isinstance(event, AgentHello) and self._is_ours(event):
                if self._agents[event.node] == (event.host, event.pid):
                    self._channel.send_to_agent(sender, request)
                else:
                    refusal = RefuseAgent(reason="another one has its place")
                    self._channel.send_to_agent(sender, refusal)
            elif isinstance(event, AgentAttached) and self._is_ours(event):
                check_version(event)
                self._channel.admit(sender, event.node)
                self.attachment.put_answer(event.node, event, frames, time.monotonic())

    def _is_ours(self, event: AgentHello | AgentAttached) -> bool:
        is_wanted = (
            0 <= event.node < len(self._agents) and event.node not in self.attachment.by_node
        )
        if isinstance(event, AgentAttached) and event.number != self._number:
            return False  # of another attempt
        return is_wanted and secrets.compare_digest(event.token.encode(), self._token)
