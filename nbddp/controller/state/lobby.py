"""The agents on other machines that have come, and the nodes that they get.

Runs in: the hub thread. Pure.

The hub gives the numbers: those of the engine if all agents have different ones (two jobs of Slurm
with a node each are both node 0), else the order of the names of their machines.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nbddp.controller.state.silent_nodes import Silence, silent_since_text
from nbddp.wire.message_types import NodeFacts
from nbddp.wire.messages import PROTOCOL_VERSION, AgentJoined, RefuseAgent

#: More hosts that cannot enter the folder are counted.
_MAX_HOSTS = 8


@dataclass(frozen=True)
class LobbyDecision:
    """The fate of agents that have come."""

    #: Nodes by numbers of guests.
    admitted: Mapping[int, int] = field(default_factory=dict)
    #: Reasons by numbers of guests.
    refused: Mapping[int, str] = field(default_factory=dict)
    #: Why no pool can be made of these agents; empty: one can, or not all have come.
    failure: str = ""
    #: Agents that have not come, if the agent waits for others.
    missing: int = 0


class Lobby:
    """Collects agents until there is one for each node; later ones take nodes that were lost.

    Args:
        nnodes: number of nodes of the pool.
        python: version of the notebook, as ``3.11``: its values are pickled for ranks.
    """

    def __init__(self, nnodes: int, python: str) -> None:
        self._nnodes = nnodes
        self._python = python
        self._guests: dict[int, NodeFacts] = {}
        #: Facts by nodes.
        self.nodes: dict[int, NodeFacts] = {}

    @property
    def guests(self) -> list[int]:
        """The agents that have no node yet."""
        return list(self._guests)

    @property
    def joined(self) -> int:
        """The number of agents that have come."""
        return len(self.nodes) or len(self._guests)

    @property
    def missing(self) -> tuple[int, ...]:
        """The nodes whose agents have not come, as their engine counts; empty: not known."""
        came = {facts.engine_node for facts in self._guests.values()}
        if self.nodes or min(came, default=-1) < 0 or len(came) < len(self._guests):
            return ()
        return tuple(sorted(set(range(self._nnodes)) - came))

    def join(
        self,
        guest: int,
        joined: AgentJoined,
        vacant: Iterable[int] = (),
        silent: Sequence[Silence] = (),
    ) -> LobbyDecision:
        """Take an agent in.

        Args:
            guest: number of the agent until it has a node.
            joined: its first message; the caller has checked the token.
            vacant: nodes whose agents were lost.
            silent: nodes that may be lost soon.
        """
        if reason := self._version_text(joined):
            # A running pool needs no further agent.
            return LobbyDecision(refused={guest: reason}, failure="" if self.nodes else reason)
        if self.nodes:
            return self._replace(guest, joined.facts, sorted(vacant), silent)
        self._guests[guest] = joined.facts
        if len(self._guests) < self._nnodes:
            return LobbyDecision(missing=self._nnodes - len(self._guests))
        guests, self._guests = self._guests, {}
        failure = self._disagreement(guests.values())
        if failure:
            return LobbyDecision(refused=dict.fromkeys(guests, failure), failure=failure)
        admitted = {number: node for node, number in enumerate(_in_order(guests))}
        self.nodes = {node: guests[number] for number, node in admitted.items()}
        return LobbyDecision(admitted=admitted)

    def needs(
        self, joined: AgentJoined, vacant: Iterable[int] = (), silent: Sequence[Silence] = ()
    ) -> RefuseAgent:
        """Say for an agent that only asks whether the pool needs another one, and could take it.

        Args:
            joined: its question.
            vacant: nodes whose agents were lost.
            silent: nodes that may be lost soon.
        """
        lost = sorted(vacant)
        if self.nodes and not lost:
            if silent:
                return RefuseAgent(reason=f"{self._has_all}, and {_wait_text(silent)}")
            return RefuseAgent(reason=f"{self._has_all}, and takes no further agent")
        others = [facts for node, facts in self.nodes.items() if node not in lost]
        if failure := self._version_text(joined) or self._disagreement(
            [*others, *self._guests.values(), joined.facts]
        ):
            reason = f"the pool would refuse this machine: {failure}"
            return RefuseAgent(reason=reason, answer="misfit")
        if not self.nodes:
            missing = self._nnodes - len(self._guests)
            reason = f"waits for {missing} of its {self._nodes}"
            return RefuseAgent(reason=reason, answer="place")
        which = f"node {lost[0]}" if len(lost) == 1 else f"nodes {', '.join(map(str, lost))}"
        reason = f"has lost {which} of {self._nnodes}, and takes another agent"
        return RefuseAgent(reason=reason, answer="place")

    @property
    def _nodes(self) -> str:
        return f"{self._nnodes} {'node' if self._nnodes == 1 else 'nodes'}"

    @property
    def _has_all(self) -> str:
        return "has its node" if self._nnodes == 1 else f"has all of its {self._nodes}"

    @staticmethod
    def _version_text(joined: AgentJoined) -> str:
        if joined.version == PROTOCOL_VERSION:
            return ""
        return (
            f"the nbddp of {joined.facts.host} speaks version {joined.version} of the "
            f"protocol, that of the notebook {PROTOCOL_VERSION}. Next: install the same nbddp "
            "on all machines"
        )

    def leave(self, guest: int) -> None:
        """Forget an agent that has gone before it had a node."""
        self._guests.pop(guest, None)

    def _replace(
        self, guest: int, facts: NodeFacts, vacant: list[int], silent: Sequence[Silence]
    ) -> LobbyDecision:
        if not vacant and silent:
            reason = f"the pool {self._has_all}, and {_wait_text(silent)}"
            return LobbyDecision(refused={guest: reason})
        if not vacant:
            reason = (
                f"the pool {self._has_all}. Next: for a larger pool, another start with "
                f"--nnodes {self._nnodes + 1}"
            )
            return LobbyDecision(refused={guest: reason})
        others = [known for node, known in self.nodes.items() if node not in vacant]
        failure = self._disagreement([*others, facts])
        if failure:
            return LobbyDecision(refused={guest: failure})
        # The engine says which node it was started for, if it was asked for one.
        node = facts.engine_node if facts.engine_node in vacant else vacant[0]
        self.nodes[node] = facts
        return LobbyDecision(admitted={guest: node})

    def _disagreement(self, all_facts: Iterable[NodeFacts]) -> str:
        """Return why these nodes make no pool; empty: they do."""
        facts = sorted(all_facts, key=lambda each: _natural(each.host))
        if problems := [f"{each.host}: {each.cwd_problem}" for each in facts if each.cwd_problem]:
            more = f" and {len(problems) - _MAX_HOSTS} more" if len(problems) > _MAX_HOSTS else ""
            return (
                f"--cwd cannot be entered on {'; '.join(problems[:_MAX_HOSTS])}{more}. Next: a "
                "folder that exists on each host"
            )
        has_gpus = any(each.gpus for each in facts)
        equal = {(each.python, _torch(each, has_gpus=has_gpus), each.nbddp) for each in facts}
        is_equal = len(equal) == 1
        if is_equal and facts[0].torch and facts[0].python == self._python:
            return ""
        rows = [
            f"{each.host}: Python {each.python}, torch {each.torch or 'not installed'}, "
            f"nbddp {each.nbddp}"
            for each in facts
        ]
        build = " and, since there are GPUs, the same build" if has_gpus else ""
        return (
            f"all nodes need torch, in the same version{build}, with the same nbddp and the Python "
            f"of the notebook ({self._python}); there are {'; '.join(rows)}. Next: the same "
            "environment on all machines, or --python PATH for the one to use"
        )


def _torch(facts: NodeFacts, *, has_gpus: bool) -> str:
    """Return what has to be equal of the version of torch.

    ``2.13.0+cpu`` and ``2.13.0`` of PyPI speak the same Gloo; whether torch uses a GPU depends on
    the build, and ranks with and without one form no group.
    """
    return facts.torch if has_gpus else facts.torch.partition("+")[0]


def _wait_text(silent: Sequence[Silence]) -> str:
    """``node 1 (n2) is silent for 12 s``, and when another agent can take its place."""
    it, is_ = ("it", "is") if len(silent) == 1 else ("they", "are")
    them = "it" if len(silent) == 1 else "them"
    until_s = max(each.lost_after_s for each in silent)
    return (
        f"{silent_since_text(silent)}. Next: try again when {it} {is_} given up, at {until_s:g} s, "
        f"or after %ddp restart in the notebook, which gives {them} up now and ends all ranks"
    )


def _in_order(guests: Mapping[int, NodeFacts]) -> list[int]:
    """Return the numbers of guests in the order of their nodes."""
    by_engine = {facts.engine_node: number for number, facts in guests.items()}
    if len(by_engine) == len(guests) and min(by_engine) >= 0:
        return [by_engine[node] for node in sorted(by_engine)]
    # Guests count down: the first one is -1.
    return sorted(guests, key=lambda number: (_natural(guests[number].host), -number))


def _natural(host: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``n2`` before ``n10``."""
    parts = re.split(r"(\d+)", host)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
