"""Shows the user where this rank is stuck, before a deadlock is ended: ``on_deadlock=debug``.

Runs in: the rank process, thread ``nbddp-prompt``, which lives as long as the prompt. The main
thread is blocked in its operation, runs the code for which others wait, or has ended the cell.
Nothing is changed there: expressions are evaluated with the variables of its line.
"""

import sys
import threading
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.stops import Describe, Stops
from nbddp.wire.step_replies import StepReply, StepVerb

if TYPE_CHECKING:
    from collections.abc import Callable


class StuckPrompt:
    """The prompt of one rank while a deadlock is looked at.

    Args:
        stops: evaluates the code that the user types, and refuses operations in it.
        recorder: knows the user's lines.
    """

    def __init__(self, stops: Stops, recorder: Recorder) -> None:
        self._stops = stops
        self._recorder = recorder
        #: Asks the user about a cell, and returns the reply. Set by the server.
        self.ask: Callable[[str, Describe], str] | None = None
        self.names: dict[str, Any] = {}  #: the user's global variables. Set by the server.

    def open(self, run_id: str) -> None:
        """Ask the user until a reply or the end of the cell ends it. Called by the I/O thread."""
        name, args = "nbddp-prompt", (run_id,)
        threading.Thread(target=self._serve, name=name, args=args, daemon=True).start()

    def _serve(self, run_id: str) -> None:
        assert self.ask is not None  # noqa: S101 - the server has set it
        describe = self._stops.describer(self._frame, self.names)
        # An end of input: the cell has ended.
        with suppress(EOFError), self._stops.refusing(), _beside_the_blocked_stream():
            while True:
                reply = StepReply.parse(self.ask(run_id, describe))
                if reply.verb is StepVerb.LEAVE:
                    return
                try:
                    self._stops.look(reply, self._frame(), self.names)
                except KeyboardInterrupt:  # typed: the stop button interrupts the main thread
                    print("KeyboardInterrupt")  # noqa: T201 - output of the cell

    def _frame(self) -> types.FrameType | None:
        """Return the frame of the user's line at which the rank is; None: it is at none.

        It is that of the main thread, unless only another thread waits for an operation.
        """
        main = threading.main_thread().ident or 0
        waiting = [thread for thread, _, _ in self._recorder.waits()]
        threads = [main] if main in waiting else [*waiting, main]
        frames = sys._current_frames()
        sites = self._recorder.sites
        user_frames = (sites.call_site(frames.get(thread))[0] for thread in threads)
        return next((frame for frame in user_frames if frame is not None), None)


def _beside_the_blocked_stream() -> "torch.cuda.StreamContext":
    """Let a GPU read tensors although the stream of the main thread waits for the operation."""
    is_used = torch.cuda.is_initialized()
    return torch.cuda.stream(torch.cuda.Stream() if is_used else None)
