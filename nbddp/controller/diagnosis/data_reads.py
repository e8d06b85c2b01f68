"""Compares what the data loaders of ranks have read: samples read twice or never, and orders.

Runs in: the notebook's process. Pure.

    LoaderReads of each rank --> one loader of all ranks --> DataFault (a card), DataNote (a line)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from nbddp.wire.flight_recorder import LoaderReads, ReadEpoch
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

DataFaultKind: TypeAlias = Literal[
    "samples-twice", "samples-unread", "uneven-batches", "same-order"
]
#: Why two ranks read one sample.
Reason: TypeAlias = Literal["no-sampler", "same-share", "seeds", "epochs", "subsets", "sampler", ""]
NoteKind: TypeAlias = Literal["padding", "dropped", "read-by-all", "trained-alone", "uneven"]
#: Indices that a card names.
_NAMED = 5

_Reads: TypeAlias = Mapping[Rank, LoaderReads]
_Pass: TypeAlias = Mapping[Rank, ReadEpoch]


@dataclass(frozen=True)
class DataFault:
    """A fault in how ranks have shared their data."""

    kind: DataFaultKind
    reads: _Reads  #: of one loader
    number: int  #: of the pass, from 1
    culprits: RankSet
    count: int = 0  #: of samples
    length: int = 0  #: of the dataset
    indices: tuple[int, ...] = ()  #: the first ones
    reason: Reason = ""
    proven: bool = True

    @property
    def epochs(self) -> _Pass:
        """The pass of each rank."""
        return {rank: each.epochs[self.number - 1] for rank, each in self.reads.items()}


@dataclass(frozen=True)
class DataNote:
    """A fact that is mostly right, and that the user may want to know."""

    kind: NoteKind
    reads: _Reads
    ranks: RankSet
    count: int
    length: int


def compare_reads(
    reads_by_rank: Mapping[Rank, Sequence[LoaderReads]], world_size: int, *, has_failed: bool
) -> tuple[list[DataFault], list[DataNote]]:
    """Compare the loaders of all ranks.

    Args:
        reads_by_rank: what each rank has read in the cell.
        world_size: the number of ranks of the pool.
        has_failed: the cell has not ended well: ranks may have stopped in the middle.
    """
    faults: list[DataFault] = []
    notes: list[DataNote] = []
    for reads in _loaders(reads_by_rank):
        fault = _first_fault(reads, world_size, notes, has_failed=has_failed)
        faults += [each for each in (fault, _same_order(reads)) if each is not None]
    # A loader that is made in each epoch has the same fault each time.
    first_by_line: dict[object, DataFault] = {}
    for one in faults:
        first_by_line.setdefault((one.kind, one.reason, _line(one.reads)), one)
    return list(first_by_line.values()), list(
        {(note.kind, _line(note.reads)): note for note in notes}.values()
    )


def _line(reads: _Reads) -> object:
    return next(iter(reads.values())).epochs[0].site.position


def _loaders(reads_by_rank: Mapping[Rank, Sequence[LoaderReads]]) -> Iterator[_Reads]:
    """The loaders that several ranks have read: by the line of the loop, in their order."""
    reads_by_loop: dict[object, dict[Rank, LoaderReads]] = {}
    for rank, loaders in reads_by_rank.items():
        counts: dict[object, int] = {}
        for loader in loaders:
            line = loader.epochs[0].site.position, loader.dataset
            number = counts[line] = counts.get(line, 0) + 1
            reads_by_loop.setdefault((line, number), {})[rank] = loader
    return (reads for reads in reads_by_loop.values() if len(reads) > 1)


def _passes(reads: _Reads) -> Iterator[tuple[int, _Pass]]:
    for index in range(min(len(each.epochs) for each in reads.values())):
        yield index + 1, {rank: each.epochs[index] for rank, each in reads.items()}


def _first_fault(
    reads: _Reads, world_size: int, notes: list[DataNote], *, has_failed: bool
) -> DataFault | None:
    """The first pass with a fault, and there the fault that explains others."""
    for number, epochs in _passes(reads):
        fault = (
            _twice(reads, number, epochs, notes)
            or _unread(reads, number, epochs, notes, world_size)
            or _uneven(reads, number, epochs, notes, has_failed=has_failed)
        )
        if fault is not None:
            return fault
    return None


# --- samples that several ranks have read --------------------------------------------------------


@dataclass(frozen=True)
class _Compared:
    """The sets of indices of all ranks, in one numbering."""

    sets: Mapping[Rank, bytes]
    length: int
    reason: Reason  #: if a sample is in two of them


def _compared(reads: _Reads, epochs: _Pass) -> _Compared | None:
    """None: each rank has data of its own, or its indices are not known."""
    some = next(iter(reads.values()))
    if any(each.sampler.draws_again or each.is_iterable for each in reads.values()):
        return None
    if len({(each.contents, each.length) for each in reads.values()}) == 1:
        sets = {rank: epoch.indices for rank, epoch in epochs.items()}
        compared = _Compared(sets, some.length, _reason(reads, epochs))
    elif some.base_contents and len({each.base_contents for each in reads.values()}) == 1:
        sets = {rank: epoch.base_indices for rank, epoch in epochs.items()}
        compared = _Compared(sets, some.base_length, "subsets")
    else:
        return None
    # A sampler of the user's own may go on forever, and share nothing.
    is_endless = compared.reason == "sampler" and not all(
        epoch.is_complete for epoch in epochs.values()
    )
    return compared if all(sets.values()) and not is_endless else None


def _twice(reads: _Reads, number: int, epochs: _Pass, notes: list[DataNote]) -> DataFault | None:
    compared = _compared(reads, epochs)
    if compared is None:
        return None
    sets, length, reason = compared.sets, compared.length, compared.reason
    readers, is_one_share = _readers(reads, sets), _is_one_share(reads)
    twice = _read_twice(list((sets if is_one_share else readers).values()))
    count = twice.bit_count()
    if not count:
        return None
    culprits = RankSet.of(rank for rank, each in sets.items() if _number(each) & twice)
    is_padded = _is_padding(reads, count, length) or (
        reason == "sampler" and _is_filled_up(epochs, count)
    )
    if is_padded and not is_one_share:
        notes.append(DataNote("padding", reads, RankSet.of(reads), count, length))
        return None
    trains = any(epoch.trains for epoch in epochs.values())
    if is_one_share or (reason in ("no-sampler", "sampler", "subsets") and not trains):
        notes.append(DataNote("read-by-all", reads, culprits, count, length))
        return None
    if reason in ("no-sampler", "sampler", "subsets") and not _are_combined(epochs):
        notes.append(DataNote("trained-alone", reads, culprits, count, length))
        return None
    return DataFault(
        "samples-twice",
        reads,
        number,
        culprits,
        count,
        length,
        _first_indices(twice),
        reason,
        proven=reason == "subsets" or bool(next(iter(reads.values())).contents),
    )


def _are_combined(epochs: _Pass) -> bool:
    """Whether ranks combine what they train; else each may have a model of its own."""
    return any(epoch.combines for epoch in epochs.values())


def _is_one_share(reads: _Reads) -> bool:
    return all(each.sampler.replicas == 1 for each in reads.values())


def _readers(reads: _Reads, sets: Mapping[Rank, bytes]) -> dict[object, bytes]:
    """The sets of indices; ranks with one share of fewer shares than ranks are one reader.

    Ranks of a tensor-parallel group read the same samples, and tell their samplers so.
    """
    shares = max(each.sampler.replicas for each in reads.values())
    is_grouped = 0 < shares < len(reads)
    return {
        ("share", reads[rank].sampler.rank) if is_grouped else rank: each
        for rank, each in sets.items()
    }


def _read_twice(sets: Sequence[bytes]) -> int:
    seen = twice = 0
    for bits in map(_number, sets):
        twice |= seen & bits
        seen |= bits
    return twice


def _is_padding(reads: _Reads, count: int, length: int) -> bool:
    """Whether `DistributedSampler` has given some samples twice, to make its shares equal."""
    samplers = [each.sampler for each in reads.values()]
    if not all(each.is_distributed and not each.drop_last for each in samplers):
        return False
    return (
        len({each.replicas for each in samplers}) == 1 and count <= -length % samplers[0].replicas
    )


def _is_filled_up(epochs: _Pass, count: int) -> bool:
    """Whether a sampler of the user's own may have filled up its last batches, as libraries do."""
    sizes = [-(-each.samples // each.batches) for each in epochs.values() if each.batches]
    return count < len(epochs) * max(sizes, default=0) and 2 * count < min(
        each.samples for each in epochs.values()
    )


def _reason(reads: _Reads, epochs: _Pass) -> Reason:
    samplers = [each.sampler for each in reads.values()]
    if not all(each.is_distributed for each in samplers):
        is_own = not any(each.is_torch for each in samplers)
        return "sampler" if is_own else "no-sampler"
    if len({each.rank for each in samplers}) < len(samplers):
        return "same-share"
    if len({each.seed for each in samplers}) > 1:
        return "seeds"
    return "epochs" if len({each.number for each in epochs.values()}) > 1 else "sampler"


# --- samples that no rank has read ---------------------------------------------------------------


def _unread(
    reads: _Reads, number: int, epochs: _Pass, notes: list[DataNote], world_size: int
) -> DataFault | None:
    """Samples that no share has: only where `DistributedSampler` made the shares."""
    some = next(iter(reads.values()))
    shared = {(each.contents, each.length) for each in reads.values()}
    is_known = all(epoch.is_complete and epoch.indices for epoch in epochs.values())
    is_distributed = all(each.sampler.is_distributed for each in reads.values())
    if len(shared) > 1 or not (is_known and is_distributed) or len(reads) < world_size:
        return None
    seen = 0
    for epoch in epochs.values():
        seen |= _number(epoch.indices)
    unread = (1 << some.length) - 1 & ~seen
    count = unread.bit_count()
    if not count:
        return None
    tail = some.length % some.sampler.replicas if some.sampler.drop_last else 0
    if some.drop_last:
        tail += len(reads) * max(0, some.batch_size - 1)
    if count <= tail:
        notes.append(DataNote("dropped", reads, RankSet.of(reads), count, some.length))
        return None
    return DataFault(
        "samples-unread",
        reads,
        number,
        RankSet.of(reads),
        count,
        some.length,
        _first_indices(unread),
    )


# --- numbers of batches --------------------------------------------------------------------------


def _uneven(
    reads: _Reads, number: int, epochs: _Pass, notes: list[DataNote], *, has_failed: bool
) -> DataFault | None:
    """A rank came to the end of its data, and another one has got more batches."""
    ended = [epoch.batches for epoch in epochs.values() if epoch.is_complete]
    most = max(epoch.batches for epoch in epochs.values())
    if not ended or min(ended) == most or any(epoch.joins for epoch in epochs.values()):
        return None
    fewest = RankSet.of(
        rank for rank, epoch in epochs.items() if epoch.is_complete and epoch.batches < most
    )
    if not any(epoch.trains for epoch in epochs.values()) and not has_failed:
        notes.append(DataNote("uneven", reads, fewest, min(ended), most))
        return None
    return DataFault("uneven-batches", reads, number, fewest, proven=has_failed)


# --- orders --------------------------------------------------------------------------------------


def _same_order(reads: _Reads) -> DataFault | None:
    """Two passes that train, in one order although `DistributedSampler` shuffles."""
    for rank, loader_reads in reads.items():
        if not (loader_reads.sampler.is_distributed and loader_reads.sampler.shuffle):
            continue
        for index, (before, after) in enumerate(pairwise(loader_reads.epochs), 2):
            is_same = before.order and before.order == after.order and after.samples > 1
            if is_same and before.number == after.number and before.trains and after.trains:
                alike = RankSet.of(
                    other
                    for other, loader in reads.items()
                    if index <= len(loader.epochs)
                    and loader.epochs[index - 2].order == loader.epochs[index - 1].order
                )
                known = {one: loader for one, loader in reads.items() if one in alike.ranks}
                return DataFault("same-order", known or {rank: loader_reads}, index, alike)
    return None


def _number(bits: bytes) -> int:
    return int.from_bytes(bits, "little")


def _first_indices(bits: int) -> tuple[int, ...]:
    indices: list[int] = []
    while bits and len(indices) < _NAMED:
        lowest = bits & -bits
        indices.append(lowest.bit_length() - 1)
        bits ^= lowest
    return tuple(indices)


def batches_by_count(epochs: _Pass) -> Mapping[int, RankSet]:
    """The ranks with each number of batches."""
    return ranks_by_value({rank: epoch.batches for rank, epoch in epochs.items()})
