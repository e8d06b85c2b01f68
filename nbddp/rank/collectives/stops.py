"""Stops this rank before its operations, until the user lets it go.

``%%ddp --step`` stops it before each of them, ``%ddp break`` before some.

Runs in: the rank process, in the thread that calls the operation. In the backward pass of
`DistributedDataParallel` that is a thread of autograd; then the line is that of the main thread.

At a stop nothing is in flight: the operation has no number, and no other rank sees it. The user's
line comes from the notebook, see `nbddp.controller.prompts.step_commands`.
"""

import ctypes
import sys
import threading
import time
import traceback
import types
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec

from nbddp.errors import CollectiveRefusedError
from nbddp.rank.collectives.break_points import CellBreakPoints
from nbddp.rank.collectives.looked_place import LookedPlace
from nbddp.rank.collectives.operation_tensors import NO_TENSORS, OperationTensors
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.recording.upcoming import upcoming_operation
from nbddp.rank.collectives.repeated_calls import read_call
from nbddp.rank.collectives.retries import Retries
from nbddp.rank.collectives.work import Instead
from nbddp.wire.flight_recorder import GroupInfo, Mismatch, Operation, Signature
from nbddp.wire.flight_recorder.matching import MESSAGES
from nbddp.wire.messages import DescribeAtPrompt, Execute
from nbddp.wire.step_replies import RUNS, StepReply, StepVerb

Describe = Callable[[DescribeAtPrompt], None]
Value = TypeVar("Value")
#: As `nbddp.rank.collectives.rollback` copies.
_MAX_COPIED = 4 << 20


@dataclass(frozen=True)
class StopReason:
    """Why a rank stops before an operation; neither: the user steps."""

    break_points: tuple[int, ...] = ()  #: their numbers
    mismatch: Mismatch | None = None  #: the operation does not match that of another rank
    is_final: bool = False  #: other machines have compared the operation: it cannot be left out


NO_REASON = StopReason()
#: `nbddp.rank.cells.stdin.Stdin.ask_stop`.
_Ask: TypeAlias = Callable[[Operation, GroupInfo, StopReason, Callable[[], None], Describe], str]


class Stops:
    """Decides whether the rank stops before an operation, and asks what it does there.

    Args:
        recorder: calls `before` while the user steps, or has set break points.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        #: Asks the user, and returns the reply. Set by the server.
        self.ask: _Ask | None = None
        #: Describes values with these names. Set by the server.
        self.describe: Callable[[DescribeAtPrompt, dict[str, Any]], None] | None = None
        #: Opens a debugger in a frame, which does not let the rank go on. Set by the server.
        self.debug: Callable[[types.FrameType], None] | None = None
        #: Ends the steps of the debugger of a `breakpoint()`. Set by the server.
        self.end_debugging: Callable[[], None] = lambda: None
        #: Returns how many interrupts have reached the process. Set by the server.
        self.interrupts: Callable[[], int] = lambda: 0
        #: Names that are defined in every cell. Set by the server.
        self.names: Mapping[str, Any] = {}
        self._passes = 0  #: operations that the rank may do without a stop; -1: all
        self._until = ("", 0)  #: the group and the number of a collective before which it stops
        self._break_points = CellBreakPoints((), recorder.rank, 0, {})
        #: Has ``now`` in a thread that runs code that the user has typed.
        self._looking = threading.local()
        self._retries = Retries()
        #: Tensors of the operation at which the rank has stopped last: ``before`` and ``after``.
        self._passed: dict[str, Any] = {}
        self._on_mismatch: tuple[int, ...] = ()  #: break points on operations that do not match

    def begin_cell(self, request: Execute) -> None:
        """Stop before the operations of the cell that begins, if the user wants that."""
        self._passes = 0 if request.step else -1
        self._until = ("", 0)
        points = [point for point in request.break_points if not point.on]
        rank = self._recorder.rank
        self._on_mismatch = tuple(
            point.number
            for point in request.break_points
            if point.on == "mismatch" and (not point.ranks or rank in point.ranks)
        )
        self._break_points = CellBreakPoints(
            points, self._recorder.rank, request.execution_count, self.names
        )
        is_needed = self.ask is not None and (
            request.step or bool(self._break_points or self._on_mismatch)
        )
        has_mismatches = is_needed and bool(self._on_mismatch)
        self._recorder.before_mismatch = self.before_mismatch if has_mismatches else None
        self._recorder.before_operation = self.before if is_needed else None
        self._recorder.set_careful()

    def end_cell(self) -> None:
        """Stop no more."""
        self._passed = {}
        self._recorder.before_operation = None
        self._recorder.before_mismatch = None

    def before(
        self,
        counters: GroupCounters,
        signature: Signature,
        tensors: OperationTensors = NO_TENSORS,
        peer: int = -1,
        tag: int = 0,
    ) -> Instead | None:
        """Ask the user what to do before this operation, if the rank stops before it.

        Args:
            counters: of its group.
            signature: of the operation.
            tensors: those of the operation.
            peer: the other end of a message.
            tag: of a message.

        Returns:
            The object that stands for the operation; None: it is issued.

        Raises:
            CollectiveRefusedError: code that the user has typed at a stop calls it, or it cannot
                take the place of the operation whose call was made again.
            EOFError: no user can be asked.
            KeyboardInterrupt: the cell was interrupted.
        """
        where = "in a condition" if self._break_points.is_judging else self._looking_at
        if where:
            raise CollectiveRefusedError(
                f"{signature.op} was called {where}, which runs code beside the program; nothing "
                "was sent. Next: let the program call its operation"
            )
        self._retries.come(signature, peer)
        number = 0 if signature.kind in MESSAGES else counters.seq + 1
        group, until = self._until
        stops = not self._passes or (group == counters.info.pg_id and number >= until)
        break_points: tuple[int, ...] = ()
        if stops or self._break_points:
            frame, site = self._recorder.sites.call_site(sys._getframe(1))
            break_points = self._break_points.at(
                counters.info, signature, number, frame, tensors.inputs
            )
        if not (stops or break_points):
            self._passes -= self._passes > 0
            return None
        self._passes, self._until = 0, ("", 0)
        operation = msgspec.structs.replace(
            upcoming_operation(
                counters.info.pg_id,
                counters.seq,
                signature,
                peer,
                tag,
                site=site,
                iteration=self._recorder.sites.loop_variables(frame),
            ),
            time_created_ns=time.monotonic_ns(),  # tells one stop from another
        )
        passed = _before_and_after(tensors)
        reply, instead = self._ask(counters, operation, StopReason(break_points), frame)
        if reply.verb is StepVerb.RETRY:
            return instead
        self._passed = passed
        match reply.verb:
            case StepVerb.STEP:
                self._passes = reply.count - 1
            case StepVerb.UNTIL:
                self._passes, self._until = -1, (counters.info.pg_id, reply.count)
            case StepVerb.CONTINUE:
                self._go_on(is_left=not (self._break_points or self._on_mismatch))
            case StepVerb.LEAVE:
                self._go_on(is_left=True)
            case _:
                return Instead()
        return None

    def before_mismatch(
        self, counters: GroupCounters, wrong: Mismatch, withdraw: Callable[[], None] | None
    ) -> Instead | None:
        """Ask the user what to do before a mismatch is raised; the operation is not issued.

        Args:
            counters: of the group.
            wrong: the mismatch.
            withdraw: uncounts the operation, so that its call can be made again, or be left out;
                None: it cannot.

        Returns:
            The object that stands for the operation; None: the mismatch is raised.
        """
        if self._looking_at:
            return None
        frame, _ = self._recorder.sites.call_site(sys._getframe(1))
        operation = msgspec.structs.replace(wrong.mine, time_created_ns=time.monotonic_ns())
        reason = StopReason(
            self._on_mismatch,
            msgspec.structs.replace(wrong, mine=operation),
            is_final=withdraw is None,
        )
        reply, instead = self._ask(counters, operation, reason, frame, withdraw)
        if reply.verb is not StepVerb.SKIP or withdraw is None:
            return instead
        withdraw()
        self._passes, self._until = 0, ("", 0)
        return Instead()

    def _ask(
        self,
        counters: GroupCounters,
        operation: Operation,
        reason: StopReason,
        frame: types.FrameType | None,
        withdraw: Callable[[], None] | None = lambda: None,
    ) -> tuple[StepReply, Instead | None]:
        """Ask until the reply lets the program go on; with what a call made again has given."""
        is_main = threading.current_thread() is threading.main_thread()
        interrupts = self.interrupts()

        def check() -> None:
            if not is_main and self.interrupts() != interrupts:
                raise KeyboardInterrupt  # the main thread is in C, and waits for this thread
            if counters.ended is not None:  # the ranks were freed
                raise counters.ended()

        assert self.ask is not None  # noqa: S101 - `begin_cell` has looked
        place = LookedPlace(self._recorder.sites, frame)
        while True:
            describe = self.describer(lambda: place.frame, {})
            try:
                line = self.ask(operation, counters.description(), reason, check, describe)
            except KeyboardInterrupt:
                self.end_debugging()  # it would stop at this exception, and ask again
                raise
            reply = StepReply.parse(line)
            if reply.verb is StepVerb.RETRY:
                instead = self._retry(reply.code, operation, frame, withdraw)
                if instead is not None:
                    return reply, instead
            elif reply.verb in (StepVerb.UP, StepVerb.DOWN):
                place.move(reply.count if reply.verb is StepVerb.UP else -reply.count)
            elif reply.verb in (*RUNS, StepVerb.WHERE, StepVerb.DEBUG):
                self._answer(reply, place)
            else:
                return reply, None

    def _retry(
        self,
        typed: str,
        stopped: Operation,
        frame: types.FrameType | None,
        withdraw: Callable[[], None] | None,
    ) -> Instead | None:
        """Make the call of a stopped operation again; the new one stops, too, and goes on instead.

        Args:
            typed: another call; empty: the same one, with its arguments evaluated now.
            stopped: the operation.
            frame: of the user's line.
            withdraw: uncounts the operation; None: other machines have compared it.

        Returns:
            The object that stands for the stopped operation; None: nothing was done, and the user
            knows why.

        Raises:
            BaseException: the operation of the new call raises it.
        """
        passes, self._passes = self._passes, 0
        inside = sys._getframe()
        sites = self._recorder.sites
        if typed:
            sites.typed = threading.get_ident(), f"retry {typed}"
        try:
            instead = self._retries.make(
                lambda: self._look(lambda: read_call(frame, inside, self.names, typed)),
                stopped,
                withdraw,
            )
        finally:
            sites.typed = 0, ""
        if instead is None:
            self._passes = passes
        return instead

    def _go_on(self, *, is_left: bool) -> None:
        """Stop no more, or (``is_left`` is False) at break points only."""
        self._passes = -1
        if is_left:
            self.end_cell()
            self._recorder.set_careful()

    def _answer(self, reply: StepReply, place: LookedPlace) -> None:
        """Show what the user wants to see."""
        match reply.verb:
            case StepVerb.RUN | StepVerb.PRINT:
                known = {**self.names, **self._passed}
                self._look(lambda: _run(reply, place.frame, known, self.interrupts))
            case StepVerb.WHERE:
                self._look(place.print_stack)
            case StepVerb.DEBUG:
                self._look(lambda: self._debug(place.innermost))
            case _:
                raise AssertionError(reply)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse operations of code that is typed while the main thread is blocked or runs on."""
        recorder = self._recorder
        if is_new := recorder.before_operation is None:
            recorder.before_operation = self.before
            recorder.set_careful()
        try:
            yield
        finally:
            if is_new and self._passes == -1 and not self._break_points:
                recorder.before_operation = None
                recorder.set_careful()

    def describer(
        self, frame_of: Callable[[], types.FrameType | None], names: Mapping[str, Any]
    ) -> Describe:
        """Return a function that describes values in a frame of the user's code.

        Args:
            frame_of: returns the frame; None: no code of the user runs.
            names: the variables, if none runs.
        """

        def describe(request: DescribeAtPrompt) -> None:
            frame = frame_of()
            inner = names if frame is None else {**frame.f_globals, **frame.f_locals}
            answer = self.describe
            assert answer is not None  # noqa: S101 - the server has set it
            self._look(lambda: answer(request, {**self.names, **self._passed, **inner}))

        return describe

    def look(self, reply: StepReply, frame: types.FrameType | None, names: dict[str, Any]) -> None:
        """Show a value or the stack of a thread that stands at ``frame``, and change nothing.

        Args:
            reply: what to show.
            frame: of the user's code; None: it runs none.
            names: the variables, if it runs none.
        """
        if reply.verb in RUNS:
            known = {**self.names, **names} if frame is None else self.names
            self._look(lambda: _run(reply, frame, known, self.interrupts, changes=False))
        else:
            self._look(LookedPlace(self._recorder.sites, frame).print_stack)

    @property
    def _looking_at(self) -> str:
        """Where code that the user has typed runs in this thread; empty: none does."""
        return "at the prompt" if getattr(self._looking, "now", False) else ""

    def _look(self, action: Callable[[], Value]) -> Value:
        self._looking.now = True
        try:
            return action()
        finally:
            self._looking.now = False

    def _debug(self, frame: types.FrameType | None) -> None:
        if frame is None or self.debug is None:
            print("no frame of the user's code is known here")  # noqa: T201 - output of the cell
            return
        self.debug(frame)


def _run(
    reply: StepReply,
    frame: types.FrameType | None,
    known: Mapping[str, Any],
    interrupts: Callable[[], int],
    *,
    changes: bool = True,
) -> None:
    """Evaluate an expression and print it, or run statements, in a frame of the user's code.

    An expression may also use the names that are ``known``. Without ``changes`` there
    are no statements: the thread of the frame may go on meanwhile.
    """
    # `nbddp.show` makes one picture of the calls that ranks make in one function.
    code, name = reply.code, f"<step {reply.count}>"
    names: dict[str, Any] = dict(known) if frame is None else frame.f_globals
    local_names = names if frame is None else frame.f_locals
    count = interrupts()
    try:
        try:
            compiled = compile(code, "<step>", "eval").replace(co_name=name)
        except SyntaxError:
            if not changes:
                raise
            exec(compile(code, "<step>", "exec"), names, local_names)  # noqa: S102 - the user's code
            if frame is not None:  # before Python 3.13 the variables of a function are a copy
                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)
            return
        value = eval(compiled, names, ChainMap(local_names, names, dict(known)))  # noqa: S307 - the user's code
        if value is not None or reply.verb is StepVerb.PRINT:
            print(repr(value))  # noqa: T201 - output of the cell
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and interrupts() != count:  # the stop button
            raise
        text = "".join(traceback.format_exception_only(error)).strip()
        name = str(error.name) if isinstance(error, NameError) and changes else ""
        print(f"{text}{_why_not_passed(name, known)}")  # noqa: T201 - output of the cell


def _why_not_passed(name: str, known: Mapping[str, Any]) -> str:
    """Say why ``before`` or ``after`` does not exist at a stop; empty: it is another name."""
    if name not in ("before", "after"):
        return ""
    if name == "before" and "after" in known:
        return ": its tensor was too large for a copy. Next: print after"
    return ": no operation with a tensor was stepped over in this cell so far. Next: step"


def _before_and_after(tensors: OperationTensors) -> dict[str, Any]:
    """Return copies of the tensors of an operation that begins, and these tensors.

    Large ones are not copied: their copies would need as much memory as the program.
    """
    own = tensors.written or tensors.inputs
    names: dict[str, Any] = {"after": own[0] if len(own) == 1 else own} if own else {}
    if own and sum(tensor.nbytes for tensor in own) <= _MAX_COPIED:
        copies = [tensor.detach().clone() for tensor in own]
        names["before"] = copies[0] if len(copies) == 1 else copies
    return names
