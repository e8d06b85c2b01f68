"""Makes the hub of a pool that another notebook has left, from what its agents say.

Runs in: the notebook's process, in the thread that takes the pool back.

    record of the pool --> connection --AttachAgent--> agents --> PoolMachine, HubThread
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from nbddp.controller.hub import (
    Agents,
    Attachment,
    HubThread,
    Listeners,
    RemoteNodes,
    Run,
    attach_agents,
    attach_machines,
)
from nbddp.controller.launch import (
    AdoptedAgent,
    Engine,
    LastingEngine,
    ReachingEngine,
    RemoteAgent,
    engine_options,
    make_engine,
)
from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.kept_pool import KeptPool
from nbddp.controller.pool.left_cell import LeftCell
from nbddp.controller.pool.record_writer import machines_record
from nbddp.controller.recovery import RecoveryMachine
from nbddp.controller.state import (
    Lobby,
    Phase,
    PoolMachine,
    PoolSnapshot,
    RankInfo,
    joining_ranks,
    kept_cell,
    resumed_pool,
)
from nbddp.errors import PoolAttachError
from nbddp.settings import Settings
from nbddp.system.kept_pools import MachinesRecord, ProcessId
from nbddp.wire.channels import AgentsChannel, HubChannel, RemoteHubChannel
from nbddp.wire.invitation import Invitation, PoolKeys
from nbddp.wire.message_types import JOB_LEFT_UNKNOWN_S, AgentEnd, NodeFacts
from nbddp.wire.rank_set import NO_RANKS

#: For the agents of this machine to answer.
_ATTACH_S = 10.0
#: For the first agent of another machine, which tries to connect every two seconds.
_FIRST_S = 20.0
#: Questions of a hub have numbers that no hub before it has used.
_NUMBERS_OF_A_HUB = 1 << 24


@dataclass
class TakenBack:
    """The pool in this process; its hub has not been started."""

    hub: HubThread
    generation: int
    local: Sequence[AdoptedAgent] = ()
    remote: list[RemoteAgent] = field(default_factory=list)
    engine: Engine | None = None
    invitation: Invitation | None = None  #: for agents that come in the places of others
    #: The cell that ran while there was no notebook, as the agents were sent it.
    left_cell: LeftCell | None = None
    machines: Callable[[], MachinesRecord] | None = None  #: for the record of the pool


@dataclass(frozen=True)
class Taking:
    """The parts of this process that a pool needs."""

    options: PoolOptions
    settings: Settings
    attachments: int  #: how often it was taken back
    make_recovery: Callable[[PoolMachine, int], RecoveryMachine]
    on_segment_released: Callable[[int, int], None]
    store_place: tuple[str, int]  #: address and port for a later store
    listeners: Listeners | None
    renew: Callable[[], None]  #: called once a minute: this notebook lives
    on_progress: Callable[[PoolSnapshot], None]  #: gets what is waited for, and for how long

    def take(
        self,
        kept: KeptPool,
        is_interrupted: Callable[[], bool],
        undone: ExitStack,
    ) -> TakenBack:
        """Take the agents back.

        Args:
            kept: the pool.
            is_interrupted: asked again and again.
            undone: gets what is to be done if this fails, or what follows.

        Raises:
            KeyboardInterrupt: the user has interrupted the wait.
            PoolAttachError: its agents do not answer.
        """
        if kept.record.machines is None:
            return self._take_local(kept, is_interrupted, undone)
        return self._take_machines(kept, kept.record.machines, is_interrupted, undone)

    def _take_local(
        self,
        kept: KeptPool,
        is_interrupted: Callable[[], bool],
        undone: ExitStack,
    ) -> TakenBack:
        record = kept.record
        agents: list[AdoptedAgent] = []
        for node, process in enumerate(record.agents):
            agents.append(AdoptedAgent(node, process, record.pool_id, kept.folder))
            undone.callback(agents[-1].close)
        channel = HubChannel(Path(record.hub), record.token, len(record.agents), takes_back=True)
        undone.callback(channel.close)
        attachment = attach_agents(
            channel,
            agents,
            ProcessId.of(os.getpid()),
            keep_s=record.keep_s,
            limit_s=_ATTACH_S,
            is_interrupted=is_interrupted,
        )
        return self._resumed(kept, channel, attachment, undone, local=agents)

    def _take_machines(
        self,
        kept: KeptPool,
        machines: MachinesRecord,
        is_interrupted: Callable[[], bool],
        undone: ExitStack,
    ) -> TakenBack:
        record, nnodes = kept.record, len(machines.hosts)
        channel = _channel_of(record.pool_id, machines)
        undone.callback(channel.close)
        engine = make_engine(self.options.launcher, engine_options(self.options))
        invitation = channel.invitation(
            record.pool_id,
            [machines.address],
            record.token,
            self.options.tunnel,
            record.keep_s,
        )
        way = engine if isinstance(engine, ReachingEngine) else None
        if way is not None:
            undone.callback(way.leave)
            way.reach(machines.mark, invitation)
        reach_s = 0.0 if way is None else way.reach_s
        first_s = _FIRST_S + reach_s
        all_s = max(self.settings.node_timeout_s, first_s if reach_s else 0.0)
        attachment = attach_machines(
            channel,
            record.token,
            tuple(zip(machines.hosts, machines.pids, strict=True)),
            keep_s=record.keep_s,
            until=kept.until,
            first_s=first_s,
            all_s=all_s,
            obstacle=str if way is None else way.obstacle,
            is_interrupted=is_interrupted,
            on_missing=lambda nodes, limit_s: self.on_progress(
                waiting_snapshot(self.options, machines.hosts, nodes, limit_s)
            ),
        )
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        lobby = Lobby(nnodes, python)
        nodes = RemoteNodes(channel, record.token, lobby, self.settings, self.renew)
        pids = {node: each.pid for node, each in attachment.by_node.items()}
        nodes.resume(
            _facts(attachment, machines.hosts),
            dict(enumerate(machines.pids)) | pids,
            time.monotonic(),
        )
        remote = _agents(engine, attachment, machines.hosts, all_s)
        taken = self._resumed(kept, channel, attachment, undone, nodes, remote=remote)
        if isinstance(engine, LastingEngine):
            engine.take_back(machines.mark, invitation)
        taken.engine, taken.invitation = engine, invitation
        taken.machines = lambda: machines_record(taken.hub, engine, channel, machines.address)
        return taken

    def _resumed(
        self,
        kept: KeptPool,
        channel: AgentsChannel,
        attachment: Attachment,
        undone: ExitStack,
        nodes: RemoteNodes | None = None,
        *,
        local: Sequence[AdoptedAgent] = (),
        remote: Sequence[RemoteAgent] = (),
    ) -> TakenBack:
        now = time.monotonic()
        answers = attachment.agents(now)
        host, port = self.store_place
        execute = kept_cell(answers)
        pool = resumed_pool(answers, execute, self.settings, now, host=host, port=port)
        recovery = self.make_recovery(pool, self.attachments * _NUMBERS_OF_A_HUB + 1)
        recovery.resume(joining_ranks(answers))
        hub = HubThread(channel, kept.record.token, recovery, self.on_segment_released, nodes)
        undone.callback(hub.discard)
        taken = TakenBack(hub, pool.spec.generation, local, list(remote))
        cell, run = pool.run, None
        if cell is not None and execute is not None:
            run = Run(cell.run_id, cell.ranks, self.settings.output_backlog_bytes)
            taken.left_cell = LeftCell(run, execute, cell.began)
            run.on_shown = partial(hub.settle, run.run_id)
        if self.listeners is not None:
            hub.listeners = self.listeners
        hub.resume(run, attachment, Agents(local, remote))
        return taken


def _channel_of(pool_id: str, machines: MachinesRecord) -> RemoteHubChannel:
    """Listen where the agents look for a hub. Raises `PoolAttachError`: that is not possible."""
    try:
        return RemoteHubChannel(machines.address, machines.port, PoolKeys(**machines.keys))
    except OSError as error:
        place = f"{machines.address}:{machines.port}"
        reason = f"this machine cannot listen there: {error.strerror}"
        step = (
            "if another program has the port, end it "
            f"(`ss -ltnp 'sport = {machines.port}'` names it), and attach again"
        )
        if error.errno == errno.EADDRNOTAVAIL:
            reason = f"this machine does not have the address {machines.address} now"
            step = (
                "connect this machine to the network in which it had the address, and attach again"
            )
        raise PoolAttachError(
            f"the agents of pool {pool_id} connect to {place}, and {reason}. Next: {step}; the "
            "pool ends by itself when its time is over"
        ) from None


def waiting_snapshot(
    options: PoolOptions, hosts: Sequence[str], missing: Sequence[int], limit_s: float
) -> PoolSnapshot:
    """Return the state of a pool whose agents are awaited.

    Args:
        options: of the pool.
        hosts: of its nodes.
        missing: nodes whose agents have not come.
        limit_s: of the wait, in seconds.
    """
    names = " and ".join(f"node {node} ({hosts[node]})" for node in missing)
    text = f"waits for {names}, and goes on without {'it' if len(missing) == 1 else 'them'} after"
    if len(missing) == len(hosts):
        text = "no agent has come yet; this is given up after"
    ranks = range(options.world_size)
    return PoolSnapshot(
        phase=Phase.AGENTS,
        generation=0,
        ranks=tuple(RankInfo(rank=r, node=r // options.nproc_per_node) for r in ranks),
        run_id=None,
        active_run_id=None,
        joining=NO_RANKS,
        lost_agents=frozenset(),
        store_is_lost=False,
        joined=len(hosts) - len(missing),
        waits_for=f"{text} {limit_s:g} s",
        is_taken_back=True,
    )


def _facts(attachment: Attachment, hosts: Sequence[str]) -> dict[int, NodeFacts]:
    """Return the facts about all nodes; of those that have not come, little is known."""
    known = {n: each.facts for n, each in attachment.by_node.items() if each.facts is not None}
    some = next(iter(known.values()))
    return {
        node: known.get(node)
        or replace(
            some,
            host=host,
            address="",
            engine_node=-1,
            engine_host="",
            job="",
            scheduler="",
            job_left_s=JOB_LEFT_UNKNOWN_S,
        )
        for node, host in enumerate(hosts)
    }


def _agents(
    engine: Engine, attachment: Attachment, hosts: Sequence[str], waited_s: float
) -> list[RemoteAgent]:
    agents = []
    for node, host in enumerate(hosts):
        agent = RemoteAgent(node, engine, host, outlives_starter=True)
        agent.revive()
        if node not in attachment.by_node:
            agent.note_end(AgentEnd("silent", round(waited_s), host))
        agents.append(agent)
    return agents
