"""The names that a rank should have: not those of branches that it does not take."""

import pytest

from nbddp.controller.catch_up import (
    CellHistory,
    LeftOut,
    PastCell,
    Reason,
    Roles,
    alone_names,
    expected_names,
    lacked,
    make_plan,
    regained_names,
)
from nbddp.controller.state import RankResult, RunOutcome
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import NameKind

ALL = RankSet.all(3)
ONE = RankSet.of([1])
ROLES = Roles(ONE, 0, RankSet.of([0, 2]))
EXCHANGE = """if rank == 0:
    sent = []
    for peer in (1, 2):
        dist.send(x, peer)
        sent.append(peer)
else:
    got = torch.zeros(2)
    dist.recv(got, 0)"""
SENDER: dict[str, NameKind] = {"sent": "plain", "peer": "plain", "net": "state"}
RECEIVER: dict[str, NameKind] = {"got": "plain", "net": "state"}


def history_of(*cells: str, ok: bool = True) -> CellHistory:
    history = CellHistory()
    for number, code in enumerate(cells, 1):
        history.begin(code, PastCell(number, code, 1, ALL))
        results = {rank: RankResult(rank, "ok" if ok else "error") for rank in ALL}
        history.end(RunOutcome(code, results, 0.0))
    return history


def expected(history: CellHistory, **more: NameKind) -> set[str]:
    names, _ = expected_names(history, {0: SENDER | more, 1: {}, 2: RECEIVER | more}, ROLES)
    return names[1]


def test_names_of_the_other_branch_are_not_expected_and_those_of_its_own_are():
    assert expected(history_of(EXCHANGE)) == {"net", "got"}


def test_names_of_a_branch_that_is_not_known_are_expected():
    assert expected(history_of(EXCHANGE.replace("rank == 0", "flag"))) == {"sent", "peer", "net"}


def test_own_names_of_a_cell_that_failed_or_that_no_other_rank_has_are_not_expected():
    assert expected(history_of(EXCHANGE, ok=False)) == {"net"}
    names, _ = expected_names(history_of(EXCHANGE), {0: SENDER, 1: {}, 2: {}}, ROLES)
    assert names[1] == {"net"}


@pytest.mark.parametrize("other", ["sent = 0", "from lists import *", "if flag: sent = 0"])
def test_a_name_that_another_cell_may_bind_is_expected(other: str):
    assert "sent" in expected(history_of(EXCHANGE, other))


def test_a_name_that_was_pushed_to_the_rank_is_expected():
    history = history_of(EXCHANGE)
    history.note_push(["sent"], ALL)
    history.note_push(["peer"], RankSet.of([0]))
    assert expected(history) == {"net", "got", "sent"}


def test_a_name_that_was_pushed_to_other_ranks_only_is_not_expected():
    history = history_of(EXCHANGE)
    assert "big" in expected(history, big="data")
    history.note_push(["big"], RankSet.of([0, 2]))
    assert "big" not in expected(history, big="data")
    history.note_push(["big"], ALL)
    assert "big" in expected(history, big="data")


def test_own_modules_are_left_out_as_no_rank_can_give_their_state():
    history = history_of("if rank:\n    net = Net()\n    x = 1")
    had: dict[int, dict[str, NameKind]] = {0: {}, 1: {}, 2: {"net": "state", "x": "plain"}}
    assert expected_names(history, had, ROLES) == ({1: {"x"}}, {"x": "plain"})


def test_names_that_are_lacked_in_the_order_of_their_kinds():
    kinds: dict[str, NameKind] = {"c": "state", "b": "data", "a": "plain"}
    found = lacked(kinds, {1: {"a", "b"}, 2: {"b", "c"}}, {1: ["a"], 2: ["b"]})
    assert [*found.items()] == [("c", "state"), ("b", "data")]


def test_a_plan_makes_a_name_by_the_last_cell_that_binds_it_on_a_fresh_rank():
    cells = [
        PastCell(1, "x = 1", 1, ALL, is_ok=True),
        PastCell(2, "if rank == 0:\n    for x in data: dist.send(x, 1)", 1, ALL, is_ok=True),
    ]
    assert [cell.number for cell in make_plan(cells, {"x": "plain"}, ONE, (), 3).cells] == [1]
    pushed = make_plan(cells[1:], {"x": "plain"}, ONE, (), 3)
    assert (pushed.cells, pushed.left_out) == ((), (LeftOut(("x",), Reason.NO_CELL),))


def history_of_parts(*cells: tuple[str, RankSet]) -> CellHistory:
    history = CellHistory()
    for number, (code, ranks) in enumerate(cells, 1):
        history.begin(code, PastCell(number, code, 1, ranks))
        results = {rank: RankResult(rank, "ok") for rank in ranks}
        history.end(RunOutcome(code, results, 0.0))
    return history


def test_a_name_is_made_again_where_its_cell_ran():
    history = history_of_parts(("x = y = 1", ALL), ("pair = rank", RankSet.of([0, 1])))
    had: dict[int, set[str]] = {0: set(), 1: {"x", "y", "pair"}, 2: set()}
    lacks = {0: set[str](), 2: {"pair"}}
    has = {0: {"x", "y", "pair"}, 2: {"x", "y"}}
    assert regained_names(history, lacks, had, has) == {"x", "y", "pair"}
    assert regained_names(history, lacks | {0: {"y"}}, had, has) == {"x", "pair"}
    assert regained_names(history, lacks, had | {0: {"pair"}}, has) == {"x", "y"}
    odd = has | {0: {"odd"}}  # no cell binds it
    assert regained_names(history, lacks | {2: {"odd"}}, had, odd) == {"x", "y"}
    history.note_push(["pair"], ALL)
    assert regained_names(history, lacks, had, has) == {"x", "y"}


def test_names_that_a_fresh_rank_alone_had_are_told_with_their_cell():
    history = history_of_parts(
        ("keep = 1", ALL),
        ("only = 1; _own = 2; torch = 3", ONE),
        ("if rank == 1:\n  mine = 1", ALL),
    )
    has = {0: {"keep"}, 1: {"keep"}, 2: {"keep"}}
    assert alone_names(history, ONE, 0, has, ()) == (
        LeftOut(("only",), Reason.ALONE, 2),
        LeftOut(("mine",), Reason.ALONE, 3),
    )
    assert alone_names(history, ONE, 0, has, (2,))[0].reason is Reason.FAILS_NOW
    two = RankSet.of([1, 2])
    assert alone_names(history, two, 2, has, ())[0] == LeftOut(("only",), Reason.ALONE, 2, ONE)
    assert alone_names(history, ONE, 0, has | {1: {"only", "mine"}}, ()) == ()


def test_names_that_no_rank_has_any_more_are_told():
    history = history_of_parts(("best = 1", ALL), ("del best; best = 2", ALL), ("top = 1", ALL))
    none = dict.fromkeys(ALL, frozenset[str]())
    history.note_push(["pv", "mine"], RankSet.of([0, 1]))
    history.note_restart(RankSet.of([0]))
    history.note_left_out(RankSet.of([0]), [LeftOut(("best", "top"), Reason.LOOP, 2)])
    pushed = LeftOut(("mine", "pv"), Reason.GONE)
    assert alone_names(history, ONE, 0, none, ()) == (pushed,)  # rank 2 has run the cells
    history.note_restart(RankSet.of([2]))
    assert alone_names(history, ONE, 0, none, ()) == (
        pushed,
        LeftOut(("best",), Reason.GONE, 2),
        LeftOut(("top",), Reason.GONE, 3),
    )
    has = none | {0: {"best", "pv", "mine"}}
    assert alone_names(history, ONE, 0, has, ()) == (LeftOut(("top",), Reason.GONE, 3),)
    history.note_push(["top"], RankSet.of([0, 1]))  # a catch-up has copied it once
    assert alone_names(history, ONE, 0, has, ()) == (LeftOut(("top",), Reason.GONE, 3),)


def test_a_pushed_name_that_another_fresh_rank_has_got_since_is_not_gone():
    history, two = CellHistory(), RankSet.of([0, 1])
    history.note_push(["only"], ALL)
    history.note_restart(two)
    none = dict.fromkeys(ALL, frozenset[str]())
    gone = LeftOut(("only",), Reason.GONE)
    assert alone_names(history, two, 2, none, ()) == (gone,)
    assert alone_names(history, two, 2, none | {1: {"only"}}, ()) == ()


def test_names_of_a_cell_that_failed_elsewhere_are_told():
    history, two = CellHistory(), RankSet.of([0, 1])
    history.begin("a", PastCell(4, "j = 1\nif rank == 2:\n    1 / 0\nk = 2", 1, ALL))
    history.end(RunOutcome("a", {r: RankResult(r, "error" if r == 2 else "ok") for r in ALL}, 0))
    history.note_restart(two)
    has = {0: set[str](), 1: set[str](), 2: {"j"}}
    assert alone_names(history, two, 2, has, ()) == (LeftOut(("k",), Reason.FAILED, 4),)


def test_a_name_of_a_failed_cell_is_told_though_a_third_rank_has_it():
    history = CellHistory()
    history.begin("a", PastCell(1, "if rank == 0: raise ValueError\nbad = rank", 1, ALL))
    results = {rank: RankResult(rank, "ok" if rank else "error") for rank in ALL}
    history.end(RunOutcome("a", results, 0.0))
    history.note_restart(ONE)
    has: dict[int, set[str]] = {0: set(), 1: set(), 2: {"bad"}}
    assert alone_names(history, ONE, 0, has, ()) == (LeftOut(("bad",), Reason.FAILED, 1),)
    assert alone_names(history, ONE, 2, has, ()) == ()  # the source's names are told elsewhere


def test_names_that_are_gone_or_that_others_had_too_are_not_told_as_those_of_one_rank():
    history = history_of_parts(
        ("gone = both = held = 1", ONE), ("del gone", ONE), ("both = 1", RankSet.of([2]))
    )
    assert alone_names(history, ONE, 0, {0: {"held"}, 1: set(), 2: set()}, ()) == ()
    assert alone_names(history_of("x = 1", ok=False), ALL, 0, {0: (), 1: (), 2: ()}, ()) == ()


def test_a_pushed_name_that_a_cell_only_changes_is_one_of_the_push():
    history = history_of("x = 1", "own += rank")
    history.note_push(["own"], ALL)
    history.note_restart(ALL)
    left = alone_names(history, ONE, 0, {0: {}, 1: {}, 2: {}}, ())
    assert LeftOut(("own",), Reason.GONE, 0) in left
    history = history_of("own = 1", "own += rank")
    history.note_push(["own"], ALL)
    history.note_restart(ALL)
    assert LeftOut(("own",), Reason.GONE, 2) in alone_names(
        history, ONE, 0, {0: {}, 1: {}, 2: {}}, ()
    )
