"""Ranks that call the same collective in different iterations of a loop."""

from typing import Any

from nbddp.controller.diagnosis.report import Finding
from nbddp.wire.flight_recorder import Failure, SanitizerReport
from nbddp.wire.rank_set import RankSet
from tests.support.looks import Ranks, RankState

_LOOP = """\
for step in range(4):
    if rank == 2 and step == 1:
        continue
    dist.all_reduce(grad)
"""


def loops(state: RankState, *steps: int, name: str = "step", **fields: Any) -> RankState:
    """A rank has called a collective in these iterations."""
    for step in steps:
        state.done(**{"line": 4, "iteration": ((name, step),), **fields})
    return state


def finished(pool: Ranks) -> tuple[Finding, ...]:
    """What is found after a sanitized cell."""
    for state in pool:
        state.finished()
        state.more["sanitizer"] = SanitizerReport()
    return pool.compare()


def test_a_cell_that_is_not_sanitized_and_ends_well_is_silent():
    pool = Ranks(3)
    loops(pool[0], 0, 1, 2)
    loops(pool[1], 0, 1, 2)
    loops(pool[2], 0, 2, 3)
    for state in pool:
        state.finished()
    assert pool.compare() == ()
    assert pool.diagnose().findings == ()
    for state in pool:
        state.more["sanitizer"] = SanitizerReport(only_data=True)
    assert pool.compare() == ()


def test_a_loop_that_goes_on_without_hanging():
    pool = Ranks(3)
    loops(pool[0], 0, 1, 2)
    loops(pool[1], 0, 1, 2)
    loops(pool[2], 0, 2, 3)
    (finding,) = finished(pool)
    assert (finding.kind, finding.proven) == ("desynchronized-loop", False)
    assert (finding.culprits, finding.waiting) == (RankSet.of([2]), RankSet())
    assert finding.collective_seq_id == 2
    assert not finding.is_error
    assert finding.headline == (
        "Since the 2nd all_reduce (#2), rank 2 was at step 2, the others at step 1: "
        "if each rank has a share of the work, nothing is wrong."
    )
    assert finding.explanation.startswith("Not proven: ")
    assert (finding.change, finding.code) == (None, ())
    assert [str(each) for each in finding.ranks.values()] == [
        "rank 0 called all_reduce #2 at step 1, at cell [3], line 4: `dist.all_reduce(x)`",
        "rank 1 called all_reduce #2 at step 1, at cell [3], line 4: `dist.all_reduce(x)`",
        "rank 2 called all_reduce #2 at step 2, at cell [3], line 4: `dist.all_reduce(x)`",
    ]
    assert finding.next_step == (
        "If all ranks should be at the same iteration, look at `continue`, `break`, `if` and "
        "`except` around the call, and at the lengths of its loops."
    )


def test_the_line_that_skips_the_call_is_named():
    pool = Ranks(3)
    pool.code[3] = _LOOP
    loops(pool[0], 0, 1)
    loops(pool[1], 0, 1)
    loops(pool[2], 0, 2)
    (finding,) = finished(pool)
    assert finding.next_step == (
        "If all ranks should be at the same iteration, look at `continue` in line 3, inside "
        "`if rank == 2 and step == 1:` (line 2)."
    )
    pool.code[3] = "for step in range(4):\n    #\n    if rank != 2 or step != 1:\n        call()\n"
    (finding,) = pool.compare()
    assert finding.next_step == (
        "If all ranks should be at the same iteration, look at `if rank != 2 or step != 1:` "
        "(line 3)."
    )


def test_beside_a_deadlock():
    pool = Ranks(3)
    for rank in (0, 1):
        loops(pool[rank], 0, 1, 2)
        pool[rank].blocked(line=4, iteration=(("step", 3),))
    loops(pool[2], 0, 2, 3).finished()
    pool.code[3] = _LOOP
    hang, shift = pool.diagnose().findings
    assert (hang.kind, shift.kind) == ("missing-rank", "desynchronized-loop")
    assert hang.next_step == (
        "Call all_reduce before `if rank == 2 and step == 1:` (line 2), whose `continue` skips "
        "it, or let all ranks skip it there."
    )
    # One fault has one next step: that of the deadlock.
    assert shift.is_consequence
    assert not hang.is_consequence
    assert shift.next_step == ""
    assert shift.headline == (
        "Since the 2nd all_reduce (#2), rank 2 was at step 2, the others at step 1."
    )


def test_a_shift_by_other_ranks_than_those_that_miss_the_last_call():
    pool = Ranks(3)
    loops(pool[0], 0, 1, 2)
    pool[0].blocked(line=4, iteration=(("step", 3),))
    loops(pool[1], 0, 1, 2).finished()
    loops(pool[2], 0, 2, 3)
    pool[2].blocked(line=4, iteration=(("step", 4),))
    hang, shift = pool.diagnose().findings
    assert (hang.kind, shift.kind) == ("missing-rank", "desynchronized-loop")
    assert shift.is_consequence
    assert shift.next_step == ""


def test_one_collective_only():
    pool = Ranks(2)
    loops(pool[0], 0, 1, 2)
    loops(pool[1], 0, 2, 2)
    (finding,) = finished(pool)
    assert finding.headline == (
        "In the 2nd all_reduce (#2), rank 0 was at step 1, rank 1 was at step 2: if each "
        "rank has a share of the work, nothing is wrong."
    )


def test_only_the_variables_that_differ_are_named():
    pool = Ranks(3)
    for state, step in zip(pool, (5, 5, 6), strict=True):
        state.done(iteration=(("epoch", 1), ("i", step)))
    (finding,) = finished(pool)
    assert "rank 2 was at i = 6, the others at i = 5" in finding.headline
    pool = Ranks(3)
    for state, place in zip(pool, ((0, 9), (0, 9), (1, 0)), strict=True):
        state.done(iteration=(("epoch", place[0]), ("_", place[1])))
    (finding,) = finished(pool)
    assert "rank 2 was at epoch 1, iteration 0, the others at epoch 0, it" in finding.headline


def test_two_halves_have_their_own_iterations():
    pool = Ranks(4)
    for state, step in zip(pool, (1, 0, 0, 1), strict=True):
        state.done(iteration=(("i", step),))
    (finding,) = finished(pool)
    assert "ranks 0,3 were at i = 1, the others at i = 0: " in finding.headline


def test_many_iterations_are_not_listed():
    pool = Ranks(8)
    for rank, state in enumerate(pool):
        state.done(iteration=(("step", rank),))
    (finding,) = finished(pool)
    assert finding.culprits == RankSet.all(8)
    assert finding.headline == (
        "Since all_reduce, rank 0 was at step 0, rank 1 was at step 1, others at other "
        "iterations: if each rank has a share of the work, nothing is wrong."
    )


def newest(pool: Ranks) -> Finding:
    """The shift, beside a deadlock, in the ten newest records."""
    pool[0].blocked(line=9)
    pool[1].finished()
    assert len(pool.views(last=10)[1].look.operations) == 10  # type: ignore[union-attr]
    hang, shift = pool.diagnose(last=10).findings
    assert hang.kind == "missing-rank"
    return shift


def test_older_records_may_have_been_the_first_ones():
    pool = Ranks(2)
    loops(pool[0], *range(100))
    loops(pool[1], *range(1, 101))
    headline = newest(pool).headline
    assert headline.startswith("At the latest since all_reduce #92, rank 0 was at step 91")


def test_records_of_an_earlier_cell_show_which_one_is_the_first():
    pool = Ranks(2)
    for state in pool:
        for _ in range(100):
            state.done(run_id="earlier")
    loops(pool[0], 0, 1)
    loops(pool[1], 1, 2)
    headline = newest(pool).headline
    assert headline.startswith(
        "Since the 1st all_reduce (#101), rank 0 was at step 0, rank 1 was at step 1"
    )


def test_what_is_no_shift():
    def is_silent(*fields: dict[str, Any]) -> bool:
        pool = Ranks(len(fields))
        for state, more in zip(pool, fields, strict=True):
            state.done(**more)
        return not [each for each in finished(pool) if each.kind == "desynchronized-loop"]

    def step(value: int) -> dict[str, Any]:
        return {"iteration": (("step", value),)}

    assert not is_silent(step(1), step(2))
    assert is_silent(step(1), step(1))
    assert is_silent(step(1), {})  # one of them is in no loop
    assert is_silent(step(1), {"iteration": (("i", 2),)})
    assert is_silent({**step(1), "line": 3}, {**step(2), "line": 4})
    assert is_silent({**step(1), "op": "barrier"}, {**step(2), "op": "barrier"})
    assert is_silent({**step(1), "op": "broadcast"}, step(2))  # a mismatch
    assert is_silent({**step(1), "run_id": "earlier"}, {**step(2), "run_id": "earlier"})


def test_calls_that_never_reached_the_others_shift_the_numbers():
    pool = Ranks(2)
    pool[0].issue("all_reduce", state="failed", failure=Failure("raised"), iteration=(("step", 0),))
    loops(pool[0], 0, 1)
    loops(pool[1], 0, 1, 2)
    assert finished(pool) == ()
