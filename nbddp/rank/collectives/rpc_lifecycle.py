"""The lifecycle of ``torch.distributed.rpc`` over cells.

Runs in: the rank process, main thread; `_connect` in the thread that calls ``init_rpc``.

RPC that was initialised in a successful cell stays until the user shuts it down. If the cell failed
on any rank, or a rank was replaced since, the workers are not consistent any more, and ``init_rpc``
would raise "RPC is already initialized" on some of them. So RPC is shut down on all ranks before
the next cell.
"""

import sys
import threading
from collections.abc import Callable, Collection
from typing import Any

from nbddp.rank import torch_private
from nbddp.rank.collectives.group_creation import GroupFactory
from nbddp.rank.collectives.recording import signatures
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.store_wait import RecordedWait
from nbddp.wire.flight_recorder import UNKNOWN_MEMBER, GroupInfo

#: Time for the end of RPC, which a call from another rank that still runs here delays.
_PATIENCE_S = 5.0
#: Key that counts the workers whose process has used RPC before.
_USED = "nbddp/used"


class RemoteCalls:
    """RPC of one rank.

    Args:
        recorder: of this rank.
        factory: connects ranks so that the connecting can be aborted.
        world_size: of the pool.
    """

    def __init__(self, recorder: Recorder, factory: GroupFactory, world_size: int) -> None:
        self._recorder = recorder
        self._factory = factory
        self._world_size = world_size
        self._begun_in: str | None = None  #: the cell that has called ``init_rpc``
        self._has_lost_worker = False
        self._was_used = False

    def install(self) -> None:
        """Wrap torch's function that connects workers."""
        torch_private.hook_init_rpc(self._connect)

    def _connect(self, store: Any, size: int, call: Callable[[], Any]) -> Any:
        """Wait for all workers and connect them, recorded and so that it can be aborted."""
        recorder = self._recorder
        if recorder.is_child:
            return call()
        self._begun_in = recorder.run_id
        self._has_lost_worker = False
        if not size:
            return call()
        prefix = torch_private.shared_prefix(store)
        ranks = tuple(range(size)) if size == self._world_size and prefix is not None else ()
        members = tuple(map(str, ranks)) or (UNKNOWN_MEMBER,) * size
        signature = signatures.make("creation", "init_rpc", keys=members)
        info = GroupInfo.of(
            pg_id=f"rpc@{prefix or ''}@", name="rpc", desc="", ranks=ranks, backend=""
        )
        limit = store.timeout
        is_own = limit != torch_private.rpc_timeout()
        milliseconds = int(limit.total_seconds() * 1000) if is_own else 0
        record = recorder.other(signatures.known(signature), GroupCounters(info), milliseconds)
        with RecordedWait(recorder, record):
            store.add(_USED, self._was_used)
            self._factory.store_wait.gather(store, "nbddp/arrived", size, limit)
            if 0 < store.add(_USED, 0) < size:
                _warn_of_counts()
            self._was_used = True
            with self._factory.connecting_others():
                return call()

    def begin_cell(self, failed: Collection[str]) -> None:
        """Shut down RPC of a cell that has failed.

        Args:
            failed: ids of cells that have failed on any rank.
        """
        if not torch_private.has_rpc():
            self._begun_in = None
        elif self._has_lost_worker or self._begun_in in failed:
            self._end()

    def lose_worker(self) -> None:
        """Note that a rank was replaced by a fresh process."""
        self._has_lost_worker = True

    def _end(self) -> None:
        self._begun_in = None
        # It runs in a thread, because it waits for calls of other ranks that run in this process.
        shutdown = threading.Thread(
            target=torch_private.shut_rpc_down, name="nbddp-rpc", daemon=True
        )
        shutdown.start()
        shutdown.join(_PATIENCE_S)
        if shutdown.is_alive():
            print(  # noqa: T201 - for the cell that begins
                "nbddp: RPC of a cell that failed could not be shut down: a call of another rank "
                "still runs here. Next: %ddp restart gives fresh processes",
                file=sys.stderr,
            )


def _warn_of_counts() -> None:
    print(  # noqa: T201 - for the cell that begins
        "nbddp: some of these ranks have used RPC before, and others are fresh processes. torch "
        "counts shutdowns in each process: rpc.shutdown() may wait for its timeout and fail. "
        "Next: dist.barrier(); rpc.shutdown(graceful=False), or %ddp restart",
        file=sys.stderr,
    )
