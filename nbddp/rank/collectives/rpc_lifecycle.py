"""``torch.distributed.rpc``: how it begins in a cell, and what the next cell finds.

Runs in: the rank process, main thread; `_connect` the thread that calls ``init_rpc``.

RPC that was begun in a cell that went well stays until the user shuts it down. If the cell failed
on any rank, or a rank was replaced since, the workers do not fit together any more, and
``init_rpc`` would say "RPC is already initialized" on some of them: it is shut down on all ranks
before the next cell.
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
from nbddp.wire.flight_recorder.schema import UNKNOWN_MEMBER, GroupInfo

#: A call from another rank that still runs here holds up the end of RPC.
_PATIENCE_S = 5.0
#: Counts the workers that are not in the first RPC of their process.
_USED = "nbddp/used"


class RemoteCalls:
    """RPC of one rank.

    Args:
        recorder: of this rank.
        creator: connects ranks in such a way that it can be ended.
        world_size: of the pool.
    """

    def __init__(self, recorder: Recorder, creator: GroupFactory, world_size: int) -> None:
        self._recorder = recorder
        self._creator = creator
        self._world_size = world_size
        self._begun_in: str | None = None  #: the cell that has called ``init_rpc``
        self._has_lost_worker = False
        self._was_used = False

    def install(self) -> None:
        """Stand before torch's connecting of workers."""
        torch_private.hook_init_rpc(self._connect)

    def _connect(self, store: Any, size: int, call: Callable[[], Any]) -> Any:
        """Wait until all workers are here, and connect them, where it is seen and can be ended."""
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
        made = signatures.make("creation", "init_rpc", keys=members)
        info = GroupInfo(pg_id=f"rpc@{prefix or ''}@", name="rpc", desc="", ranks=ranks, backend="")
        limit = store.timeout
        is_own = limit != torch_private.rpc_timeout()
        milliseconds = int(limit.total_seconds() * 1000) if is_own else 0
        record = recorder.other(signatures.known(made), GroupCounters(info), milliseconds)
        with RecordedWait(recorder, record):
            store.add(_USED, self._was_used)
            self._creator.patience.gather(store, "nbddp/arrived", size, limit)
            if 0 < store.add(_USED, 0) < size:
                _warn_of_counts()
            self._was_used = True
            with self._creator.connecting_others():
                return call()

    def begin_cell(self, failed: Collection[str]) -> None:
        """End what is left of a cell that has failed.

        Args:
            failed: cells that have failed on any rank.
        """
        if not torch_private.has_rpc():
            self._begun_in = None
        elif self._has_lost_worker or self._begun_in in failed:
            self._end()

    def lose_worker(self) -> None:
        """A rank was replaced by a fresh process."""
        self._has_lost_worker = True

    def _end(self) -> None:
        self._begun_in = None
        # Not here: it waits for calls of others that run in this process.
        ending = threading.Thread(target=torch_private.shut_rpc_down, name="nbddp-rpc", daemon=True)
        ending.start()
        ending.join(_PATIENCE_S)
        if ending.is_alive():
            print(  # noqa: T201 - for the cell that begins
                "nbddp: RPC of a cell that failed could not be shut down: a call of another rank "
                "still runs here. Next: %ddp restart gives fresh processes",
                file=sys.stderr,
            )


def _warn_of_counts() -> None:
    print(  # noqa: T201 - for the cell that begins
        "nbddp: some of these ranks have used RPC before, and others are fresh processes. torch "
        "counts shutdowns in each process: rpc.shutdown() may wait for its time-out and fail. "
        "Next: dist.barrier(); rpc.shutdown(graceful=False), or %ddp restart",
        file=sys.stderr,
    )
