"""The ranks that catch up, and those whose variables they get."""

from collections.abc import Mapping

import pytest

from nbddp.controller.catch_up import CellHistory, PastCell, Roles, choose_roles
from nbddp.controller.state import RankInfo, RankResult, RunOutcome
from nbddp.errors import BadOptionError
from nbddp.wire.rank_set import NO_RANKS, RankSet

ALL = RankSet.all(3)
WHOLE = ("model", "steps")


def infos(replaced: RankSet) -> list[RankInfo]:
    return [
        RankInfo(rank=rank, node=0, generation=10 + rank, is_replacement=rank in replaced)
        for rank in ALL
    ]


def run(history: CellHistory, code: str, *, replaced: RankSet) -> None:
    results = {rank: RankResult(rank, "ok") for rank in ALL}
    history.begin(code, PastCell(1, code, 1, ALL), [(rank, 10 + rank) for rank in replaced])
    history.end(RunOutcome(code, results, 0.0))


def choose(
    history: CellHistory,
    replaced: RankSet,
    had: Mapping[int, tuple[str, ...]],
    named: RankSet | None = None,
) -> Roles:
    return choose_roles(
        history, infos(replaced), {rank: had.get(rank, WHOLE) for rank in ALL}, named
    )


def test_a_fresh_rank_catches_up():
    one = RankSet.of([1])
    assert choose(CellHistory(), one, {1: ()}) == Roles(one, 0, RankSet.of([0, 2]))


def test_a_fresh_rank_that_lacks_nothing_is_left_out_beside_one_that_does():
    both = RankSet.of([0, 1])
    roles = choose(CellHistory(), both, {0: ()})
    assert roles == Roles(RankSet.of([0]), 2, RankSet.of([1, 2]))


def test_a_rank_that_has_caught_up_is_a_source():
    history = CellHistory()
    history.replaced.note_catch_up([(1, 11)], is_whole=True)
    assert choose(history, RankSet.of([0, 1]), {0: ()}).source == 1


def test_a_process_with_the_id_of_an_earlier_one_has_not_caught_up():
    history, both = CellHistory(), RankSet.of([0, 1])
    history.replaced.note_catch_up([(0, 1), (1, 1)], is_whole=True)  # then rank 1 died again
    ranks = [
        RankInfo(rank=rank, node=rank, pid=7, generation=1 + rank, is_replacement=rank in both)
        for rank in ALL
    ]
    roles = choose_roles(history, ranks, {rank: WHOLE if rank != 1 else () for rank in ALL}, None)
    assert (roles.fresh, roles.source) == (RankSet.of([1]), 0)


@pytest.mark.parametrize("code", ["steps = 5", "net.head = 1", "from a import *"])
def test_a_rank_that_has_defined_names_is_changed_only_if_it_is_named(code: str):
    history, one = CellHistory(), RankSet.of([1])
    run(history, code, replaced=one)
    with pytest.raises(BadOptionError, match=r"rank 1 lacks model, and .*Next: %ddp catchup -r 1"):
        choose(history, one, {1: ("steps",)})
    named = choose(history, one, {1: ("steps",)}, one)
    assert named == Roles(one, 0, RankSet.of([0, 2]), settled=one)
    both = choose(history, RankSet.of([0, 1]), {0: (), 1: ("steps",)})
    assert (both.fresh, both.passed_over) == (RankSet.of([0]), one)
    assert (both.source, both.others) == (2, RankSet.of([2]))


def test_a_cell_that_defines_nothing_makes_no_values_of_a_fresh_rank():
    history, one = CellHistory(), RankSet.of([1])
    run(history, "print('model' in globals())", replaced=one)
    assert choose(history, one, {1: ()}).fresh == one


def test_a_rank_that_has_caught_up_in_part_has_values_after_any_cell():
    history, one = CellHistory(), RankSet.of([1])
    history.replaced.note_catch_up([(1, 11)], is_whole=False)
    assert choose(history, one, {1: ("model",)}).settled == NO_RANKS
    run(history, "train(3)", replaced=one)
    with pytest.raises(BadOptionError, match="rank 1 lacks steps"):
        choose(history, one, {1: ("model",)})


def test_a_rank_that_has_caught_up_in_part_is_a_source_if_no_other_is_left():
    history, two = CellHistory(), RankSet.of([0, 2])
    run(history, "model = steps = 1", replaced=NO_RANKS)
    history.replaced.note_catch_up([(1, 11)], is_whole=False)
    had: dict[int, tuple[str, ...]] = {0: (), 1: ("steps",), 2: ()}
    assert choose(history, ALL, had) == Roles(two, 1, RankSet.of([1]))
    assert choose(history, ALL, had, two) == Roles(two, 1, RankSet.of([1]))


def test_a_refusal_does_not_name_the_command_that_was_typed():
    history, two = CellHistory(), RankSet.of([0, 2])
    run(history, "model = steps = 1", replaced=NO_RANKS)
    run(history, "x = 1", replaced=ALL)
    history.note_restart(ALL)
    infos_now = [RankInfo(rank=r, node=0, generation=20 + r, is_replacement=True) for r in ALL]
    had = {0: (), 1: ("model", "steps", "x"), 2: ()}
    with pytest.raises(BadOptionError, match=r"fresh, too\. Next: run the cells again$"):
        choose_roles(history, infos_now, had, two)


def test_names_of_cells_of_other_ranks_are_not_lacking():
    history, one = CellHistory(), RankSet.of([1])
    run(history, "x = 1", replaced=one)
    history.begin("0", PastCell(2, "steps = 1", 1, RankSet.of([0])))
    history.end(RunOutcome("0", {0: RankResult(0, "ok")}, 0.0))
    with pytest.raises(BadOptionError, match="no fresh rank lacks"):
        choose(history, one, {1: ("model",)})


def test_every_rank_is_fresh_though_a_cell_has_run_since():
    history, had = CellHistory(), dict.fromkeys(ALL, ("x",))
    run(history, "model = 1", replaced=NO_RANKS)
    run(history, "x = 1", replaced=ALL)
    for named in (None, ALL):
        with pytest.raises(BadOptionError, match="every rank is fresh"):
            choose(history, ALL, had, named)
    run(history, "import torch; _, model = 1, 2", replaced=ALL)
    with pytest.raises(BadOptionError, match="no fresh rank lacks a variable that %ddp"):
        choose(history, ALL, dict.fromkeys(ALL, ("x", "model")))


def test_a_name_that_was_of_one_rank_makes_no_rank_fresh():
    """All ranks were replaced in turn; rank 1 had a name alone, and was replaced again."""
    history, one = CellHistory(), RankSet.of([1])
    run(history, "model = steps = 1", replaced=NO_RANKS)
    for rank in ALL:
        history.note_restart(RankSet.of([rank]))
        history.replaced.note_catch_up([(rank, 10 + rank)], is_whole=True)
    results = {1: RankResult(1, "ok")}
    history.begin("1", PastCell(2, "alone = 1", 1, one), [(0, 10), (1, 11), (2, 12)])
    history.end(RunOutcome("1", results, 0.0))
    history.note_restart(one)
    results = {rank: RankResult(rank, "ok") for rank in ALL}
    history.begin("2", PastCell(3, "steps = 2", 1, ALL), [(0, 10), (1, 21), (2, 12)])
    history.end(RunOutcome("2", results, 0.0))
    processes = [
        RankInfo(rank=rank, node=0, generation=generation, is_replacement=True)
        for rank, generation in enumerate((10, 21, 12))
    ]
    had = {0: WHOLE, 1: ("steps",), 2: WHOLE}
    with pytest.raises(BadOptionError, match=r"rank 1 lacks model.*Next: %ddp catchup -r 1"):
        choose_roles(history, processes, had, None)
    history.replaced.note_catch_up([(1, 21)], is_whole=True)
    with pytest.raises(BadOptionError, match="no fresh rank lacks a variable"):
        choose_roles(history, processes, dict.fromkeys(ALL, WHOLE), None)


def test_all_ranks_are_named():
    history = CellHistory()
    run(history, "model = steps = 1", replaced=NO_RANKS)
    for rank in ALL:
        history.replaced.note_catch_up([(rank, 10 + rank)], is_whole=True)
    with pytest.raises(BadOptionError, match=r"nothing to catch up\. Next: run the next cell$"):
        choose(history, ALL, {}, ALL)
    with pytest.raises(BadOptionError, match=r"no rank is left .*Next: .* %ddp catchup -r 1$"):
        choose(history, ALL, {1: ("steps",)}, ALL)


def test_all_ranks_died_at_once_and_are_no_replacements():
    history, had = CellHistory(), dict.fromkeys(ALL, ("x",))
    run(history, "if rank == 5: never = 1", replaced=NO_RANKS)
    with pytest.raises(BadOptionError, match="no fresh rank lacks"):
        choose(history, NO_RANKS, had)
    run(history, "model = 1", replaced=NO_RANKS)
    history.begin("end", PastCell(2, "dist.barrier()", 1, ALL))
    ended = {rank: RankResult(rank, "exited") for rank in ALL}
    history.end(RunOutcome("end", ended, 0.0, fresh=ALL))
    run(history, "x = 1", replaced=NO_RANKS)
    with pytest.raises(BadOptionError, match="every rank is fresh"):
        choose(history, NO_RANKS, had)
    assert history.missed("x", ALL) is None
    run(history, "y = 1", replaced=RankSet.of([1]))
    missed = history.missed("x", RankSet.of([1]))
    assert missed is not None
    assert missed.holders == RankSet.of([0, 2])


def test_no_rank_or_every_rank_is_fresh():
    with pytest.raises(BadOptionError, match="no fresh rank lacks"):
        choose(CellHistory(), NO_RANKS, {})
    with pytest.raises(BadOptionError, match="every rank is fresh"):
        choose(CellHistory(), ALL, {})


@pytest.mark.parametrize("replaced", [NO_RANKS, ALL], ids=["restart", "all killed"])
def test_no_rank_has_a_variable(replaced: RankSet):
    with pytest.raises(BadOptionError, match="no rank has a variable of a cell"):
        choose(CellHistory(), replaced, dict.fromkeys(ALL, ()))
