"""The agent: one per node, between the hub and the ranks of the node.

Runs in: the agent process, one thread, no torch. It owns the pipes, signals and exit status of its
ranks; a rank that is stuck, stopped or dead can still be described and ended.

    hub <--uplink-- Agent --downlink--> ranks
                      |<--pipes, pidfds-- ranks

Order is a promise: what a rank shows goes up after the text that it printed before, and before the
text that it prints later (see `InOrder` in `nbddp.wire.events`).
"""

import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

from nbddp.agent.event_loop import EventLoop
from nbddp.agent.exit_reports import ExitReader, start_failure
from nbddp.agent.fork_server import ProcessMaker
from nbddp.agent.output_pipes import RankPipes
from nbddp.agent.parent_watch import ParentWatch
from nbddp.agent.rank_process import RankProcess, Remains, reap_orphans
from nbddp.agent.stack_dumps import StackDumps
from nbddp.agent.stall_monitor import StallMonitor
from nbddp.agent.store_process import StoreKeeper
from nbddp.agent.termination import Termination
from nbddp.errors import BadMessageError, BadOptionError
from nbddp.system import process_tree
from nbddp.wire import codec, messages
from nbddp.wire.channels import AgentDownlink, AgentUplink
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.messages import (
    AgentHello,
    AgentRequest,
    DescribeValue,
    Event,
    Execute,
    Interrupt,
    KillRanks,
    Peek,
    PullValue,
    RankSpawned,
    RanksStopped,
    ShutdownAgent,
    StartRanks,
    StartStore,
    StopRanks,
    Synced,
)

_TICK_S = 1.0
#: After some text was read, more may come together for so long. Without it a rank that prints wakes
#: the agent for every line, and both pay for it.
_GATHER_S = 0.002
#: Requests that run code of the user's, which can be interrupted.
_RUNS_CODE = ("Execute", "PullValue", "DescribeValue")
#: Of what ranks send, the agent reads this; the rest it passes on.
_READ = "RunStarted"
#: Answers after which no code runs any longer for a request about values.
_ENDS_CODE = ("ValuePulled", "ValueDescribed")


class Agent:
    """Serves until it is told to end or the notebook's process is gone."""

    def __init__(self, launch: AgentLaunch, maker: ProcessMaker, lifeline: ParentWatch) -> None:
        self._launch = launch
        self._settings = launch.settings
        self._maker = maker
        self._lifeline = lifeline
        self._uplink = AgentUplink(launch.hub, launch.node, launch.token)
        self._downlink = AgentDownlink(launch.rank_socket)
        self._loop = EventLoop(self._uplink, self._downlink)
        self._has_read = False
        self._ranks: dict[int, RankProcess] = {}
        self._store = StoreKeeper(launch.node, maker, self._loop, self._uplink.send)
        self._watch = StallMonitor(launch.node, launch.settings.quiet_after_s)
        self._ending: Termination | None = None
        self._is_last_ending = False
        self._helpers = process_tree.children_of(os.getpid())
        self._peeks = StackDumps(self._loop, self._watch, self._helpers, self._uplink.send)
        self._remains = Remains()
        self._held_syncs: deque[tuple[int, int]] = deque()  # rank, number
        self._writes_wanted = False
        self._exits = ExitReader(maker)
        self._next_check_at = time.monotonic()
        #: The notebook's process has ended: nobody else will remove the pool's folder.
        self.is_orphan = False
        self._loop.listen(lifeline.fd, self._hear_lifeline)

    def serve(self) -> None:
        """The loop; returns when everything this agent started has ended."""
        self._uplink.send(
            AgentHello(
                version=messages.PROTOCOL_VERSION,
                token=self._launch.token,
                node=self._launch.node,
                pid=os.getpid(),
                host=socket.gethostname(),
            )
        )
        while not (self._is_last_ending and self._ending is None):
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
            self._advance_ending()
            self._remains.step()
            self._look_around()
            self._flush_uplink()
        self._uplink.close(linger_s=0.5)
        self._downlink.close()
        self._watch.close()

    # --- requests of the hub -------------------------------------------------------------------

    def _handle_request(self, ranks: tuple[int, ...], frames: list[bytes]) -> None:
        try:
            if not ranks:
                self._handle_own(codec.decode_agent_request(frames[0]))
                return
            if codec.peek_type(frames[0]) in _RUNS_CODE:
                request = codec.decode_rank_request(frames[0])
                for process in (self._ranks[rank] for rank in ranks if rank in self._ranks):
                    if isinstance(request, Execute):
                        self._begin_cell(process, request)
                    elif isinstance(request, PullValue | DescribeValue):
                        process.pulling = request.request_id
                        process.await_begin(request.request_id)
        except BadMessageError:
            self._uplink.bad_frames += 1
            return
        for rank in ranks:
            if rank in self._ranks:
                self._downlink.send(rank, frames)

    def _begin_cell(self, process: RankProcess, request: Execute) -> None:
        process.pipes.drain(time.monotonic())
        self._send_text(process.pipes, last=True)
        process.pipes.begin_cell(request.run_id)
        process.await_begin(request.run_id)

    def _handle_own(self, request: AgentRequest) -> None:
        match request:
            case StartStore():
                with self._knowing_helpers():
                    self._store.start(request)
                self._lifeline.watch_store(self._store.pid)
            case StartRanks():
                self._start_ranks(request)
            case KillRanks():
                for process in self._living(request.ranks):
                    process.kill(ended_by="%ddp restart -r")
            case Peek():
                for process in self._living(request.ranks):
                    self._peeks.begin(request, process, time.monotonic())
            case Interrupt():
                for process in self._living(request.ranks):
                    if request.run_id in (process.pipes.run_id, process.pulling):
                        process.interrupt_in_cell(time.monotonic())
            case StopRanks():
                self._end_all(request.grace_s)
            case ShutdownAgent():
                self.shut_down(request.grace_s)
            case _:
                assert_never(request)

    def _living(self, ranks: tuple[int, ...]) -> list[RankProcess]:
        return [self._ranks[rank] for rank in ranks if rank in self._ranks]

    def _start_ranks(self, request: StartRanks) -> None:
        here = request.pool.nproc_per_node
        first = self._launch.node * here
        for rank in request.ranks or range(first, first + here):
            try:
                self._start_rank(request, rank - first)
            except Exception as error:  # noqa: BLE001 - whatever it was, the notebook must hear of it
                self._uplink.send(start_failure(self._launch.node, rank, error))

    def _start_rank(self, request: StartRanks, local_rank: int) -> None:
        rank = self._launch.node * request.pool.nproc_per_node + local_rank
        if not 0 <= local_rank < request.pool.nproc_per_node:
            raise BadOptionError(f"rank {rank} does not belong to node {self._launch.node}")
        if rank in self._ranks:
            raise BadOptionError(f"rank {rank} is still there, pid {self._ranks[rank].pid}")
        if self._ending is not None:
            raise BadOptionError(f"rank {rank} is not started: the ranks are being ended")
        records_fd = self._watch.prepare(request.pool, local_rank)
        with self._knowing_helpers():
            process = RankProcess.start(self._maker, self._launch, request, local_rank, records_fd)
        self._ranks[rank] = process
        self._downlink.admit(rank, process.identity)
        for fd in process.pipes.fds():
            self._loop.listen(fd, lambda fd=fd: self._read(process, fd))  # type: ignore[misc]  # mypy cannot type a lambda with a default
        self._loop.listen(process.pipes.faults.read_fd, lambda: self._read_fault(process))
        self._loop.listen(process.process.exit_fd, lambda: self._see_exit(process))
        self._uplink.send(
            RankSpawned(
                rank=rank, node=self._launch.node, pid=process.pid, log_path=str(process.log_path)
            )
        )

    @contextmanager
    def _knowing_helpers(self) -> Iterator[None]:
        """Fork server, resource tracker and spawned ranks, which start inside, are no orphans.

        What is there before may be: a dead rank's, when another takes its place.
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
            return  # the last words of a rank that was already given up
        pipes = process.pipes
        event: Event | None = None
        if tag.type == _READ:
            try:
                event = codec.decode_event(frames[0])
            except BadMessageError:
                self._downlink.bad_frames += 1
                return
        if tag.sync:
            pipes.drain(time.monotonic())
            self._send_text(pipes)
        if tag.type == messages.RankReady.__name__:
            process.is_ready = True
        if isinstance(event, messages.RunStarted):
            process.see_begin(event.run_id)
        if tag.type in _ENDS_CODE and tag.request_id == process.pulling:
            process.pulling = ""
        if tag.type == messages.RunFinished.__name__:
            pipes.drain(time.monotonic())
            self._send_text(pipes, last=True)
            pipes.run_id = None
        self._uplink.forward(list(frames))
        if tag.sync:
            self._held_syncs.append((rank, tag.sync))
            self._release_syncs()

    def _release_syncs(self) -> None:
        """Let ranks go on, unless the notebook is far behind.

        A rank waits for `Synced` after each display, so a flood of displays waits here, in the
        rank, instead of filling the agent's memory.
        """
        if self._uplink.backlog_bytes > self._settings.output_backlog_bytes:
            return
        while self._held_syncs:
            rank, number = self._held_syncs.popleft()
            if rank in self._ranks:
                self._downlink.send(rank, [codec.encode(Synced(number=number))])

    def _read(self, process: RankProcess, fd: int) -> None:
        if process.pipes.read(fd, time.monotonic()):
            self._has_read = True
        else:
            self._loop.ignore(fd)  # the rank has ended, which must be told without delay
        if process.pipes.waiting_bytes >= self._settings.output_batch_bytes:
            self._send_text(process.pipes)

    def _read_fault(self, process: RankProcess) -> None:
        if not process.pipes.faults.read():
            self._loop.ignore(process.pipes.faults.read_fd)

    def _send_text(self, pipes: RankPipes, *, last: bool = False) -> None:
        too_much = self._uplink.backlog_bytes > self._settings.output_backlog_bytes
        for output in pipes.take(drop=too_much, last=last):
            self._uplink.send(output)

    def _see_exit(self, process: RankProcess) -> None:
        """Tell it at once: others wait for this rank. What it left behind ends afterwards."""
        rank, pipes = process.rank, process.pipes
        for fd in (process.process.exit_fd, pipes.faults.read_fd, *pipes.fds()):
            self._loop.ignore(fd)
        exit_code = process.collect()
        pipes.drain(time.monotonic())
        self._send_text(pipes, last=True)
        self._uplink.send(self._exits.describe(process, exit_code))
        del self._ranks[rank]
        self._peeks.forget(rank)
        self._watch.forget(rank)
        self._held_syncs = deque(held for held in self._held_syncs if held[0] != rank)
        pipes.close()
        if self._ending is None:
            self._remains.add(process)

    def _watch_ranks(self) -> None:
        now = time.monotonic()
        for process in self._ranks.values():
            process.interrupt_if_due(now)
        self._peeks.advance(now)
        quiet = self._watch.look(self._ranks, now)
        if quiet is not None:
            self._uplink.send(quiet)

    # --- time ----------------------------------------------------------------------------------

    def _timeout(self) -> float:
        deadlines = [
            process.pipes.flush_at
            for process in self._ranks.values()
            if process.pipes.flush_at is not None
        ]
        deadlines += [process.interrupt_at for process in self._ranks.values()]
        if not self._remains.is_empty:
            return 0.0
        if self._ending is not None:
            deadlines.append(self._ending.next_step_at)
        left = min(*deadlines, self._watch.next_at, self._peeks.next_at) - time.monotonic()
        return max(0.0, min(left, _TICK_S))

    def _flush_due_text(self) -> None:
        """Once text of one rank is due, that of all goes, in the order of ranks.

        Then equal lines arrive together and fold, and different ones read in order.
        """
        waiting = [p.pipes for p in self._ranks.values() if p.pipes.flush_at is not None]
        now = time.monotonic()
        if any(pipes.flush_at is not None and pipes.flush_at <= now for pipes in waiting):
            for pipes in waiting:
                self._send_text(pipes)

    def _flush_uplink(self) -> None:
        all_sent = self._uplink.flush()
        self._release_syncs()
        if all_sent == self._writes_wanted:
            self._writes_wanted = not all_sent
            self._loop.also_writable(self._uplink, self._writes_wanted)

    # --- the end -------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Once a second: orphans and descendants of ranks."""
        now = time.monotonic()
        if now < self._next_check_at:
            return
        self._next_check_at = now + _TICK_S
        reap_orphans(self._helpers)
        for process in self._ranks.values():
            process.see_descendants()

    def _hear_lifeline(self) -> None:
        for news in self._lifeline.news():
            self._uplink.send(news)
        if self._lifeline.is_cut and not self.is_orphan:
            self.is_orphan = True
            self.shut_down(grace_s=0.2)

    def shut_down(self, grace_s: float) -> None:
        """End all ranks, then the agent."""
        self._is_last_ending = True
        self._end_all(grace_s)

    def _end_all(self, grace_s: float) -> None:
        if self._ending is None:
            self._store.expect_end()
            self._ending = Termination(
                ask=lambda rank: self._downlink.send(rank, [codec.encode(messages.Shutdown())]),
                grace_s=grace_s,
                now=time.monotonic(),
            )

    def _advance_ending(self) -> None:
        if self._ending is None:
            return
        if not self._ending.advance(self._ranks, self._helpers, time.monotonic()):
            return
        self._store.kill()
        self._lifeline.watch_store(0)
        self._maker.end_if_held()
        self._ending = None
        self._remains.clear()
        self._uplink.send(RanksStopped(node=self._launch.node))
