"""Puts other agents in the places of lost ones, and waits until they have come.

Runs in: the notebook's process, in the thread of the restart. The others are not touched: their
ranks keep processes and variables.

    replace_nodes --begin--> engine, or a process here
        AgentHello --> the node is no longer lost --> `RestartRanksRequested`, `RestartRequested`
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace as with_options
from typing import Protocol, cast

from msgspec.structs import replace

from nbddp.controller.hub import HubThread
from nbddp.controller.launch import (
    Engine,
    EngineEnd,
    LocalAgent,
    LostNode,
    ReplacingEngine,
    mark_of,
    state_of,
)
from nbddp.controller.options import PoolOptions
from nbddp.controller.state import PoolSnapshot
from nbddp.errors import PoolBrokenError, PoolStartError
from nbddp.wire.invitation import Invitation

_POLL_S = 0.1
#: An agent on this machine loads torch, which takes long on a busy one.
_LOCAL_JOIN_S = 120.0
#: Stands for a host that only the user knows.
_OTHER = "OTHER"


class _NotReplacedError(PoolBrokenError):
    """No other agent has come; the advice is that of the engine, if it has one."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(EngineEnd(what, advice))
        self.has_advice = bool(advice)


class AgentSource(Protocol):
    """The starter of the agents of a pool."""

    limit_s: float | None  #: for an agent to come; None: the user ends the wait

    def begin(self, lost: LostNode, hub: HubThread) -> None:
        """Begin to start an agent. Raises `PoolBrokenError`: that is not possible."""

    def state(self, nodes: Collection[int]) -> str:
        """Say what is waited for on these nodes, or what the user has to do."""

    def end(self, node: int) -> EngineEnd:
        """Say why the agent cannot come; empty: it may."""

    def try_next(self, lost: LostNode) -> str:
        """Begin again on another host; returns the one that was tried; empty: all were."""

    def withdraw(self, node: int) -> None:
        """End what `begin` has started."""

    def way_out(self, nodes: Collection[int], command: str) -> str:
        """Return the end of an error, what to do if no agent can ever come; empty: try again."""


class EngineAgents:
    """The agents of an engine.

    Args:
        engine: starts them.
        name: of its launcher.
        invitation: for them.
        options: of the pool; None: they are not known.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        invitation: Invitation,
        options: PoolOptions | None = None,
    ) -> None:
        self._engine = engine
        self._options = options
        self._name = name
        self._invitation = invitation
        self.limit_s = engine.join_timeout_s
        self._hosts_left: dict[int, int] = {}  #: spare hosts that a node has not been tried on

    @property
    def can_replace(self) -> bool:
        """Whether the engine, perhaps that of another package, can replace one node."""
        return self._replacing is not None

    @property
    def _replacing(self) -> ReplacingEngine | None:
        has_method = callable(getattr(self._engine, "replace", None))
        return cast("ReplacingEngine", self._engine) if has_method else None

    def begin(self, lost: LostNode, hub: HubThread) -> None:
        """Ask the engine. Raises `PoolBrokenError`: it cannot do that."""
        self._hosts_left[lost.node] = len(self._hosts[1])
        self._begin(lost)

    def try_next(self, lost: LostNode) -> str:
        """Go to the next spare host of ssh, and at last to the one that was lost.

        The host that the user has repaired may be any of them.
        """
        if not self._hosts_left[lost.node]:
            return ""
        self._hosts_left[lost.node] -= 1
        tried = self._hosts[0][lost.node]
        self._begin(lost)
        return tried

    @property
    def _hosts(self) -> tuple[list[str], list[str]]:
        """The hosts of the nodes, and the spare ones; none: the engine is not ssh."""
        if self._name != "ssh" or self._options is None:
            return [], []
        hosts = mark_of(self._engine).partition(";")[0].split(",")
        return hosts[: self._options.nnodes], hosts[self._options.nnodes :]

    def _begin(self, lost: LostNode) -> None:
        engine = self._replacing
        if engine is None:
            raise _NotReplacedError(
                f"{place(lost)} was not replaced: --launcher {self._name} cannot start one agent "
                "alone",
                "pull what you need from the other ranks (x = %ddp pull x), then %ddp restart, "
                "which starts all nodes again",
            )
        try:
            engine.replace(lost, self._invitation)
        except PoolStartError as error:
            end = EngineEnd.of(str(error).removeprefix("the pool did not start: "))
            text = f"{place(lost)} was not replaced: {end.what}"
            raise _NotReplacedError(text, end.advice) from None

    def state(self, nodes: Collection[int]) -> str:
        """Return the words of the engine."""
        return state_of(self._engine, nodes)

    def end(self, node: int) -> EngineEnd:
        """Return the words of the engine about one agent."""
        return EngineEnd.of(self._engine.end(node))

    def withdraw(self, node: int) -> None:
        """Tell the engine that nobody waits any longer."""
        engine = self._replacing
        if engine is not None:
            engine.withdraw(node)

    def way_out(self, nodes: Collection[int], command: str) -> str:
        """With ssh: name the host that is next, and the line that starts a pool on other hosts."""
        hosts, spare = self._hosts
        if not hosts or self._options is None:
            return ""
        lost = [host for node, host in enumerate(hosts) if node in nodes]
        which = ""
        if spare:
            lost = list(dict.fromkeys([*spare, *lost]))
            which = f", which goes to {' and '.join(lost)} in turn"
        others = tuple(_OTHER if node in nodes else host for node, host in enumerate(hosts))
        options = with_options(self._options, hosts=others)
        words = options.start_words(with_env=True)
        return (
            f"; then {command} again{which}. If {' and '.join(lost)} cannot come back: %ddp stop, "
            "which ends all ranks with their variables, and "
            f"%ddp start {words}, with another host in the place of {_OTHER}"
        )


class LocalAgents:
    """The agents of this machine.

    Args:
        agents: by node; fresh ones take their places in it.
        start: starts the agent of a node.
    """

    limit_s: float | None = _LOCAL_JOIN_S

    def __init__(self, agents: list[LocalAgent], start: Callable[[int], LocalAgent]) -> None:
        self._agents = agents
        self._start = start

    def begin(self, lost: LostNode, hub: HubThread) -> None:
        """Start the process."""
        self._agents[lost.node] = self._start(lost.node)
        hub.replace_agent(self._agents[lost.node])

    def state(self, nodes: Collection[int]) -> str:
        """Nothing: it is a process of this machine."""
        return ""

    def end(self, node: int) -> EngineEnd:
        """Return the last words of an agent that has ended."""
        agent = self._agents[node]
        is_over = agent.has_exited()
        return EngineEnd.of(f"its process ended: {agent.last_output().strip()}" if is_over else "")

    def try_next(self, lost: LostNode) -> str:
        """Nothing: there is no other machine."""
        return ""

    def withdraw(self, node: int) -> None:
        """End the process."""
        self._agents[node].kill()

    def way_out(self, nodes: Collection[int], command: str) -> str:
        """Nothing: a process of this machine can be started again."""
        return ""


def replace_nodes(
    source: AgentSource,
    nodes: Collection[int],
    hub: HubThread,
    is_interrupted: Callable[[], bool],
    on_progress: Callable[[PoolSnapshot], None],
    *,
    command: str = "%ddp restart",
) -> None:
    """Put other agents in the places of those of lost nodes, and wait until they have come.

    Args:
        source: starts agents.
        nodes: that are lost.
        hub: of the pool.
        is_interrupted: polled; then what was begun is ended.
        on_progress: gets the state of the pool, with what is waited for.
        command: asks again for the same.

    Raises:
        KeyboardInterrupt: the user has interrupted the wait.
        PoolBrokenError: an agent cannot come, or did not come in time.
    """
    lost = [lost_node(hub.snapshot, node) for node in sorted(nodes)]
    begun: list[LostNode] = []
    is_done = False
    try:
        hub.awaited = frozenset(nodes)
        while hub.is_alive and not hub.snapshot.lost_agents.issuperset(nodes):
            if is_interrupted():
                raise KeyboardInterrupt
            time.sleep(_POLL_S)  # nodes that were given up just now
        for lost_one in lost:
            source.begin(lost_one, hub)
            begun.append(lost_one)
        _wait(source, lost, hub, is_interrupted, on_progress)
        is_done = True
    except _NotReplacedError as error:
        again = source.way_out(nodes, command)
        if not again and not error.has_advice:
            again = f". Next: {command} tries again"
        elif not again and hub.is_alive and len(begun) == len(lost):
            again = f", then {command} again"
        raise PoolBrokenError(f"{error}{again}") from None
    finally:
        hub.awaited = frozenset()
        if not is_done:
            for lost_one in begun:
                if lost_one.node in hub.snapshot.lost_agents:
                    source.withdraw(lost_one.node)


def _wait(
    source: AgentSource,
    lost: Collection[LostNode],
    hub: HubThread,
    is_interrupted: Callable[[], bool],
    on_progress: Callable[[PoolSnapshot], None],
) -> None:
    until = None if source.limit_s is None else time.monotonic() + source.limit_s
    failed: dict[int, list[str]] = {}  # why no agent came from other places, by node
    while True:
        snapshot = hub.snapshot
        missing = [each for each in lost if each.node in snapshot.lost_agents]
        if not missing:
            return
        if is_interrupted():
            raise KeyboardInterrupt
        if not hub.is_alive:
            raise _NotReplacedError("the hub of the pool has ended", "%ddp restart")
        for lost_one in missing:
            if reason := source.end(lost_one.node):
                before = failed.setdefault(lost_one.node, [])
                if tried := source.try_next(lost_one):
                    before.append(f"on {tried}, {reason.what.rstrip('.')}")
                    continue
                reasons = "; ".join([*before, reason.what])
                raise _NotReplacedError(
                    f"no agent has come in the place of {place(lost_one)}: {reasons}",
                    reason.advice,
                )
        awaited = [each.node for each in missing]
        if until is not None and time.monotonic() > until:
            raise _NotReplacedError(
                f"no agent has come in the place of {_places(missing)} in {source.limit_s:g} s "
                f"({source.state(awaited)})",
                "look at the machines",
            )
        state = source.state(awaited)
        waits_for = f"waits for another agent in the place of {_places(missing)}\n{state}"
        joined = len({info.node for info in snapshot.ranks}) - len(snapshot.lost_agents)
        on_progress(replace(snapshot, joined=joined, waits_for=waits_for.strip()))
        time.sleep(_POLL_S)


def lost_node(snapshot: PoolSnapshot, node: int) -> LostNode:
    """Return what is known of a node."""
    if node >= len(snapshot.nodes):
        return LostNode(node)
    facts = snapshot.nodes[node]
    return LostNode(node, host=facts.host, place=facts.engine_host, job=facts.job)


def place(lost: LostNode) -> str:
    """``node 1 (n2)``."""
    return f"node {lost.node} ({lost.host})" if lost.host else f"node {lost.node}"


def _places(nodes: Iterable[LostNode]) -> str:
    return " and ".join(place(each) for each in nodes)
