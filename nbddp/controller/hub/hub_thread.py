"""The hub: a thread that owns the one socket to all agents.

Runs in: the notebook's process, thread ``nbddp-hub``, the only thread that touches the socket and
the state machine. Other threads hand in commands and take results out of queues. They read the
state of the pool from `HubThread.snapshot`, which never changes: the hub replaces it when the pool
has changed.

    any thread --post--> HubThread --> agents
    Run, Transfer  <--   HubThread <-- agents
    PoolSnapshot   <--   HubThread
"""

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from nbddp.controller.diagnosis import Report
from nbddp.controller.hub import helper_notices
from nbddp.controller.hub.agent_processes import Agents
from nbddp.controller.hub.attachment import Attachment
from nbddp.controller.hub.folded_events import ANSWERS, AnyEvent, folded
from nbddp.controller.hub.let_go import LetGo
from nbddp.controller.hub.listeners import Listeners, notice_of
from nbddp.controller.hub.remote_nodes import NodeView, RemoteNodes
from nbddp.controller.hub.replies import Replies
from nbddp.controller.hub.run import HubEvent, Run
from nbddp.controller.hub.sender_check import SenderCheck
from nbddp.controller.hub.transfer import OpenTransfers, Transfer
from nbddp.controller.hub.waiting_commands import Refusal, WaitingCommands, await_begin
from nbddp.controller.launch import LocalAgent, RemoteAgent
from nbddp.controller.recovery import RecoveryMachine
from nbddp.controller.state import (
    AbandonRequested,
    Action,
    AnnounceExit,
    AnnounceFailure,
    AnnounceUp,
    Diagnosed,
    EndRun,
    NoticeChanged,
    NotifyUser,
    Phase,
    RanksAnswered,
    RanksHeld,
    RanksRestarted,
    RebuildRequested,
    RunRequested,
    SendToAgent,
    SendToRanks,
    Stimulus,
    StopRequested,
    Tick,
    VerdictReached,
)
from nbddp.errors import InvalidTransitionError
from nbddp.wire.channels import AgentsChannel, Frame, Poller, Waker
from nbddp.wire.messages import (
    AgentAttached,
    AgentDetached,
    AgentEnded,
    AgentJoined,
    AgentRequest,
    ClearOutput,
    CommFromRank,
    Completed,
    DebugEvent,
    Debugged,
    DetachAgent,
    Display,
    Event,
    FaultStruck,
    HelperStopped,
    ImportChanged,
    InputRequest,
    Inspected,
    Interrupt,
    JobTimeLeft,
    LogRead,
    Output,
    RankAt,
    RankExited,
    RankRequest,
    Result,
    RunFinished,
    RunsFinished,
    RunsStarted,
    RunStarted,
    SegmentReleased,
    SettleRun,
    ShutdownAgent,
    ValueDescribed,
    ValuePulled,
    ValuePushed,
)
from nbddp.wire.rank_set import RankSet

_log = logging.getLogger(__name__)
#: Longest wait of the loop; agents are watched this often where there is no pidfd.
_TICK_S = 0.5
#: Events that are handled before they are routed: `folded` has joined the answers.
_HANDLED = (*ANSWERS, AgentJoined, AgentEnded, AgentAttached, JobTimeLeft)

StartResult = AnnounceUp | AnnounceFailure


class HubThread:
    """Routes messages between agents and the threads that wait for them.

    Args:
        channel: the connections to the agents; the hub thread owns it from now on.
        token: agents must show it.
        recovery: the state machines of the pool.
        on_segment_released: gets the number of a segment and the rank that no longer needs it.
        remote_nodes: the agents, if they are on other machines.
    """

    def __init__(
        self,
        channel: AgentsChannel,
        token: str,
        recovery: RecoveryMachine,
        on_segment_released: Callable[[int, int], None],
        remote_nodes: RemoteNodes | None = None,
    ) -> None:
        self._channel = channel
        self._remote_nodes = remote_nodes
        self._recovery = recovery
        self._machine = recovery.pool
        self._settings = recovery.settings
        #: The state of the pool for other threads: at least as new as any result that they got.
        self.snapshot = recovery.snapshot()
        self.trust = SenderCheck(token, recovery.pool)
        self._on_segment_released = on_segment_released
        self._waker = Waker()
        self._commands: deque[Callable[[], None]] = deque()
        self._agents = Agents()
        self._run: Run | None = None
        self._transfers = OpenTransfers(self.send_to_ranks, recovery, self._do)
        self._waiting = WaitingCommands(recovery, sees_processes=remote_nodes is None)
        self.replies = Replies(lambda: self.is_alive, self._end_reason, recovery.first_number)
        self.let_go = LetGo()
        #: Nodes for whose next agents a thread waits: it sets this, and no notice says they came.
        self.awaited: frozenset[int] = frozenset()
        self._verdict: VerdictReached | None = None
        self._stopping = False
        self._failure = ""
        #: `start` and `restart` wait here.
        self.start_results: queue.SimpleQueue[StartResult] = queue.SimpleQueue()
        self.listeners = Listeners()
        self._thread = threading.Thread(target=self._serve, name="nbddp-hub", daemon=True)

    # --- for other threads ---------------------------------------------------------------------

    def resume(self, run: Run | None, attachment: Attachment, agents: Agents) -> None:
        """Go on with what another hub has begun; called before `start`.

        Args:
            run: of the cell that goes on; None: there is none.
            attachment: what the agents that have come have said; those of others were lost before.
            agents: all of them.
        """
        self._run, self._agents = run, agents
        # First of all: else fresh ranks would be asked of them.
        for exited in agents.reap(self._machine, time.monotonic(), but=attachment.by_node):
            self._feed(exited)
        # Before any other: the first ones say who the agents are.
        for event in folded(attachment.early(time.monotonic()), self.trust.accepts):
            self._receive(*event)
        self._publish()

    def start(self, local: Sequence[LocalAgent] = (), remote: Sequence[RemoteAgent] = ()) -> None:
        """Start the thread; it watches these agents from now on, or those that `resume` got."""
        self._agents = Agents(local, remote) if local or remote else self._agents
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is alive; else no question gets an answer."""
        return self._thread.is_alive()

    @property
    def nodes(self) -> NodeView:
        """The nodes, if they are machines of their own."""
        return NodeView() if self._remote_nodes is None else self._remote_nodes.view

    @property
    def bad_frames(self) -> int:
        """Messages that were dropped because they were not valid."""
        return self._channel.bad_frames

    @property
    def last_report(self) -> Report | None:
        """The report of the latest verdict."""
        return None if self._verdict is None else self._verdict.report

    def post(self, stimulus: Stimulus) -> None:
        """Hand a stimulus to the state machine."""
        self._call(lambda: self._feed(stimulus))

    def apply(self, stimulus: Stimulus) -> None:
        """Hand a stimulus to the state machine, and wait until it is in force for all events."""
        is_done = threading.Event()
        self.post(stimulus)
        self._call(is_done.set)
        while self.is_alive and not is_done.wait(0.2):
            pass

    def begin(
        self,
        run: Run,
        requested: RunRequested,
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> Refusal | None:
        """Begin a cell, and wait until the hub thread has sent it.

        While the pool is repaired between cells, the cell waits, with a limit.

        Args:
            run: the cell.
            requested: the same for the ranks.
            is_interrupted: whether the user has pressed the stop button since.

        Returns:
            The reason if the pool refuses the cell, or the user has ended the wait; else None.
        """
        answer: queue.SimpleQueue[Refusal | None] = queue.SimpleQueue()
        has_asked = False

        def begin() -> None:
            nonlocal has_asked
            refusal = self._recovery.refusal(requested.ranks)
            if refusal is not None and not has_asked and self._recovery.may_rebuild_again:
                has_asked = True
                self._feed(RebuildRequested())
                self._waiting.when_whole(begin)
                return
            if refusal is None:
                self._run = run
                self._feed(requested)
                if self._remote_nodes is not None:
                    self._do_all(self._remote_nodes.silent_notices(time.monotonic()))
            self._publish()
            answer.put(None if refusal is None else Refusal(refusal))

        def give_up(refusal: Refusal) -> None:
            self._call(lambda: answer.put(refusal) if self._waiting.remove(begin) else None)

        self._call(lambda: self._waiting.when_settled(requested.ranks, begin))
        answered = await_begin(answer, self, give_up, is_interrupted, self._waiting)
        return Refusal(self._end_reason()) if answered is None else answered[0]

    def _end_reason(self) -> str:
        return f"its hub has ended{self._failure and ': '}{self._failure}"

    def send_to_ranks(
        self, ranks: RankSet, request: RankRequest, frames: Sequence[Frame] = ()
    ) -> None:
        """Send a request other than a cell."""
        self._call(lambda: self._send(ranks, request, frames))

    def do(self, action: SendToAgent | NotifyUser) -> None:
        """Send a request for an agent itself, or tell the user something."""
        self._call(lambda: self._do(action))

    def open_transfer(self, transfer: Transfer, at_prompt_of: str = "") -> None:
        """Route answers and exits to ``transfer``, or refuse it; call this before `send_for`.

        Args:
            transfer: collects the answers.
            at_prompt_of: the cell at whose prompts ranks answer; empty: they answer between cells.
        """

        def open_it() -> None:
            if transfer.is_closed:
                return  # the user has ended the wait while the pool was repaired
            is_in_cell = at_prompt_of and at_prompt_of == self._machine.active_run_id
            refusal = None if is_in_cell else self._recovery.transfer_refusal(transfer.ranks)
            if refusal is None:
                self._transfers.open(transfer)
            else:
                self._publish()
                transfer.refuse(refusal)

        self._call(lambda: self._waiting.when_settled(transfer.ranks, open_it))

    def interrupt_transfer(self, transfer: Transfer) -> None:
        """Interrupt the ranks that still evaluate a value that no thread waits for any longer."""

        def interrupt() -> None:
            for node, on_node in self._machine.ranks.by_node(transfer.ranks).items():
                self._do(SendToAgent(node, Interrupt(run_id=transfer.request_id, ranks=on_node)))

        self._call(interrupt)

    def send_for(
        self, transfer: Transfer, request: RankRequest, frames: Sequence[Frame] = ()
    ) -> None:
        """Send a request of a transfer to its ranks, unless the transfer was refused."""

        def send() -> None:
            if transfer.request_id in self._transfers:
                self._send(transfer.ranks, request, frames)

        self._call(lambda: self._waiting.when_whole(send))

    def close_transfer(self, transfer: Transfer) -> None:
        """Route no more answers, and release the memory of those that were not taken out."""
        for answer in transfer.close():
            self._transfers.release(answer)

        number = transfer.request_id
        self._call(lambda: self._waiting.when_whole(lambda: self._transfers.close(number)))

    def shut_down(self, grace_s: float) -> None:
        """Ask all agents to end; the thread ends when they have, or shortly after ``grace_s``."""

        def shut_down() -> None:
            self._stopping = True
            self._feed(StopRequested())
            self._send_to_agents(ShutdownAgent(grace_s=grace_s))
            if self._remote_nodes is not None:
                self._remote_nodes.dismiss_guests()

        self._call(shut_down)

    def settle(self, run_id: str) -> None:
        """Tell the agents that the end of a cell was shown: they keep it for no other notebook."""
        self._call(lambda: self._send_to_agents(SettleRun(run_id=run_id)))

    def ask_to_go_on(self, keep_s: float) -> None:
        """Ask the agents to go on without a hub for a time; `let_go` has their answers."""
        self.let_go.begin()
        self._call(lambda: self._send_to_agents(DetachAgent(keep_s=keep_s)))

    def replace_agent(self, agent: LocalAgent) -> None:
        """Watch an agent of this machine in the place of one that has ended."""
        self._call(lambda: self._agents.put(agent))

    def give_up(self, nodes: Iterable[int]) -> None:
        """Take silent nodes of other machines for lost."""
        if (remote := self._remote_nodes) is not None:
            self._call(lambda: remote.give_up(nodes, self._agents))

    def discard(self) -> None:
        """Close the sockets; from outside, of a hub that was never started."""
        self._channel.close()
        self._waker.close()

    def leave(self, by: str) -> None:
        """End the thread, and no agent: they go on without a hub."""

        def leave() -> None:
            self._stopping = True
            self._feed(StopRequested(by))
            self._agents = Agents()

        self._call(leave)
        self._thread.join()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; False: it is still alive after ``timeout_s``."""
        self._thread.join(timeout_s)
        return not self.is_alive

    def _call(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._waker.wake()

    # --- the thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        poller = Poller()
        poller.add(self._channel)
        poller.add(self._waker)
        self._agents.listen(poller)
        try:
            while not (self._stopping and self._agents.all_ended()):
                deadline = self._recovery.next_deadline() or math.inf
                ready = poller.wait(min(_TICK_S, max(0.0, deadline - time.monotonic())))
                self._waker.clear()
                for event in folded(self._channel.receive(), self.trust.accepts):
                    self._receive(*event)
                while self._commands:
                    self._commands.popleft()()
                self._agents.ignore(ready)
                self._look_at_agents()
                self._feed(Tick())
                self._waiting.call_due()
                self._publish()
        except Exception as error:  # a bug in nbddp: threads that wait must be notified
            self._failure = f"{type(error).__name__}: {error}"
            self.start_results.put(AnnounceFailure(f"the hub failed: {self._failure}"))
            raise
        finally:
            if self._run is not None:
                self._feed(AbandonRequested(self._run.run_id))
            self.discard()
            self.listeners.background(None)

    def _look_at_agents(self) -> None:
        for exited in self._agents.reap(self._machine, time.monotonic()):
            self._feed(exited)
        for stopped in self._agents.stopped(time.monotonic()):
            self._do_all(helper_notices.record_stop(stopped, self._machine))
        if self._remote_nodes is not None and not self._stopping:
            news = self._remote_nodes.look(time.monotonic(), self._agents, self._machine)
            self._recovery.silent.note_behind(self.nodes.behind)
            for seen in news:
                self._do(seen) if isinstance(seen, NotifyUser) else self._feed(seen)

    def _receive(self, node: int | None, event: AnyEvent, frames: list[bytes]) -> None:
        """Route an event; one that makes no sense is dropped, and harms no other."""
        try:
            if node is None or isinstance(event, RanksAnswered):
                self._route(event, frames)  # each message in it was accepted
            elif node < 0 or isinstance(event, AgentJoined | AgentEnded | JobTimeLeft):
                self._receive_of_machine(node, event)
            elif self.trust.accepts(node, event):
                self._route(event, frames)
        except Exception as error:  # noqa: BLE001 - the others need this thread
            _log.info("an event was dropped: %r", event, exc_info=True)
            self.trust.refuse(f"{type(event).__name__}: {type(error).__name__}: {error}")

    def _receive_of_machine(self, node: int, event: Event) -> None:
        """Handle a message that only agents on other machines send."""
        nodes, is_up = self._remote_nodes, self._machine.phase is Phase.UP
        if nodes is None:
            self.trust.refuse(f"{type(event).__name__} of an agent of this machine")
        elif failure := nodes.receive(node, event, self._agents, time.monotonic(), is_up=is_up):
            self.start_results.put(AnnounceFailure(failure))

    def _route(self, event: AnyEvent, frames: list[bytes]) -> None:  # noqa: PLR0912 - one per kind
        if isinstance(event, _HANDLED):
            return
        match event:
            case Output() | Display() | Result() | ClearOutput():
                if self._run is None or not self._run.put_output(event):
                    self.listeners.background(event)
            case InputRequest() | FaultStruck():
                if self._run is not None and event.run_id == self._machine.active_run_id:
                    self._run.put(event)
                self._feed(event)
            case RunStarted() | RunsStarted() | RankAt():
                self._put_in_run(event.run_id, event)
            case RunFinished() | RunsFinished() | ImportChanged():
                self._put_in_run(event.run_id, event)
                self._feed(event)
            case ValuePulled() | ValueDescribed() | ValuePushed():
                self._transfers.put(event, frames)
            case SegmentReleased():
                self._on_segment_released(event.segment, event.rank)
            case Completed() | Inspected() | Debugged() | LogRead():
                self.replies.put(event)
            case CommFromRank():
                self.listeners.comm(event, frames)
            case DebugEvent():
                self.listeners.debug(event)
            case HelperStopped():
                self._do_all(helper_notices.record_stop(event, self._machine))
            case AgentDetached():
                self.let_go.put(event)
            case _:
                self._feed(self.nodes.with_job_end(event, time.monotonic()))

    def _put_in_run(self, run_id: str | None, event: HubEvent) -> None:
        if self._run is not None and run_id == self._run.run_id:
            self._run.put(event)

    def _announce_exit(self, exited: RankExited, run_id: str | None) -> None:
        self._put_in_run(run_id, exited)
        self._transfers.rank_exited(exited)
        self.listeners.rank_exited(exited)

    def _feed(self, stimulus: Stimulus) -> None:
        if not self._stopping:
            news = helper_notices.notices(stimulus, self._machine, self.awaited, self.nodes.jobs)
            self._do_all(news)
        now = time.monotonic()
        try:
            actions = self._recovery.handle(stimulus, now)
        except InvalidTransitionError as error:
            # A bug in nbddp, or a broken rank: report it to a waiting start, and serve the others.
            self.trust.refuse(str(error))
            self._publish()
            if self._machine.phase is not Phase.UP:
                self.start_results.put(AnnounceFailure(f"{type(error).__name__}: {error}"))
            return
        self._recovery.put_off(time.monotonic() - now)
        if actions:  # they may wake other threads
            self._publish()
        self._do_all(actions)

    def _publish(self) -> None:
        """Replace the snapshot if the pool has changed.

        The hub calls this before it hands on a result of a change, and once in each iteration of
        its loop, so a change of many ranks makes few snapshots.
        """
        snapshot = self.nodes.added_to(self._recovery.snapshot())
        if snapshot != self.snapshot:
            self.snapshot = snapshot

    def _do_all(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case SendToAgent():
                self._channel.send_to_agent(action.node, action.request)
            case SendToRanks():
                self._send(action.ranks, action.request, ())
            case AnnounceUp() | AnnounceFailure():
                self.start_results.put(action)
            case AnnounceExit():
                self._announce_exit(action.exited, action.run_id)
            case EndRun():
                if self._run is not None:
                    run, self._run = self._run, None
                    run.end(action.outcome)
            case NoticeChanged() | VerdictReached() | RanksHeld():
                if isinstance(action, VerdictReached):
                    self._verdict = action
                if self._run is not None and action.run_id == self._run.run_id:
                    self._run.has_late_output |= isinstance(action, RanksHeld)
                    self._run.put(action)
            case Diagnosed() | RanksRestarted():
                self.replies.put(action)
            case NotifyUser():
                self.listeners.background(notice_of(action))

    def _send_to_agents(self, request: AgentRequest) -> None:
        for node in self._agents.nodes:
            self._channel.send_to_agent(node, request)

    def _send(self, ranks: RankSet, request: RankRequest, frames: Sequence[Frame]) -> None:
        self._channel.send_to_ranks(self._machine.ranks.by_node(ranks), request, frames)
