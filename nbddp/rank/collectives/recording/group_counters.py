"""The numbers of a group's operations, which every member counts for itself.

Runs in: the rank process, any thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nbddp.wire.flight_recorder.schema import (
    GroupInfo,
    MessageCount,
    shortened,
)

#: So many kinds of messages a group tells; whoever gives each message a tag has more.
_MAX_COUNTS = 256


@dataclass(eq=False)
class GroupCounters:
    """What is counted of one group; survives its re-forming."""

    info: GroupInfo
    offset: int = 0  #: of its description in shared memory
    epoch: int = 0  #: number of the `RebuildGroups` that made it last
    seq: int = 0
    digest: int = 0  #: of all collectives so far: what each of them was, and its number
    #: Messages so far by direction, peer and tag; all begin at `p2p_base`.
    p2p: dict[tuple[str, int, int], int] = field(default_factory=dict)
    p2p_base: int = 0
    #: Tags of receives from any source: which message such a receive takes is known too late to
    #: compare the two ends of what follows.
    any_source_tags: set[int] = field(default_factory=set)
    used_before: int = 0  #: operations before the cell that runs
    is_careful: bool = False  #: others than Gloo must be told whether their caller waits
    #: Made with TORCH_DISTRIBUTED_DEBUG=DETAIL: torch compares the ranks in each call, and blocks.
    is_checked: bool = False
    is_broken: bool = False
    #: Messages whose handle was lost before their end. Gloo forgets where their data goes, and a
    #: connection stands still for good when data comes for such a receive: ``Pair::prepareRead``
    #: in ``gloo/transport/tcp/pair.cc`` leaves what belongs to no buffer "for the next iteration".
    lost_messages: int = 0
    has_sleepers: bool = False  #: a thread of Gloo may never be woken, see `gloo.waits`
    relays: set[Any] = field(default_factory=set)  #: of open futures, see `gloo.futures`
    cut_at: float = 0.0  #: when its sockets were shut (`time.monotonic`); 0: they were not
    #: What its operations raise now: it was freed and is not yet re-formed.
    ended: Callable[[], BaseException] | None = None

    def __post_init__(self) -> None:
        self.has_peers = len(self.info.ranks) > 1
        self.timeout_ms = self.info.timeout_ms

    @property
    def used(self) -> int:
        """How many operations there were."""
        return self.seq + sum(list(self.p2p.values()))

    def told(self) -> GroupInfo:
        """What is told of the group: the user may have described it at length."""
        return msgspec.structs.replace(self.info, desc=shortened(self.info.desc))

    def snapshot(self) -> GroupInfo:
        """Return the group as others see it."""
        return msgspec.structs.replace(
            self.told(),
            collective_seq_id=self.seq,
            p2p_seq_id=max(self.p2p.values(), default=self.p2p_base),
            p2p_base=self.p2p_base,
            messages=self._messages(),
        )

    def _messages(self) -> tuple[MessageCount, ...] | None:
        # For the I/O thread, while others count: a copy in one step.
        counts = list(self.p2p.items())
        if len(counts) > _MAX_COUNTS:
            return None
        return tuple(
            MessageCount(direction=direction, peer=peer, tag=tag, count=count)
            for (direction, peer, tag), count in counts
        )

    def restart(self, epoch: int, seq: int, p2p_base: int) -> None:
        """All members go on counting from the same numbers."""
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
