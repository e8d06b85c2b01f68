"""Members of a group that bring different arguments: the difference and the named ranks."""

from typing import Any

import pytest
from msgspec import structs

from nbddp.controller.diagnosis.report import Finding
from nbddp.wire.flight_recorder import ExceptionLine, Failure
from nbddp.wire.rank_set import RankSet
from tests.support.looks import CELL, Ranks, site

Fields = dict[str, Any]


def sizes(*shapes: tuple[int, ...]) -> Fields:
    return {"input_sizes": shapes}


# --- findings ------------------------------------------------------------------------------------


def mismatch(*brought: tuple[str, Fields]) -> Finding:
    """Each rank waits in one collective."""
    pool = Ranks(len(brought))
    for rank, (op, fields) in enumerate(brought):
        pool[rank].blocked(op, **{"line": rank + 1, **fields})
    report = pool.diagnose()
    (finding,) = report.findings
    assert finding.kind == "mismatched-collective"
    assert finding.proven
    assert report.verdict
    assert report.stuck == RankSet.all(len(brought)) == finding.waiting
    return finding


def test_the_minority_is_named():
    finding = mismatch(("all_reduce", {}), ("all_reduce", {}), ("broadcast", {"root": 0}))
    assert finding.culprits == RankSet.of([2])
    assert finding.fields == ("op",)
    assert finding.headline == ("Rank 2 called broadcast, ranks 0-1 called all_reduce.")
    # Ranks that wait and ranks that raised look alike.
    assert [str(each) for each in finding.ranks.values()] == [
        "rank 0 called all_reduce, at cell [3], line 1: `dist.all_reduce(x)`",
        "rank 1 called all_reduce, at cell [3], line 2: `dist.all_reduce(x)`",
        "rank 2 called broadcast, at cell [3], line 3: `dist.broadcast(x)`",
    ]

    assert finding.suspicions == (
        "rank 2 has one broadcast too many, leaves out all_reduce at cell [3], line 1: "
        "`dist.all_reduce(x)`, or calls them in another order",
    )
    assert finding.next_step == (
        "Call the same operations in the same order on all ranks of the group."
    )


def test_an_error_on_the_way_to_a_call_in_finally():
    pool = Ranks(3)
    pool.code[CELL] = "try:\n    load(rank)\n    dist.all_reduce(x)\nfinally:\n    dist.barrier()"
    for rank in range(3):
        pool[rank].blocked(*(["barrier"] if rank == 1 else []), line=5 if rank == 1 else 3)
    error = ExceptionLine("KeyError", "'missing'", site(2, "load(rank)"))
    threads = pool[1].threads
    threads["main"] = structs.replace(threads["main"], handling=error)
    assert pool.diagnose().findings[0].next_step == (
        "First look at the KeyError of rank 1 (cell [3], line 2). If it may come, let all ranks "
        "leave the `try` together: a collective in `finally` or `except` meets those that the "
        "other ranks call meanwhile."
    )


_SWALLOWED = """\
try:
    load(rank)
    dist.barrier()
except RuntimeError as error:
    print(error)
dist.all_reduce(x)"""


@pytest.mark.parametrize(
    ("raised", "ranks", "exceptions"),
    [((1,), "rank 1", "its exception"), ((0, 2), "ranks 0,2", "their exceptions")],
)
def test_an_error_that_was_swallowed_is_named(raised: tuple[int, ...], ranks: str, exceptions: str):
    pool = Ranks(3)
    pool.code[CELL] = _SWALLOWED
    for rank in range(3):
        if rank in raised:
            pool[rank].blocked("all_reduce", line=6)
        else:
            pool[rank].blocked("barrier", line=3)
    (finding,) = pool.diagnose().findings
    assert finding.suspicions == (
        "`except RuntimeError as error:` (line 4) has swallowed an exception, which skipped line 3 "
        f"on {ranks}",
    )
    assert finding.next_step == (
        f"{ranks.capitalize()} skipped line 3: `except RuntimeError as error:` (line 4) perhaps "
        f"caught {exceptions}. Let all ranks skip it together."
    )
    assert finding.change is not None
    assert [line.site.line for line in finding.code] == [1, 3, 4]


def test_calls_in_one_try_were_swallowed_by_none():
    pool = Ranks(2)
    pool.code[CELL] = _SWALLOWED.replace("    load(rank)", "    dist.broadcast(x, 0)")
    pool[0].blocked("broadcast", line=2)
    pool[1].blocked("barrier", line=3)
    (finding,) = pool.diagnose().findings
    assert finding.next_step.startswith("Call the same operations in the same order")


def test_a_scalar_is_called_a_scalar():
    finding = mismatch(
        ("all_reduce", {"input_sizes": ((),)}), ("all_reduce", {"input_sizes": ((3,),)})
    )
    assert finding.headline.startswith(
        "Rank 0 called all_reduce of a scalar (float32), rank 1 called all_reduce of float32[3]."
    )


def test_a_mismatch_of_two_ranks_names_both():
    finding = mismatch(*(("all_reduce", {**sizes((2, n)), "line": 1}) for n in (3, 4)))
    assert finding.culprits == RankSet.all(2)
    assert finding.fields == ("input_sizes",)
    assert finding.headline == (
        "Rank 0 called all_reduce of float32[2, 3], rank 1 called all_reduce of float32[2, 4]."
    )
    assert finding.next_step == "Use the same shape on all ranks of the group."


def test_calls_on_different_lines_may_be_swapped():
    finding = mismatch(("all_reduce", sizes((2,))), ("all_reduce", sizes((3,))))
    assert finding.next_step == (
        "Use the same shape on all ranks of the group, "
        "or, if each line is right, call them in the same order."
    )


def test_another_source_on_one_rank():
    finding = mismatch(*(("broadcast", {"root": int(rank == 2), "line": 1}) for rank in range(4)))
    assert finding.headline.startswith(
        "Rank 2 called broadcast with src=1, ranks 0-1,3 called broadcast with src=0."
    )
    assert finding.next_step == ("Use the same `src` on all ranks of the group, for example src=0.")
    finding = mismatch(*(("reduce", {"root": rank % 2, "line": 1}) for rank in range(4)))
    assert finding.next_step == "Use the same `dst` on all ranks of the group."


def test_a_mismatch_without_a_majority_names_all_ranks():
    brought = [("broadcast", {"root": rank % 2}) for rank in range(4)]
    assert mismatch(*brought).culprits == RankSet.all(4)


def test_beside_a_hard_difference_the_soft_ones_do_not_count():
    finding = mismatch(
        ("all_reduce", sizes((6,))),
        ("all_reduce", sizes((2, 3))),
        ("all_reduce", sizes((7,))),
    )
    assert finding.culprits == RankSet.of([2])


@pytest.mark.parametrize(
    ("op", "mine", "theirs", "words"),
    [
        ("broadcast", {"root": 0}, {"root": 1}, "with src=1"),
        ("all_reduce", {}, {"input_dtypes": ("float64",)}, "float64[4]"),
        ("reduce", {"root": 2}, {"root": 0}, "with dst=0"),
    ],
)
def test_the_difference_is_named(op: str, mine: Fields, theirs: Fields, words: str):
    finding = mismatch((op, mine), (op, mine), (op, theirs))
    assert finding.culprits == RankSet.of([2])
    assert words in finding.headline


def test_split_sizes_that_do_not_fit():
    def fields(given: tuple[int, ...], taken: tuple[int, ...]) -> Fields:
        return {
            "input_splits": given,
            "output_splits": taken,
            "input_sizes": ((sum(given),),),
            "output_sizes": ((sum(taken),),),
        }

    # Rank 2 gives rank 0 one more than rank 0 takes.
    finding = mismatch(
        ("all_to_all_single", fields((1, 1, 1), (1, 1, 1))),
        ("all_to_all_single", fields((1, 1, 1), (1, 1, 1))),
        ("all_to_all_single", fields((2, 1, 1), (1, 1, 1))),
    )
    assert finding.culprits == RankSet.of([0, 2])
    assert "input_splits=[2, 1, 1]" in finding.headline


def test_a_mismatch_is_proven_while_the_culprit_runs_on():
    pool = Ranks(3)
    pool[0].blocked()
    pool[1].blocked()
    pool[2].issue("broadcast", root=0)
    pool[2].runs()
    report = pool.diagnose()
    assert report.stuck == RankSet.of([0, 1])
    assert report.findings[0].kind == "mismatched-collective"
    assert report.findings[0].culprits == RankSet.of([2])


def test_an_asynchronous_operation_without_a_waiting_rank_is_no_verdict():
    pool = Ranks(2)
    pool[0].issue()
    pool[1].issue("broadcast", root=0)
    assert not pool.diagnose().verdict


def test_operations_that_are_swapped():
    pool = Ranks(2)
    pool[0].waits(pool[0].issue("all_reduce"), pool[0].issue("broadcast", root=0))
    pool[1].waits(pool[1].issue("broadcast", root=0), pool[1].issue("all_reduce"))
    finding = pool.diagnose().findings[0]
    assert finding.suspicions == (
        "rank 0 calls all_reduce and broadcast in the other order than rank 1",
    )


def test_a_loop_that_other_ranks_have_left_is_named():
    pool = Ranks(3)
    pool.code[CELL] = "for x in data:\n    dist.all_reduce(x)\ndist.barrier()"
    for rank, state in enumerate(pool):
        op, line = ("barrier", 3) if rank else ("all_reduce", 2)
        state.blocked(op, line=line)
    finding = pool.diagnose().findings[0]
    assert finding.next_step == (
        "Call the same operations in the same order on all ranks of the group. Line 2 (rank 0) is "
        "inside `for x in data:` (line 1)."
    )
    assert [line.site.line for line in finding.code] == [1, 2, 3]


def test_all_ranks_that_have_swapped_operations_are_named():
    pool = Ranks(5)
    for rank, state in enumerate(pool):
        ops = ("broadcast", "all_reduce") if rank in (1, 3) else ("all_reduce", "broadcast")
        state.waits(*[state.issue(op, root=0 if op == "broadcast" else -1) for op in ops])
    finding = pool.diagnose().findings[0]
    assert finding.suspicions == (
        "ranks 1,3 call broadcast and all_reduce in the other order than rank 0",
    )


def test_all_ranks_with_an_operation_too_many_are_named():
    brought = [("broadcast" if rank in (1, 4) else "all_reduce", {"line": 1}) for rank in range(5)]
    assert mismatch(*brought).suspicions == (
        "ranks 1,4 have one broadcast too many, leave out all_reduce at cell [3], line 1: "
        "`dist.all_reduce(x)`, or call them in another order",
    )
    brought = [("broadcast" if rank % 2 else "all_reduce", {"line": 1}) for rank in range(4)]
    (suspicion,) = mismatch(*brought).suspicions  # without a majority, the other side is a mirror
    assert suspicion.startswith("ranks 0,2 have one all_reduce too many")


def test_an_operation_too_many():
    pool = Ranks(3)
    for rank in (0, 1):
        pool[rank].blocked("all_reduce")
    pool[2].waits(pool[2].issue("barrier"), pool[2].issue("all_reduce"))
    finding = pool.diagnose().findings[0]
    assert finding.culprits == RankSet.of([2])
    assert finding.suspicions == (
        "rank 2 calls all_reduce right after: it has one barrier too many, "
        "or the others have one too few",
    )


def test_a_mismatch_that_a_rank_has_seen_itself():
    pool = Ranks(3)
    pool[0].blocked(line=4)
    wrong = pool[1].issue(
        "broadcast", root=0, line=6, state="failed", failure=Failure("collective")
    )
    pool[1].raised(
        "CollectiveMismatchError: rank 1 and rank 0 disagree in op",
        mismatches=(pool[1].saw(wrong, pool[0], 1, "op"),),
    )
    pool[2].blocked(line=4)
    report = pool.diagnose()
    (finding,) = report.findings
    assert finding.kind == "mismatched-collective"
    assert report.stuck == RankSet.of([0, 2]) == finding.waiting
    assert finding.culprits == RankSet.of([1])
    assert finding.headline.startswith("Rank 1 called broadcast, ranks 0,2 called all_reduce")


def test_a_mismatch_of_which_only_the_report_is_left():
    """The record of the rank that raised is gone; the others still wait."""
    pool = Ranks(3)
    for rank in (0, 2):
        pool[rank].blocked(line=4)
    wrong = pool[1].issue("broadcast", root=0, line=6)
    seen = pool[1].saw(wrong, pool[0], 1, "op")
    pool[1].operations.clear()
    pool[1].raised("CollectiveMismatchError", mismatches=(seen,))
    (finding,) = pool.diagnose().findings
    assert (finding.kind, finding.culprits) == ("mismatched-collective", RankSet.of([1]))
    assert finding.waiting == RankSet.of([0, 2])


def test_a_mismatch_is_told_when_no_rank_waits_for_it_any_more():
    pool = Ranks(2)
    mine, theirs = pool[1].issue("broadcast", root=0, state="failed"), pool[0].issue()
    seen = pool[1].saw(mine, pool[0], theirs, "op")
    pool[0].raised("CollectiveAbortedError: freed", was_freed=True)
    pool[1].raised("CollectiveMismatchError", mismatches=(seen,))
    report = pool.diagnose()
    assert [(each.kind, each.proven) for each in report.findings] == [
        ("mismatched-collective", True)
    ]
    assert not report.verdict


def test_a_message_of_the_wrong_size_that_a_rank_has_refused():
    pool = Ranks(2)
    theirs = pool[0].blocked("send", peer=1, input_sizes=((9,),))
    mine = pool[1].issue("recv", peer=0, state="failed", failure=Failure("collective"))
    seen = pool[1].saw(mine, pool[0], theirs, "input_sizes")
    pool[1].raised("CollectiveMismatchError", mismatches=(seen,))
    report = pool.diagnose()
    (finding,) = report.findings
    assert (finding.kind, finding.culprits) == ("mismatched-collective", RankSet.all(2))
    assert report.stuck == RankSet.of([0])
    assert finding.headline == (
        "Rank 0 called send of float32[9], rank 1 called recv of float32[4], "
        "as the two ends of one message."
    )


def test_a_rank_that_waits_elsewhere_for_one_that_raised_a_mismatch():
    pool = Ranks(3)
    pool[0].blocked()
    mine = pool[1].issue("barrier", state="failed", failure=Failure("collective"))
    seen = pool[1].saw(mine, pool[0], 1, "op")
    pool[1].raised("CollectiveMismatchError", mismatches=(seen,))
    pool[2].blocked("recv", peer=1)
    (finding,) = pool.diagnose().findings
    assert finding.kind == "mismatched-collective"
    assert finding.waiting == RankSet.of([0, 2])


def test_a_bad_argument_on_one_rank_shifts_its_numbers():
    """The call raised before it reached the others; the cell caught it and continues."""
    pool = Ranks(2)
    pool[0].blocked("all_reduce")
    pool[1].issue("broadcast", root=5, state="failed", failure=Failure("raised"))
    pool[1].blocked("all_reduce")
    assert not pool.diagnose().verdict
    # Calls that are compared afterwards would not be the same ones.
    pool[0].done("barrier")
    pool[0].blocked("broadcast", root=0)
    pool[1].issue("broadcast", root=0)
    pool[1].runs()
    assert not pool.diagnose().verdict


def test_the_same_bad_argument_on_all_ranks_shifts_nothing():
    pool = Ranks(2)
    for state in pool:
        state.issue("broadcast", root=5, state="failed", failure=Failure("raised"))
    pool[0].blocked()
    pool[1].finished()
    assert pool.diagnose().findings[0].kind == "missing-rank"


# --- silent mismatches ---------------------------------------------------------------------------


def test_reduce_ops_that_differ_are_told_while_they_run_and_end_nothing():
    pool = Ranks(2)
    pool[0].blocked(reduce_op="SUM")
    pool[1].blocked(reduce_op="MAX")
    report = pool.diagnose()
    assert not report.verdict
    (finding,) = report.findings
    assert (finding.kind, finding.proven, finding.is_error) == ("silent-mismatch", False, False)
    assert finding.fields == ("reduce_op",)


def test_records_are_compared_after_the_cell():
    pool = Ranks(3)
    for rank, dtype in enumerate(("float32", "int32", "float32")):
        pool[rank].done("barrier")
        pool[rank].done(line=4, input_dtypes=(dtype,))
        pool[rank].finished()
    (finding,) = pool.compare()
    assert (finding.kind, finding.proven) == ("silent-mismatch", True)
    assert finding.is_error
    assert (finding.culprits, finding.collective_seq_id) == (RankSet.of([1]), 2)
    assert finding.headline == (
        "Rank 1 called all_reduce of int32[4], ranks 0,2 called all_reduce of float32[4], "
        "as the 2nd collective (#2); "
        "that does not hang, but the results are not what was meant."
    )
    assert finding.next_step == (
        "Use the same dtype on all ranks of the group. Do not trust what came out."
    )


def test_another_shape_with_as_many_elements_is_no_error():
    pool = Ranks(2)
    for state, shape in zip(pool, ((2, 3), (3, 2)), strict=True):
        state.done(input_sizes=(shape,))
        state.finished()
    (finding,) = pool.compare()
    assert (finding.fields, finding.is_error) == (("input_sizes",), False)


def test_cells_that_agree_have_nothing_to_tell():
    pool = Ranks(3)
    for state in pool:
        state.done()
        state.done("broadcast", root=1)
        state.issue()
        state.finished()
    pool[0].done("send", peer=1)
    pool[1].done("recv", peer=0)
    assert pool.compare() == ()


def test_only_operations_of_the_cell_are_compared():
    pool = Ranks(2)
    pool[0].done(reduce_op="SUM", run_id="before")
    pool[1].done(reduce_op="MAX", run_id="before")
    for state in pool:
        state.finished()
    assert pool.compare() == ()


def test_an_operation_that_is_left_open():
    pool = Ranks(3)
    for rank in (0, 2):
        pool[rank].issue(line=7)
    for state in pool:
        state.finished()
    (finding,) = pool.compare()
    assert (finding.kind, finding.proven) == ("silent-mismatch", True)
    assert (finding.culprits, finding.waiting) == (RankSet.of([1]), RankSet.of([0, 2]))
    assert finding.headline == "All_reduce was called by ranks 0,2, and never by rank 1."


def test_a_message_that_is_left_open():
    pool = Ranks(2)
    pool[0].issue("send", peer=1)
    for state in pool:
        state.finished()
    (finding,) = pool.compare()
    assert finding.headline == "Send to rank 1 was called by rank 0, and never by rank 1."


def test_an_operation_that_a_thread_may_still_call_is_not_left_open():
    pool = Ranks(2)
    pool[0].issue()
    pool[1].runs(thread="trainer")
    for state in pool:
        state.finished()
    assert pool.compare() == ()


def test_operations_left_open_by_an_error_are_explained():
    pool = Ranks(2)
    pool[0].issue()
    pool[0].finished()
    pool[1].raised()
    assert pool.compare() == ()
