"""Detects mismatches between ranks of one machine before data moves, without communication.

Runs in: the rank process, any thread. Each rank writes the fingerprint of its next operation on a
board in shared memory *before* it reads those of the others: of any two ranks that disagree, the
later one sees the mismatch. `signatures` makes the fingerprints. The texts are read from the
records of the other rank, and only when fingerprints differ, so an equal fingerprint of different
groups cannot raise a false alarm.

A call that torch refuses returns its number, and the rank's next call gets it. So a different call
counts only when torch has accepted it. A rank that sees an undecided call waits, however long the
other rank is not scheduled. Two ranks that see each other would wait forever: the higher rank
withdraws its call, the lower one continues, and then the higher one checks again (`Board._settle`).
"""

import time
import zlib

from torch.distributed.constants import default_pg_timeout

from nbddp.rank.backoff import pause_s
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.signatures import CallSignature
from nbddp.wire.flight_recorder import BOARD_SLOTS, Mismatch, NodeMemory, Operation, Reader
from nbddp.wire.flight_recorder.matching import compare, compare_message, is_uneven

#: Half of the slots are for collectives, half for messages.
_HALF = BOARD_SLOTS // 2
#: A first call of NCCL may wait for the others before it returns. After this time such a call
#: counts as accepted, if torch has refused neither rank a call with its number.
_PATIENCE_S = 0.25
#: Fields that the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL does not compare.
_UNCHECKED = ("reduce_op", "root", "strides", "places", "input_splits", "output_splits")


class _GroupBoard:
    """The part of the board for one group."""

    def __init__(self, words: memoryview, code: int, peers: list[tuple[int, int]]) -> None:
        self.words = words
        self.code = code << 31
        self.peers = peers  #: (local index, global rank) of the other members on this machine


class Board:
    """The board of this node, for one rank.

    Args:
        memory: the shared memory of the node.
        index: the local rank.
        rank: the global rank.
        first_rank: the lowest global rank of this node.
    """

    def __init__(self, memory: NodeMemory, index: int, rank: int, first_rank: int) -> None:
        self._memory = memory
        self._index = index
        self._rank = rank
        self._first_rank = first_rank
        self._count = memory.local_ranks
        self._parts: dict[str, _GroupBoard] = {}
        self._readers: dict[int, Reader] = {}
        self.is_on = True

    def check(
        self, counters: GroupCounters, seq: int, known: CallSignature, record: int
    ) -> Mismatch | None:
        """Publish a collective and compare; return the first mismatch."""
        part = self._parts.get(counters.info.pg_id) or self._part(counters)
        if not part.peers:
            return None
        words, count, index = part.words, self._count, self._index
        at = seq % _HALF * 2 * count
        key = part.code | seq
        hard = known.hard
        words[at + count + index] = hard
        words[at + index] = key
        for peer, _ in part.peers:
            if words[at + peer] == key and words[at + count + peer] != hard:
                return self._settle(counters, part, seq, record)
        if known.is_uneven:
            return self._settle(counters, part, seq, record)
        return None

    def withdraw(self, counters: GroupCounters, seq: int) -> None:
        """Withdraw the call that was published last."""
        part = self._parts.get(counters.info.pg_id)
        if part is not None:
            part.words[seq % _HALF * 2 * self._count + self._index] = 0

    def shows(self, rank: int) -> bool:
        """Return whether a rank is of this node."""
        return 0 <= rank - self._first_rank < self._count

    def check_message(  # noqa: PLR0917 - once for each message: keywords cost
        self,
        counters: GroupCounters,
        direction: str,
        peer: int,
        tag: int,
        count: int,
        known: CallSignature,
        record: int,
    ) -> Mismatch | None:
        """Publish a message and compare with its other end, if that is on this machine."""
        part = self._parts.get(counters.info.pg_id) or self._part(counters)
        local = peer - self._first_rank
        if not 0 <= local < self._count or peer == self._rank:
            return None
        ends = (self._rank, peer) if direction == "send" else (peer, self._rank)
        code = zlib.crc32(repr((counters.info.pg_id, counters.epoch, ends, tag)).encode())
        key = code << 31 | count
        words = part.words
        at = (_HALF + (code + count) % _HALF) * 2 * self._count
        words[at + self._count + self._index] = known.hard
        words[at + self._index] = key
        if words[at + local] == key and words[at + self._count + local] != known.hard:
            return self._compare_message(counters, record, local, peer, tag, count)
        return None

    def forget(self, pg_id: str) -> None:
        """Drop the part of a group that is gone, or has new keys after a rebuild."""
        self._parts.pop(pg_id, None)

    def _part(self, counters: GroupCounters) -> _GroupBoard:
        info = counters.info
        code = zlib.crc32(f"{info.pg_id}/{counters.epoch}".encode())
        peers = [
            (rank - self._first_rank, rank)
            for rank in info.ranks
            if rank != self._rank and 0 <= rank - self._first_rank < self._count
        ]
        board = self._memory.board(zlib.crc32(info.pg_id.encode()))
        part = self._parts[info.pg_id] = _GroupBoard(board, code, peers)
        return part

    def reader_of(self, rank: int) -> Reader | None:
        """Return a reader of the records of a rank; None: it is on another machine."""
        index = rank - self._first_rank
        return self._reader(index) if 0 <= index < self._count else None

    def _reader(self, index: int) -> Reader:
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._memory.reader(index)
        return reader

    def _own(self, record: int) -> Operation | None:
        return self._reader(self._index).operation(record)

    def _settle(
        self, counters: GroupCounters, part: _GroupBoard, seq: int, record: int
    ) -> Mismatch | None:
        """Return the first mismatch, once torch has accepted the other rank's call.

        A rank that returns None has published its call and has seen no other call afterwards: so
        of two different calls, at most one continues before the other is decided. A rank that waits
        either waits for a published call of a higher rank, or has withdrawn its own and waits for a
        lower rank: so at least one rank always continues.
        """
        mine = self._own(record)
        words, count = part.words, self._count
        at = seq % _HALF * 2 * count
        own, key = at + self._index, part.code | seq
        began = time.monotonic()
        limit_s = (mine.timeout_ms / 1000 if mine else 0) or default_pg_timeout.total_seconds()
        while mine is not None:
            undecided = []
            for peer, rank in part.peers:
                hard = words[at + count + peer]
                is_same = hard == words[own + count] and not is_uneven(mine.signature)
                if words[at + peer] != key or is_same:
                    continue
                wrong = self._compare(counters, mine, peer, rank)
                if wrong is None:
                    continue
                # If its fingerprint has changed in the meantime, another call was compared.
                if self._reader(peer).is_taken(wrong.theirs) and words[at + count + peer] == hard:
                    words[own] = key
                    return wrong
                undecided.append(wrong)
            passed_s = time.monotonic() - began
            if not undecided or counters.ended is not None or passed_s > limit_s:
                if words[own] == key:
                    break
                words[own] = key  # then check again: others may have published in the meantime
                continue
            first = min(undecided, key=lambda wrong: wrong.peer)
            if passed_s > _PATIENCE_S and self._may_block(counters, seq, first.peer):
                words[own] = key
                return first
            if first.peer < self._rank:
                words[own] = 0
            time.sleep(pause_s(passed_s))
        return None

    def _compare(
        self, counters: GroupCounters, mine: Operation, peer: int, rank: int
    ) -> Mismatch | None:
        """Return the mismatch with a peer's call that has the same number."""
        calls = self._with_number(peer, counters.info.pg_id, mine.collective_seq_id)
        # Calls that torch refuses return their number, so there may be several.
        if not calls or _is_refused(calls[-1]):
            return None
        theirs = calls[-1]
        fields = self._differences(counters, mine, theirs, rank)
        if counters.is_checked:  # torch reports the other fields, on all ranks
            fields = tuple(field for field in fields if field in _UNCHECKED)
        # Or the peer is ahead: it has issued this call before, and torch refused it.
        if not fields or any(
            call.signature == mine.signature or not self._differences(counters, mine, call, rank)
            for call in calls[:-1]
        ):
            return None
        return Mismatch(rank=self._rank, peer=rank, mine=mine, theirs=theirs, fields=fields)

    def _differences(
        self, counters: GroupCounters, mine: Operation, theirs: Operation, rank: int
    ) -> tuple[str, ...]:
        """Return the names of the fields whose differences are errors."""
        ranks = counters.ranks
        me, other = ranks.index(self._rank), ranks.index(rank)
        return compare(mine.signature, theirs.signature, me=me, other=other, size=len(ranks)).hard

    def _may_block(self, counters: GroupCounters, seq: int, rank: int) -> bool:
        """Return whether torch may have accepted an undecided call, and blocks in it."""
        if counters.info.backend == "gloo" and not counters.is_checked:
            return False
        pg_id = counters.info.pg_id
        calls = [
            *self._with_number(self._index, pg_id, seq),
            *self._with_number(rank - self._first_rank, pg_id, seq),
        ]
        return not any(map(_is_refused, calls))

    def _compare_message(  # noqa: PLR0917 - as `check_message`
        self, counters: GroupCounters, record: int, peer: int, rank: int, tag: int, count: int
    ) -> Mismatch | None:
        mine = self._own(record)
        if mine is None:
            return None
        for theirs in reversed(self._reader(peer).operations(128)):
            if (
                theirs.pg_id == counters.info.pg_id
                and theirs.state != "failed"
                and (theirs.p2p_seq_id, theirs.tag, theirs.peer) == (count, tag, self._rank)
                and {mine.signature.kind, theirs.signature.kind} == {"send", "recv"}
            ):
                fields = compare_message(mine.signature, theirs.signature).hard
                if not fields:
                    return None
                return Mismatch(rank=self._rank, peer=rank, mine=mine, theirs=theirs, fields=fields)
        return None

    def _with_number(self, peer: int, pg_id: str, seq: int) -> list[Operation]:
        return [
            theirs
            for theirs in self._reader(peer).operations(128)
            if theirs.pg_id == pg_id and theirs.collective_seq_id == seq
        ]


def _is_refused(operation: Operation) -> bool:
    """Return whether the call has failed before data was sent."""
    return operation.state == "failed" and not operation.waited_ns
