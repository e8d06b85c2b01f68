"""The life of a pool, its ranks and its cells: only this module changes their state.

Runs in: the hub thread. Pure: it takes stimuli with the time, and returns actions for the hub.

    messages, commands, ticks --handle(stimulus, now)--> PoolMachine --> actions

A rank moves along `LEGAL_MOVES`; the state of the pool is computed from its ranks and phase. A run
(one execution of a cell) ends when each of its ranks has finished or exited, when its timeout
expires, or when the user abandons it; ranks that are still inside stay BUSY until they come back.
`nbddp.controller.recovery.machine` is the layer around it that frees ranks and replaces them.
"""

from collections.abc import Callable, Mapping
from typing import assert_never

from msgspec.structs import replace

from nbddp.controller.state.actions import (
    AnnounceExit,
    AnnounceFailure,
    AnnounceUp,
    EndRun,
    LifeAction,
    SendToAgent,
    SendToRanks,
)
from nbddp.controller.state.cell_run import CellRun
from nbddp.controller.state.exit_text import (
    describe_exit,
    describe_store_exit,
    exited_text,
    slow_start_text,
    start_lost_agent_text,
)
from nbddp.controller.state.input_requests import InputRequests
from nbddp.controller.state.rank_state import Phase, RankState
from nbddp.controller.state.rank_table import RankTable
from nbddp.controller.state.silent_nodes import late_text
from nbddp.controller.state.stimuli import (
    AbandonRequested,
    AgentExited,
    ChangedAtPrompt,
    InputAnswered,
    InterruptRequested,
    LifeStimulus,
    RespawnRequested,
    RestartRequested,
    RunRequested,
    StopRequested,
    Tick,
)
from nbddp.settings import Settings
from nbddp.wire.message_types import ErrorInfo, LostAgent, PoolSpec
from nbddp.wire.messages import (
    AgentHello,
    FaultStruck,
    ImportChanged,
    InputRequest,
    Interrupt,
    RankExited,
    RankReady,
    RankSpawned,
    RanksStopped,
    RunFinished,
    RunsFinished,
    RunStarted,
    StartFailed,
    StartRanks,
    StartStore,
    StopRanks,
    StoreExited,
    StoreReady,
)
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet


class PoolMachine:
    """The state machine of a pool. One owner: the hub thread.

    Args:
        spec: of the pool.
        settings: limits of time.
        now: `time.monotonic` of the caller.
        host: address on which the store listens; empty: the one at which node 0 is reached.
        port: of the store; 0: any.
    """

    def __init__(
        self, spec: PoolSpec, settings: Settings, now: float, *, host: str, port: int
    ) -> None:
        self.spec = spec
        self.ranks = RankTable(spec)
        self._settings = settings
        self._host = host
        self._is_host_given = bool(host)
        self._port = port
        self.phase = Phase.AGENTS
        self._agents: set[int] = set()
        self.hosts: dict[int, str] = {}  #: of the nodes, if they are machines of their own
        self.lost_agents: dict[int, LostAgent] = {}
        self._nodes_stopped: set[int] = set()
        #: Agents on other machines come when their engine starts them.
        self._starts_until = None if spec.has_machines else now + settings.start_timeout_s
        self.run: CellRun | None = None
        self.latest: CellRun | None = None  #: the latest cell, also if it has ended
        self._input_requests = InputRequests()
        self.store_is_lost = False  #: existing groups still work; new ones cannot be made
        self.master = ("", 0)  #: address and port of the store

    def resume(self, run: CellRun | None, hosts: Mapping[int, str], address: str) -> None:
        """Go on with ranks that live already.

        Args:
            run: of the cell that they are in; None: there is none.
            hosts: names of the nodes, if they are machines of their own.
            address: the one at which node 0 is reached; empty: not known.
        """
        self.hosts = dict(hosts)
        self._host = self._host or address
        self.phase = Phase.UP
        self._starts_until = None
        self.run = self.latest = run

    # --- questions -----------------------------------------------------------------------------

    @property
    def active_run_id(self) -> str | None:
        """The run of the cell that is running; None: no cell is."""
        return self.run.run_id if self.run else None

    def refusal(self, ranks: RankSet, unheard: RankSet = NO_RANKS) -> str | None:
        """The reason why these ranks cannot take a cell now; None if they can.

        Args:
            ranks: that are to take it.
            unheard: ranks of which nothing is known now.
        """
        if self.phase is not Phase.UP:
            return f"the pool is not up (it is {self.phase.name.lower()})"
        unreachable = self.ranks.stopped_agent_reason(ranks)
        if unreachable or self.run is not None:
            return unreachable or "a cell is running"
        if exited := self.ranks.in_state(RankState.EXITED, among=ranks):
            return exited_text([self.ranks[rank] for rank in exited], self.lost_agents)
        starting = self.ranks.in_state(RankState.STARTING, among=ranks)
        if starting:
            return f"a fresh process takes the place of {starting.describe()}"
        late = self.late(ranks)
        return late_text(late, unheard) if late else None

    def late(self, ranks: RankSet) -> RankSet:
        """The ranks that are still inside a cell that has ended for the user."""
        if self.run is not None:
            return NO_RANKS
        return self.ranks.in_state(RankState.BUSY, among=ranks)

    def ending(self, is_ending: Callable[[int], bool]) -> RankSet:
        """Idle ranks whose processes end or have ended, before their agent has reported it.

        Args:
            is_ending: whether the process with a pid is about to end, or has ended.
        """
        idle = (self.ranks[rank] for rank in self.ranks.in_state(RankState.IDLE))
        return RankSet.of(info.rank for info in idle if info.pid and is_ending(info.pid))

    def next_deadline(self) -> float | None:
        """The time at which a `Tick` has something to do; None: never."""
        deadlines = [self._starts_until]
        if self.run is not None:
            deadlines.append(self.run.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    # --- the only entry ------------------------------------------------------------------------

    def handle(  # noqa: PLR0911, PLR0912 - one branch for each kind of stimulus
        self, stimulus: LifeStimulus, now: float
    ) -> list[LifeAction]:
        """Handle one stimulus.

        Args:
            stimulus: a message, a command or a tick.
            now: `time.monotonic` of the caller.

        Returns:
            The actions for the hub, in order.

        Raises:
            InvalidTransitionError: a rank would make an illegal move; the text has its history.
        """
        match stimulus:
            case AgentHello():
                return self._meet_agent(stimulus, now)
            case StoreReady():
                return self._start_ranks(stimulus)
            case StoreExited():
                self.store_is_lost = True
                return self._fail(describe_store_exit(stimulus))
            case StartFailed():
                return self._start_failed(stimulus)
            case RankSpawned():
                info = self.ranks[stimulus.rank]
                self.ranks.put(replace(info, pid=stimulus.pid, log_path=stimulus.log_path))
                return []
            case RankReady():
                return self._rank_ready(stimulus)
            case RunStarted():
                return []
            case FaultStruck() | ChangedAtPrompt() | ImportChanged():
                if self.run is not None and self.run.run_id == stimulus.run_id:
                    self.run.note(stimulus)
                return []
            case InputRequest():
                actions = self._input_requests.add(stimulus, self.active_run_id)
                self._see_debuggers(now)
                return actions
            case InputAnswered():
                actions = self._input_requests.remove(stimulus)
                self._see_debuggers(now)
                return actions
            case RunFinished():
                return self._ranks_finished(RunsFinished.of((stimulus,)), now)
            case RunsFinished():
                return self._ranks_finished(stimulus, now)
            case RankExited():
                return self._rank_exited(stimulus, now)
            case RanksStopped():
                return self._node_stopped(stimulus.node, now)
            case RunRequested():
                return self._begin_run(stimulus, now)
            case InterruptRequested():
                return self._interrupt(stimulus.run_id)
            case AbandonRequested():
                if self.run is None or self.run.run_id != stimulus.run_id:
                    return []
                return self._end_run(self.run, now)
            case RestartRequested():
                return self._restart(now)
            case RespawnRequested():
                return self._respawn(stimulus.ranks)
            case StopRequested():
                return self._end_run(self.run, now, stimulus.by) if self.run else []
            case AgentExited():
                return self._agent_exited(stimulus, now)
            case Tick():
                return self._tick(now)
            case _:
                assert_never(stimulus)

    # --- start ---------------------------------------------------------------------------------

    def _meet_agent(self, hello: AgentHello, now: float) -> list[LifeAction]:
        self._agents.add(hello.node)
        if self.spec.has_machines:
            self.hosts[hello.node] = hello.host
        if self.lost_agents.pop(hello.node, None) is not None:  # another one has taken its place
            self.ranks.fresh_agents.add(hello.node)
        if hello.node == 0 and hello.address and not self._is_host_given:
            self._host = hello.address  # another machine may have taken the place of the first one
        if self._starts_until is None and self.phase is Phase.AGENTS:
            self._starts_until = now + self._settings.start_timeout_s
        if self.phase is not Phase.AGENTS or len(self._agents) < self.spec.nnodes:
            return []
        return self._start_store()

    def _start_store(self) -> list[LifeAction]:
        self.phase = Phase.STORE
        self.store_is_lost = False
        for rank in self.ranks:
            fresh = {"exited": None, "replaced": "", "is_replacement": False, "is_unwanted": False}
            self.ranks.move(rank, RankState.STARTING, "start", meshes=(), **fresh)
        return [SendToAgent(0, StartStore(pool=self.spec, host=self._host, port=self._port))]

    def _start_ranks(self, store: StoreReady) -> list[LifeAction]:
        if self.phase is not Phase.STORE:
            return []
        self.phase = Phase.RANKS
        self.master = (store.host, store.port)
        return self._start_requests(dict.fromkeys(range(self.spec.nnodes), ()), joins=False)

    def _respawn(self, ranks: RankSet) -> list[LifeAction]:
        for rank in ranks:
            replaced = "restarted" if self.ranks[rank].is_unwanted else "exited"
            fresh = {"pid": 0, "replaced": replaced, "is_replacement": True, "is_unwanted": False}
            fresh["generation"] = self.ranks[rank].generation + 1
            self.ranks.move(rank, RankState.STARTING, "respawn", meshes=(), **fresh)
        return self._start_requests(self.ranks.by_node(ranks), joins=True)

    def _start_requests(
        self, by_node: Mapping[int, tuple[Rank, ...]], *, joins: bool
    ) -> list[LifeAction]:
        host, port = self.master
        return [
            SendToAgent(
                node,
                StartRanks(
                    pool=self.spec, master_addr=host, master_port=port, ranks=ranks, joins=joins
                ),
            )
            for node, ranks in by_node.items()
        ]

    def _rank_ready(self, ready: RankReady) -> list[LifeAction]:
        info = self.ranks[ready.rank]
        if info.state is RankState.BUSY:
            return []  # a second message
        self.ranks.move(
            ready.rank,
            RankState.IDLE,
            "ready",
            device=ready.device,
            note=ready.note,
            # A rank that joins others has no group yet; it gets the groups of the others.
            backend=ready.backend or info.backend,
            exited=None,
        )
        if self.phase is not Phase.RANKS or not self.ranks.are_all(RankState.IDLE):
            return []
        self.phase = Phase.UP
        self._starts_until = None
        return [AnnounceUp()]

    def _start_failed(self, failed: StartFailed) -> list[LifeAction]:
        why = f"{failed.error.ename}: {failed.error.evalue}"
        if self.phase is not Phase.UP:
            process = "the store" if failed.rank is None else self._name(failed.rank)
            return self._fail(f"{process} could not start: {why}", failed.error)
        info = self.ranks[failed.rank] if failed.rank is not None else None
        if info is not None and info.state is RankState.STARTING and not info.pid:
            # There is no process whose exit the agent could report.
            self.ranks.move(info.rank, RankState.EXITED, "start failed")
        return []

    def _name(self, rank: Rank) -> str:
        """``rank 3``, or ``rank 3 on n2``."""
        host = self.hosts.get(self.ranks[rank].node)
        return f"rank {rank} on {host}" if host else f"rank {rank}"

    def _fail(
        self, reason: str, error: ErrorInfo | None = None, exited: RankExited | None = None
    ) -> list[LifeAction]:
        if self.phase in (Phase.UP, Phase.FAILED, Phase.STOPPING):
            return []
        self.phase = Phase.FAILED
        self._starts_until = None
        return [AnnounceFailure(reason, error, exited)]

    # --- cells ---------------------------------------------------------------------------------

    def _begin_run(self, requested: RunRequested, now: float) -> list[LifeAction]:
        run_id = requested.execute.run_id
        self.ranks.move_all(requested.ranks, RankState.BUSY, f"run {run_id}", run_id=run_id)
        self._input_requests.begin(requested.ranks)
        self.run = self.latest = run = CellRun(
            run_id,
            requested.ranks,
            now,
            timeout_s=requested.timeout_s,
            is_plain=self.spec.plain,
            replacements=RankSet.of(i.rank for i in self.ranks.infos if i.is_replacement),
            asks_at_deadlock=any(each.on == "deadlock" for each in requested.execute.break_points),
            execute=requested.execute,
        )
        if requested.timeout_s is not None:
            run.times_out_at = now + requested.timeout_s
        return [SendToRanks(requested.ranks, requested.execute)]

    def _see_debuggers(self, now: float) -> None:
        """Pause the timeout of the cell while the user is in a debugger."""
        run = self.run
        if run is None or run.times_out_at is None:
            return
        is_debugged = bool(set(self._input_requests.debugged()) & set(run.unfinished))
        if is_debugged and run.paused_at is None:
            run.paused_at = now
        elif not is_debugged and run.paused_at is not None:
            run.times_out_at += now - run.paused_at
            run.paused_at = None

    def _ranks_finished(self, finished: RunsFinished, now: float) -> list[LifeAction]:
        run_id, meshes = finished.run_id, finished.finished.meshes
        inside = [rank for rank in finished.ranks if self.ranks[rank].run_id == run_id]
        if not inside:
            return []
        why = f"finished {run_id}"
        known = {} if meshes is None else {"meshes": meshes}
        self.ranks.move_all(inside, RankState.IDLE, why, run_id=None, **known)
        run = self.run
        if run is None or run.run_id != run_id:
            return []  # a cell that the user has abandoned: the ranks have come back
        run.finish(finished, set(inside))
        return self._end_if_complete(run, now)

    def _rank_exited(self, exited: RankExited, now: float) -> list[LifeAction]:
        run_id = self.ranks[exited.rank].run_id
        why = f"exit {exited.exit_code}"
        self.ranks.move(exited.rank, RankState.EXITED, why, exited=exited, run_id=None)
        announced = AnnounceExit(exited, run_id)
        if self.phase is Phase.RANKS:  # perhaps it was ready, and others were not
            last = exited.last_output.strip().rpartition("\n")[2]
            reason = (
                f"{self._name(exited.rank)} ended while it started ({describe_exit(exited)[0]})"
            )
            said = f": {last}" if last else ""
            return [announced, *self._fail(reason + said, exited=exited)]
        run = self.run
        if run is None or exited.rank not in run.ranks:
            return [announced]
        run.exit(exited, now)
        if run.run_id != run_id:  # it had left the cell; others are still inside
            return [announced]
        actions: list[LifeAction] = [announced]
        if self.spec.plain:
            # The others may wait for it forever: interrupt them, and do not wait long.
            actions += self.interrupts()
            if run.give_up_at is None:
                run.give_up_at = now + self._settings.death_grace_s
        return [*actions, *self._end_if_complete(run, now)]

    def _end_if_complete(self, run: CellRun, now: float) -> list[LifeAction]:
        self._see_debuggers(now)
        return self._end_run(run, now) if run.is_complete else []

    def _end_run(self, run: CellRun, now: float, ended_by: str = "") -> list[LifeAction]:
        self.run = None
        outcome = run.outcome(now, ended_by, at_prompt=self._input_requests.ranks())
        return [*self._input_requests.end(is_over=bool(ended_by)), EndRun(outcome)]

    def _interrupt(self, run_id: str) -> list[LifeAction]:
        if self.run is None or self.run.run_id != run_id:
            return []
        self.run.interrupt()
        return self.interrupts()

    def interrupts(self) -> list[LifeAction]:
        """The actions that interrupt the ranks that are still inside the cell."""
        run = self.run
        if run is None:
            return []
        return [
            SendToAgent(node, Interrupt(run_id=run.run_id, ranks=ranks))
            for node, ranks in self.ranks.by_node(run.unfinished).items()
        ]

    # --- restart, loss, time -------------------------------------------------------------------

    def _restart(self, now: float) -> list[LifeAction]:
        ended = self._end_run(self.run, now, "%ddp restart") if self.run else []
        self.phase = Phase.STOPPING
        self._nodes_stopped.clear()
        self._starts_until = now + self._settings.start_timeout_s
        stop = StopRanks(grace_s=self._settings.stop_grace_s)
        return [*ended, *(SendToAgent(node, stop) for node in range(self.spec.nnodes))]

    def _node_stopped(self, node: int, now: float) -> list[LifeAction]:
        self._nodes_stopped.add(node)
        if self.phase is not Phase.STOPPING or len(self._nodes_stopped) < self.spec.nnodes:
            return []
        for rank, info in self.ranks.items():
            self.ranks.put(replace(info, run_id=None))
            if info.state is not RankState.EXITED:  # before its process was made
                self.ranks.move(rank, RankState.EXITED, "stopped")
        self.spec = replace(self.spec, generation=self.spec.generation + 1)
        self._starts_until = now + self._settings.start_timeout_s
        return self._start_store()

    def _agent_exited(self, agent: AgentExited, now: float) -> list[LifeAction]:
        self.lost_agents[agent.node] = agent.lost
        self.store_is_lost |= agent.node == 0  # the agent of node 0 had started it
        if self.phase is Phase.STOPPING:
            # This agent cannot restart any part of the pool.
            self.phase = Phase.STORE
        actions = self._fail(start_lost_agent_text(agent))
        last = agent.last_output.strip()
        end = RankExited(
            rank=0, pid=0, exit_code=-9, out_of_memory=False, last_output=last, cause=agent.lost
        )
        for info in self.ranks.values():
            if info.node == agent.node and info.state not in (RankState.ABSENT, RankState.EXITED):
                exited = replace(end, rank=info.rank, pid=info.pid)
                actions += self._rank_exited(exited, now)
        return actions

    def _tick(self, now: float) -> list[LifeAction]:
        if self._starts_until is not None and now >= self._starts_until:
            late = self.ranks.in_state(RankState.STARTING)
            waiting = f"{late.describe()} not ready" if late else f"phase {self.phase.name}"
            if self.phase is Phase.STOPPING:
                self.phase, waiting = Phase.STORE, ""
            limit_s, has_machines = self._settings.start_timeout_s, self.spec.has_machines
            return self._fail(slow_start_text(limit_s, waiting, has_machines=has_machines))
        run = self.run
        if run is None:
            return []
        if run.give_up_at is not None and now >= run.give_up_at:
            return self._end_run(run, now)
        self._see_debuggers(now)
        if run.times_out_at is not None and run.paused_at is None and now >= run.times_out_at:
            run.times_out_at = None
            run.interrupt(timed_out=True)
            run.give_up_at = now + self._settings.interrupt_grace_s
            return self.interrupts()
        return []
