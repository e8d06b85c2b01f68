"""Starts and ends the parts of a pool: its folder, its agents, its hub.

Runs in: the notebook's process, in the thread that starts or stops the pool.
"""

import errno
import math
import os
import queue
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nbddp.controller.diagnosis import Sources
from nbddp.controller.hub import HubThread, Listeners, RemoteNodes
from nbddp.controller.launch import (
    Engine,
    LastingEngine,
    LocalAgent,
    RemoteAgent,
    engine_options,
    make_engine,
    notebook_address,
)
from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.guarded_diagnosis import GuardedDiagnosis
from nbddp.controller.pool.joining_agents import JoiningAgents
from nbddp.controller.pool.kept_pool import KeptPool
from nbddp.controller.pool.node_replacement import EngineAgents, LocalAgents, replace_nodes
from nbddp.controller.pool.record_writer import RecordWriter, machines_record
from nbddp.controller.pool.start_errors import start_error
from nbddp.controller.pool.taken_back import Taking
from nbddp.controller.recovery import RecoveryMachine
from nbddp.controller.state import (
    DETACHED,
    AnnounceFailure,
    AnnounceUp,
    Lobby,
    Phase,
    PoolMachine,
    PoolSnapshot,
    RestartRequested,
)
from nbddp.errors import PoolAttachError, PoolStartError
from nbddp.settings import Settings
from nbddp.system import network, pool_folder
from nbddp.system.os_limits import too_few_descriptors
from nbddp.wire.channels import HubChannel, RemoteHubChannel, ipc_address
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.message_types import PoolSpec

if TYPE_CHECKING:
    from nbddp.controller.pool.left_cell import LeftCell

_LOCAL_HOST = "127.0.0.1"
#: An agent that still starts may be blocked in the import of torch; it is not waited for.
_STARTING_GRACE_S = 0.3
_KILLED_S = 2.0
#: An agent that does not say in this time that its ranks have ended is blocked.
_ANSWER_S = 3.0
#: For agents to answer to a notebook that lets them go.
_LET_GO_S = 5.0
_STOPPED = "the pool did not start: it was stopped"


class _NoAnswerError(Exception):
    """An agent does not answer."""


class PoolStartup:
    """Starts, restarts and ends the processes of a pool.

    Args:
        options: what the user has chosen, checked.
        settings: limits and durations.
        pool_id: names the pool.
        use_arena: whether values may travel through shared memory.
        on_segment_released: called by the hub thread, see `HubThread`.
        sources: the code of the user; called by the hub thread.
        on_progress: gets the state of the pool some times a second while a start is awaited.
        kept: a pool that lives already, to be taken back by the first `start`.
    """

    def __init__(
        self,
        options: PoolOptions,
        settings: Settings,
        pool_id: str,
        *,
        use_arena: bool,
        on_segment_released: Callable[[int, int], None],
        sources: Sources,
        on_progress: Callable[[PoolSnapshot], None],
        kept: KeptPool | None = None,
    ) -> None:
        self._options = options
        self._settings = settings
        self._pool_id = pool_id
        self._use_arena = use_arena
        self._on_segment_released = on_segment_released
        self._sources = sources
        self.on_progress = on_progress
        #: For sockets and logs; agents on other machines have folders there.
        self._folder: Path | None = None
        self._hold_fd = -1
        self._kept = kept
        if kept is None and not options.has_machines:
            self._folder = pool_folder.make()
            self._hold_fd = pool_folder.hold(self._folder)
            pool_folder.remove_stale_folders(self._folder)
        self._local: list[LocalAgent] = []
        self._remote: list[RemoteAgent] = []
        self._engine: Engine | None = None
        self._engine_agents: EngineAgents | None = None
        self._joining: JoiningAgents | None = None  #: the wait for agents of other machines
        self._hub: HubThread | None = None
        self._generation = 0
        self._is_ending = False
        self._record = RecordWriter(options, pool_id, use_arena=use_arena)
        #: Of the hub of a pool that is taken back, before its first event.
        self.listeners: Listeners | None = None
        #: The cell that ran while there was no notebook, as the agents were sent it.
        self.left_cell: LeftCell | None = None

    def start(self, is_interrupted: Callable[[], bool] = lambda: False) -> HubThread:
        """Start agents and hub, and wait until all ranks are ready.

        Args:
            is_interrupted: polled, so that an interrupt leaves no unknown process.

        Returns:
            The hub of the pool, whose ranks are ready.

        Raises:
            KeyboardInterrupt: the user interrupted the start.
            PoolStartError: a process could not start, or the ranks were not ready in time.
            BadOptionError: an option turned out to be wrong on a rank.

        After each of these the caller has to call `end`, again if it was called meanwhile.
        """
        options = self._options
        lacking = too_few_descriptors(options.nproc_per_node, options.world_size)
        if lacking and not options.has_machines:
            raise PoolStartError(f"the pool did not start: {lacking}")
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return self._take_back(kept, is_interrupted)
        token = self._record.token = secrets.token_hex(16)
        if self._folder is None:
            self._hub = self._start_remote_agents(token)
        else:
            self._hub = self._start_local_agents(token, self._folder)
        self._wait_until_up(self._hub, is_interrupted)
        self._record.write(self._folder, self._local, options.keep)
        return self._hub

    def interrupted_text(self) -> str:
        """Return what is to be said when the user ends the start, before `end`."""
        if self._hub is None or self._joining is None:
            return "Next: run the cell again"
        return self._joining.interrupted_text(self._hub.snapshot.phase)

    def _take_back(self, kept: KeptPool, is_interrupted: Callable[[], bool]) -> HubThread:
        """Serve a pool that another notebook has started.

        Raises:
            KeyboardInterrupt: the user has interrupted the wait; the pool goes on alone.
            PoolAttachError: its agents do not answer.
        """
        taking = Taking(
            self._options,
            self._settings,
            self._record.take_over(kept.record),
            self._recovery_of,
            self._on_segment_released,
            self._store_place("" if kept.record.machines else _LOCAL_HOST),
            self.listeners,
            self._record.renew,
            self.on_progress,
        )
        with ExitStack() as undone:  # after a failure: no descriptor stays, and no process ends
            self._hold_fd = pool_folder.hold(kept.folder)
            undone.callback(self._release_folder)
            taken = taking.take(kept, is_interrupted, undone)
            taken.hub.start()
            undone.pop_all()
        self._hub, self._generation, self._engine = taken.hub, taken.generation, taken.engine
        if taken.engine is not None and taken.invitation is not None:
            self._engine_agents = EngineAgents(
                taken.engine, self._options.launcher, taken.invitation, self._options
            )
        self.left_cell = taken.left_cell
        self._local += taken.local
        self._remote += taken.remote
        self._record.machines = taken.machines
        if taken.machines is None:
            self._folder = kept.folder
        self._record.write(self._folder, self._local, kept.record.keep_s)
        return taken.hub

    def let_go(self, keep_s: float) -> None:
        """Let the processes go on without this one, for ``keep_s`` seconds.

        Raises:
            PoolAttachError: they cannot; the pool is as it was.
        """
        hub = self._hub
        if hub is None or not hub.is_alive:
            raise PoolAttachError("the pool has no hub any longer. Next: %ddp stop")
        before = self._record.last
        self._record.write(self._folder, self._local, keep_s)
        hub.ask_to_go_on(keep_s)
        problem = hub.let_go.wait(self._living_nodes, _LET_GO_S)
        if problem:
            self._record.put(before)
            raise PoolAttachError(f"the pool cannot be let go now: {problem}")
        hub.leave(DETACHED)
        self._record.write(self._folder, self._local, keep_s, is_attached=False)
        while self._local:
            self._local.pop().close()
        self._remote.clear()
        engine, self._engine = self._engine, None
        self._engine_agents = None
        if isinstance(engine, LastingEngine):
            engine.leave()
        self._release_folder()
        self._record.machines = None
        self._folder = None  # it is not ours any longer: `end` must not remove it

    def _living_nodes(self) -> set[int]:
        agents: list[LocalAgent | RemoteAgent] = [*self._local, *self._remote]
        return {agent.node for agent in agents if not agent.has_exited()}

    def _start_local_agents(self, token: str, folder: Path) -> HubThread:
        options = self._options
        self._record.socket_path = socket_path = folder / f"hub-{self._generation}.sock"
        self._hub = HubThread(
            HubChannel(socket_path, token, options.nnodes),
            token,
            self._make_machines(_LOCAL_HOST),
            self._on_segment_released,
        )
        for node in range(options.nnodes):
            if self._is_ending:
                raise PoolStartError(_STOPPED)
            self._local.append(self._start_agent(node))
        self._hub.start(self._local)
        return self._hub

    def _start_agent(self, node: int) -> LocalAgent:
        options, record = self._options, self._record
        launch = AgentLaunch(
            hub=ipc_address(record.socket_path),
            token=record.token,
            pool_id=self._pool_id,
            node=node,
            folder=str(self._folder),
            controller_pid=os.getpid(),
            settings=self._settings,
            keep_s=options.keep,
        )
        env = {**os.environ, **options.env, "OMP_NUM_THREADS": str(options.threads)}
        return LocalAgent(launch, env)

    def _start_remote_agents(self, token: str) -> HubThread:
        options = self._options
        engine = make_engine(options.launcher, engine_options(options))
        address = notebook_address(engine, options.address)
        try:
            # With --via, --port is that of the login node.
            channel = RemoteHubChannel(address, 0 if options.via else options.port)
        except OSError as error:
            next_step = (
                "another --port, or none: then any free one is taken"
                if error.errno in (errno.EADDRINUSE, errno.EACCES)
                else "an address of this machine with --address; it has "
                f"{', '.join(a for _, a in network.interfaces())}"
            )
            raise PoolStartError(
                f"the pool did not start: the notebook cannot listen on {address}, port "
                f"{options.port or '(any)'}: {error.strerror}. Next: {next_step}"
            ) from None
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        lobby = Lobby(options.nnodes, python)
        nodes = RemoteNodes(channel, token, lobby, self._settings, self._record.renew)
        self._hub = HubThread(
            channel, token, self._make_machines(""), self._on_segment_released, nodes
        )
        hosts = [*options.hosts[: options.nnodes], *[""] * options.nnodes]
        self._remote += [
            RemoteAgent(node, engine, hosts[node], outlives_starter=options.keep > 0)
            for node in range(options.nnodes)
        ]
        self._hub.start(remote=self._remote)
        self._engine = engine
        invitation = channel.invitation(
            self._pool_id, [address], token, options.tunnel, options.keep, cwd=options.cwd
        )
        self._engine_agents = EngineAgents(engine, options.launcher, invitation, options)
        engine.start(invitation)
        self._joining = JoiningAgents(
            engine,
            options.nnodes,
            f"the relay on {options.via}" if options.via else f"{address}:{channel.port}",
        )
        hub = self._hub
        self._record.machines = lambda: machines_record(hub, engine, channel, address)
        return self._hub

    def _make_machines(self, default_host: str) -> RecoveryMachine:
        host, port = self._store_place(default_host)
        return self._recovery_of(
            PoolMachine(self._spec(), self._settings, time.monotonic(), host=host, port=port)
        )

    def _store_place(self, default_host: str) -> tuple[str, int]:
        env = self._options.env
        return env.get("MASTER_ADDR", default_host), int(env.get("MASTER_PORT", "0"))

    def _recovery_of(self, pool: PoolMachine, first_number: int = 1) -> RecoveryMachine:
        diagnosis = GuardedDiagnosis(self._sources)
        return RecoveryMachine(
            pool,
            self._settings,
            diagnosis.diagnose,
            diagnosis.compare,
            first_number,
        )

    def replace(
        self,
        nodes: Collection[int],
        is_interrupted: Callable[[], bool],
        on_progress: Callable[[PoolSnapshot], None],
        *,
        command: str = "%ddp restart",
    ) -> None:
        """Put other agents in the places of those that have ended, and wait until they have come.

        Args:
            nodes: whose agents have ended.
            is_interrupted: polled; then no agent comes any more.
            on_progress: gets the state of the pool, with what is waited for.
            command: asks again for the same.

        Raises:
            KeyboardInterrupt: the user has interrupted the wait; the pool is as it was.
            PoolBrokenError: an agent cannot come, or did not; the pool is as it was.
        """
        hub, source = self._hub, self._engine_agents or LocalAgents(self._local, self._start_agent)
        if hub is None:
            return
        try:
            replace_nodes(source, nodes, hub, is_interrupted, on_progress, command=command)
        finally:  # some of them may have come
            self._record.rewrite(self._folder, self._local)

    def nodes_to_replace(self) -> frozenset[int]:
        """The nodes that a restart of the pool replaces: lost and silent ones, beside others.

        Empty: there are none, or the restart of the whole pool starts all agents again.
        """
        hub, agents = self._hub, self._engine_agents
        if hub is None or not hub.is_alive or agents is None or not agents.can_replace:
            return frozenset()
        nodes = hub.snapshot.lost_agents | hub.snapshot.silent_nodes
        return nodes if len(nodes) < self._options.nnodes else frozenset()

    def restart(self, is_interrupted: Callable[[], bool]) -> HubThread:
        """Start fresh ranks, and a fresh hub if an agent has ended.

        Args:
            is_interrupted: polled, so that an interrupt leaves no unknown process.

        Returns:
            The hub of the pool, whose ranks are ready.

        Raises:
            KeyboardInterrupt: the user interrupted the start.
            PoolStartError: a process could not start, or the ranks were not ready in time.
            BadOptionError: an option turned out to be wrong on a rank.
        """
        hub = self._hub
        for agent in self._local:
            agent.wake()
        agents: list[LocalAgent | RemoteAgent] = [*self._local, *self._remote]
        if hub is None or not hub.is_alive or any(agent.has_exited() for agent in agents):
            self._end_processes()
            self._generation += 1
            return self.start(is_interrupted)
        while not hub.start_results.empty():
            hub.start_results.get()  # what went wrong before is over
        hub.post(RestartRequested())
        try:
            self._wait_until_up(hub, is_interrupted, self._patience_s())
        except _NoAnswerError:
            self._end_processes()
            self._generation += 1
            return self.start(is_interrupted)
        self._generation = hub.snapshot.generation
        return hub

    def end(self) -> None:
        """End every process and remove the folder. May be called again if it was interrupted.

        A `start` or `restart` that waits in another thread raises.
        """
        self._is_ending = True
        try:
            self._end_processes()
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._record.remove_of_machines()
            self._release_folder()

    def _release_folder(self) -> None:
        if self._hold_fd >= 0:
            os.close(self._hold_fd)
            self._hold_fd = -1

    def _end_processes(self) -> None:
        hub = self._hub
        for agent in self._local:
            agent.wake()
        if hub is not None and hub.is_alive:
            is_starting = hub.snapshot.phase in (Phase.AGENTS, Phase.STORE, Phase.RANKS)
            grace_s = self._settings.stop_grace_s
            hub.shut_down(_STARTING_GRACE_S / 4 if is_starting else grace_s)
            hub.join(_STARTING_GRACE_S if is_starting else 4 * grace_s + 1.0)
        for agent in self._local:
            if not agent.has_exited():
                agent.kill()
                agent.kill_ranks(())
        for remote in self._remote:
            remote.kill()
        if hub is not None and hub.is_alive:
            hub.join(_KILLED_S)
        while self._local:
            self._local.pop().close()
        self._remote.clear()
        engine, self._engine = self._engine, None
        self._engine_agents = self._joining = None
        if engine is not None:
            engine.stop()

    def _spec(self) -> PoolSpec:
        return self._options.spec(
            pool_id=self._pool_id,
            generation=self._generation,
            init_file="" if self._folder is None else str(self._folder / "init"),
            sys_path=_user_paths(sys.path) if self._options.has_machines else sys.path,
            use_arena=self._use_arena,
        )

    def _patience_s(self) -> float:
        """Seconds that agents may take to end their ranks."""
        return 4 * self._settings.stop_grace_s + _ANSWER_S

    def _wait_until_up(
        self,
        hub: HubThread,
        is_interrupted: Callable[[], bool],
        stops_within_s: float = math.inf,
    ) -> None:
        """Wait for the ranks.

        Raises:
            _NoAnswerError: the agents have not ended the old ranks in ``stops_within_s``.
        """
        stops_until = time.monotonic() + stops_within_s
        while True:
            if is_interrupted():
                raise KeyboardInterrupt
            if time.monotonic() >= stops_until and hub.snapshot.phase is Phase.STOPPING:
                raise _NoAnswerError
            is_served = hub.is_alive
            if hub.snapshot.phase is not Phase.UP:  # else a restart has not begun yet
                self.on_progress(self._progress(hub))
            if self._joining is not None and hub.snapshot.phase is Phase.AGENTS:
                self._joining.check(hub.nodes.joined, hub.nodes.missing)
            try:
                # With a limit, so that an interrupt and the end of the hub are noticed.
                result = hub.start_results.get(timeout=0.2 if is_served else 0.0)
            except queue.Empty:
                if is_served:
                    continue
                result = AnnounceFailure("its hub has ended")
            if isinstance(result, AnnounceUp):
                return
            if self._is_ending:
                raise PoolStartError(_STOPPED)
            raise start_error(result, hub.snapshot, hub.nodes.facts, self._options)

    def _progress(self, hub: HubThread) -> PoolSnapshot:
        """Return the state of the pool, with what is known of agents that have not come."""
        snapshot = hub.snapshot
        if self._joining is None or snapshot.phase is not Phase.AGENTS:
            return snapshot
        nodes = hub.nodes
        waits_for = self._joining.state(nodes.joined, nodes.missing)
        return replace(snapshot, joined=nodes.joined, waits_for=waits_for)


def _user_paths(paths: Iterable[str]) -> list[str]:
    """The folders of modules that do not belong to the interpreter or its environment.

    Another machine has an interpreter of its own, with paths of its own.
    """
    own = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    return [
        path
        for path in paths
        if not path or not any(Path(path).resolve().is_relative_to(prefix) for prefix in own)
    ]
