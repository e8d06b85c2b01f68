"""Writes down what another notebook needs to take a pool back.

Runs in: the notebook's process, in the thread that starts the pool or lets it go.
"""

import os
import platform
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import msgspec

from nbddp.controller.hub import HubThread
from nbddp.controller.launch import Engine, LocalAgent, mark_of
from nbddp.controller.options import PoolOptions
from nbddp.controller.state import last_end
from nbddp.errors import PoolAttachError
from nbddp.system import kept_pools
from nbddp.system.kept_pools import MachinesRecord, PoolRecord, ProcessId
from nbddp.wire.channels import RemoteHubChannel


class RecordWriter:
    """Writes the record of one pool, again and again.

    Args:
        options: of the pool.
        pool_id: its name.
        use_arena: whether values may travel through shared memory.
    """

    def __init__(self, options: PoolOptions, pool_id: str, *, use_arena: bool) -> None:
        self._options = options
        self._pool_id = pool_id
        self._use_arena = use_arena
        self._began_at = kept_pools.now()
        self._attachments = 0
        self.token = ""  #: secret of the agents
        self.socket_path = Path()  #: of the hub
        self.last: PoolRecord | None = None  #: as it was written last
        #: Describes agents on other machines; None: there are none, or they were let go.
        self.machines: Callable[[], MachinesRecord] | None = None
        self._folder: Path | None = None  #: of the record
        self._lock = threading.Lock()  #: around what the hub thread writes as well

    def take_over(self, record: PoolRecord) -> int:
        """Go on with the record of another notebook; return how often the pool was taken back."""
        self._began_at, self.token = record.began_at, record.token
        self.socket_path = Path(record.hub)
        self._attachments = record.attachments + 1
        return self._attachments

    def write(
        self,
        folder: Path | None,
        agents: Iterable[LocalAgent],
        keep_s: float,
        *,
        is_attached: bool = True,
    ) -> None:
        """Write the record; that of a pool on other machines only if it is kept.

        Args:
            folder: of the pool; None: its agents are on other machines.
            agents: by node.
            keep_s: for so many seconds the pool lives without a notebook; 0: it ends with it.
            is_attached: whether this process has the pool.

        Raises:
            PoolAttachError: there is no place for the record of a pool on other machines.
        """
        machines = None
        if folder is None:
            if not keep_s or self.machines is None:
                self.put(None)
                return
            folder, machines = self._make_folder(), self.machines()
        record = PoolRecord(
            pool_id=self._pool_id,
            described=self._options.describe(),
            options=asdict(self._options) if keep_s else {},  # variables may be secret
            world_size=self._options.world_size,
            began_at=self._began_at,
            notebook=ProcessId.of(os.getpid()) if is_attached else None,
            notebook_since=kept_pools.now(),
            agents=tuple(agent.process for agent in agents),
            keep_s=keep_s,
            hub=str(self.socket_path) if keep_s else "",
            token=self.token if keep_s else "",
            use_arena=self._use_arena,
            attachments=self._attachments,
            machines=machines,
        )
        self._folder = folder
        self.put(record)

    def rewrite(self, folder: Path | None, agents: Iterable[LocalAgent]) -> None:
        """Write the record again, since agents were replaced."""
        self.write(folder, agents, 0.0 if self.last is None else self.last.keep_s)

    def _make_folder(self) -> Path:
        try:
            return kept_pools.folder_of_machines(self._pool_id)
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            step = f"mkdir -p {Path(error.filename).parent}" if is_missing else "make room there"
            raise PoolAttachError(
                f"{error.filename} cannot be made ({error.strerror}), and a pool on other "
                f"machines is kept by its record there. Next: {step}, or leave out --keep"
            ) from None

    def put(self, record: PoolRecord | None) -> None:
        """Write a record that was written before; None: there was none."""
        with self._lock:
            self.last = record
            if record is not None and self._folder is not None:
                with suppress(OSError):  # the disk is full: the pool works all the same
                    kept_pools.write(self._folder, record)
                return
        if record is None:
            self.remove_of_machines()

    def renew(self) -> None:
        """Note that this process lives, and which agents there are. The hub thread calls this."""
        with self._lock:
            folder, machines, last = self._folder, self.machines, self.last
            if folder is None or machines is None or last is None:
                return
            record = msgspec.structs.replace(last, machines=machines())
            if record == last:
                kept_pools.renew(folder)
                return
            self.last = record
            with suppress(OSError):
                kept_pools.write(folder, record)

    def remove_of_machines(self) -> None:
        """Remove the record of a pool on other machines, if this process has the pool."""
        if self.machines is not None and self._folder is not None:
            kept_pools.remove_folder_of_machines(self._folder)
            self._folder = None


def machines_record(
    hub: HubThread, engine: Engine, channel: RemoteHubChannel, address: str
) -> MachinesRecord:
    """Describe agents on other machines for another notebook.

    Args:
        hub: knows the machines.
        engine: has started the agents.
        channel: to them.
        address: of this machine.
    """
    nodes = hub.nodes
    end = last_end(nodes.facts, nodes.job_ends)
    return MachinesRecord(
        notebook_host=platform.node(),
        address=address,
        port=channel.port,
        keys=msgspec.to_builtins(channel.keys),
        hosts=tuple(facts.host for facts in nodes.facts),
        pids=nodes.pids,
        mark=mark_of(engine),
        job="" if end is None else end.name,
        job_ends_at=0.0 if end is None else round(_on_clock(end.ends_at)),
    )


def _on_clock(at: float) -> float:
    """Return a moment of `time.monotonic` in seconds since 1970."""
    return kept_pools.now() + at - time.monotonic()
