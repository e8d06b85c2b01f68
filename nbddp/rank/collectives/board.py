"""Sees that ranks of one machine disagree before any of their data moves, without communication.

Runs in: the rank process, any thread. Each rank writes the fingerprint of its next operation on a
board in shared memory *before* it reads those of the others: of any two ranks that disagree, the
later one sees it. What a fingerprint holds is in `signatures`; the texts are read from the records
of the other rank, and only when fingerprints differ, so an equal hash of different groups cannot
raise a false alarm.
"""

import time
import zlib
from typing import TYPE_CHECKING

from nbddp.rank.collectives.signatures import Known
from nbddp.wire.observed import Mismatch, Operation, Signature
from nbddp.wire.record_layout import BOARD_SLOTS
from nbddp.wire.record_reader import Reader
from nbddp.wire.records import NodeMemory

if TYPE_CHECKING:
    from nbddp.rank.collectives.recorder import GroupBook

#: Half of the slots are for collectives, half for messages.
_HALF = BOARD_SLOTS // 2
#: A disagreement is believed when the other call was not refused by torch within this time.
_PATIENCE_S = 0.25
_COMPARED = ("op", "input_dtypes", "input_sizes", "reduce_op", "root", "input_splits")


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

    def check(self, book: "GroupBook", seq: int, known: Known, record: int) -> Mismatch | None:
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
        for peer, rank in part.peers:
            if words[at + peer] == key and words[at + count + peer] != hard:
                found = self._compare(book, record, peer, rank, seq)
                if found is not None:
                    return found
        if known.signature.input_splits or known.signature.output_splits:
            return self._compare_splits(book, record, part, at, key, seq)
        return None

    def withdraw(self, book: "GroupBook", seq: int) -> None:
        """What was published last does not count."""
        part = self._parts.get(book.info.pg_id)
        if part is not None:
            part.words[seq % _HALF * 2 * self._count + self._index] = 0

    def check_message(  # noqa: PLR0917 - once for each message: keywords cost
        self,
        book: "GroupBook",
        direction: str,
        peer: int,
        tag: int,
        count: int,
        known: Known,
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
        """The group counts anew, in a new epoch: its keys are others from now on."""
        self._parts.pop(pg_id, None)

    def _part(self, book: "GroupBook") -> _Part:
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

    def _compare(
        self, book: "GroupBook", record: int, peer: int, rank: int, seq: int
    ) -> Mismatch | None:
        mine = self._own(record)
        deadline = time.monotonic() + _PATIENCE_S
        while mine is not None:
            theirs = self._with_number(peer, book.info.pg_id, seq)
            # Calls that torch refuses give their number back, so there may be several.
            if not theirs or any(
                not differences(mine.signature, each.signature) for each in theirs
            ):
                return None
            newest = theirs[-1]
            if _is_refused(newest):
                return None
            if self._is_accepted(peer, newest) or time.monotonic() > deadline:
                fields = differences(mine.signature, newest.signature)
                return self._mismatch(rank, mine, newest, fields)
            time.sleep(_PATIENCE_S / 500)
        return None

    def _is_accepted(self, peer: int, operation: Operation) -> bool:
        """Torch has not refused the call: the rank has gone on, or waits for its end."""
        reader = self._reader(peer)
        record = operation.record_id
        return (
            operation.state != "scheduled"
            # A wait that begins with the record says nothing: see `Writer.accept`.
            or any(
                waited == record and since > operation.time_created_ns
                for _, waited, since in reader.waits()
            )
            or any(each.record_id > record for each in reader.operations(1))
        )

    def _compare_message(  # noqa: PLR0917 - likewise
        self, book: "GroupBook", record: int, peer: int, rank: int, tag: int, count: int
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
                fields = differences(mine.signature, theirs.signature, is_message=True)
                return self._mismatch(rank, mine, theirs, fields) if fields else None
        return None

    def _compare_splits(  # noqa: PLR0917 - likewise
        self, book: "GroupBook", record: int, part: _Part, at: int, key: int, seq: int
    ) -> Mismatch | None:
        """What I send to a peer must be what the peer wants from me, and the other way round."""
        mine = self._own(record)
        ranks = book.info.ranks
        me = ranks.index(self._rank)
        for peer, rank in part.peers:
            found = (
                self._with_number(peer, book.info.pg_id, seq)
                if part.words[at + peer] == key
                else []
            )
            if mine is None or not found or _is_refused(found[-1]):
                continue
            theirs = found[-1]
            other = ranks.index(rank)
            a, b = mine.signature, theirs.signature
            for giver, taker, source, target in ((a, b, me, other), (b, a, other, me)):
                sent = _split(giver.input_splits, giver.input_sizes, target, len(ranks))
                wanted = _split(taker.output_splits, taker.output_sizes, source, len(ranks))
                if None not in (sent, wanted) and sent != wanted:
                    return self._mismatch(rank, mine, theirs, ("input_splits", "output_splits"))
        return None

    def _with_number(self, peer: int, pg_id: str, seq: int) -> list[Operation]:
        return [
            theirs
            for theirs in self._reader(peer).operations(128)
            if theirs.pg_id == pg_id and theirs.collective_seq_id == seq
        ]

    def _mismatch(
        self, rank: int, mine: Operation, theirs: Operation, fields: tuple[str, ...]
    ) -> Mismatch:
        return Mismatch(rank=self._rank, peer=rank, mine=mine, theirs=theirs, fields=fields)


def _is_refused(operation: Operation) -> bool:
    """The call has failed before anything was sent."""
    return operation.state == "failed" and not operation.waited_ns


def _split(
    splits: tuple[int, ...], sizes: tuple[tuple[int, ...], ...], index: int, count: int
) -> int | None:
    if splits:
        return splits[index] if index < len(splits) else None
    return sizes[0][0] // count if sizes and sizes[0] else None


def differences(mine: Signature, theirs: Signature, *, is_message: bool = False) -> tuple[str, ...]:
    """Names of the fields in which two ends differ."""
    if is_message:
        names = tuple(
            name
            for name in ("input_dtypes", "input_sizes")
            if getattr(mine, name) != getattr(theirs, name)
        )
        return names or (("nbytes",) if mine.nbytes != theirs.nbytes else ())
    if mine.op != theirs.op:
        return ("op",)
    compared = ("output_dtypes", "output_sizes", "root") if mine.op == "scatter" else _COMPARED
    return tuple(name for name in compared if getattr(mine, name) != getattr(theirs, name))
