"""The cells that a pool has run."""

from dataclasses import replace

import pytest

from nbddp.controller.catch_up import CellHistory, PastCell
from nbddp.controller.state import LeftOut, LostNames, RankResult, Reason, RunOutcome
from nbddp.controller.state.outcome import RankStatus
from nbddp.wire.flight_recorder import GroupMark
from nbddp.wire.rank_set import NO_RANKS, RankSet

ALL = RankSet.of([0, 1])


def outcome(
    run_id: str, *calls: int, status: RankStatus = "ok", fresh: RankSet = NO_RANKS
) -> RunOutcome:
    results = {
        rank: RankResult(
            rank,
            status if rank else "ok",
            marks=(GroupMark(pg_id="0", collective_seq_id=count, digest=0),) if count else (),
        )
        for rank, count in enumerate(calls)
    }
    return RunOutcome(run_id, results, 1.0, fresh=fresh)


def run(history: CellHistory, number: int, code: str, ended: RunOutcome) -> None:
    history.begin(ended.run_id, PastCell(number, code, 1, ALL))
    history.end(ended)


def test_how_cells_ended_and_whether_they_had_collectives():
    history = CellHistory()
    run(history, 1, "x = 1", outcome("a", 0, 0))
    run(history, 2, "y = 1", outcome("b", 2, 2))
    run(history, 3, "z = 1", outcome("c", 0, 0, status="error"))
    assert [(cell.number, cell.is_ok, cell.has_operations) for cell in history] == [
        (1, True, False),
        (2, True, True),
        (3, False, False),
    ]


def test_a_cell_with_an_error_in_its_records_has_failed():
    history = CellHistory()
    run(history, 1, "x = 1", replace(outcome("a", 2, 2), is_wrong=True))
    (cell,) = history
    assert (cell.is_ok, "x" in cell.names_run.binds) == (False, True)


def test_a_cell_that_was_changed_at_its_prompt():
    history = CellHistory()
    history.note_change()  # of a cell that runs again
    history.begin("a", PastCell(1, "x = 1", 1, ALL))
    history.note_change()
    history.end(outcome("a", 2, 2))
    run(history, 2, "x = 2", outcome("b", 2, 2))
    assert [cell.was_changed for cell in history] == [True, False]


def test_a_cell_without_a_record_of_what_it_calls_has_operations():
    history = CellHistory()
    skipped = frozenset({"skip"})
    run(history, 1, "dist.barrier()", replace(outcome("a", 0, 0), left_out=("barrier",)))
    run(history, 2, "dist.barrier()", replace(outcome("b", 0, 0), struck_acts=skipped))
    run(history, 3, "x = 2", replace(outcome("c", 0, 0), struck_acts=frozenset({"raise"})))
    run(history, 4, "x = 2", replace(outcome("d", 0, 0), struck_acts=frozenset({"stop"})))
    history.begin("e", PastCell(5, "x = 1", 1, ALL))
    history.note_change()
    history.end(outcome("e", 0, 0))
    assert [cell.has_operations for cell in history] == [True, True, False, False, False]
    assert [cell.was_struck for cell in history] == [False, True, True, False, False]


def test_a_cell_without_an_end_and_an_end_that_is_told_twice():
    history = CellHistory()
    history.end(None)
    history.begin("a", PastCell(1, "x = 1", 1, ALL))
    history.end(outcome("other", 0, 0))
    assert list(history) == []
    history.end(outcome("a", 0, 0))
    history.end(outcome("a", 0, 0))
    assert len(list(history)) == 1


def test_the_names_of_a_cell_are_not_looked_for_while_no_process_was_replaced(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(statements: object) -> None:
        raise AssertionError(statements)

    monkeypatch.setattr("nbddp.controller.catch_up.past_cell.cell_names", refuse)
    history = CellHistory()
    run(history, 1, "x = 1", outcome("a", 0, 0))
    history.begin("b", PastCell(2, "x = 1", 1, ALL), [(1, 7)])
    with pytest.raises(AssertionError):
        history.end(outcome("b", 0, 0))


def test_the_cell_that_bound_a_name_and_the_one_that_cost_a_rank_its_variables():
    history = CellHistory()
    run(history, 1, "x = 1", outcome("a", 0, 0))
    run(history, 4, "x = 2", outcome("b", 0, 0, status="exited", fresh=RankSet.of([1])))
    assert (history.origin("x"), history.origin("y")) == (4, 0)
    assert (history.fresh_since(1), history.fresh_since(0)) == (4, 0)
    history.note_restart(
        RankSet.of([1])
    )  # before another cell has told the process of its first one
    assert history.fresh_since(1) == 0


def test_names_that_were_deleted_are_not_lost():
    history = CellHistory()
    run(history, 1, "x = y = 1", outcome("a", 0, 0))
    run(history, 2, "z = x; del x", outcome("b", 0, 0))
    lost = history.lost_names(ALL, 2)
    assert [(each.cell, each.names, each.perhaps) for each in lost] == [
        (1, ("y",), ()),
        (2, ("z",), ()),
    ]


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_cell_with_messages_only_has_operations(is_broken: bool):
    history = CellHistory()
    mark = GroupMark(pg_id="0", collective_seq_id=0, digest=0, is_broken=is_broken)
    ended = {rank: RankResult(rank, "ok", marks=(mark,)) for rank in ALL}
    run(
        history, 1, "dist.send(x, 1) if rank == 0 else dist.recv(x, 0)", RunOutcome("a", ended, 1.0)
    )
    assert [cell.has_operations for cell in history] == [not is_broken]


def test_a_cell_that_made_a_group():
    history = CellHistory()
    made = {0: RankResult(0, "ok"), 1: RankResult(1, "ok", made_groups=True)}
    run(history, 1, "g = dist.new_group([1])", RunOutcome("a", made, 1.0))
    assert [cell.makes_groups for cell in history] == [True]


@pytest.mark.parametrize(
    ("code", "names"),
    {
        "%time x = 1": {"x"},
        "if rank == 0:\n    %time x = 1\ny = x": {"x", "y"},
        "%timeit x = 1": set(),
        "%time -h\ny = 1": {"y"},
    }.items(),
)
def test_names_that_a_timed_line_binds(code: str, names: set[str]):
    assert PastCell(1, code, 1, ALL).names.binds == names


def test_names_that_only_other_ranks_have_bound_are_not_lost():
    code = (
        "x = 1\nif rank == 0:\n    m = 5\nelif rank == 1:\n    n = 2\nelse:\n    o = 1\n"
        "if x > 3:\n    p = 4\nfor i in range(3):\n    if rank:\n        q = i\n"
        "def f():\n    if rank == 0:\n        global r\n        r = 1\n"
    )
    history = CellHistory()
    run(history, 1, code, outcome("a", 0, 0))
    run(history, 2, "if x:\n    y = 1", outcome("b", 0, 0))
    run(history, 3, "if rank == 0:\n    x = 2", outcome("c", 0, 0))
    lost = history.lost_names(RankSet.of([1]), 2)
    assert lost == [
        LostNames(1, ("f", "i", "n", "q", "x"), ("p",)),
        LostNames(2, (), ("y",)),
    ]
    assert history.lost_names(RankSet.of([0]), 2)[0].names == ("f", "i", "m", "r")
    assert history.lost_names(RankSet.of([0]), 2)[-1] == LostNames(3, ("x",))
    assert history.lost_names(RankSet.of([7]), 8) == []  # the cells ran on others


def test_names_that_each_process_has_before_its_first_cell_are_not_lost():
    history = CellHistory()
    run(history, 1, "import torch, time\nimport torch.distributed as dist", outcome("a", 0, 0))
    run(history, 2, "if rank == 0: device = 'cpu'\nif x: rank = 3", outcome("b", 0, 0))
    assert history.lost_names(ALL, 2) == [LostNames(1, ("time",))]


def test_names_that_only_the_rank_that_ended_would_have_bound_are_not_lost():
    history = CellHistory()
    run(history, 1, "os = x = 1\nif rank == 1:\n    own = 1", outcome("a", 0, 0))
    code = "import re\nif rank == 1:\n    os = own = z = 2\nif x:\n    y = 1\nexit()"
    run(history, 2, code, outcome("b", 0, 0, status="exited", fresh=RankSet.of([1])))
    lost = [LostNames(1, ("os", "own", "x")), LostNames(2, ("re",), ("y",))]
    assert history.lost_names(RankSet.of([1]), 2) == lost


def test_names_that_a_rank_lacks_after_it_has_caught_up():
    history = CellHistory()
    left = LeftOut(("x", "y"), Reason.FAILED, 3)
    history.note_left_out(RankSet.of([1]), [left])
    assert history.left_out(1, "y") is left
    assert history.left_out(1, "z") is history.left_out(0, "y") is None
    run(history, 4, "1", outcome("a", 0, 0, status="exited", fresh=RankSet.of([1])))
    assert history.left_out(1, "y") is None  # the process that lacked it is gone, too


def test_a_rank_that_was_replaced_again_has_lost_what_it_had_caught_up():
    history, one = CellHistory(), RankSet.of([1])
    run(history, 1, "x = 1", outcome("a", 0, 0))
    history.note_restart(one)
    assert history.has_lost(1, "x")
    history.note_catch_up([(1, 11)], is_whole=True, unfinished=frozenset())
    assert not history.has_lost(1, "x")
    history.note_restart(one)
    assert history.has_lost(1, "x")
    history.note_catch_up([(1, 12)], is_whole=True, unfinished=frozenset())
    history.begin("b", PastCell(2, "y = 1", 1, ALL), [(1, 12)])
    assert not history.has_lost(1, "x")


def test_a_process_that_is_new_in_the_next_cell_lacks_nothing_of_an_earlier_catch_up():
    """As after a restart that the user has interrupted."""
    history, one = CellHistory(), RankSet.of([1])
    run(history, 1, "x = 1", outcome("a", 0, 0))
    history.note_restart(one)
    history.note_left_out(one, [LeftOut(("x",), Reason.FAILED, 1)])
    history.doubts.note(one, (), ["z"])
    history.note_catch_up([(1, 11)], is_whole=True, unfinished=frozenset())
    history.begin("b", PastCell(2, "y = 1", 1, ALL), [(1, 11)])
    assert history.left_out(1, "x") is not None
    history.begin("c", PastCell(3, "y = 1", 1, ALL), [(1, 12)])
    assert (history.left_out(1, "x"), history.doubts.holders("z")) == (None, NO_RANKS)
    assert history.has_lost(1, "x")


def test_values_that_were_pushed_to_ranks_at_once():
    history = CellHistory()
    history.note_push(["x", "y"], ALL)
    assert history.has_same_push("x", ALL)
    assert not history.has_same_push("z", ALL)
    history.note_push(["x"], RankSet.of([1]))
    assert not history.has_same_push("x", ALL)
    assert history.has_same_push("x", RankSet.of([1]))
    history.note_push(["x"], ALL)
    assert history.has_same_push("x", ALL)


def test_the_cell_that_calls_a_function_has_changed_a_name_and_not_the_one_that_defines_it():
    bump = "def bump():\n    global v\n    v += 100\ndef twice(): bump(); bump()"
    make = "def make():\n    global v\n    v = 1"
    for cells, numbers in [
        (("v = 0", bump, "print(v)", "twice()"), (1, 4)),
        ((make, "make()"), (1,)),
        (("v = 0", bump), (1,)),
    ]:
        before = CellHistory()
        for number, code in enumerate(cells, 1):
            before.begin(code, PastCell(number, code, 1, RankSet.all(2)))
            results = {rank: RankResult(rank, "ok") for rank in range(2)}
            before.end(RunOutcome(code, results, 0.0))
        history = CellHistory(before=before)
        assert history.before_restart("v", RankSet.all(2)) == numbers
