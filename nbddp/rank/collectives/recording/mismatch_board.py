"""Sees that ranks of one machine disagree before any of their data moves, without communication.

Runs in: the rank process, any thread. Each rank writes the fingerprint of its next operation on a
board in shared memory *before* it reads those of the others: of any two ranks that disagree, the
later one sees it. What a fingerprint holds is in `signatures`; the texts are read from the records
of the other rank, and only when fingerprints differ, so an equal hash of different groups cannot
raise a false alarm.

A call that torch refuses gives its number back, and the rank's next one gets it. So a call that
differs counts only when torch has taken it; who sees one about which nothing is known yet waits,
however long that rank is not scheduled. Two that see each other would wait for ever: the higher
rank takes back what it has published, the lower one goes on, and then the higher one looks again
(`Board._settle`).
"""

import time
import zlib

from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.signatures import CallSignature
from nbddp.wire.flight_recorder.layout import BOARD_SLOTS
from nbddp.wire.flight_recorder.matching import compare, compare_message, is_uneven
from nbddp.wire.flight_recorder.reader import Reader
from nbddp.wire.flight_recorder.schema import Mismatch, Operation
from nbddp.wire.flight_recorder.writer import NodeMemory

#: Half of the slots are for collectives, half for messages.
_HALF = BOARD_SLOTS // 2
#: A first call of NCCL may wait for the others before it returns. After this time such a call
#: counts as taken, if neither rank has been refused anything with its number.
_PATIENCE_S = 0.25
#: A call that is not decided is looked at after a quarter of the time waited so far, within these.
_SHORTEST_S, _LONGEST_S = 0.0002, 0.02
_NO_LIMIT_MS = 30 * 60 * 1000  # as torch has it
#: What the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL does not compare by itself.
_UNCHECKED = ("reduce_op", "root", "input_splits", "output_splits")


class _Part:
    """The board of one group."""

    def __init__(self, words: memoryview, code: int, peers: list[tuple[int, int]]) -> None:
        self.words = words
        self.code = code << 31
        self.peers = peers  #: (local index, global rank) of the other members on this machine


class Board:
    """The board of this node, as one rank uses it."""

    def __init__(self, memory: NodeMemory, index: int, rank: int, first_rank: int) -> None:
        self._memory = memory
        self._index = index
        self._rank = rank
        self._first_rank = first_rank
        self._count = memory.local_ranks
        self._parts: dict[str, _Part] = {}
        self._readers: dict[int, Reader] = {}
        self.is_on = True

    def check(
        self, book: GroupCounters, seq: int, known: CallSignature, record: int
    ) -> Mismatch | None:
        """Publish a collective and compare; gives the first disagreement."""
        part = self._parts.get(book.info.pg_id) or self._part(book)
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
                return self._settle(book, part, seq, record)
        if known.is_uneven:
            return self._settle(book, part, seq, record)
        return None

    def withdraw(self, book: GroupCounters, seq: int) -> None:
        """What was published last does not count."""
        part = self._parts.get(book.info.pg_id)
        if part is not None:
            part.words[seq % _HALF * 2 * self._count + self._index] = 0

    def check_message(  # noqa: PLR0917 - once for each message: keywords cost
        self,
        book: GroupCounters,
        direction: str,
        peer: int,
        tag: int,
        count: int,
        known: CallSignature,
        record: int,
    ) -> Mismatch | None:
        """Publish a send or receive and compare with the other end, if that is on this machine."""
        part = self._parts.get(book.info.pg_id) or self._part(book)
        local = peer - self._first_rank
        if not 0 <= local < self._count or peer == self._rank:
            return None
        ends = (self._rank, peer) if direction == "send" else (peer, self._rank)
        code = zlib.crc32(repr((book.info.pg_id, book.epoch, ends, tag)).encode())
        key = code << 31 | count
        words = part.words
        at = (_HALF + (code + count) % _HALF) * 2 * self._count
        words[at + self._count + self._index] = known.hard
        words[at + self._index] = key
        if words[at + local] == key and words[at + self._count + local] != known.hard:
            return self._compare_message(book, record, local, peer, tag, count)
        return None

    def forget(self, pg_id: str) -> None:
        """The group is gone, or counts from new numbers in a new epoch, with other keys."""
        self._parts.pop(pg_id, None)

    def _part(self, book: GroupCounters) -> _Part:
        info = book.info
        code = zlib.crc32(f"{info.pg_id}/{book.epoch}".encode())
        peers = [
            (rank - self._first_rank, rank)
            for rank in info.ranks
            if rank != self._rank and 0 <= rank - self._first_rank < self._count
        ]
        board = self._memory.board(zlib.crc32(info.pg_id.encode()))
        part = self._parts[info.pg_id] = _Part(board, code, peers)
        return part

    def reader_of(self, rank: int) -> Reader | None:
        """Reads the records of a rank of this machine; None: it is on another one."""
        index = rank - self._first_rank
        return self._reader(index) if 0 <= index < self._count else None

    def _reader(self, index: int) -> Reader:
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._memory.reader(index)
        return reader

    def _own(self, record: int) -> Operation | None:
        return self._reader(self._index).operation(record)

    def _settle(self, book: GroupCounters, part: _Part, seq: int, record: int) -> Mismatch | None:
        """Somebody seems to disagree: gives who does, once torch has taken that call.

        Whoever returns None has published the call and has seen nobody after that: so of two that
        differ one at most goes on before the other's call is decided. Each that waits does so for
        a published call of a higher rank, or has taken its own back and waits for a lower rank:
        there is always one that goes on.
        """
        mine = self._own(record)
        words, count = part.words, self._count
        at = seq % _HALF * 2 * count
        own, key = at + self._index, part.code | seq
        began = time.monotonic()
        limit_s = ((mine.timeout_ms if mine else 0) or _NO_LIMIT_MS) / 1000
        while mine is not None:
            undecided = []
            for peer, rank in part.peers:
                hard = words[at + count + peer]
                is_same = hard == words[own + count] and not is_uneven(mine.signature)
                if words[at + peer] != key or is_same:
                    continue
                found = self._compare(book, mine, peer, rank)
                if found is None:
                    continue
                # If its fingerprint has changed meanwhile, another call was compared.
                if self._reader(peer).is_taken(found.theirs) and words[at + count + peer] == hard:
                    words[own] = key
                    return found
                undecided.append(found)
            passed_s = time.monotonic() - began
            if not undecided or book.ended is not None or passed_s > limit_s:
                if words[own] == key:
                    break
                words[own] = key  # and look again: others may have come meanwhile
                continue
            first = min(undecided, key=lambda found: found.peer)
            if passed_s > _PATIENCE_S and self._may_block(book, seq, first.peer):
                words[own] = key
                return first
            if first.peer < self._rank:
                words[own] = 0
            time.sleep(min(max(passed_s / 4, _SHORTEST_S), _LONGEST_S))
        return None

    def _compare(
        self, book: GroupCounters, mine: Operation, peer: int, rank: int
    ) -> Mismatch | None:
        """How a peer's call with the number of mine differs."""
        calls = self._with_number(peer, book.info.pg_id, mine.collective_seq_id)
        # Calls that torch refuses give their number back, so there may be several.
        if not calls or _is_refused(calls[-1]):
            return None
        theirs = calls[-1]
        fields = self._differences(book, mine, theirs, rank)
        if book.is_checked:  # torch tells the rest, on all ranks
            fields = tuple(field for field in fields if field in _UNCHECKED)
        # Or the peer is ahead: it has made this call before, and torch refused it.
        if not fields or any(
            each.signature == mine.signature or not self._differences(book, mine, each, rank)
            for each in calls[:-1]
        ):
            return None
        return Mismatch(rank=self._rank, peer=rank, mine=mine, theirs=theirs, fields=fields)

    def _differences(
        self, book: GroupCounters, mine: Operation, theirs: Operation, rank: int
    ) -> tuple[str, ...]:
        """Names of the fields in which they differ, and must not."""
        ranks = book.info.ranks
        me, other = ranks.index(self._rank), ranks.index(rank)
        return compare(mine.signature, theirs.signature, me=me, other=other, size=len(ranks)).hard

    def _may_block(self, book: GroupCounters, seq: int, rank: int) -> bool:
        """A call that is not decided may be one that torch has taken and does not return from."""
        if book.info.backend == "gloo" and not book.is_checked:
            return False
        pg_id = book.info.pg_id
        calls = [
            *self._with_number(self._index, pg_id, seq),
            *self._with_number(rank - self._first_rank, pg_id, seq),
        ]
        return not any(map(_is_refused, calls))

    def _compare_message(  # noqa: PLR0917 - likewise
        self, book: GroupCounters, record: int, peer: int, rank: int, tag: int, count: int
    ) -> Mismatch | None:
        mine = self._own(record)
        if mine is None:
            return None
        for theirs in reversed(self._reader(peer).operations(128)):
            if (
                theirs.pg_id == book.info.pg_id
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
    """Return the call has failed before anything was sent."""
    return operation.state == "failed" and not operation.waited_ns
