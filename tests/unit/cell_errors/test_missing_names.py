"""The hints of a NameError of fresh ranks: the cell that they have not run, and what to do."""

import pytest

from nbddp.controller.catch_up import CellHistory, PastCell
from nbddp.controller.cell_errors import restarted_text
from nbddp.controller.state import LeftOut, RankResult, Reason, RunOutcome
from nbddp.controller.state.outcome import RankStatus
from nbddp.wire.flight_recorder import GroupMark, Site
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.cell_errors import cell_error, ok, raised, text


def freed_at(rank: int, *, cell: int, line: int) -> RankResult:
    """The end on a rank that was freed at a line."""
    where = Site(line=line, function="<module>", source="", cell=cell)
    error = ErrorInfo(ename="CollectiveAbortedError", evalue="", traceback=[], site=where)
    return RankResult(rank, "error", error=error, was_freed=True)


ALL, ONE = RankSet.all(3), RankSet.of([1])


def run(
    history: CellHistory,
    number: int,
    code: str,
    *,
    ranks: RankSet = ALL,
    status: RankStatus = "ok",
    fresh: RankSet = NO_RANKS,
    pids: dict[int, int] | None = None,
) -> None:
    """Run a cell; ``fresh`` ranks end in it, and ``pids`` are those of replaced ranks before."""
    results = {rank: RankResult(rank, "exited" if rank in fresh else status) for rank in ranks}
    history.begin(str(number), PastCell(number, code, 1, ranks), (pids or {}).items())
    history.end(RunOutcome(str(number), results, 0.0, fresh=fresh))


def hint(history: CellHistory, ranks: RankSet, replaced: RankSet) -> str:
    """The lines below the headline of the error of ``ranks``, which lack the name v."""
    lacks = [
        raised(rank, "NameError", "name 'v' is not defined", name="v")
        if rank in ranks
        else ok(rank)
        for rank in ALL
    ]
    lines = text(cell_error(*lacks, replacements=replaced, origins=history)).splitlines()
    return "\n".join(line.strip() for line in lines if line.startswith(("  likely", "  next")))


def test_all_ranks_are_fresh():
    history = CellHistory()
    run(history, 4, "v = 1")
    run(history, 5, "dist.barrier()", fresh=ALL)
    run(history, 6, "print(v)", status="error", pids={0: 10, 1: 11, 2: 12})
    assert hint(history, ALL, ALL) == (
        "likely    ranks 0-2 are fresh processes since cell [5]: they have not run cell [4], which "
        "defines v\nnext      run the cells again that define what they lack"
    )


def test_a_loop_with_collectives_is_named_at_once():
    history = CellHistory()
    history.begin("4", PastCell(4, "v = 1\nfor x in range(3): dist.all_reduce(x)", 1, ALL))
    marks = (GroupMark(pg_id="0", collective_seq_id=3, digest=0),)
    results = {rank: RankResult(rank, "ok", marks=marks) for rank in ALL}
    history.end(RunOutcome("4", results, 0.0))
    history.note_restart(ONE)
    run(history, 6, "print(v)", status="error", pids={1: 11})
    assert hint(history, ONE, ONE) == (
        "likely    rank 1 is a fresh process: it has not run cell [4], which defines v\n"
        "next      %ddp catchup -r 1 --cells 4 runs such cells there; this is a loop with "
        "collectives, which may have to be named"
    )


def test_a_restart_does_not_promise_the_names_of_loops():
    leaves = restarted_text(RankSet.of([2]), RankSet.of([0]), leaves_loops=True)
    assert "Next: %ddp catchup makes most of its variables again: it runs the cells" in leaves


def after_restart(*cells: tuple[int, str]) -> CellHistory:
    history = CellHistory()
    for number, code in cells:
        run(history, number, code)
    history.note_push(["v"], ALL)
    return CellHistory(before=CellHistory(before=history))


@pytest.mark.parametrize("code", ["print(v)", "v = v + 1"])
def test_all_ranks_were_restarted_by_the_user(code: str):
    history = after_restart((3, "v = 1"), (4, "v = 2\nw = 3"), (5, "w"))
    run(history, 7, code, status="error")
    assert hint(history, ALL, NO_RANKS) == (
        "likely    ranks 0-2 are fresh processes since %ddp restart: cell [4], which made v, ran "
        "before it\nnext      run cell [4] again"
    )


def test_a_pushed_name_was_there_before_the_restart():
    history = after_restart((4, "w = 3"))
    run(history, 7, "print(v)", status="error")
    assert hint(history, ONE, NO_RANKS) == (
        "likely    rank 1 is a fresh process since %ddp restart: v was pushed before it\n"
        "next      %ddp push v, if this notebook still has it"
    )


CHANGES = (4, "v = 1"), (5, "v += 1"), (6, "w = v"), (7, "v[0] = 2"), (8, "v = v * 2")


def test_the_cells_that_changed_a_name_are_named_after_the_one_that_made_it():
    history = after_restart((3, "v = 0"), *CHANGES)
    run(history, 9, "print(v)", status="error")
    assert hint(history, ALL, NO_RANKS) == (
        "likely    ranks 0-2 are fresh processes since %ddp restart: cell [4], which made v, and "
        "cells [5], [7] and [8], which changed it, ran before it\n"
        "next      run cells [4], [5], [7] and [8] again"
    )
    history = after_restart(*((number, "v += 1") for number in range(4, 20)))
    run(history, 20, "print(v)", status="error")
    assert hint(history, ALL, NO_RANKS) == (
        "likely    ranks 0-2 are fresh processes since %ddp restart: v was pushed, and cells [4], "
        "[5], [6], [7], [8], [9], ..., [19], which changed it, ran before it\n"
        "next      %ddp push v, if this notebook still has it; then run cells [4], [5], [6], [7], "
        "[8], [9], ..., [19] again"
    )


def test_the_restart_does_not_explain_a_name_that_was_made_since_or_never_was_there():
    history = after_restart((4, "v = 3"))
    run(history, 7, "v = 1")
    run(history, 8, "del v")
    run(history, 9, "print(v)", status="error")
    assert hint(history, ALL, NO_RANKS) == ""
    history = CellHistory()
    run(history, 4, "v = 1", ranks=ONE)
    history = CellHistory(before=history)
    run(history, 9, "print(v)", status="error")
    assert hint(history, ALL, NO_RANKS) == ""


def test_the_restart_does_not_explain_a_name_that_was_deleted_before_it():
    history = CellHistory()
    run(history, 4, "v = 1")
    run(history, 5, "del v", ranks=ONE)
    history = CellHistory(before=history)
    run(history, 7, "print(v)", status="error")
    assert hint(history, ONE, NO_RANKS) == hint(history, ALL, NO_RANKS) == ""
    assert hint(history, RankSet.of([0, 2]), NO_RANKS).endswith("next      run cell [4] again")


def test_a_name_that_was_pushed_to_other_ranks_was_not_there_before_the_restart():
    history = CellHistory()
    history.note_push(["v"], RankSet.of([0]))
    again = CellHistory(before=history)
    again.note_push(["v"], RankSet.of([2]))
    again = CellHistory(before=again)
    run(again, 7, "print(v)", status="error")
    assert hint(again, ONE, NO_RANKS) == hint(again, ALL, NO_RANKS) == ""
    assert "v was pushed before it" in hint(again, RankSet.of([0, 2]), NO_RANKS)


def test_another_rank_has_the_variable_though_all_were_replaced():
    history = CellHistory()
    run(history, 4, "v = 1")
    run(history, 5, "dist.barrier()", fresh=RankSet.of([0, 2]))
    history.replaced.note_catch_up([(0, 10), (2, 12)], is_whole=True)
    run(history, 6, "dist.barrier()", fresh=ONE, pids={0: 10, 2: 12})
    run(history, 7, "print(v)", status="error", pids={0: 10, 1: 11, 2: 12})
    assert hint(history, ONE, ALL).endswith("%ddp catchup -r 1 runs such cells there")


def test_a_fresh_rank_has_run_the_cell_which_failed():
    history = CellHistory()
    run(history, 4, "dist.barrier()", fresh=ONE)
    run(history, 12, "bogus\nv = 1", status="error", pids={1: 11})
    run(history, 13, "if rank == 1: print(v)", pids={1: 11})
    assert hint(history, ONE, ONE) == ""
    run(history, 14, "1", pids={1: 21})
    assert hint(history, ONE, ONE).startswith(
        "likely    rank 1 is a fresh process: it has not run cell [12], which defines v\n"
    )


def test_the_cell_in_which_the_rank_has_ended_is_not_run_by_catchup():
    history = CellHistory()
    run(history, 5, "v = 1\ndist.barrier()", fresh=ONE)
    run(history, 6, "print(v)", status="error", pids={1: 11})
    assert hint(history, ONE, ONE) == (
        "likely    rank 1 is a fresh process since cell [5]: it has not run cell [5], which "
        "defines v\nnext      define v in a cell that begins with %%ddp -r 1, or copy it if it is "
        "data and the same on all ranks: v = %ddp pull v -r 0, then %ddp push v -r 1. "
        "%ddp catchup does not run cell [5] again, which had failed"
    )


def test_the_cell_that_ended_well_is_named():
    history = CellHistory()
    run(history, 3, "v = 1")
    run(history, 4, "dist.barrier()", fresh=ONE)
    run(history, 12, "bogus\nv = 1", status="error", pids={1: 11})
    assert "has not run cell [3], which defines v" in hint(history, ONE, ONE)


def end_in(history: CellHistory, number: int, code: str, **others: RankResult) -> None:
    """Run a cell in which rank 1 ends; the others end it in other ways."""
    history.begin(str(number), PastCell(number, code, 1, ALL))
    results = {0: others["first"], 1: RankResult(1, "exited"), 2: others["last"]}
    history.end(RunOutcome(str(number), results, 0.0, fresh=ONE))


@pytest.mark.parametrize(
    "others",
    [
        {"first": ok(0), "last": ok(2)},
        {"first": freed_at(0, cell=4, line=2), "last": freed_at(2, cell=4, line=2)},
    ],
)
def test_the_last_cell_that_bound_the_name_is_named_though_it_failed(
    others: dict[str, RankResult],
):
    history = CellHistory()
    run(history, 3, "v = 1")
    end_in(history, 4, "v = 2\ndist.barrier()", **others)
    run(history, 5, "v", status="error", pids={1: 11})
    assert hint(history, ONE, ONE) == (
        "likely    rank 1 is a fresh process since cell [4]: it has not run cell [4], which "
        "defines v\nnext      define v in a cell that begins with %%ddp -r 1, or copy it if it is "
        "data and the same on all ranks: v = %ddp pull v -r 0, then %ddp push v -r 1. "
        "%ddp catchup makes it as cell [3] does, and does not run cell [4] again, which had failed"
    )


@pytest.mark.parametrize(("cell", "line"), [(4, 1), (3, 2)])
def test_a_cell_that_perhaps_failed_before_it_bound_the_name_is_not_named(cell: int, line: int):
    history = CellHistory()
    run(history, 3, "v = 1")
    others = {
        name: freed_at(rank, cell=cell, line=line) for rank, name in ((0, "first"), (2, "last"))
    }
    end_in(history, 4, "v = dist.barrier()\nv", **others)
    run(history, 5, "v", status="error", pids={1: 11})
    assert "has not run cell [3], which defines v" in hint(history, ONE, ONE)


def test_the_cell_ran_on_other_ranks_only():
    history = CellHistory()
    run(history, 4, "dist.barrier()", fresh=ONE)
    run(history, 5, "v = 1", ranks=RankSet.of([0]), pids={1: 11})
    run(history, 6, "print(v)", status="error", pids={1: 11})
    assert hint(history, ONE, ONE) == (
        "likely    rank 1 is a fresh process since cell [4]: it has not run cell [5], which "
        "defines v\nnext      run cell [5] on rank 1, too"
    )


def test_a_cell_of_other_ranks_is_not_named_where_one_ran_on_the_rank():
    history = CellHistory()
    run(history, 3, "v = rank")
    run(history, 4, "v = 0", ranks=RankSet.of([0]))
    history.note_restart(ONE)
    run(history, 6, "v", status="error", pids={1: 11})
    assert hint(history, ONE, ONE) == (
        "likely    rank 1 is a fresh process: it has not run cell [3], which defines v\n"
        "next      %ddp catchup -r 1 runs such cells there"
    )


def test_each_rank_is_named_with_the_cell_in_which_it_was_replaced():
    history = CellHistory()
    two = RankSet.of([1, 2])
    run(history, 3, "v = 1")
    run(history, 4, "dist.barrier()", fresh=RankSet.of([2]))
    run(history, 8, "dist.barrier()", fresh=ONE, pids={2: 12})
    run(history, 9, "v", status="error", pids={1: 11, 2: 12})
    says = "ranks 1-2 are fresh processes (rank 2 since cell [4], rank 1 since cell [8]): they have"
    assert says in hint(history, two, ALL)
    history.note_restart(ONE)  # in no cell
    run(history, 10, "v", status="error", pids={1: 21, 2: 12})
    assert "fresh processes (rank 2 since cell [4]): they have" in hint(history, two, ALL)


def test_the_cells_before_attach_are_not_known():
    history = CellHistory(is_partial=True)
    history.note_restart(ONE)
    run(history, 3, "print(v)", status="error", pids={1: 11})
    assert hint(history, ONE, ONE) == (
        "likely    rank 1 is a fresh process: no cell since the pool was taken back defines v\n"
        "next      define v in a cell that begins with %%ddp -r 1, or copy it if it is data "
        "and the same on all ranks: v = %ddp pull v -r 0, then %ddp push v -r 1; %ddp catchup -r 1 "
        "says how modules and optimizers keep their states"
    )


@pytest.mark.parametrize("has_caught_up", [False, True])
def test_a_name_that_no_cell_and_no_push_has_given_to_the_rank_is_perhaps_a_typo(
    has_caught_up: bool,
):
    history = CellHistory()
    run(history, 3, "step = 0")
    history.note_restart(ONE)
    history.note_push(["v"], RankSet.of([0, 2]))
    if has_caught_up:
        history.replaced.note_catch_up([(1, 11)], is_whole=True)
    run(history, 5, "if rank == 1: y = v\ndist.barrier()", status="error", pids={1: 11})
    assert hint(history, ONE, ONE) == ""


def test_a_name_that_was_pushed_to_the_rank_before():
    history = CellHistory()
    history.note_push(["v"], ALL)
    history.note_restart(ONE)
    run(history, 5, "v", status="error", pids={1: 11})
    assert hint(history, ONE, ONE) == (
        "likely    rank 1 is a fresh process: v was pushed before\n"
        "next      %ddp push v -r 1, if this notebook has it"
    )


def test_a_name_that_an_import_of_all_has_perhaps_defined():
    history = CellHistory()
    run(history, 3, "from math import *")
    history.note_restart(ONE)
    run(history, 5, "v", status="error", pids={1: 11})
    assert hint(history, ONE, ONE) == (
        "likely    rank 1 is a fresh process: it has not run cell [3], perhaps with v in its "
        "`import *`\nnext      %ddp catchup -r 1 runs such cells there"
    )
    history.replaced.note_catch_up([(1, 11)], is_whole=True)
    assert hint(history, ONE, ONE) == ""


def test_a_name_from_before_the_restart_of_all_on_a_rank_that_was_replaced_since():
    history = after_restart((4, "v = 2"))
    history.note_restart(ONE)
    run(history, 7, "v", status="error", pids={1: 11})
    assert "fresh process since %ddp restart: cell [4], which made v" in hint(history, ONE, ONE)


_STATES = "and modules and optimizers get the state of the other ranks, as by nbddp.sync"


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        (
            Reason.FAILS_NOW,
            "give it what cell [3] needs, then %ddp catchup -r 2: it makes opt there, " + _STATES,
        ),
        (
            Reason.NEEDS,
            "%ddp catchup -r 2 --cells 3, when what this cell uses is there: it makes opt there, "
            + _STATES,
        ),
        (
            Reason.NO_CELL,
            "run the lines that make opt in a cell that begins with %%ddp -r 2, then "
            "nbddp.sync(opt, src=0) in one on all ranks",
        ),
        (Reason.LOOP, "%ddp catchup -r 2 --cells 3, to run it again"),
        (Reason.GONE, "run cell [3] again, which made it"),
        (Reason.ALONE, "%ddp catchup -r 2 --cells 3, to run it again"),
    ],
)
def test_a_copy_of_an_optimizer_is_not_proposed(reason: Reason, step: str):
    history = CellHistory()
    history.note_left_out(
        RankSet.of([2]), [LeftOut(("opt",), reason, 3, with_state=frozenset(("opt",)))]
    )
    lacks = raised(2, "NameError", "name 'opt' is not defined", name="opt")
    message = text(cell_error(ok(0), lacks, replacements=RankSet.of([2]), origins=history))
    assert message.endswith(f"\n  next      {step}")


@pytest.mark.parametrize(
    ("definitions", "step"),
    [
        (("os",), "import or define os in a cell that begins with %%ddp -r 2"),
        ((), "run the lines that make os in a cell that begins with %%ddp -r 2"),
    ],
)
def test_what_has_no_state_is_not_to_be_synced(definitions: tuple[str, ...], step: str):
    history = CellHistory()
    left = LeftOut(("os",), Reason.FAILED, 3, definitions=frozenset(definitions))
    history.note_left_out(RankSet.of([2]), [left])
    lacks = raised(2, "NameError", "name 'os' is not defined", name="os")
    message = text(cell_error(ok(0), lacks, replacements=RankSet.of([2]), origins=history))
    assert message.endswith(f"\n  next      {step}")


def test_the_loop_that_a_left_out_cell_needs_is_named():
    history = CellHistory()
    left = LeftOut(("v",), Reason.NEEDS, 5, uses=("mean",), loops=(3,))
    history.note_left_out(ONE, [left])
    assert hint(history, ONE, ONE) == (
        "likely    rank 1 is a fresh process: %ddp catchup did not make v, as cell [5], which "
        "defines it, uses mean, for which cell [3] would have to run again, a loop with "
        "collectives\nnext      %ddp catchup -r 1 --cells 3, to run it again"
    )


@pytest.mark.parametrize(
    ("name", "joint", "reason", "step"),
    [
        (
            "model",
            ("model", "opt"),
            Reason.FAILED,
            "run the lines that make model and opt, and what is made from them, in a cell on all "
            "ranks: rank 2 alone would wait there for the others. To keep the old values: before "
            "that, kept = model.state_dict(), opt.state_dict() in a cell that begins with %%ddp -r "
            "0; after it, model.load_state_dict(kept[0]); opt.load_state_dict(kept[1]) in a cell "
            "that begins with %%ddp -r 0, then nbddp.sync(model, opt, src=0) in one on all ranks",
        ),
        (
            "mesh",
            ("mesh", "model"),
            Reason.NO_CELL_SINCE_ATTACH,
            "run the lines that make mesh, model and opt, and what is made from them, in a cell on "
            "all ranks: rank 2 alone would wait there for the others. To keep the old values: "
            "before that, kept = model.state_dict(), opt.state_dict() in a cell that begins with "
            "%%ddp -r 0; after it, model.load_state_dict(kept[0]); opt.load_state_dict(kept[1]) in "
            "a cell that begins with %%ddp -r 0, then nbddp.sync(model, opt, src=0) in one on all "
            "ranks",
        ),
        (
            "mesh",
            ("mesh",),
            Reason.NO_CELL,
            "run the lines that make mesh, and what is made from it, in a cell on all ranks: rank "
            "2 alone would wait there for the others. The old values are lost with that, unless "
            "you load a checkpoint",
        ),
        (
            "opt",
            ("model",),
            Reason.FAILED,
            "run the lines that make opt in a cell that begins with %%ddp -r 2, then "
            "nbddp.sync(opt, src=0) in one on all ranks",
        ),
        (
            "model",
            ("model", "opt"),
            Reason.FAILS_NOW,
            "give it what cell [3] needs, then %ddp catchup -r 2: it makes model there, " + _STATES,
        ),
    ],
)
def test_a_ddp_model_is_made_on_all_ranks(
    name: str, joint: tuple[str, ...], reason: Reason, step: str
):
    history = CellHistory()
    states = frozenset(("model", "opt") if len(joint) > 1 or name == "opt" else ())
    names = ("mesh", "model", "opt") if states else ("mesh",)
    left = LeftOut(names, reason, 3, with_state=states, joint=frozenset(joint))
    history.note_left_out(RankSet.of([2]), [left])
    lacks = raised(2, "NameError", f"name '{name}' is not defined", name=name)
    message = text(cell_error(ok(0), lacks, replacements=RankSet.of([2]), origins=history))
    assert message.endswith(f"\n  next      {step}")


def test_the_code_of_a_failed_cell_tells_what_all_ranks_make():
    code = "net = nn.Linear(2, 2)\nmodel = DDP(net)\nv = SGD(model.parameters())\nraise ValueError"
    history = CellHistory()
    run(history, 3, code, status="error")
    history.note_restart(ONE)
    run(history, 5, "print(v)", status="error", pids={1: 11})
    assert hint(history, ONE, ONE).endswith(
        "\nnext      run the lines that make v, and what it is made from, in a cell on all ranks: "
        "rank 1 alone would wait there for the others; or run cell [3] again, without what made it "
        "fail"
    )
