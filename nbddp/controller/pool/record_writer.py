"""Writes down what another notebook needs to take a pool back.

Runs in: the notebook's process, in the thread that starts the pool or lets it go.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from nbddp.controller.launch import LocalAgent
from nbddp.controller.options import PoolOptions
from nbddp.system import kept_pools
from nbddp.system.kept_pools import PoolRecord, ProcessId


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

    def take_over(self, record: PoolRecord) -> int:
        """Go on with the record of another notebook; return how often the pool was taken back."""
        self._began_at, self.token = record.began_at, record.token
        self.socket_path = Path(record.hub)
        self._attachments = record.attachments + 1
        return self._attachments

    def write(
        self, folder: Path, agents: Iterable[LocalAgent], keep_s: float, *, is_attached: bool = True
    ) -> None:
        """Write the record.

        Args:
            folder: of the pool.
            agents: by node.
            keep_s: for so many seconds the pool lives without a notebook; 0: it ends with it.
            is_attached: whether this process has the pool.
        """
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
        )
        self.put(folder, record)

    def renew(self, folder: Path, agents: Iterable[LocalAgent]) -> None:
        """Write the record again, since agents were replaced."""
        self.write(folder, agents, 0.0 if self.last is None else self.last.keep_s)

    def put(self, folder: Path, record: PoolRecord | None) -> None:
        """Write a record that was written before; None: there was none."""
        self.last = record
        if record is not None:
            with suppress(OSError):  # the disk is full: the pool works all the same
                kept_pools.write(folder, record)
