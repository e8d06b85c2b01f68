"""The nodes on other machines: which agents have come, which are silent, which are lost.

Runs in: the hub thread.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import msgspec

from nbddp.controller.hub.agent_processes import Agents
from nbddp.controller.state import (
    BehindNode,
    JobEnd,
    JobEnds,
    Lobby,
    LobbyDecision,
    NodeClock,
    NodesSilent,
    NotifyUser,
    Phase,
    PoolMachine,
    PoolSnapshot,
    SilentNode,
)
from nbddp.settings import Settings
from nbddp.system import kept_pools
from nbddp.wire.channels import RemoteHubChannel
from nbddp.wire.message_types import AgentEnd, LostAgent, NodeFacts
from nbddp.wire.messages import (
    AdmitAgent,
    AgentEnded,
    AgentHello,
    AgentJoined,
    Event,
    GreetAgent,
    JobTimeLeft,
    RankExited,
    RefuseAgent,
    ShutdownAgent,
)
from nbddp.wire.rank_set import NO_RANKS

#: Seconds between looks at the connections.
_LOOK_S = 0.5
#: The user waits for the end of a cell that was interrupted, or has failed on some rank: a node
#: that has missed some pings is silent for them. Its ranks do not leave the cell.
_SILENT_FOR_END_S = 2.5
#: A node is behind if it has not answered a question for this long; two more were sent since.
_BEHIND_S = 2.5
#: A message that arrives this long after the question shows that the node is heard.
_HEARD_S = 1.0


_OF_ANOTHER_POOL = (
    "it does not show the token of this pool: its file is of another pool, or was altered. Next: "
    "use the file or the line that the notebook shows now"
)

_Event = TypeVar("_Event")


@dataclass(frozen=True)
class NodeView:
    """The nodes of other machines for other threads."""

    joined: int = 0  #: agents that have come
    facts: tuple[NodeFacts, ...] = ()  #: of all nodes, in order; empty until all have come
    pids: tuple[int, ...] = ()  #: of the agents of these nodes
    clocks: tuple[NodeClock, ...] = ()  #: of the nodes that have answered
    silent: tuple[SilentNode, ...] = ()  #: nodes of which nothing is heard now, in order
    behind: tuple[BehindNode, ...] = ()  #: nodes that are not silent, and answer late
    job_ends: tuple[JobEnd, ...] = ()  #: of the jobs of all nodes, as far as they are known
    missing: tuple[int, ...] = ()  #: nodes whose agents have not come, see `Lobby.missing`

    @property
    def jobs(self) -> dict[int, str]:
        """The jobs that the nodes are in; empty texts: in none."""
        return {node: facts.job for node, facts in enumerate(self.facts)}

    def known(self, end: AgentEnd, now: float) -> AgentEnd:
        """Return the end of an agent, with the time limit of its job as its cause."""
        if end.cause != "taken-away":
            return end
        of_job = [each for each in self.job_ends if each.job == end.text]
        if not of_job:
            return AgentEnd("job-over", end.number, end.text)
        is_over = any(each.is_over(now) for each in of_job)
        return AgentEnd("time-limit", end.number, end.text) if is_over else end

    def with_job_end(self, event: _Event, now: float) -> _Event:
        """Return an event; the exit of a rank with the time limit of its job as its cause."""
        if not isinstance(event, RankExited) or not isinstance(event.cause, LostAgent):
            return event
        lost = LostAgent(event.cause.node, self.known(event.cause.end, now))
        return cast("_Event", msgspec.structs.replace(event, cause=lost))

    def added_to(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        """Return the snapshot of a pool with what is known of its nodes."""
        return msgspec.structs.replace(
            snapshot,
            nodes=self.facts,
            silent=self.silent,
            behind=self.behind,
            clocks=self.clocks,
            job_ends=self.job_ends,
        )


class RemoteNodes:
    """The agents of a pool whose nodes are machines of their own.

    Args:
        channel: the connections to them.
        token: agents show it.
        lobby: gives them their nodes.
        settings: limits of time.
        renew: called once a minute, and when an agent has come: this notebook lives.
    """

    def __init__(
        self,
        channel: RemoteHubChannel,
        token: str,
        lobby: Lobby,
        settings: Settings,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel = channel
        self._token = token
        self._lobby = lobby
        self._settings = settings
        self._job_ends = JobEnds()
        self._job_changes: list[NotifyUser] = []  #: that the user is to be told
        self._look_at = 0.0
        self._renew = renew
        self._renew_at = 0.0
        #: The silences that the user has seen in a cell: when the node was heard before, by node.
        self._told: dict[int, float] = {}
        self._pids: dict[int, int] = {}  #: of agents, by guest or node
        self.view = NodeView()

    def resume(self, nodes: Mapping[int, NodeFacts], pids: Mapping[int, int], now: float) -> None:
        """Go on with agents that another hub has admitted.

        Args:
            nodes: the facts about all nodes, also of those that are lost.
            pids: of their agents.
            now: `time.monotonic`.
        """
        self._lobby.nodes, self._pids = dict(nodes), dict(pids)
        facts = tuple(nodes[node] for node in sorted(nodes))
        for known in reversed(facts):  # the agent of the first one asks for the time again
            self._job_ends.note(known, now)
        self.view = NodeView(
            len(nodes),
            facts,
            tuple(pids[node] for node in sorted(nodes)),
            job_ends=self._job_ends.of(facts),
        )

    def receive(
        self, node: int, event: Event, agents: Agents, now: float, *, is_up: bool = True
    ) -> str:
        """Take a message of a guest, or the last one of an agent; see `join` for the result.

        Args:
            node: its sender.
            event: the message.
            agents: of all nodes.
            now: `time.monotonic`.
            is_up: the pool is; else its start will say when jobs end.
        """
        match event:
            case AgentJoined():
                return self.join(node, event, agents, now)
            case AgentEnded():
                self.end(node, event, agents, now)
            case JobTimeLeft():
                self._change_job(node, event.left_s, now, is_told=is_up)
            case AgentHello():
                self._turn_away(node, event, agents)
            case _:
                pass  # of an agent that has no node any longer
        return ""

    def _turn_away(self, guest: int, hello: AgentHello, agents: Agents) -> None:
        """Answer an agent that takes this pool for one without a hub.

        The line to an agent whose node is not given up may still work, and has all it has sent.
        """
        is_ours = secrets.compare_digest(hello.token.encode(), self._token.encode())
        facts = self._lobby.nodes.get(hello.node)
        known = None if facts is None else (facts.host, self._pids[hello.node])
        if is_ours and hello.node in agents.ended:
            reason = "the notebook has given it up"
            self._channel.send_to_agent(guest, RefuseAgent(reason=reason))
        elif is_ours and known is not None and known != (hello.host, hello.pid):
            self._channel.send_to_agent(guest, RefuseAgent(reason="another one has its place"))
        else:
            self._channel.turn_away(guest)

    def join(self, guest: int, joined: AgentJoined, agents: Agents, now: float) -> str:
        """Take in an agent that has come.

        Args:
            guest: its number until it has a node.
            joined: its first message.
            agents: get the one that it replaces.
            now: `time.monotonic`.

        Returns:
            Why the pool cannot start; empty: it can, or not all agents have come.
        """
        if guest >= 0:
            return ""  # it has a node
        if not secrets.compare_digest(joined.token.encode(), self._token.encode()):
            refusal = RefuseAgent(reason=_OF_ANOTHER_POOL, answer="misfit")
            self._channel.send_to_agent(guest, refusal)
            return ""
        # No node is vacant before all have come.
        vacant = agents.ended if self._lobby.nodes else frozenset[int]()
        silent = [each.at(now, NO_RANKS) for each in self.view.silent]
        if joined.only_asks:
            self._channel.send_to_agent(guest, self._lobby.needs(joined, vacant, silent))
            return ""
        self._job_ends.note(joined.facts, now)
        self._pids[guest] = joined.pid
        decision = self._lobby.join(guest, joined, vacant, silent)
        if decision.missing:
            self._channel.send_to_agent(guest, GreetAgent(missing=decision.missing))
        self._carry_out(decision, agents)
        facts = tuple(facts for _, facts in sorted(self._lobby.nodes.items()))
        self.view = replace(
            self.view,
            joined=self._lobby.joined,
            missing=self._lobby.missing,
            facts=facts,
            pids=tuple(self._pids[node] for node in sorted(self._lobby.nodes)),
            job_ends=self._job_ends.of(facts),
        )
        return decision.failure

    def _carry_out(self, decision: LobbyDecision, agents: Agents) -> None:
        for guest, reason in decision.refused.items():
            self._pids.pop(guest, None)
            self._channel.send_to_agent(guest, RefuseAgent(reason=reason))
        for guest, node in decision.admitted.items():
            self._channel.admit(guest, node)
            agents.revive(node, self._lobby.nodes[node].host)
            self._pids[node] = self._pids.pop(guest)
            self._renew_at = 0.0  # a later notebook has to know which agent has the node
            self._channel.send_to_agent(
                node,
                AdmitAgent(node=node, nnodes=len(self._lobby.nodes), settings=self._settings),
            )

    def end(self, node: int, ended: AgentEnded, agents: Agents, now: float) -> None:
        """Note that an agent has ended, as it says."""
        end = self.view.known(ended.end, now)
        if node < 0:
            self._forget_guest(node)
        elif ended.node in (node, -1):  # it ended before it knew its node
            agents.note_end(node, end)

    def _change_job(self, node: int, left_s: float, now: float, *, is_told: bool) -> None:
        """Note when the job around a node ends; `look` tells the user if that has changed."""
        facts = self._lobby.nodes.get(node)
        if facts is None or not facts.job:
            return
        if (text := self._job_ends.change(facts, left_s, now)) and is_told:
            self._job_changes.append(NotifyUser(None, text))
        self.view = replace(self.view, job_ends=self._job_ends.of(self.view.facts))

    def dismiss_guests(self) -> None:
        """End the agents that wait for others: the start has ended, and none gets a node."""
        for guest in self._lobby.guests:
            self._channel.send_to_agent(guest, ShutdownAgent(grace_s=0.0))

    def give_up(self, nodes: Iterable[int], agents: Agents) -> None:
        """Take silent nodes for lost: the user does not wait until they are heard again."""
        for node in nodes:
            agents.note_end(node, AgentEnd("no-answer"))
            self._channel.forget(node)  # its agent ends when it is told that nobody knows it

    def _forget_guest(self, guest: int) -> None:
        """Forget an agent that has gone before it had a node: another one may come for it."""
        self._channel.forget(guest)
        self._lobby.leave(guest)
        self._pids.pop(guest, None)
        self.view = replace(self.view, joined=self._lobby.joined, missing=self._lobby.missing)

    def _forget_silent_guests(self, now: float) -> None:
        """Forget guests that have gone, also those that only wanted to know the port."""
        for guest in self._channel.guests:
            if self._channel.silence_s(guest, now) >= self._settings.silent_after_s:
                self._forget_guest(guest)

    def silent_notices(self, now: float) -> list[NotifyUser]:
        """Return what a user should know who begins a cell now, once for each silence."""
        new = [
            each
            for each in self.view.silent
            if not self._is_heard(each) and self._told.get(each.node) != each.since
        ]
        self._note_told(new)
        return [NotifyUser(None, self._silent_text(each, now)) for each in new]

    def _note_told(self, silences: Iterable[SilentNode]) -> None:
        """Note silences that the user sees in a cell."""
        self._told |= {each.node: each.since for each in silences}

    def _is_heard(self, silent: SilentNode) -> bool:
        """Whether a node is heard again, also if nobody has looked since."""
        return self._channel.heard_at(silent.node) != silent.since

    def look(self, now: float, agents: Agents, pool: PoolMachine) -> list[NotifyUser | NodesSilent]:
        """Keep the connections alive, and return what user and pool should know about them.

        Args:
            now: `time.monotonic`.
            agents: get the ends of those that are lost.
            pool: while it starts an agent may be silent for seconds: it waits for its fork server,
                which loads torch. The start has a limit of its own. An agent that takes the place
                of a lost one has as much time.
        """
        if now < self._look_at and not any(map(self._is_heard, self.view.silent)):
            return []
        self._look_at = now + _LOOK_S
        if now >= self._renew_at:
            self._renew_at = now + kept_pools.RENEW_S
            self._renew()
        if self._channel.beat(now):
            self._read_clocks()  # the answers to the beat before
        self._forget_silent_guests(now)
        if pool.phase is not Phase.UP:
            return []
        silent_after_s = self._settings.silent_after_s
        if pool.run is not None and pool.run.is_ending:
            silent_after_s = min(silent_after_s, _SILENT_FOR_END_S)
        before = {each.node: each for each in self.view.silent}
        silent: dict[int, SilentNode] = {}
        ended = agents.ended  # asked for once: it asks about all agents
        # An agent that has come for a lost node is no more among the ended, and says hello later.
        fresh = pool.ranks.fresh_agents | pool.lost_agents.keys()
        for node, facts in self._lobby.nodes.items():
            silence_s = self._channel.silence_s(node, now)
            heard_at = self._channel.heard_at(node)
            is_as_before = node in before and before[node].since == heard_at
            if node in ended or not (is_as_before or silence_s >= silent_after_s):
                continue
            lost_after_s = self._settings.node_timeout_s
            if node in fresh:
                lost_after_s = max(lost_after_s, self._settings.start_timeout_s)
            if silence_s >= lost_after_s:
                end = AgentEnd("silent", round(silence_s), facts.host)
                agents.note_end(node, end)
                self._channel.forget(node)
                continue
            if node not in fresh:
                silent[node] = SilentNode(node, facts.host, heard_at, lost_after_s)
        ended = agents.ended
        new = [each for node, each in sorted(silent.items()) if node not in before]
        self._note_told(new if pool.run is not None else ())
        notices: list[NotifyUser | NodesSilent] = [
            NotifyUser(None, self._silent_text(each, now)) for each in new
        ]
        notices += [
            NotifyUser(
                None,
                f"node {node} ({each.host}) is heard again: no message was lost. Some may still "
                "come late, also those of collectives: after a cut, TCP pauses before it sends "
                "them again",
            )
            for node, each in before.items()
            if node not in silent and node not in ended
        ]
        left = [facts for node, facts in self._lobby.nodes.items() if node not in ended]
        warnings = self._job_ends.warnings(self._job_ends.of(left), now)
        notices += [*self._job_changes, *(NotifyUser(None, text) for text in warnings)]
        self._job_changes.clear()
        now_silent = tuple(each for _, each in sorted(silent.items()))
        behind = tuple(self._behind(now, {*ended, *silent, *fresh}))
        notices += [NodesSilent(now_silent)] if now_silent != self.view.silent else []
        if (now_silent, behind) != (self.view.silent, self.view.behind):
            self.view = replace(self.view, silent=now_silent, behind=behind)
        return notices

    def _behind(self, now: float, excluded: Collection[int]) -> Iterator[BehindNode]:
        for node, facts in sorted(self._lobby.nodes.items()):
            since = None if node in excluded else self._channel.unanswered_since(node)
            if since is not None and now - since >= _BEHIND_S:
                is_heard = self._channel.heard_at(node) - since >= _HEARD_S
                yield BehindNode(node, facts.host, is_heard)

    def _read_clocks(self) -> None:
        measured = {node: self._channel.clock(node) for node in self._lobby.nodes}
        clocks = tuple(
            NodeClock(node, self._lobby.nodes[node].host, *clock)
            for node, clock in sorted(measured.items())
            if clock is not None
        )
        if clocks and clocks != self.view.clocks:
            self.view = replace(self.view, clocks=clocks)

    def _silent_text(self, silent: SilentNode, now: float) -> str:
        left_s = max(0.0, silent.since + silent.lost_after_s - now)
        return (
            f"nothing is heard of node {silent.node} ({silent.host}). Perhaps the network is cut, "
            "or was a moment ago, the machine is off, or its agent was killed. Next: wait until it "
            f"is heard again; its ranks are given up in {left_s:.0f} s"
        )
