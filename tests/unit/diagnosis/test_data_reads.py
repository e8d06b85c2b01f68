"""Data that ranks share wrongly, and rightly, from facts alone."""

from typing import Any

import msgspec

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.data_reads import DataFinding, DataNote, compare_reads
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.rank_view import RankView, RankViews
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.controller.diagnosis.words.data_reads import data_notes, samples_twice
from nbddp.wire.flight_recorder import LoaderReads, ReadEpoch, SamplerFacts, Site
from nbddp.wire.flight_recorder.schema import spans_of


def bits(indices: Any) -> bytes:
    value = 0
    for index in indices:
        value |= 1 << index
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "little")


def epoch(read: Any, *, order: bytes = b"o", **facts: Any) -> ReadEpoch:
    known: dict[str, Any] = {
        "site": Site(line=3),
        "batches": len(list(read)),
        "samples": len(list(read)),
        "is_complete": True,
        "order": order,
        "number": 0,
        "trains": True,
        "joins": False,
        "indices": bits(read),
        "groups": (spans_of(range(8)),),
    }
    return ReadEpoch(**(known | facts))


def share(rank: int, replicas: int = 2, **facts: Any) -> SamplerFacts:
    return SamplerFacts(
        name="DistributedSampler",
        is_torch=True,
        is_distributed=True,
        replicas=replicas,
        rank=rank,
        shuffle=True,
        **facts,
    )


PLAIN = SamplerFacts(name="RandomSampler", is_torch=True)


def loader(sampler: SamplerFacts, *epochs: ReadEpoch, length: int = 8, **facts: Any) -> LoaderReads:
    known: dict[str, Any] = {
        "site": Site(line=2),
        "dataset": "Data",
        "length": length,
        "is_iterable": False,
        "contents": b"same",
        "batch_size": 1,
        "drop_last": False,
    }
    return LoaderReads(sampler=sampler, epochs=epochs, **(known | facts))


def compared(
    *each: LoaderReads, has_failed: bool = False, world_size: int = 0
) -> tuple[list[DataFinding], list[DataNote]]:
    reads = {rank: (one,) for rank, one in enumerate(each)}
    return compare_reads(reads, world_size or len(each), has_failed=has_failed)


def kinds(*each: LoaderReads, **options: Any) -> list[tuple[str, str]]:
    return [(fault.kind, fault.reason) for fault in compared(*each, **options)[0]]


def test_shares_that_are_whole_are_no_finding():
    even, odd = epoch(range(0, 8, 2)), epoch(range(1, 8, 2))
    assert compared(loader(share(0), even), loader(share(1), odd)) == ([], [])


def test_ranks_that_combine_nothing_may_each_train_on_all_samples():
    alone = epoch(range(8), combines=False, groups=())
    faults, notes = compared(loader(PLAIN, alone), loader(PLAIN, alone))
    assert not faults
    assert [note.kind for note in notes] == ["trained-alone"]


def test_ranks_that_hold_parts_of_one_model_may_read_the_same_samples():
    part = loader(PLAIN, epoch(range(8), groups=()))
    assert compared(part, part) == ([], [])


def test_only_ranks_that_combine_what_they_train_must_read_other_samples():
    def four(*groups: tuple[int, ...]) -> list[LoaderReads]:
        halves = range(4), range(4, 8)
        members = [spans_of(next(each for each in groups if rank in each)) for rank in range(4)]
        return [
            loader(PLAIN, epoch(halves[rank // 2], groups=(members[rank],))) for rank in range(4)
        ]

    assert compared(*four((0, 2), (1, 3))) == ([], [])
    (fault,) = compared(*four((0, 1), (2, 3)))[0]
    assert (str(fault.culprits), fault.count, fault.is_all) == ("0-3", 8, False)


def test_that_samples_are_read_twice_is_no_proof_of_a_mistake():
    plain, own = PLAIN, SamplerFacts(name="Mine")
    for sampler in (plain, own):
        (fault,) = compared(*(loader(sampler, epoch(range(8))) for _ in range(2)))[0]
        assert (fault.proven, fault.is_all) == (False, True)
    (fault,) = compared(*(loader(share(0), epoch(range(4))) for _ in range(2)))[0]
    assert fault.proven


def test_a_loader_that_is_made_in_each_epoch_has_one_fault():
    twice = (loader(PLAIN, epoch(range(8))),) * 2
    (fault,) = compare_reads({0: twice, 1: twice}, 2, has_failed=False)[0]
    assert fault.number == 1


def test_the_ranks_and_indices_of_samples_that_are_read_twice():
    shares = [epoch([0, 1, 2]), epoch([3, 4]), epoch([2, 5, 6, 7])]
    (fault,) = compared(*(loader(PLAIN, each) for each in shares))[0]
    assert (fault.kind, fault.reason) == ("samples-twice", "no-sampler")
    assert (str(fault.culprits), fault.indices, fault.count) == ("0,2", (2,), 1)


def test_ranks_with_one_of_fewer_shares_are_one_reader():
    even, odd = epoch(range(0, 8, 2)), epoch(range(1, 8, 2))
    four = [loader(share(rank // 2), (even, odd)[rank // 2]) for rank in range(4)]
    assert compared(*four) == ([], [])  # what they add up may be activations


def test_ranks_with_one_share_of_fewer_that_are_combined():
    even, odd = (epoch(range(one, 8, 2), has_ddp=True) for one in (0, 1))
    shares = [loader(share(rank % 2), (even, odd)[rank % 2]) for rank in range(4)]
    (fault,) = compared(*shares)[0]
    assert (fault.reason, str(fault.culprits), fault.count) == ("same-share", "0-3", 8)
    assert (fault.proven, fault.is_open) == (False, True)

    def replicas(rank: int) -> LoaderReads:
        group = spans_of((0, 1) if rank < 2 else (2, 3))
        return loader(share(rank % 2), epoch(range(rank % 2, 8, 2), groups=(group,), has_ddp=True))

    assert compared(*map(replicas, range(4))) == ([], [])


def test_the_same_of_as_many_shares_as_ranks_is_a_fault():
    assert kinds(*(loader(share(0), epoch(range(4))) for _ in range(2))) == [
        ("samples-twice", "same-share")
    ]


def test_padding_is_a_note_up_to_its_number():
    shares = [epoch([0, 2, 4, 6, 8]), epoch([1, 3, 5, 7, 0])]
    faults, (note,) = compared(
        *(loader(share(rank), each, length=9) for rank, each in enumerate(shares))
    )
    assert (faults, note.kind, note.count) == ([], "padding", 1)
    more = [epoch([0, 2, 4, 6, 8]), epoch([1, 3, 5, 2, 0])]
    assert kinds(*(loader(share(rank), each, length=9) for rank, each in enumerate(more))) == [
        ("samples-twice", "sampler")
    ]


def test_other_contents_are_data_of_a_rank():
    mine = [loader(PLAIN, epoch(range(8)), contents=bytes([rank])) for rank in range(2)]
    assert compared(*mine) == ([], [])


def test_unknown_contents_prove_nothing():
    (fault,) = compared(*(loader(PLAIN, epoch(range(8)), contents=b"") for _ in range(2)))[0]
    assert not fault.proven


def test_a_loop_that_does_not_train_is_a_note():
    faults, (note,) = compared(*(loader(PLAIN, epoch(range(8), trains=False)) for _ in range(2)))
    assert (faults, note.kind) == ([], "read-by-all")


def test_indices_that_are_not_known_are_not_compared():
    reads = [loader(PLAIN, epoch(range(8), indices=b"")) for _ in range(2)]
    assert compared(*reads) == ([], [])


def test_shares_of_ranks_that_are_not_in_the_cell_are_not_missed():
    two = [loader(share(rank, 4), epoch(range(rank, 8, 4))) for rank in range(2)]
    assert kinds(*two, world_size=4) == []
    assert kinds(*two) == [("samples-unread", "")]


def test_subsets_that_overlap_are_told_with_the_dataset_below_them():
    two = [
        loader(
            PLAIN, epoch(range(4), base_indices=bits(range(rank * 3, rank * 3 + 4))), length=4,
            contents=bytes([rank]), dataset="Subset",
            base_contents=b"same", base_length=8, base_dataset="Data",
        )
        for rank in range(2)
    ]  # fmt: skip
    (fault,) = compared(*two)[0]
    assert (fault.reason, fault.dataset, fault.length) == ("subsets", "Data", 8)
    assert fault.indices == (3,)


def test_numbers_of_batches():
    two = [loader(PLAIN, epoch(range(4))), loader(PLAIN, epoch(range(4, 7)))]
    (fault,) = compared(*two)[0]
    assert (fault.kind, fault.proven, str(fault.culprits)) == ("uneven-batches", False, "1")
    assert compared(*two, has_failed=True)[0][0].proven
    alone = [
        msgspec.structs.replace(one, epochs=(msgspec.structs.replace(*one.epochs, combines=False),))
        for one in two
    ]
    faults, (note,) = compared(*alone)
    assert (faults, note.kind) == ([], "uneven-alone")
    assert {count: str(ranks) for count, ranks in note.batches.items()} == {4: "0", 3: "1"}
    (line,) = data_notes(dict(enumerate((one,) for one in alone)), has_failed=False)
    assert "rank 1 got 3 batches, rank 0 got 4 batches of Data; no operation" in line
    left = msgspec.structs.replace(two[1], epochs=(epoch(range(4, 7), is_complete=False),))
    assert kinds(two[0], left) == []


def test_numbers_of_batches_in_join_may_differ():
    two = [
        loader(PLAIN, epoch(range(4), joins=True)),
        loader(PLAIN, epoch(range(4, 7), joins=True)),
    ]
    assert kinds(*two) == []


def orders(*passes: dict[str, Any]) -> list[DataFinding]:
    """The faults of passes of a share, on two ranks."""
    known: dict[str, Any] = {"order": b"a"}
    each = [
        loader(share(rank), *(epoch(range(rank, 8, 2), **(known | facts)) for facts in passes))
        for rank in range(2)
    ]
    return compared(*each)[0]


LOOP, OTHER = Site(line=3), Site(line=5)


def test_one_order_in_two_passes():
    (fault,) = orders({}, {})
    assert (fault.kind, fault.before, fault.number, fault.proven) == ("same-order", 1, 2, True)
    assert not orders({"number": 0}, {"order": b"b", "number": 1})
    assert not orders({}, {"order": b"b"})
    assert not orders({}, {"trains": False})


def test_the_first_batch_alone_shows_no_order():
    first = {"is_complete": False, "batches": 1}
    assert not orders(first, first)


def test_two_loops_of_one_epoch_have_its_order():
    one, other = {"site": LOOP}, {"site": OTHER}
    assert not orders(one, other)
    (fault,) = orders(one, other, one, other)
    assert (fault.before, fault.number) == (1, 3)
    told = [each | {"number": n, "epochs_set": n + 1} for n in (0, 1) for each in (one, other)]
    assert not orders(*told)


def test_passes_of_one_zip_have_one_order():
    beside = {"is_beside": True}
    assert not orders({}, beside)
    (fault,) = orders({}, beside, {}, beside)
    assert (fault.before, fault.number) == (1, 3)


def test_a_loop_in_a_function_may_read_one_epoch_for_several_models():
    told = [{"number": n, "epochs_set": n + 1} for n in (0, 0, 1, 1)]
    assert not orders(*told)
    (fault,) = orders({"epochs_set": 1}, {"epochs_set": 1})
    assert not fault.proven
    (fault,) = orders({"number": 4}, {"number": 4})  # an earlier cell has told it
    assert not fault.proven
    (fault,) = orders({"epochs_set": 1}, {"epochs_set": 2})  # perhaps one epoch of two models
    assert not fault.proven
    first, second = {"epochs_set": 1, "models": (1,)}, {"epochs_set": 2, "models": (1, 2)}
    (fault,) = orders(first, second)
    assert fault.proven


def test_two_models_with_one_epoch_each_have_its_order():
    one, other = {"models": (1,)}, {"models": (2,)}
    assert not orders(one, other)
    (fault,) = orders(one, other, other)
    assert (fault.before, fault.number, fault.proven) == (2, 3, True)
    (fault,) = orders(one, other, one)
    assert (fault.before, fault.number) == (1, 3)


def test_loaders_that_are_made_in_each_epoch_are_one():
    def remade(**facts: Any) -> list[DataFinding]:
        made = [(loader(share(rank), epoch(range(rank, 8, 2), **facts)),) * 2 for rank in range(2)]
        return compare_reads(dict(enumerate(made)), 2, has_failed=False)[0]

    (fault,) = remade()
    assert (fault.kind, fault.before, fault.number, fault.proven) == ("same-order", 1, 2, False)
    assert remade(models=(1,))[0].proven


def test_one_rank_alone_is_not_compared():
    assert compare_reads({0: (loader(PLAIN, epoch(range(8))),)}, 2, has_failed=False) == ([], [])


def test_the_cell_of_a_sampler_is_named_if_a_loop_of_another_cell_reads_it():
    def step(made: Site) -> str:
        reads = loader(share(0, site=made), epoch(range(4), site=Site(line=4, cell=20)))
        (fault,) = compared(reads, reads)[0]
        cause = Cause("samples-twice", fault.culprits, fault.culprits, False, data=fault)
        views = RankViews({rank: RankView(rank, "finished") for rank in range(2)})
        reports = RankReports(WaitForGraph(views), 0, "")
        return samples_twice(cause, reports).next_step

    assert "of the sampler of cell [19], line 7: the" in step(Site(line=7, cell=19))
    assert "of the sampler of line 2: the" in step(Site(line=2, cell=20))
