"""The collectives of one rank, with the interface that the rank's server uses.

Runs in: the rank process. `answer` and `note_line` on the I/O thread, others on the main thread.

    RankServer --begin_cell, end_cell, rebuild> Collectives --> Recorder, GroupFactory, GroupRebuild
    nbddp-io   -------------answer------------> Collectives --> RankIntrospection, AbortHandler
"""

import os
import sys
import threading
import time
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from nbddp.errors import CollectiveAbortedError
from nbddp.rank import torch_private
from nbddp.rank.collectives import fault_strikes, refusals, state_sync
from nbddp.rank.collectives.abort import AbortHandler
from nbddp.rank.collectives.callback_waits import wait_for_callbacks
from nbddp.rank.collectives.group_creation import GroupFactory, break_torn
from nbddp.rank.collectives.introspection import RankIntrospection
from nbddp.rank.collectives.rebuild import GroupRebuild
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.rpc_lifecycle import RemoteCalls
from nbddp.rank.collectives.sanitizer import Sanitizer
from nbddp.rank.collectives.stops import Stops
from nbddp.rank.collectives.stuck_prompt import StuckPrompt
from nbddp.rank.user_code_context import Callbacks
from nbddp.wire.flight_recorder import GroupMark, Mismatch, NodeMemory
from nbddp.wire.launch_specs import RankLaunch
from nbddp.wire.messages import (
    AbortOperations,
    DescribeRank,
    Execute,
    OperationsAborted,
    RankDescribed,
    RebuildGroups,
)

_MACHINERY = (
    "torch", "IPython", "ipykernel", "functorch", "debugpy", "ipywidgets", "traitlets", "comm",
)  # fmt: skip
#: Interval between two notes of the line that the main thread is at.
_NOTE_S = 0.1


class Collectives:
    """Traces, aborts and rebuilds the process groups of this rank."""

    def __init__(
        self,
        launch: RankLaunch,
        memory: NodeMemory,
        cell_of: Callable[[str], int],
        callbacks: Callbacks,
        imported_library: Callable[[types.FrameType | None], str],
    ) -> None:
        packages = Path(torch.__file__).parents[1]
        self.recorder = Recorder(
            memory,
            launch.local_rank,
            launch.rank,
            cell_of,
            tuple(f"{packages / name}{os.sep}" for name in _MACHINERY),
            first_local=launch.rank - launch.local_rank,
            callbacks=callbacks,
        )
        pool = launch.pool
        pool_name = f"{pool.pool_id}/{pool.generation}"
        self.factory = GroupFactory(self.recorder, pool_name, pool.world_size)
        self._introspection = RankIntrospection(
            self.recorder,
            launch.rank,
            self.factory.store_wait.check_age_ns,
            self.factory.store_polls,
            imported_library,
        )
        self.stops = Stops(self.recorder)
        self.stuck_prompt = StuckPrompt(self.stops, self.recorder)
        self.faults = fault_strikes.Faults(self.recorder, self.factory)
        self.sanitizer = Sanitizer(self.recorder)
        self._abort = AbortHandler(
            self.factory,
            self.recorder,
            launch.master_port,
            lambda: self._introspection.activity == "reforming",
        )
        self._introspection.is_fresh = launch.joins
        self._note_at = 0.0
        self._remote_calls = RemoteCalls(self.recorder, self.factory, pool.world_size)
        self._rebuild = GroupRebuild(self.factory, self.recorder, f"nbddp/{pool.generation}")

    def install(self) -> bool:
        """Trace all groups from now on; False: this version of torch does not allow it."""
        self._remote_calls.install()
        is_installed = self.factory.install()
        if is_installed:
            fault_strikes.current = self.faults
        return is_installed

    def watch_interrupts(self, was_interrupted: Callable[[], bool]) -> None:
        """Set the function that tells whether the cell was interrupted, to report such cells."""
        self._abort.was_interrupted = was_interrupted

    def pool_ranks(self, ranks: list[int]) -> tuple[int, ...]:
        """Convert ranks of the default group to ranks of the pool; empty: not known."""
        return self.factory.pool_ranks(ranks)

    # --- cells ---------------------------------------------------------------------------------

    def begin_cell(self, request: Execute) -> None:
        """Begin a cell."""
        self._abort.begin_cell()
        self.factory.begin_cell(request.execution_count, request.aside_id)
        torch_private.begin_cell(request.run_id)
        self.recorder.begin_cell(request.run_id, request.on_mismatch, check=request.check)
        self.stops.begin_cell(request)
        self.faults.begin_cell(request.faults, request.execution_count)
        self.sanitizer.begin_cell(is_on=request.sanitize, reads_data=request.sanitize_data)
        refusals.end_groups_of_dead(self.recorder, request.dead)
        self.recorder.cell_ranks = request.ranks
        self._remote_calls.begin_cell(request.failed)
        for thread in self._introspection.left_threads():
            with suppress(OSError):  # the user's code may have closed it
                os.write(2, f"nbddp: {thread.left_text()}\n".encode())
        self._introspection.activity = "running"

    def note_line(self) -> None:
        """Note the line that the main thread is at, if the last note is old. I/O thread."""
        now = time.monotonic()
        if now >= self._note_at:
            self._note_at = now + _NOTE_S
            main = threading.main_thread().ident or 0
            self.recorder.note_line(sys._current_frames().get(main))

    def wait_for_callback(self) -> None:
        """Wait for the operation of a callback, when the code of the cell has ended."""
        wait_for_callbacks(self.recorder)

    def end_cell(
        self, *, has_failed: bool
    ) -> tuple[tuple[Mismatch, ...], tuple[GroupMark, ...], tuple[str, ...]]:
        """End a cell.

        Returns:
            Its mismatches, the marks of its groups, and operations that may have written half.
        """
        self._introspection.end_cell()
        self.stops.end_cell()
        self.faults.end_cell()

        self.factory.store_polls.end_cell()
        break_torn(has_failed=has_failed)
        marks = self.recorder.end_cell()
        return tuple(self.recorder.mismatches), marks, tuple(self.recorder.torn)

    def was_freed(self, error: BaseException | None, raised_at: float) -> bool:
        """Return whether an abort has caused an error of the cell.

        Args:
            error: None: it is not known.
            raised_at: monotonic time, before the error was formatted, which may take long.
        """
        seen: set[int] = set()
        current = error
        while current is not None and id(current) not in seen:
            if isinstance(current, CollectiveAbortedError):
                return True
            seen.add(id(current))
            current = current.__cause__ or current.__context__
        # The error that C++ raises to its caller cannot be replaced everywhere.
        is_later = raised_at >= self._abort.fired_at
        return is_later and isinstance(error, RuntimeError | KeyboardInterrupt)

    def rebuild(self, request: RebuildGroups, initialise: Callable[[], None]) -> None:
        """Rebuild groups; arguments and exceptions are those of `GroupRebuild.rebuild`."""
        self._introspection.activity = "reforming"
        if request.fresh:
            self._remote_calls.lose_worker()
        try:
            self._rebuild.rebuild(request, initialise)
            state_sync.fresh_since = self._rebuild.fresh_since
        finally:
            self._introspection.activity = "idle"
            self.recorder.writer.touch()

    # --- the I/O thread ------------------------------------------------------------------------

    def answer(self, request: DescribeRank | AbortOperations) -> RankDescribed | OperationsAborted:
        """Answer at once, also while the main thread is blocked."""
        if isinstance(request, AbortOperations):
            return self._abort.handle(request)
        return RankDescribed(
            number=request.number,
            rank=self.recorder.rank,
            look=self._introspection.look(
                request.last, memory=request.memory, is_brief=request.is_brief
            ),
        )
