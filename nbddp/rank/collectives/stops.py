"""Stops this rank before its operations, until the user lets it go: ``%%ddp --step``.

Runs in: the rank process, in the thread that calls the operation. In the backward pass of
`DistributedDataParallel` that is a thread of autograd; then the line is that of the main thread.

At a stop nothing is in flight: the operation has no number, and no other rank sees it. The user's
line comes from the notebook, see `nbddp.controller.prompts.step_commands`.
"""

import bdb
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nbddp.errors import CollectiveRefusedError
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.recording.upcoming import upcoming_operation
from nbddp.wire.flight_recorder import Operation, Signature
from nbddp.wire.step_replies import StepReply, StepVerb


class Stops:
    """Decides whether the rank stops before an operation, and asks what it does there.

    Args:
        recorder: calls `before` while the user steps.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        #: Asks the user, unless the second argument raises; returns the reply. Set by the server.
        self.ask: Callable[[Operation, Callable[[], None]], str] | None = None
        #: Opens a debugger in a frame. Set by the server.
        self.debug: Callable[[types.FrameType], None] | None = None
        #: Returns how many interrupts have reached the process. Set by the server.
        self.interrupts: Callable[[], int] = lambda: 0
        self._passes = 0  #: operations that the rank may do without a stop; -1: all
        self._is_looking = False  #: code that the user has typed runs

    def begin_cell(self, *, step: bool) -> None:
        """Stop before the operations of the cell that begins, if the user steps."""
        self._passes = 0
        self._recorder.before_operation = self.before if step and self.ask is not None else None
        self._recorder.set_careful()

    def end_cell(self) -> None:
        """Stop no more."""
        self._recorder.before_operation = None

    def before(
        self, counters: GroupCounters, signature: Signature, sent: Sequence[torch.Tensor] = (),
        peer: int = -1, tag: int = 0,
    ) -> None:  # fmt: skip
        """Ask the user what to do before this operation; return when it may be issued.

        Raises:
            CollectiveRefusedError: code that the user has typed at a stop calls it.
            EOFError: no user can be asked.
            KeyboardInterrupt: the cell was interrupted.
        """
        if self._is_looking:
            raise CollectiveRefusedError(
                f"{signature.op} was called at the prompt of a step, which runs code beside the "
                "program; nothing was sent. Next: `step` lets the program call its operation"
            )
        if self._passes:
            self._passes -= self._passes > 0
            return
        frame, site = self._recorder.sites.call_site(sys._getframe(1))
        operation = upcoming_operation(
            counters.info.pg_id,
            counters.seq,
            signature,
            peer,
            tag,
            site=site,
            iteration=self._recorder.sites.loop_variables(frame),
        )

        is_main = threading.current_thread() is threading.main_thread()
        interrupts = self.interrupts()

        def check() -> None:
            if not is_main and self.interrupts() != interrupts:
                raise KeyboardInterrupt  # the main thread is in C, and waits for this thread
            if counters.ended is not None:  # the ranks were freed
                raise counters.ended()

        assert self.ask is not None  # noqa: S101 - `begin_cell` has looked
        while not self._obey(StepReply.parse(self.ask(operation, check)), frame):
            pass

    def _obey(self, reply: StepReply, frame: types.FrameType | None) -> bool:
        """Do what the user wants; return whether the operation is issued now."""
        match reply.verb:
            case StepVerb.STEP:
                self._passes = reply.count - 1
                return True
            case StepVerb.CONTINUE:
                self._passes = -1
                self.end_cell()
                self._recorder.set_careful()
                return True
            case StepVerb.RUN:
                self._look(lambda: _run(reply.code, frame))
            case StepVerb.WHERE:
                self._look(lambda: _print_stack(self._recorder, frame))
            case StepVerb.DEBUG:
                self._look(lambda: self._debug(frame))
        return False

    def _look(self, action: Callable[[], None]) -> None:
        self._is_looking = True
        try:
            action()
        finally:
            self._is_looking = False

    def _debug(self, frame: types.FrameType | None) -> None:
        if frame is None or self.debug is None:
            print("no frame of the user's code is known here")  # noqa: T201 - output of the cell
            return
        try:
            self.debug(frame)
        except bdb.BdbQuit:
            return  # ``q`` comes back to the prompt of the step


def _run(code: str, frame: types.FrameType | None) -> None:
    """Evaluate an expression and print it, or run statements, in a frame of the user's code."""
    names: dict[str, Any] = {} if frame is None else frame.f_globals
    local_names = names if frame is None else frame.f_locals
    try:
        try:
            compiled = compile(code, "<step>", "eval")
        except SyntaxError:
            exec(compile(code, "<step>", "exec"), names, local_names)  # noqa: S102 - the user's code
            return
        value = eval(compiled, names, local_names)  # noqa: S307 - the user's code
        if value is not None:
            print(repr(value))  # noqa: T201 - output of the cell
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        print("".join(traceback.format_exception_only(error)).strip())  # noqa: T201


def _print_stack(recorder: Recorder, frame: types.FrameType | None) -> None:
    for site in recorder.sites.stack(frame):
        print(f"{site}: {site.source}" if site.source else str(site))  # noqa: T201 - output
