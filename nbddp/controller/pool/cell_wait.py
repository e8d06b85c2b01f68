"""Waits for a cell: shows its events, asks its questions, passes interrupts on.

Runs in: the thread that runs the cell, usually the kernel's main thread, so that the parent header,
``%%capture`` and stdin are ordinary.
"""

import signal
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbddp.controller.diagnosis import PerRank
from nbddp.controller.hub import CellEvent, Run
from nbddp.controller.pool.view_protocol import CellView
from nbddp.controller.prompts import (
    DebuggerTurns,
    Free,
    Sight,
    StepTurns,
    StuckTurns,
)
from nbddp.controller.state import (
    NoticeChanged,
    RankResult,
    RanksHeld,
    RunOutcome,
    VerdictReached,
)
from nbddp.errors import CellInterruptedError
from nbddp.wire.fault_types import missed_text
from nbddp.wire.mesh_ranks import MeshesByRank
from nbddp.wire.messages import InputReply, InputRequest, RankExited, RunFinished
from nbddp.wire.rank_set import Rank, RankSet
from nbddp.wire.step_replies import StepReply, StepVerb

if TYPE_CHECKING:
    from nbddp.controller.early_interrupts import EarlyInterrupts

#: Longest wait at once: Python runs signal handlers between waits.
_WAIT_S = 0.2
#: Events that come in so short a time are shown together.
_MORE_S = 0.01
#: After the second interrupt the prompt comes back, whether or not the hub answers.
_GIVE_UP_S = 1.0
#: Questions that come within this time are asked in the order of ranks.
_TOGETHER_S = 0.1
#: Events that are held back at most, until all ranks have answered a command for all of them.
_MAX_HELD = 1000
#: A rank asks no more.
_LEAVE = StepReply(StepVerb.LEAVE)


class CellWait:
    """Waits for one run.

    Args:
        run: the run to wait for.
        view: shows its events.
        interrupt: called for the first SIGINT; must not block.
        abandon: called for the second; makes the run end at once, if the hub is well.
        reply: sends the answer to a question.
        explain: adds to the outcome what is known when the cell has ended.
        describe: tells what each rank does now.
        look: shows facts about all ranks in the view.
        paused: gets a rank, the time at which it has stopped, and that of the answer.
        stopped: gets each request of a rank that has stopped before an operation.
        free: frees ranks that are held by a deadlock.
        replied: gets the commands for stopped ranks, and lines for debuggers, before they are sent.
        compare: shows in the view where a value differs between ranks at their prompts.
        numbers: tells the number of the last collective of each group, on each rank.
        meshes: the meshes that each rank of the pool has reported; None: only the ranks of the run.
    """

    def __init__(
        self,
        run: Run,
        view: CellView,
        *,
        interrupt: Callable[[], None],
        abandon: Callable[[], None],
        reply: Callable[[int, InputReply], None],
        explain: Callable[[RunOutcome], RunOutcome] = lambda outcome: outcome,
        describe: Callable[[], Mapping[Rank, PerRank]] = dict,
        look: Callable[[CellView, Sight], None] = lambda view, sight: None,
        paused: Callable[[int, int, int], None] = lambda rank, begin_ns, end_ns: None,
        stopped: Callable[[InputRequest], None] = lambda request: None,
        free: Callable[[Free], None] = lambda free: None,
        replied: Callable[[Sequence[tuple[InputRequest, StepReply | str]]], None] = lambda _: None,
        compare: Callable[[CellView, str, RankSet], None] = lambda view, expression, ranks: None,
        numbers: Callable[[], Mapping[Rank, Mapping[str, int]]] = dict,
        meshes: MeshesByRank | None = None,
    ) -> None:
        self._run = run
        self._view = view
        self._interrupt = interrupt
        self._abandon = abandon
        self._reply = reply
        self._explain = explain
        self._describe = describe
        self._look = look
        self._paused = paused
        self._stopped = stopped
        self._free = free
        self._replied = replied
        self._compare = compare
        self._numbers = numbers
        self._interrupts = 0
        self._interrupted_at = 0  #: number of events that had come by then
        self._given_up_at = 0.0  #: the time after which nothing is waited for; 0: not given up
        self._is_main = threading.current_thread() is threading.main_thread()
        self._questions: list[tuple[InputRequest, int]] = []  # to be asked; events until each
        self._ask_at = 0.0
        self._acted_at = 0.0  #: the last time of `_act`
        self._turns = DebuggerTurns(run.ranks)
        about = run.ranks, len(meshes or run.ranks), meshes or {}
        self._steps = StepTurns(*about)
        self._stuck = StuckTurns(*about)
        self._held: list[tuple[Rank, CellEvent]] = []  # of `_gathered`
        self._is_asking = False
        self._break_is_due = False  #: the next SIGINT is ours: the run has ended during a question
        self._break_lock = threading.Lock()  # between a question's end and `_break_question`

    def wait(self, early: "EarlyInterrupts | None" = None) -> RunOutcome:
        """Show events until the run has ended.

        An interrupt is handled in the signal handler, not by an exception that would tear through
        the rendering of an output: nothing is lost, nothing is shown twice.

        Args:
            early: counts the interrupts that came since the run was submitted.

        Returns:
            How the cell ended on each rank.

        Raises:
            CellInterruptedError: interrupted twice, and the hub does not answer.
        """
        with self._sigint_handled():
            self._run.add_done_callback(self._break_question)
            for _ in range(early.count if early is not None else 0):
                self._on_sigint()
            while True:
                if self._held and not self._gathered:
                    self._show_held()
                try:
                    event = self._run.get(0.0 if self._takes_more() else self._act())
                except TimeoutError:
                    continue
                if event is None:
                    break
                self._take(event)
            self._show_held()
            outcome = self._run.outcome
            assert outcome is not None  # noqa: S101 - it is set before the end marker is queued
            outcome = self._explain(outcome)
            if rows := self._steps.rows({}):
                self._view.end_steps(rows)
            missed = () if self._interrupts else self._steps.missed(self._numbers)
            for text in (*missed, *self._steps.caught(outcome.ranks("ok"))):
                self._view.tell(text)
            if outcome.missed_faults:
                self._view.tell(missed_text(outcome.missed_faults))
            self._view.end(outcome)
            self._run.on_shown()
            return outcome

    def _takes_more(self) -> bool:
        """Return whether more events wait, and nothing needs to be shown or asked before them.

        Each rank has events, and what `_act` does grows with the ranks: a cell on many ranks would
        take a time that grows with their square.
        """
        return self._run.has_more and time.monotonic() - self._acted_at < _MORE_S

    def _act(self) -> float:
        """Show what is due, and ask the questions that are; return the seconds until the next."""
        if self._given_up_at and self._run.outcome is None:
            self._give_up_when_due()
        tick_s = self._view.tick()
        wait_s = _WAIT_S if tick_s is None else min(tick_s, _WAIT_S)
        self._acted_at = time.monotonic()
        if not self._questions:
            return min(wait_s, self._ask_debugger(), self._ask_all())
        left_s = self._ask_at - self._acted_at  # a question of the program comes first
        if left_s > 0:
            return min(wait_s, left_s)
        self._answer_all()
        return 0.0

    def _take(self, event: CellEvent) -> None:
        now = time.monotonic()
        match event:
            case InputRequest():
                self._take_request(event, now)
                return
            case RunFinished(rank=rank, error=error):
                self._hold_or_show(event)
                self._leave_prompts(rank, now, None if error is None else error.ename)
                self._stuck.leave(rank, now, "" if error is None else error.ename)
                return
            case RankExited(rank=rank):
                self._hold_or_show(event)
                self._leave_prompts(rank, now, "")
                self._stuck.lose(rank, now)
                return
            case RanksHeld():
                if not self._interrupts:
                    self._stuck.hold(event.report)
                return
            case VerdictReached(report=report, acted=True):
                for request in self._steps.end_groups(report.pg_ids):
                    self._note_pause(request)
                    self._view.leave_prompt(request)
            case NoticeChanged():
                self._turns.note(event.report, now)
                self._steps.note(event.report, now)
            case _:
                pass
        self._hold_or_show(event)

    def _take_request(self, request: InputRequest, now: float) -> None:
        self._view.show(request)
        self._stopped(request)
        if request.is_stuck:
            self._take_stuck(request, now)
        elif request.stop is not None and self._interrupts:
            self._send(request, str(_LEAVE))  # in a `finally`; the user has ended the cell
        elif request.stop is not None:
            if step := self._steps.add(request, self._run.taken_count, now):
                self._send(request, str(step))
        elif request.debugger is None:
            self._note_question(request)
        elif line := self._turns.add(request, self._run.taken_count, now):
            self._send(request, line)

    def _leave_prompts(self, rank: Rank, now: float, failure: str | None) -> None:
        self._turns.leave(rank)
        self._steps.leave(rank, now, failure)

    def _take_stuck(self, request: InputRequest, now: float) -> None:
        if self._stuck.is_held:
            self._stuck.add(request, self._run.taken_count, now)
        else:  # it comes after the ranks were freed
            self._send(request, str(_LEAVE))

    def _hold_or_show(self, event: CellEvent) -> None:
        if isinstance(event, NoticeChanged | VerdictReached | RanksHeld) or (
            (rank := event.rank) not in self._gathered
        ):
            self._view.show(event)
            return
        self._held.append((rank, event))
        if len(self._held) > _MAX_HELD:
            self._show_held()

    @property
    def _gathered(self) -> RankSet:
        """Ranks whose output is held back, so that it is shown together and in their order."""
        return self._turns.gathered or self._stuck.gathered or self._steps.gathered

    def _show_held(self) -> None:
        """Show the events that were held back, in the order of ranks.

        No line waits for an equal one of a rank that has ended the cell, so its lines come first.
        """
        held, self._held = self._held, []
        finished = self._stuck.finished
        for _, event in sorted(held, key=lambda pair: (pair[0] not in finished, pair[0])):
            self._view.show(event)

    def _ask_debugger(self) -> float:
        """Show the prompt that is due, and send its answer; return the seconds until the next."""
        for request in self._turns.drop(self._interrupted_at):
            self._view.leave_prompt(request)
        now = time.monotonic()
        turn = self._turns.due(now)
        if turn is None:
            due_at = self._turns.due_at()
            return _WAIT_S if due_at is None else max(0.0, due_at - now)
        self._show_held()
        for text in turn.tells:
            self._view.tell(text)
        reply = self._ask(turn.request, turn.number)
        if reply is None:
            return 0.0
        if reply.reason:  # no user can be asked
            for request in self._turns.close():
                self._send(request, None, reply.reason)
            return 0.0
        line = "q" if reply.value is None else reply.value  # Ctrl-D
        answer = self._turns.answer(line, time.monotonic())
        self._replied(answer.replies)
        for request, text in answer.replies:
            self._send(request, text)
            self._steps.be_patient(time.monotonic())
        if answer.wants_list:
            self._view.tell(self._turns.listing(self._describe()))
        for text in answer.tells:
            self._view.tell(text)
        return 0.0

    def _ask_all(self) -> float:
        """Show the prompt for all ranks, if it is due; return as `_ask_debugger`."""
        for request in self._steps.drop(self._interrupted_at):
            self._note_pause(request)
            self._view.leave_prompt(request)
        for request in self._stuck.drop(self._interrupted_at):
            self._send(request, str(_LEAVE))
        now = time.monotonic()
        if self._turns.ranks or self._turns.is_awaiting(now):
            return _WAIT_S
        turns = self._stuck if self._stuck.is_held else self._steps
        prompt = turns.due(now)
        if prompt is None:
            due_at = turns.due_at()
            return _WAIT_S if due_at is None else max(0.0, due_at - now)
        self._show_held()
        reply = None
        reason = self._view.why_nobody_answers() if turns is self._stuck else ""
        if not reason:
            if self._steps.drop_notice():
                self._view.show(NoticeChanged(self._run.run_id, None))
            if prompt.wants_table:
                self._show_steps(turns)
            for text in prompt.tells:
                self._view.tell(text)
            reply = self._ask(prompt.request, prompt.number)
            reason = "" if reply is None else reply.reason
        if reason:
            self._go_on_without_user(turns, reason)
        elif reply is not None:
            self._obey(turns, "quit" if reply.value is None else reply.value)  # None: Ctrl-D
        return 0.0

    def _obey(self, turns: StepTurns | StuckTurns, line: str) -> None:
        answer = turns.answer(line, time.monotonic())
        self._replied(answer.replies)
        for request, step in answer.replies:
            if step.verb is StepVerb.DEBUG:
                self._turns.expect(request.rank)
            self._send(request, str(step))
        if answer.wants is Sight.TABLE:
            self._show_steps(turns)
        elif answer.wants is not None:
            self._look(self._view, answer.wants)
        if answer.compares is not None:
            self._compare(self._view, *answer.compares)
        for text in answer.tells:
            self._view.tell(text)
        if answer.frees is not None:
            self._free(answer.frees)
        if answer.ends_cell:
            self._on_sigint()

    def _go_on_without_user(self, turns: StepTurns | StuckTurns, reason: str) -> None:
        for request in turns.close():
            self._send(request, str(_LEAVE))
        if turns is self._stuck:
            self._free(Free(is_last=True))
            self._view.tell(f"{reason}: on_deadlock=debug opens no prompt, the ranks are freed")
        else:
            self._view.tell(f"{reason}: the cell goes on without stops")

    def _note_pause(self, request: InputRequest) -> None:
        if request.stop is not None:
            self._paused(request.rank, request.stop.time_created_ns, time.monotonic_ns())

    def _show_steps(self, turns: StepTurns | StuckTurns) -> None:
        others = self._describe() if turns.needs_others else {}
        if turns is self._stuck:
            self._view.tell(turns.table(others))
        else:
            self._view.show_steps(turns.table(others), turns.rows(others))

    def _send(self, request: InputRequest, value: str | None, reason: str = "") -> None:
        self._note_pause(request)
        self._view.leave_prompt(request)
        self._reply(
            request.rank,
            InputReply(
                run_id=request.run_id, question=request.question, value=value, reason=reason
            ),
        )

    def _note_question(self, request: InputRequest) -> None:
        if not self._questions:
            self._ask_at = time.monotonic() + _TOGETHER_S
        self._questions.append((request, self._run.taken_count))
        if {asked.rank for asked, _ in self._questions}.issuperset(self._run.ranks):
            self._ask_at = 0.0

    def _answer_all(self) -> None:
        """Ask the questions in the order of ranks; those that come meanwhile are asked later."""
        self._show_held()
        questions, self._questions = self._questions, []
        for request, number in sorted(questions, key=lambda question: question[0].rank):
            reply = self._ask(request, number)
            self._view.leave_prompt(request)
            if reply is not None:
                self._reply(request.rank, reply)
                self._turns.be_patient(time.monotonic())

    def _ask(self, request: InputRequest, number: int) -> InputReply | None:
        """Ask the user; return None if no reply is needed: the cell has ended or is interrupted."""
        value: str | None = None
        reason = ""
        if number <= self._interrupted_at:
            return None  # the interrupt ended this question too, before it was asked
        self._is_asking = True
        try:
            # After that assignment, and `_break_question` looks after the outcome was set.
            if self._run.outcome is not None:
                return None
            value = self._view.ask(request)
        except EOFError as error:
            reason = str(error)
        except KeyboardInterrupt:
            self._is_asking = False
            if self._run.outcome is None:
                self._on_sigint()
            elif request.stop is not None or request.debugger is not None or request.is_stuck:
                self._view.tell("the cell has ended: this prompt takes no more lines")
            return None  # the first one ends it; after the second the hub answers all questions
        finally:
            self._is_asking = False
            with self._break_lock:
                pass  # the hub thread is not in the middle of it
            while self._break_is_due:
                time.sleep(0.001)  # the signal is on its way, and no other code may get it
        return InputReply(
            run_id=request.run_id, question=request.question, value=value, reason=reason
        )

    def _break_question(self) -> None:
        """The run has ended, for example by a death: no answer is needed. Hub thread."""
        with self._break_lock:
            if self._is_asking and self._is_main:
                self._break_is_due = True
                # To the thread itself: it may be blocked in a system call.
                main = threading.main_thread().ident
                assert main is not None  # noqa: S101 - it runs
                signal.pthread_kill(main, signal.SIGINT)

    def _give_up_when_due(self) -> None:
        if time.monotonic() < self._given_up_at:
            return
        results = {rank: RankResult(rank, "unfinished") for rank in self._run.ranks}
        self._view.end(RunOutcome(self._run.run_id, results, 0.0, interrupted=True))
        headline = (
            "CellInterruptedError: the cell was interrupted twice, and nbddp's own thread "
            "(nbddp-hub) does not answer"
        )
        raise CellInterruptedError(
            f"{headline}\n  next      %ddp stop, or restart the kernel",
            dict.fromkeys(results, ("Unfinished", "still inside the cell")),
            headline=headline,
        )

    def _on_sigint(self, *_: Any) -> None:
        was_break, self._break_is_due = self._break_is_due, False
        if self._is_asking:
            raise KeyboardInterrupt
        if was_break:
            return
        self._interrupts += 1
        self._interrupted_at = self._run.put_count
        self._run.was_interrupted = True
        self._steps.note_interrupt()
        if self._interrupts == 1:
            self._interrupt()
        else:
            self._given_up_at = self._given_up_at or time.monotonic() + _GIVE_UP_S
            self._abandon()

    @contextmanager
    def _sigint_handled(self) -> Iterator[None]:
        if not self._is_main:
            yield
            return

        def handle(signum: int, frame: types.FrameType | None) -> None:
            self._on_sigint()

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            if before is not None:  # None: set by C code
                signal.signal(signal.SIGINT, before)
