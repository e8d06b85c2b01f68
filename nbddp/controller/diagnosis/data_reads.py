"""Compares what the data loaders of ranks have read: samples read twice or never, and orders.

Runs in: the notebook's process. Pure.

    LoaderReads of each rank --> one loader of all ranks --> DataFinding (a card), DataNote (a line)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from nbddp.wire.flight_recorder import LoaderReads, ReadEpoch, ranks_in
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

DataFindingKind: TypeAlias = Literal[
    "samples-twice", "samples-unread", "uneven-batches", "same-order"
]
#: Why two ranks read one sample.
Reason: TypeAlias = Literal["no-sampler", "same-share", "seeds", "epochs", "subsets", "sampler", ""]
#: Reasons that may be on purpose: the code may use a part of each batch on each rank.
OPEN_REASONS: Final = ("no-sampler", "subsets", "sampler")
NoteKind: TypeAlias = Literal[
    "padding", "dropped", "read-by-all", "trained-alone", "uneven", "uneven-alone"
]
#: Indices that a card names.
_NAMED = 5

_Reads: TypeAlias = Mapping[Rank, LoaderReads]
_Pass: TypeAlias = Mapping[Rank, ReadEpoch]


@dataclass(frozen=True)
class DataFinding:
    """A finding about how ranks have shared their data."""

    kind: DataFindingKind
    reads: _Reads  #: of one loader
    number: int  #: of the pass, from 1
    culprits: RankSet
    count: int = 0  #: of samples
    length: int = 0  #: of the dataset
    indices: tuple[int, ...] = ()  #: the first ones
    reason: Reason = ""
    proven: bool = True
    is_all: bool = False  #: each of the ranks read all samples
    is_open: bool = False  #: it may be on purpose: the code may use a part of each batch
    before: int = 0  #: of ``same-order``: the earlier pass, from 1
    dataset: str = ""  #: the class of the one that ``length`` is of: below subsets, their base

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
    count: int = 0
    length: int = 0
    is_all: bool = False  #: each of the ranks read all samples
    dataset: str = ""  #: see `DataFinding`
    batches: Mapping[int, RankSet] = field(default_factory=dict)  #: of ``uneven``


def compare_reads(
    reads_by_rank: Mapping[Rank, Sequence[LoaderReads]], world_size: int, *, has_failed: bool
) -> tuple[list[DataFinding], list[DataNote]]:
    """Compare the loaders of all ranks.

    Args:
        reads_by_rank: what each rank has read in the cell.
        world_size: the number of ranks of the pool.
        has_failed: the cell has not ended well: ranks may have stopped in the middle.
    """
    findings: list[DataFinding] = []
    notes: list[DataNote] = []
    for reads in _loaders(reads_by_rank):
        finding = _first_finding(reads, world_size, notes, has_failed=has_failed)
        findings += [finding] if finding is not None else []
    findings += filter(None, map(_same_order, _loops(reads_by_rank)))
    # A loader that is made in each epoch has the same finding each time.
    first_by_line: dict[object, DataFinding] = {}
    for one in findings:
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


def _loops(reads_by_rank: Mapping[Rank, Sequence[LoaderReads]]) -> Iterator["_Loop"]:
    """The loaders of `_loaders`, where those that one line makes again and again are one."""
    reads_by_loop: dict[object, dict[Rank, list[LoaderReads]]] = {}
    for rank, loaders in reads_by_rank.items():
        numbers: dict[object, dict[object, int]] = {}
        for loader in loaders:
            line = loader.epochs[0].site.position, loader.dataset
            made = loader.site.position, loader.length, loader.contents, loader.base_contents
            known = numbers.setdefault(line, {})
            # Without a line, they are loaders of earlier cells.
            one = (*made, loader.sampler) if loader.site.line else len(known)
            number = known.setdefault(one, len(known))
            reads_by_loop.setdefault((line, number), {}).setdefault(rank, []).append(loader)
    for by_rank in reads_by_loop.values():
        if len(by_rank) > 1:
            reads = {
                rank: replace(each[0], epochs=tuple(one for part in each for one in part.epochs))
                for rank, each in by_rank.items()
            }
            yield _Loop(reads, is_remade=any(len(each) > 1 for each in by_rank.values()))


@dataclass(frozen=True)
class _Loop:
    """The passes of a loop over one loader, or over loaders that are made alike."""

    reads: _Reads
    is_remade: bool


def _passes(reads: _Reads) -> Iterator[tuple[int, _Pass]]:
    for index in range(min(len(each.epochs) for each in reads.values())):
        yield index + 1, {rank: each.epochs[index] for rank, each in reads.items()}


def _first_finding(
    reads: _Reads, world_size: int, notes: list[DataNote], *, has_failed: bool
) -> DataFinding | None:
    """The first pass with a finding, and there the finding that explains others."""
    for number, epochs in _passes(reads):
        finding = (
            _twice(reads, number, epochs, notes)
            or _unread(reads, number, epochs, notes, world_size)
            or _uneven(reads, number, epochs, notes, has_failed=has_failed)
        )
        if finding is not None:
            return finding
    return None


# --- samples that several ranks have read --------------------------------------------------------


@dataclass(frozen=True)
class _Compared:
    """The sets of indices of all ranks, in one numbering."""

    sets: Mapping[Rank, bytes]
    length: int
    reason: Reason  #: if a sample is in two of them
    dataset: str  #: the class of the one that is numbered


def _compared(reads: _Reads, epochs: _Pass) -> _Compared | None:
    """None: each rank has data of its own, or its indices are not known."""
    some = next(iter(reads.values()))
    if any(each.sampler.draws_again or each.is_iterable for each in reads.values()):
        return None
    if len({(each.contents, each.length) for each in reads.values()}) == 1:
        sets = {rank: epoch.indices for rank, epoch in epochs.items()}
        compared = _Compared(sets, some.length, _reason(reads, epochs), some.dataset)
    elif some.base_contents and len({each.base_contents for each in reads.values()}) == 1:
        sets = {rank: epoch.base_indices for rank, epoch in epochs.items()}
        compared = _Compared(sets, some.base_length, "subsets", some.base_dataset)
    else:
        return None
    # A sampler of the user's own may go on forever, and share nothing.
    is_endless = compared.reason == "sampler" and not all(
        epoch.is_complete for epoch in epochs.values()
    )
    return compared if all(sets.values()) and not is_endless else None


def _twice(reads: _Reads, number: int, epochs: _Pass, notes: list[DataNote]) -> DataFinding | None:
    compared = _compared(reads, epochs)
    if compared is None:
        return None
    sets, length, reason = compared.sets, compared.length, compared.reason
    dataset = compared.dataset
    is_one_share = _is_one_share(reads)
    trains = any(epoch.trains for epoch in epochs.values())
    groups = combining_groups(epochs)
    is_combined = trains and bool(groups) and not is_one_share
    # Ranks with one share of fewer shares than ranks may each use a part of its batches.
    steps = any(epoch.models or epoch.has_ddp for epoch in epochs.values())
    is_of_fewer = is_combined and steps and reason == "same-share" and _shares(reads) < len(reads)
    is_open = reason in OPEN_REASONS or is_of_fewer
    # Ranks of a model that is parallel in two ways share the data with those of one group only.
    parts = groups if is_combined and is_open else (RankSet.of(sets),)
    twice, culprits = _read_twice(reads, sets, parts, merges=not (is_one_share or is_of_fewer))
    if is_of_fewer and not twice:
        is_open = False
        twice, culprits = _read_twice(reads, sets, (RankSet.of(sets),), merges=True)
    count = twice.bit_count()
    if not count:
        return None
    is_all = all(_number(sets[rank]).bit_count() == length for rank in culprits)
    is_padded = _is_padding(reads, count, length) or (
        reason == "sampler" and _is_filled_up(epochs, count)
    )
    if is_padded and not is_one_share:
        notes.append(DataNote("padding", reads, RankSet.of(reads), count, length, dataset=dataset))
        return None
    if is_one_share or (is_open and not trains):
        notes.append(DataNote("read-by-all", reads, culprits, count, length, is_all, dataset))
        return None
    if is_open and not groups:
        # Other operations may hold one model together, whose parts ranks have.
        if not any(epoch.combines for epoch in epochs.values()):
            notes.append(DataNote("trained-alone", reads, culprits, count, length, is_all, dataset))
        return None
    return DataFinding(
        "samples-twice",
        reads,
        number,
        culprits,
        count,
        length,
        _first_indices(twice),
        reason,
        proven=not is_open and bool(next(iter(reads.values())).contents),
        is_all=is_all,
        is_open=is_open,
        dataset=dataset,
    )


def combining_groups(epochs: _Pass) -> tuple[RankSet, ...]:
    """The groups whose ranks have combined what they trained on this data: gradients, or weights.

    Where there is none, each rank may have a model of its own, or a part of one.
    """
    spans = dict.fromkeys(group for epoch in epochs.values() for group in epoch.groups)
    return tuple(RankSet.of(ranks_in(each)) for each in spans)


def _is_one_share(reads: _Reads) -> bool:
    return all(each.sampler.replicas == 1 for each in reads.values())


def _readers(reads: _Reads, sets: Mapping[Rank, bytes]) -> dict[object, bytes]:
    """The sets of indices; ranks with one share of fewer shares than ranks are one reader.

    Ranks of a tensor-parallel group read the same samples, and tell their samplers so.
    """
    shares = _shares(reads)
    is_grouped = 0 < shares < len(reads)
    return {
        ("share", reads[rank].sampler.rank) if is_grouped else rank: each
        for rank, each in sets.items()
    }


def _shares(reads: _Reads) -> int:
    return max(each.sampler.replicas for each in reads.values())


def _read_twice(
    reads: _Reads, sets: Mapping[Rank, bytes], groups: Iterable[RankSet], *, merges: bool
) -> tuple[int, RankSet]:
    """The indices that two readers of one group have, and the ranks that have such.

    Args:
        reads: of one loader.
        sets: the indices of each rank.
        groups: the ranks whose indices are compared.
        merges: ranks with one share of fewer shares than ranks are one reader.
    """
    twice, culprits = 0, RankSet()
    for members in groups:
        own = {rank: each for rank, each in sets.items() if rank in members.ranks}
        seen = shared = 0
        for bits in map(_number, (_readers(reads, own) if merges else own).values()):
            shared |= seen & bits
            seen |= bits
        ranks = [rank for rank, each in own.items() if _number(each) & shared]
        twice, culprits = twice | shared, RankSet.of([*culprits, *ranks])
    return twice, culprits


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
) -> DataFinding | None:
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
        ranks = RankSet.of(reads)
        notes.append(DataNote("dropped", reads, ranks, count, some.length, dataset=some.dataset))
        return None
    return DataFinding(
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
) -> DataFinding | None:
    """A rank came to the end of its data, and another one has got more batches."""
    some = next(iter(reads.values()))
    ended = [epoch.batches for epoch in epochs.values() if epoch.is_complete]
    most = max(epoch.batches for epoch in epochs.values())
    if not ended or min(ended) == most or any(epoch.joins for epoch in epochs.values()):
        return None
    fewest = RankSet.of(
        rank for rank, epoch in epochs.items() if epoch.is_complete and epoch.batches < most
    )
    trains = any(epoch.trains for epoch in epochs.values())
    combines = any(epoch.combines for epoch in epochs.values())
    if not (trains and combines) and not has_failed:
        kind: NoteKind = "uneven-alone" if trains else "uneven"
        batches = batches_by_count(epochs)
        notes.append(DataNote(kind, reads, fewest, dataset=some.dataset, batches=batches))
        return None
    return DataFinding("uneven-batches", reads, number, fewest, proven=has_failed)


# --- orders --------------------------------------------------------------------------------------


def _same_order(loop: _Loop) -> DataFinding | None:
    """Two passes that train, in one order although `DistributedSampler` shuffles."""
    reads = loop.reads
    for rank, loader_reads in reads.items():
        sampler, epochs = loader_reads.sampler, loader_reads.epochs
        # Two models may read one epoch after each other, once `set_epoch` has told its number.
        is_told = len({epoch.number for epoch in epochs}) > 1
        if not (sampler.is_distributed and sampler.shuffle) or is_told:
            continue
        for before, after in _repeated(epochs):
            if not _are_alike(loader_reads, before, after):
                continue
            alike = {
                one: loader for one, loader in reads.items() if _are_alike(loader, before, after)
            }
            return DataFinding(
                "same-order",
                alike or {rank: loader_reads},
                after + 1,
                RankSet.of(alike),
                proven=_is_forgotten(epochs[before], epochs[after], is_remade=loop.is_remade),
                before=before + 1,
            )
    return None


def _repeated(epochs: Sequence[ReadEpoch]) -> Iterator[tuple[int, int]]:
    """Each pass with the pass before it of the same loop that may have trained the same model.

    Passes of one ``zip`` are one.
    """
    earlier: dict[object, list[tuple[int, int]]] = {}  # by line: passes, and their turns
    turn = 0
    for index, epoch in enumerate(epochs):
        turn += not epoch.is_beside
        known = earlier.setdefault(epoch.site.position, [])
        if known and known[-1][1] == turn:
            continue
        last = (each for each, _ in reversed(known) if not _are_of_others(epochs[each], epoch))
        before = next(last, None)
        if before is not None:
            yield before, index
        known.append((index, turn))


def _are_of_others(before: ReadEpoch, after: ReadEpoch) -> bool:
    """Whether two passes are known to have trained different models."""
    return bool(before.models and after.models) and not {*before.models} & {*after.models}


def _are_alike(loader_reads: LoaderReads, before: int, after: int) -> bool:
    """Whether two passes have one order, and go on after their first batch."""
    if after >= len(loader_reads.epochs):
        return False
    one, other = loader_reads.epochs[before], loader_reads.epochs[after]
    is_one_batch = not other.is_complete and other.batches < 2
    is_same = bool(one.order) and one.order == other.order and other.samples > 1
    return is_same and one.trains and other.trains and not is_one_batch


def _is_forgotten(before: ReadEpoch, after: ReadEpoch, *, is_remade: bool) -> bool:
    """Whether `set_epoch` can have meant none of the passes, or gave them the same number.

    A call before the first one, also in an earlier cell, may have meant both. Two calls with one
    number, and loaders that are made again, may be of one epoch each of two models.
    """
    if after.epochs_set < 0:
        return False
    is_of_one_model = bool({*before.models} & {*after.models})
    if not after.epochs_set and after.number <= 0:
        return is_of_one_model or not is_remade
    return is_of_one_model and after.epochs_set > before.epochs_set


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
