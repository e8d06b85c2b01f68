"""The agent: one per node, between the hub and the ranks of the node.

Runs in: the agent process, one thread, no torch. The agent owns the pipes, signals and exit status
of its ranks, so it can describe and end a rank that is stuck, stopped or dead.

    hub <--uplink-- Agent --downlink--> ranks
                      |<--pipes, pidfds-- ranks

Order is a promise: a display of a rank goes up after the text that the rank printed before it, and
before the text that it prints later (see `InOrder` in `nbddp.wire.events`).
"""

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

from nbddp.agent.detachment import Detachment, OtherMachine
from nbddp.agent.event_loop import EventLoop
from nbddp.agent.exit_reports import ExitReader, ends_with_agent, start_failure
from nbddp.agent.fork_server import END_SHOWS_S, ProcessMaker
from nbddp.agent.hub_link import HubLink
from nbddp.agent.leftovers import Leftovers, reap_orphans
from nbddp.agent.lifeline_thread import LifelineThread
from nbddp.agent.output_pipes import RankPipes
from nbddp.agent.rank_logs import read_log
from nbddp.agent.rank_process import RankProcess
from nbddp.agent.stack_dumps import StackDumps
from nbddp.agent.stall_monitor import StallMonitor
from nbddp.agent.store_process import StoreKeeper
from nbddp.agent.termination import Termination
from nbddp.errors import BadMessageError, BadOptionError
from nbddp.system import process_tree
from nbddp.wire import codec, messages
from nbddp.wire.channels import AgentDownlink, AgentUplink, Uplink
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.message_types import AgentEnd
from nbddp.wire.messages import (
    AdmitAgent,
    AgentEnded,
    AgentRequest,
    AttachAgent,
    DescribeValue,
    DetachAgent,
    DumpStack,
    Event,
    Execute,
    GreetAgent,
    InputReply,
    Interrupt,
    JobTimeLeft,
    KillRanks,
    OutputDrained,
    PullValue,
    RankSpawned,
    RanksStopped,
    ReadLog,
    RefuseAgent,
    SettleRun,
    ShutdownAgent,
    StartRanks,
    StartStore,
    StopRanks,
)

_TICK_S = 1.0
_ORPHAN_GRACE_S = 0.2
_POLL_S = 0.005
#: After some text was read, more text is collected for this long. Otherwise a rank that prints
#: would wake the agent for every line, which costs both of them time.
_GATHER_S = 0.002
#: Requests that are decoded: they run the user's code, which can be interrupted, or answer it.
_DECODED_REQUESTS = ("Execute", "PullValue", "DescribeValue", "InputReply")
#: The agent decodes this message of ranks; it forwards the others as they are.
_DECODED = "RunStarted"
#: Answers after which no code runs any longer for a request about values.
_ENDS_CODE = ("ValuePulled", "ValueDescribed")


class Agent:
    """Serves until the hub ends it or the notebook's process has ended.

    Args:
        launch: what it was given.
        maker: makes processes.
        lifeline_thread: reports the end of the notebook, and stopped helpers.
        uplink: the connection to the hub on another machine; None: it is on this machine.
        machine: of this agent; None: that of the notebook.
    """

    def __init__(
        self,
        launch: AgentLaunch,
        maker: ProcessMaker,
        lifeline_thread: LifelineThread,
        uplink: Uplink | None = None,
        machine: OtherMachine | None = None,
    ) -> None:
        self._launch = launch
        self._settings = launch.settings
        self._maker = maker
        self._lifeline_thread = lifeline_thread
        self._is_remote = uplink is not None
        channel = uplink or AgentUplink(launch.hub, launch.node, launch.token)
        self._uplink = HubLink(channel, launch.node, self._run_of)
        #: Why this agent ends although the hub has not asked for it; empty: it does not.
        self.end = AgentEnd("asked")
        self._downlink = AgentDownlink(launch.rank_socket)
        self._loop = EventLoop(channel, self._downlink)
        self.detachment = Detachment(launch, self._uplink, self._loop, lifeline_thread, machine)
        self._has_read = False
        self._ranks: dict[int, RankProcess] = {}
        self._store = StoreKeeper(
            launch.node, maker, self._loop, self._uplink.send, self._ends_as_well
        )
        self._stall_monitor = StallMonitor(launch.node, launch.settings.quiet_after_s)
        self._termination: Termination | None = None
        self._is_shutting_down = False
        self._helpers = process_tree.children_of(os.getpid())
        self._stack_dumps = StackDumps(
            self._loop, self._stall_monitor, self._helpers, self._uplink.send
        )
        self._leftovers = Leftovers()
        self._held_syncs: deque[tuple[int, int]] = deque()  # rank, number
        self._writes_wanted = False
        self._exits = ExitReader(launch.node, maker, self._ends_as_well)
        self._next_check_at = time.monotonic()
        self.is_orphan = False  #: the hub has ended, or does not know this agent any longer
        self._loop.listen(lifeline_thread.fd, self._read_lifeline_thread)

    def serve(self) -> None:
        """Run the loop; returns when everything that this agent started has ended."""
        self._uplink.send(self.detachment.hello())
        while not (self._is_shutting_down and self._termination is None):
            if self._has_read:
                self._has_read = False
                self._loop.wait_for_messages(_GATHER_S)
            ready = self._loop.wait(self._timeout())
            for ranks, frames in self._uplink.receive():
                self._handle_request(ranks, frames)
            for rank, tag, frames in self._downlink.receive():
                self._handle_rank_event(rank, tag, frames)
            self._loop.act(ready)
            self._watch_ranks()
            self._flush_due_text()
            self._advance_termination()
            self._leftovers.step()
            self._check_processes()
            self._check_hub()
            self._flush_uplink()
        if self._is_remote:
            self._uplink.send(AgentEnded(node=self._launch.node, end=self.end))
        self._uplink.uplink.close(linger_s=0.5)
        self._downlink.close()
        self._stall_monitor.close()

    # --- requests of the hub -------------------------------------------------------------------

    def _handle_request(self, ranks: tuple[int, ...], frames: list[bytes]) -> None:
        try:
            if not ranks:
                self._handle_agent_request(codec.decode_agent_request(frames[0]))
                return
            if codec.peek_type(frames[0]) in _DECODED_REQUESTS:
                request = codec.decode_rank_request(frames[0])
                if isinstance(request, Execute):
                    self._uplink.kept.begin_cell(request, time.monotonic())
                elif isinstance(request, InputReply):
                    self._uplink.kept.answer(request, ranks)
                self._uplink.expect(ranks, request)
                for process in (self._ranks[rank] for rank in ranks if rank in self._ranks):
                    if isinstance(request, Execute):
                        self._begin_cell(process, request)
                    elif isinstance(request, PullValue | DescribeValue):
                        process.pulling = request.request_id
                        process.await_begin(request.request_id)
        except BadMessageError:
            self._uplink.drop_bad_frame()
            return
        for rank in ranks:
            if rank in self._ranks:
                self._downlink.send(rank, frames)

    def _begin_cell(self, process: RankProcess, request: Execute) -> None:
        process.pipes.drain(time.monotonic())
        self._send_text(process.pipes, last=True)
        process.pipes.begin_cell(request.run_id)
        process.await_begin(request.run_id)

    def _handle_agent_request(self, request: AgentRequest) -> None:  # noqa: PLR0912 - one per kind
        match request:
            case StartStore():
                with self._recording_helpers():
                    self._store.start(request)
                self._lifeline_thread.watch_store(self._store.pid)
            case StartRanks():
                self._start_ranks(request)
            case KillRanks():
                for process in self._living(request.ranks):
                    process.kill(on_request=True)
            case DumpStack():
                for process in self._living(request.ranks):
                    self._stack_dumps.begin(request, process, time.monotonic())
            case ReadLog():
                self._uplink.send(read_log(self._launch, request))
            case Interrupt():
                for process in self._living(request.ranks):
                    if request.run_id in (process.pipes.run_id, process.pulling):
                        process.interrupt_in_cell(time.monotonic())
            case StopRanks():
                self._end_all(request.grace_s)
            case ShutdownAgent():
                self.shut_down(request.grace_s)
            case DetachAgent():
                self.detachment.let_go(request, "its ranks are being ended" * self._is_ending)
            case AttachAgent():
                self.detachment.take_back(request, {r: self._run_of(r) for r in self._ranks})
            case SettleRun():
                self._uplink.kept.settle(request.run_id)
            case AdmitAgent() | GreetAgent():
                pass  # a replay of what made this agent
            case RefuseAgent():
                self.end_without_hub(AgentEnd("refused"))
            case _:
                assert_never(request)

    def _run_of(self, rank: int) -> str | None:
        return self._ranks[rank].pipes.run_id if rank in self._ranks else None

    @property
    def _is_ending(self) -> bool:
        return self._is_shutting_down or self._termination is not None

    def _living(self, ranks: tuple[int, ...]) -> list[RankProcess]:
        return [self._ranks[rank] for rank in ranks if rank in self._ranks]

    def _start_ranks(self, request: StartRanks) -> None:
        self._uplink.kept.begin_start(request)
        ranks_per_node = request.pool.nproc_per_node
        first = self._launch.node * ranks_per_node
        for rank in request.ranks or range(first, first + ranks_per_node):
            try:
                self._start_rank(request, rank - first)
            except Exception as error:  # noqa: BLE001 - any failure must reach the notebook
                if ends_with_agent(error, self._maker, self._ends_as_well):
                    return
                self._uplink.send(start_failure(self._launch.node, rank, error))

    def _start_rank(self, request: StartRanks, local_rank: int) -> None:
        rank = self._launch.node * request.pool.nproc_per_node + local_rank
        if not 0 <= local_rank < request.pool.nproc_per_node:
            raise BadOptionError(f"rank {rank} does not belong to node {self._launch.node}")
        if rank in self._ranks:
            raise BadOptionError(f"rank {rank} already runs, pid {self._ranks[rank].pid}")
        if self._termination is not None:
            raise BadOptionError(f"rank {rank} is not started: the ranks are being ended")
        records_fd = self._stall_monitor.prepare(request.pool, local_rank)
        with self._recording_helpers():
            process = RankProcess.start(self._maker, self._launch, request, local_rank, records_fd)
        self._ranks[rank] = process
        self._downlink.admit(rank, process.identity)
        for fd in process.pipes.fds():
            self._loop.listen(fd, lambda fd=fd: self._read(process, fd))  # type: ignore[misc]  # mypy cannot type a lambda with a default
        self._loop.listen(process.pipes.stacks.read_fd, lambda: self._read_stacks(process))
        self._loop.listen(process.process.exit_fd, lambda: self._handle_exit(process))
        self._uplink.send(
            RankSpawned(
                rank=rank, node=self._launch.node, pid=process.pid, log_path=str(process.log_path)
            )
        )

    @contextmanager
    def _recording_helpers(self) -> Iterator[None]:
        """Record the children that start inside this block as helpers, which are no orphans.

        Helpers are the fork server, the resource tracker and spawned ranks. A child that existed
        before may be an orphan: a dead rank may have left it when another rank takes its place.
        """
        before = process_tree.children_of(os.getpid())
        try:
            yield
        finally:
            self._helpers |= process_tree.children_of(os.getpid()) - before

    # --- ranks ---------------------------------------------------------------------------------

    def _handle_rank_event(self, rank: int, tag: codec.Tag, frames: list[bytes]) -> None:
        process = self._ranks.get(rank)
        if process is None:
            return  # a late message of a rank that was already given up
        pipes = process.pipes
        event: Event | None = None
        if tag.type == _DECODED:
            try:
                event = codec.decode_event(frames[0])
            except BadMessageError:
                self._downlink.bad_frames += 1
                return
        if tag.sync:
            pipes.drain(time.monotonic())
            self._send_text(pipes, followed=True)
        if tag.type == messages.RankReady.__name__:
            process.is_ready = True
        if isinstance(event, messages.RunStarted):
            process.note_begun(event.run_id)
        if tag.type in _ENDS_CODE and tag.request_id == process.pulling:
            process.pulling = ""
        if tag.type == messages.RunFinished.__name__:
            pipes.drain(time.monotonic())
            self._send_text(pipes, last=True)
            pipes.run_id = None
        self._uplink.forward(rank, tag, list(frames))
        if tag.sync:
            self._held_syncs.append((rank, tag.sync))
            self._release_syncs()

    def _release_syncs(self) -> None:
        """Answer ranks that wait for `OutputDrained`, unless the notebook is far behind.

        A rank waits for `OutputDrained` after each display, so a flood of displays waits in the
        rank instead of filling the agent's memory.
        """
        if self._uplink.backlog_bytes > self._settings.output_backlog_bytes:
            return
        while self._held_syncs:
            rank, number = self._held_syncs.popleft()
            if rank in self._ranks:
                self._downlink.send(rank, [codec.encode(OutputDrained(number=number))])

    def _read(self, process: RankProcess, fd: int) -> None:
        if process.pipes.read(fd, time.monotonic()):
            self._has_read = True
        else:
            self._loop.ignore(fd)  # the rank has ended, which must be reported without delay
        if process.pipes.waiting_bytes >= self._settings.output_batch_bytes:
            self._send_text(process.pipes)

    def _read_stacks(self, process: RankProcess) -> None:
        if not process.pipes.stacks.read():
            self._loop.ignore(process.pipes.stacks.read_fd)

    def _send_text(self, pipes: RankPipes, *, last: bool = False, followed: bool = False) -> None:
        too_much = self._uplink.backlog_bytes > self._settings.output_backlog_bytes
        for output in pipes.take(drop=too_much, last=last, followed=followed):
            self._uplink.send(output)

    def _handle_exit(self, process: RankProcess) -> None:
        """Report the exit at once, because others wait for this rank; end its leftovers later."""
        rank, pipes = process.rank, process.pipes
        for fd in (process.process.exit_fd, pipes.stacks.read_fd, *pipes.fds()):
            self._loop.ignore(fd)
        exit_code = process.collect()
        pipes.drain(time.monotonic())
        self._send_text(pipes, last=True)
        _, operations = self._stall_monitor.records(rank)
        last_line = self._stall_monitor.last_line(rank)
        self._uplink.send(self._exits.describe(process, exit_code, operations, last_line))
        del self._ranks[rank]
        self._stack_dumps.forget(rank)
        self._stall_monitor.forget(rank)
        self._held_syncs = deque(held for held in self._held_syncs if held[0] != rank)
        pipes.close()
        if self._termination is None:
            self._leftovers.add(process)

    def _watch_ranks(self) -> None:
        now = time.monotonic()
        for process in self._ranks.values():
            process.interrupt_if_due(now)
        self._stack_dumps.advance(now)
        quiet = self._stall_monitor.check(self._ranks, now)
        if quiet is not None:
            self._uplink.send(quiet)
        for place in self._stall_monitor.places(self._ranks, now):
            self._uplink.send(place)

    # --- time ----------------------------------------------------------------------------------

    def _timeout(self) -> float:
        deadlines = [
            process.pipes.flush_at
            for process in self._ranks.values()
            if process.pipes.flush_at is not None
        ]
        deadlines += [self._uplink.due_at, *(p.interrupt_at for p in self._ranks.values())]
        if not self._leftovers.is_empty:
            return 0.0
        if self._termination is not None:
            deadlines.append(self._termination.next_step_at)
        left = (
            min(*deadlines, self._stall_monitor.next_at, self._stack_dumps.next_at)
            - time.monotonic()
        )
        return max(0.0, min(left, _TICK_S))

    def _flush_due_text(self) -> None:
        """Send the text of all ranks, in the order of ranks, once the text of one rank is due.

        Equal lines then arrive together and fold, and different ones are read in order.
        """
        waiting = [p.pipes for p in self._ranks.values() if p.pipes.flush_at is not None]
        now = time.monotonic()
        if any(pipes.flush_at is not None and pipes.flush_at <= now for pipes in waiting):
            for pipes in waiting:
                self._send_text(pipes)

    def _flush_uplink(self) -> None:
        all_sent = self._uplink.flush()
        if all_sent and (behind := [p.pipes for p in self._ranks.values() if p.pipes.has_left_out]):
            for pipes in behind:
                self._send_text(pipes)
            all_sent = self._uplink.flush()
        self._release_syncs()
        if all_sent == self._writes_wanted:
            self._writes_wanted = not all_sent
            self._loop.also_writable(self._uplink.uplink, self._writes_wanted)

    # --- the end -------------------------------------------------------------------------------

    def _check_processes(self) -> None:
        """Collect orphans, and record the descendants of ranks, once a second."""
        now = time.monotonic()
        if now < self._next_check_at:
            return
        self._next_check_at = now + _TICK_S
        reap_orphans(self._helpers)
        for process in self._ranks.values():
            process.record_descendants()

    def _read_lifeline_thread(self) -> None:
        for news in self._lifeline_thread.news():
            if isinstance(news, JobTimeLeft):
                self.detachment.note_job(news.left_s)
            self._uplink.send(news)
        if self.detachment.ends_with_notebook(is_ending=self._is_ending):
            self.end_without_hub(AgentEnd("notebook-ended"))

    def _check_hub(self) -> None:
        if end := self.detachment.check_connection(is_ending=self._is_ending):
            self.end_without_hub(end)

    @property
    def owns_folder(self) -> bool:
        """Whether this agent has to remove the pool's folder at its end: no notebook will."""
        return self._is_remote or self.is_orphan

    def end_without_hub(self, end: AgentEnd) -> None:
        """End all ranks, then the agent."""
        if not self.is_orphan:
            self.is_orphan = True
            self.end = end
            self.shut_down(_ORPHAN_GRACE_S)

    def _ends_as_well(self, *, is_of_sigterm: bool) -> AgentEnd | None:
        """Return why this agent ends, which a process that has ended shares; None: it does not.

        Args:
            is_of_sigterm: that process got SIGTERM. The scheduler of a job sends it to all
                processes of the job, to this one perhaps a moment later.
        """
        give_up_at = time.monotonic() + END_SHOWS_S
        # A rank that this agent ends itself gets SIGTERM from it.
        may_follow = is_of_sigterm and self._is_remote and self._termination is None
        while may_follow and not self.is_orphan and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        return self.end if self.is_orphan else None

    def shut_down(self, grace_s: float) -> None:
        """End all ranks, then the agent."""
        self._is_shutting_down = True
        self._end_all(grace_s)

    def _end_all(self, grace_s: float) -> None:
        if self._termination is None:
            self._store.expect_end()
            self._termination = Termination(
                ask=lambda rank: self._downlink.send(rank, [codec.encode(messages.Shutdown())]),
                grace_s=grace_s,
                now=time.monotonic(),
            )

    def _advance_termination(self) -> None:
        if self._termination is None:
            return
        if not self._termination.advance(self._ranks, self._helpers, time.monotonic()):
            return
        self._store.kill()
        self._lifeline_thread.watch_store(0)
        self._maker.end_if_held()
        self._termination = None
        self._leftovers.clear()
        self._uplink.send(RanksStopped(node=self._launch.node))
