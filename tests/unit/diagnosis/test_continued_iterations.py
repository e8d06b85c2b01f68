"""A mismatch of ranks in different iterations: which have left out a call, or passed one."""

import pytest
from msgspec.structs import replace

from nbddp.controller.diagnosis import Finding
from nbddp.wire.flight_recorder import Failure
from tests.support.looks import CELL, Ranks, site

_HELPER = """\
def vote(v):
    dist.all_reduce(v)
for ep in range(2):
    v = vote(x)
    if v > 0 and rank == 0: continue
    dist.barrier()"""
_CONDITION = """\
def vote(v):
    dist.all_reduce(v)
for ep in range(2):
    if vote(x) > 0 and rank == 0:
        continue
    dist.barrier()"""


def finding(code: str, *, skips: int = 0, function: str = "vote") -> Finding:
    """What is found if rank 0 of three has gone on to the next iteration without the barrier.

    Args:
        code: of the cell, with the barrier in its last line and all_reduce in its second one.
        skips: the iteration in which it has left out the barrier.
        function: the one with all_reduce.
    """
    pool = Ranks(3)
    pool.code[CELL] = code
    last = code.count("\n") + 1
    for rank, state in enumerate(pool):
        for ep in range(skips):
            state.done(line=2, iteration=[("ep", ep)])
            state.done("barrier", line=last, iteration=[("ep", ep)])
        state.done(line=2, iteration=[("ep", skips)])
        op, line, ep = ("barrier", last, skips) if rank else ("all_reduce", 2, skips + 1)
        failure = Failure("collective")
        state.issue(op, line=line, iteration=[("ep", ep)], state="failed", failure=failure)
        state.operations[:] = [
            replace(each, site=site(2, "dist.all_reduce(v)", function=function))
            if each.site.line == 2
            else each
            for each in state.operations
        ]
    for state in pool:
        other, number = pool[int(state.rank == 0)], len(state.operations)
        seen = state.saw(number, other, len(other.operations), "op")
        state.raised("CollectiveMismatchError", mismatches=(seen,))
    return pool.diagnose().findings[0]


@pytest.mark.parametrize("skips", [0, 1])
def test_the_continue_is_named_that_the_records_prove(skips: int):
    found = finding(_HELPER, skips=skips)
    assert found.suspicions == (
        "line 5, `if v > 0 and rank == 0: continue`, skips line 6 on rank 0",
    )
    assert found.next_step == (
        "Call barrier before line 5, `if v > 0 and rank == 0: continue`, or let all ranks skip it "
        "there."
    )


def test_a_call_in_the_condition_of_the_continue():
    found = finding(_CONDITION)
    assert found.suspicions == (
        "`continue` in line 5, inside `if vote(x) > 0 and rank == 0:` (line 4), skips line 6 on "
        "rank 0",
    )
    assert found.next_step == (
        "Call barrier before `if vote(x) > 0 and rank == 0:` (line 4), whose `continue` skips it, "
        "or let all ranks skip it there."
    )
    assert found.change is None


def test_a_condition_of_data():
    found = finding(_HELPER.replace(" and rank == 0", ""))
    assert found.next_step.startswith("Call barrier before line 5, `if v > 0: continue`")


def test_a_call_with_an_assigned_result_in_a_later_iteration():
    """The rank has made the call before, so it is told as one that a later iteration left out."""
    code = _HELPER.replace("v > 0 and rank == 0", "rank == 0 and ep == 1").replace(
        "    dist.b", "    w = dist.b"
    )
    assert finding(code, skips=1).suspicions == (
        "line 5, `if rank == 0 and ep == 1: continue`, skips line 6 on rank 0",
    )


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            _HELPER.replace("    dist.b", "    if v < -1: continue\n    dist.b"), id="two exits"
        ),
        pytest.param(_HELPER.replace("    dist.b", "    v < 9 and dist.b"), id="a condition"),
        pytest.param(_HELPER.replace("for ep", "while ep < 1:\n  for ep"), id="no loop is told"),
        pytest.param(_HELPER.replace("    v =", "    vote(x); v ="), id="two lines call it"),
        pytest.param(_HELPER.replace("rank == 0", "rank == 1"), id="of another rank"),
    ],
)
def test_without_a_proof_no_call_is_told_as_left_out(code: str):
    found = finding(code)
    assert "left out" not in " ".join(found.suspicions) + found.next_step
    assert "left it out" not in found.next_step


def test_a_call_whose_tensor_is_made_behind_the_continue_stays_there():
    code = _HELPER.replace("    dist.barrier()", "    t = torch.ones(1)\n    dist.barrier(t)")
    found = finding(code)
    assert found.next_step == (
        "Let all ranks take line 5, `if v > 0 and rank == 0: continue`, in the same iteration, or "
        "none of them."
    )


def test_a_break_is_taken_by_all_ranks_together():
    """A call that moves above it would still be missed in later iterations."""
    pool = Ranks(2)
    pool.code[CELL] = (
        "for i in range(3):\n    if rank == 1: break\n    dist.broadcast(x, 0)\ndist.barrier()"
    )
    failure = Failure("collective")
    pool[0].issue("broadcast", line=3, iteration=[("i", 0)], state="failed", failure=failure)
    pool[1].issue("barrier", line=4, state="failed", failure=failure)
    for state in pool:
        other = pool[1 - state.rank]
        seen = state.saw(len(state.operations), other, len(other.operations), "op")
        state.raised("CollectiveMismatchError", mismatches=(seen,))
    found = pool.diagnose().findings[0]
    assert found.next_step == (
        "Let all ranks take line 2, `if rank == 1: break`, in the same iteration: put `stop = "
        "torch.tensor(1.0 if rank == 1 else 0.0, device=device)` and `dist.all_reduce(stop)` above "
        "the `if`, and `if stop: break` in its place."
    )


@pytest.mark.parametrize(("epoch", "has_passed"), [(1, True), (0, False)])
def test_a_call_that_others_have_passed_before_an_inner_loop(epoch: int, has_passed: bool):
    pool = Ranks(2)
    pool.code[CELL] = (
        "for epoch in range(3):\n    for i in range(2):\n        dist.all_reduce(x)\n"
        "    if rank == 0:\n        dist.barrier()"
    )
    first = pool[0].blocked("barrier", line=5, iteration=[("epoch", 0)])
    record = pool[1].issue(line=3, iteration=[("epoch", epoch), ("i", 0)])
    pool[1].more["mismatches"] = (pool[1].saw(record, pool[0], first, "op"),)
    pool[1].raised("CollectiveMismatchError: no", line=3)
    (finding,) = pool.diagnose().findings
    move = "Line 5 is inside `if rank == 0:` (line 4): move it out, so that rank 1 runs it, too."
    assert (finding.next_step == move) is has_passed
    assert (finding.change is not None) is has_passed
