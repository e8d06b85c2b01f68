"""Sees that a message for a receive from any source is on its way, before torch waits for it.

Runs in: the rank process, the thread that waits. Gloo waits for any source in a way that nobody can
end, not even a shutdown of its sockets. So we wait in its place, by looking at the records of the
members, and leave the rest to torch: then it takes no longer than the message.
"""

from collections.abc import Sequence

from nbddp.wire.flight_recorder.layout import RING_LENGTH
from nbddp.wire.flight_recorder.reader import Reader
from nbddp.wire.flight_recorder.schema import Operation


class Senders:
    """The other members of a group, as far as they may send what ``own`` receives.

    Args:
        readers: of the members' records, by global rank.
        own: the receive.
        rank: that issued it.
    """

    def __init__(self, readers: Sequence[tuple[int, Reader]], own: Operation, rank: int) -> None:
        self._members = [_Sender(reader, own, rank, sender) for sender, reader in readers]

    def has_message(self, taken_by_sender: dict[int, int]) -> bool:
        """Whether a message has come that was not taken yet, or may have come unseen.

        Args:
            taken_by_sender: numbers of the last messages that other receives have taken.
        """
        return any(
            member.newest_number() > taken_by_sender[member.sender] or member.has_missed
            for member in self._members
        )


class _Sender:
    def __init__(self, reader: Reader, own: Operation, rank: int, sender: int) -> None:
        self.sender = sender
        #: What it sent may be among records that were written over since.
        self.has_missed = False
        self._reader = reader
        self._own = own
        self._rank = rank
        self._seen = 0  #: the newest record that was looked at
        self._number = 0

    def newest_number(self) -> int:
        """The number of its last message for us, with this tag, in this group."""
        newest = self._reader.newest
        oldest = max(1, newest - RING_LENGTH + 1)
        if self._seen == 0:
            self._begin(oldest)
        elif self._seen < oldest - 1:
            self.has_missed = True
        for record in range(max(oldest, self._seen + 1), newest + 1):
            if self._reader.is_message(record, self._rank, self._own.tag):
                self._look_at(record)
        self._seen = newest
        return self._number

    def _begin(self, oldest: int) -> None:
        """A send ends only when it was asked for: those that ended before need not be known."""
        if oldest > 1:
            first = self._reader.operation(oldest)
            is_late = first is None or first.time_created_ns > self._own.time_created_ns
            opened = sum(each.state == "scheduled" for each in self._reader.operations(0))
            self.has_missed = is_late or opened < self._reader.open_count

    def _look_at(self, record: int) -> None:
        found = self._reader.operation(record)
        if found is None:
            self.has_missed = True
        elif found.signature.kind == "send" and found.pg_id == self._own.pg_id:
            self._number = max(self._number, found.p2p_seq_id)
