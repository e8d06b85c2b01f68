"""The counters of a group's operations, which every member counts for itself.

Runs in: the rank process, any thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nbddp.rank.collectives.recording.signatures import fingerprint
from nbddp.wire.flight_recorder import FAR_MESSAGES, GroupInfo, MessageCount, shortened

#: Up to this many message counters are reported; code that gives each message its own tag has more.
_MAX_COUNTS = 256

#: The first collectives of a cell have their iteration in the record, later ones only those with a
#: number that is divisible by `SPARSE`: reading the variables takes some microseconds.
DENSE = 64
SPARSE = 16


@dataclass(eq=False)
class GroupCounters:
    """The counters and flags of one group, which survive its rebuild."""

    info: GroupInfo
    offset: int = 0  #: of its description in shared memory
    epoch: int = 0  #: number of the `RebuildGroups` that rebuilt it last
    seq: int = 0
    digest: int = 0  #: of the signatures and numbers of all collectives so far
    #: Up to this collective each record has its iteration, later ones only each `SPARSE` th.
    dense_until: int = DENSE
    #: Messages so far by direction, peer and tag; all begin at `p2p_base`.
    p2p: dict[tuple[str, int, int], int] = field(default_factory=dict)
    p2p_base: int = 0
    #: Tags of receives from any source: their sender is known too late to compare the two ends of
    #: later messages.
    any_source_tags: set[int] = field(default_factory=set)
    far_messages: int = 0  #: of the cell, see `GroupMark.far_messages`
    used_before: int = 0  #: number of operations before the running cell
    is_careful: bool = False  #: backends other than Gloo need to know whether their caller waits
    #: Created with TORCH_DISTRIBUTED_DEBUG=DETAIL: torch compares the ranks in each call, and
    #: blocks.
    is_checked: bool = False
    is_broken: bool = False
    #: Number of messages whose handle was lost before their end. Gloo forgets their buffers, and
    #: data for such a receive blocks its connection permanently: ``Pair::prepareRead`` in
    #: ``gloo/transport/tcp/pair.cc`` leaves data without a buffer "for the next iteration".
    lost_messages: int = 0
    has_sleepers: bool = False  #: a thread of Gloo may never be woken, see `gloo.waits`
    relays: set[Any] = field(default_factory=set)  #: relays of open futures, see `gloo.futures`
    cut_at: float = 0.0  #: when its sockets were shut (`time.monotonic`); 0: they were not
    #: Returns the exception of all its operations: it was freed and is not yet rebuilt.
    ended: Callable[[], BaseException] | None = None
    has_refused: bool = False  #: the first call since then is recorded

    def __post_init__(self) -> None:
        self.ranks = self.info.ranks  #: the members; here calls find them without a search
        self.has_peers = len(self.ranks) > 1
        self.timeout_ms = self.info.timeout_ms

    @property
    def used(self) -> int:
        """The number of operations so far."""
        return self.seq + sum(list(self.p2p.values()))

    def add_far_message(  # noqa: PLR0917 - once for each message: keywords cost
        self, direction: str, rank: int, peer: int, tag: int, count: int, hard: int, times: int = 1
    ) -> None:
        """Add a message with a rank of another node, whose other end no board shows.

        Args:
            direction: ``send`` or ``recv``.
            rank: this rank.
            peer: the other one.
            tag: of the message.
            count: its number among those of this direction, peer and tag.
            hard: fingerprint of its signature.
            times: -1: take back what was added.
        """
        is_sent = direction == "send"
        ends = (rank, peer) if is_sent else (peer, rank)
        code = fingerprint((self.info.pg_id, self.epoch, ends, tag, count, hard)) * times
        self.far_messages = (self.far_messages + (code if is_sent else -code)) % FAR_MESSAGES

    def description(self) -> GroupInfo:
        """Return the group for records and messages, with the user's description shortened."""
        return msgspec.structs.replace(self.info, desc=shortened(self.info.desc))

    def snapshot(self) -> GroupInfo:
        """Return the group with its counters, for `RankLook`."""
        return msgspec.structs.replace(
            self.description(),
            collective_seq_id=self.seq,
            p2p_seq_id=max(self.p2p.values(), default=self.p2p_base),
            p2p_base=self.p2p_base,
            messages=self._messages(),
        )

    def _messages(self) -> tuple[MessageCount, ...] | None:
        # The I/O thread calls this while other threads count, so it copies in one step.
        counts = list(self.p2p.items())
        if len(counts) > _MAX_COUNTS:
            return None
        return tuple(
            MessageCount(direction=direction, peer=peer, tag=tag, count=count)
            for (direction, peer, tag), count in counts
        )

    def restart(self, epoch: int, seq: int, p2p_base: int) -> None:
        """Restart all counters after a rebuild, with equal numbers on all members."""
        self.epoch = epoch
        self.seq = seq
        self.digest = 0
        self.p2p.clear()
        self.p2p_base = p2p_base
        self.any_source_tags.clear()
        self.is_broken = False
        self.lost_messages = 0
        self.cut_at = 0.0
        self.has_sleepers = False
        self.ended = None
        self.has_refused = False
