"""Detects that a message for a receive from any source is on its way, before torch waits for it.

Runs in: the rank process, the thread that waits. Gloo's wait for any source cannot be ended, not
even by a shutdown of its sockets. So nbddp waits before it, by reading the records of the members;
torch's wait then takes no longer than the message.
"""

from collections.abc import Sequence

from nbddp.wire.flight_recorder import RING_LENGTH, Operation, Reader


class Senders:
    """The other members of a group, which may send the message for a receive.

    Args:
        readers: readers of the members' records, by global rank.
        receive: the receive.
        rank: the rank that issued it.
    """

    def __init__(
        self, readers: Sequence[tuple[int, Reader]], receive: Operation, rank: int
    ) -> None:
        self._members = [_Sender(reader, receive, rank, sender) for sender, reader in readers]

    def has_message(self, taken_by_sender: dict[int, int]) -> bool:
        """Return whether a message was sent that was not taken yet, or may have been missed.

        Args:
            taken_by_sender: numbers of the last messages that other receives have taken.
        """
        return any(
            member.newest_number() > taken_by_sender[member.sender] or member.has_missed
            for member in self._members
        )


class _Sender:
    def __init__(self, reader: Reader, receive: Operation, rank: int, sender: int) -> None:
        self.sender = sender
        #: A message that it sent may be among records that were overwritten since.
        self.has_missed = False
        self._reader = reader
        self._receive = receive
        self._rank = rank
        self._newest_read = 0  #: the newest record that was read
        self._number = 0

    def newest_number(self) -> int:
        """Return the number of its last message for this rank, with this tag, in this group."""
        newest = self._reader.newest
        oldest = max(1, newest - RING_LENGTH + 1)
        if self._newest_read == 0:
            self._begin(oldest)
        elif self._newest_read < oldest - 1:
            self.has_missed = True
        for record in range(max(oldest, self._newest_read + 1), newest + 1):
            if self._reader.is_message(record, self._rank, self._receive.tag):
                self._read(record)
        self._newest_read = newest
        return self._number

    def _begin(self, oldest: int) -> None:
        """Check whether sends were missed; sends that ended before the receive do not matter."""
        if oldest > 1:
            first = self._reader.operation(oldest)
            is_late = first is None or first.time_created_ns > self._receive.time_created_ns
            opened = sum(sent.state == "scheduled" for sent in self._reader.operations(0))
            self.has_missed = is_late or opened < self._reader.open_count

    def _read(self, record: int) -> None:
        operation = self._reader.operation(record)
        if operation is None:
            self.has_missed = True
        elif operation.signature.kind == "send" and operation.pg_id == self._receive.pg_id:
            self._number = max(self._number, operation.p2p_seq_id)
