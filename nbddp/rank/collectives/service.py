"""The collectives of one rank, as the rank's server uses them.

Runs in: the rank process. `answer` on the I/O thread, all else on the main thread.

    RankServer --begin_cell, end_cell, reform--> Collectives --> Recorder, Creator, Reforming
    nbddp-io   --------------answer-----------> Collectives --> Looking, Freeing
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from nbddp.errors import CollectiveAbortedError
from nbddp.rank.collectives import callback_rules, state_sync
from nbddp.rank.collectives.abort import OperationAbort
from nbddp.rank.collectives.group_creation import GroupFactory, break_torn
from nbddp.rank.collectives.introspection import RankIntrospection
from nbddp.rank.collectives.rebuild import GroupRebuild
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.rpc_lifecycle import RemoteCalls
from nbddp.rank.user_code_context import Callbacks
from nbddp.wire.flight_recorder.schema import GroupMark, Mismatch
from nbddp.wire.flight_recorder.writer import NodeMemory
from nbddp.wire.launch_specs import RankLaunch
from nbddp.wire.messages import Execute, Free, Freed, Look, Looked, Reform

_MACHINERY = (
    "torch", "IPython", "ipykernel", "functorch", "debugpy", "ipywidgets", "traitlets", "comm",
)  # fmt: skip


class Collectives:
    """Traces, frees and re-forms the process groups of this rank."""

    def __init__(
        self,
        launch: RankLaunch,
        memory: NodeMemory,
        cell_of: Callable[[str], int],
        callbacks: Callbacks,
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
        home = f"{pool.pool_id}/{pool.generation}"
        self.creator = GroupFactory(self.recorder, home, pool.world_size)
        self._looking = RankIntrospection(
            self.recorder, launch.rank, self.creator.patience.check_age_ns
        )
        self._freeing = OperationAbort(
            self.creator,
            self.recorder,
            launch.master_port,
            lambda: self._looking.activity == "reforming",
        )
        self._looking.is_fresh = launch.joins
        self._remote = RemoteCalls(self.recorder, self.creator, pool.world_size)
        self._reforming = GroupRebuild(self.creator, self.recorder, f"nbddp/{pool.generation}")

    def install(self) -> bool:
        """Trace every group from now on; False if this version of torch cannot have it."""
        self._remote.install()
        return self.creator.install()

    def heed_interrupts(self, was_interrupted: Callable[[], bool]) -> None:
        """Tell of a cell that goes on after an interrupt."""
        self._freeing.was_interrupted = was_interrupted

    # --- cells ---------------------------------------------------------------------------------

    def begin_cell(self, request: Execute) -> None:
        """A cell begins."""
        self._freeing.begin_cell()
        self.recorder.begin_cell(request.run_id, request.on_mismatch, check=request.check)
        callback_rules.end_groups_of_dead(self.recorder, request.dead)
        self.recorder.cell_ranks = request.ranks
        self._remote.begin_cell(request.failed)
        self._looking.activity = "running"

    def wait_for_callback(self) -> None:
        """The code of a cell has ended: wait for what a callback has called meanwhile."""
        callback_rules.wait_for_callbacks(self.recorder)

    def end_cell(
        self, *, has_failed: bool
    ) -> tuple[tuple[Mismatch, ...], tuple[GroupMark, ...], tuple[str, ...]]:
        """A cell has ended: what was seen, where its groups stand, what may be half written."""
        self._looking.activity = "idle"
        break_torn(has_failed=has_failed)
        marks = self.recorder.end_cell()
        return tuple(self.recorder.mismatches), marks, tuple(self.recorder.torn)

    def was_freed(self, error: BaseException | None) -> bool:
        """Whether an error of the cell came about because operations were ended by us."""
        seen: set[int] = set()
        found = error
        while found is not None and id(found) not in seen:
            if isinstance(found, CollectiveAbortedError):
                return True
            seen.add(id(found))
            found = found.__cause__ or found.__context__
        # What C++ raises to its caller cannot be exchanged everywhere.
        return self._freeing.was_fired and isinstance(error, RuntimeError | KeyboardInterrupt)

    def reform(self, request: Reform, initialise: Callable[[], None]) -> None:
        """Make groups again. Arguments, and what is raised, are those of `GroupRebuild.reform`."""
        self._looking.activity = "reforming"
        if request.fresh:
            self._remote.lose_worker()
        try:
            self._reforming.reform(request, initialise)
            state_sync.joined = self._reforming.joined
        finally:
            self._looking.activity = "idle"
            self.recorder.writer.touch()

    # --- the I/O thread ------------------------------------------------------------------------

    def answer(self, request: Look | Free) -> Looked | Freed:
        """At once, whatever the main thread does."""
        if isinstance(request, Free):
            return self._freeing.handle(request)
        return Looked(
            number=request.number,
            rank=self.recorder.rank,
            look=self._looking.look(request.last, memory=request.memory),
        )
