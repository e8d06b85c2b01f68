"""A call that ranks left out in one iteration is not told as a loop with fewer iterations."""

import pytest

from nbddp.controller.diagnosis import Finding
from tests.support.looks import CELL, Ranks, only

_DETACHED = """\
for it in range(4):
    l = m(x)
    l = l.detach() if rank == 1 and it == 2 else l
    l.backward()"""
_NO_SYNC = """\
for it, x in enumerate(loader):
    with m.no_sync() if rank == 1 and it == 2 else nullcontext():
        m(x).backward()"""
_ASSIGNED = """\
for x in loader:
    context = m.no_sync() if rank else nullcontext()
    with context:
        m(x).backward()"""
_CALLED = "for it, x in enumerate(loader):\n    rank == 1 and it == 2 or dist.all_reduce(x)"


def left_out(
    source: str, line: int, *, variables: tuple[str, ...] = ("it",), skips: int = 2, count: int = 4
) -> Finding:
    """What is found when rank 1 of three made a call less than the others.

    Args:
        source: of the cell.
        line: of the call.
        variables: those of the loop that the records have.
        skips: the iteration in which rank 1 has not made it.
        count: the number of iterations of the others, the last of which wait.
    """
    pool = Ranks(3)
    pool.code[CELL] = source
    call = source.splitlines()[line - 1].strip()
    origin = "ddp-gradients" if ".backward(" in call else ""
    for rank in range(3):
        for value in range(count):
            if rank == 1 and value == skips:
                continue
            iteration = [(name, value) for name in variables]
            does = pool[rank].blocked if rank != 1 and value == count - 1 else pool[rank].done
            does(line=line, source=call, origin=origin, iteration=iteration)
    pool[1].finished()
    finding = next(each for each in pool.diagnose().findings if each.kind == "missing-rank")
    assert finding.proven
    assert finding.change is None
    return finding


def test_a_backward_without_its_collective():
    finding = left_out(_DETACHED, 4)
    assert finding.next_step == (
        "Let all ranks come to gradient averaging in line 4 in the same iterations: rank 1 left it "
        "out at it = 2. Look there for a detached loss, a forward or backward under `no_sync()`, "
        "or parameters without a gradient."
    )
    assert finding.suspicions == (
        "rank 1 left out gradient averaging in line 4 at it = 2: line 4 has called all_reduce "
        "(gradients) 3 times on rank 1, 4 times on ranks 0,2",
    )


def test_the_iteration_need_not_be_known():
    finding = left_out(_DETACHED, 4, variables=())
    assert "rank 1 left it out. Look there" in finding.next_step
    assert finding.suspicions[0].startswith(
        "rank 1 left out gradient averaging in line 4 in an iteration of the loop: line 4 has"
    )


@pytest.mark.parametrize("skips", [0, 3])
def test_the_first_and_the_last_iteration_of_a_range(skips: int):
    assert f"left it out at it = {skips}" in left_out(_DETACHED, 4, skips=skips).next_step


def test_the_line_with_no_sync_is_named():
    finding = left_out(_NO_SYNC, 3)
    assert finding.next_step == (
        "Use `no_sync()` (line 2) in the same iterations on all ranks: rank 1 left out gradient "
        "averaging in line 3 at it = 2."
    )
    assert finding.suspicions == (
        "rank 1 left out gradient averaging in line 3 at it = 2, by `with m.no_sync() if rank == 1 "
        "and it == 2 else nullcontex...` (line 2): line 3 has called all_reduce (gradients) "
        "3 times on rank 1, 4 times on ranks 0,2",
    )
    assert [line.site.line for line in finding.code] == [1, 2, 3]


def test_no_sync_that_depends_on_the_rank_needs_no_record():
    finding = left_out(_ASSIGNED, 4, variables=())
    assert finding.next_step.startswith("Use `no_sync()` (line 2) in the same iterations on all")


def test_a_call_of_the_cell_itself():
    assert left_out(_CALLED, 2).next_step == (
        "Let all ranks call all_reduce in line 2 equally often: rank 1 left it out at it = 2. Look "
        "at the condition in line 2."
    )


def test_a_call_that_is_missing_at_the_end_may_be_left_out_or_the_loop_is_shorter():
    finding = left_out(_CALLED, 2, skips=3)
    assert finding.next_step == (
        "Let all ranks call all_reduce in line 2 equally often: look at the condition in line 2, "
        "by which rank 1 may have left it out, and at `for it, x in enumerate(loader):` (line 1), "
        "which may be shorter there."
    )
    assert finding.suspicions == (
        "rank 1 left out all_reduce in line 2, by the condition in line 2, or `for it, x in "
        "enumerate(loader):` (line 1) had fewer iterations there: line 2 has called all_reduce "
        "3 times on rank 1, 4 times on ranks 0,2",
    )


def test_a_loop_that_ended_earlier_is_shorter_if_nothing_can_leave_out_its_call():
    finding = left_out("for it, x in enumerate(loader):\n    dist.all_reduce(x)", 2, skips=3)
    assert finding.next_step.startswith("Give every rank the same number of iterations of `for it")
    assert "had fewer iterations on rank 1" in finding.suspicions[0]


def test_epochs_of_a_shorter_loop_leave_out_no_call():
    pool = Ranks(2)
    pool.code[CELL] = (
        "for epoch in range(2):\n    for step, x in enumerate(loader):\n        call(x)"
    )
    for rank, steps in ((0, 3), (1, 2)):
        made = [(epoch, step) for epoch in range(2) for step in range(steps)]
        for epoch, step in made[:4]:
            pool[rank].done(line=3, iteration=[("epoch", epoch), ("step", step)])
    pool[0].blocked(line=3, iteration=[("epoch", 1), ("step", 1)])
    pool[1].finished()
    finding = next(each for each in pool.diagnose().findings if each.kind == "missing-rank")
    assert "had fewer iterations on rank 1" in finding.suspicions[0]


def test_a_group_that_one_rank_leaves_early_while_several_wait_in_it():
    pool = Ranks(4)
    pool.code[CELL] = (
        "for it in range(4):\n    if rank == 1 and it == 2:\n        break\n"
        "    dist.all_reduce(x, group=low) if rank < 3 else None\ndist.barrier()"
    )
    low = pool.group("low", 0, 1, 2)
    for it in (0, 1):
        for rank in (0, 1, 2):
            pool[rank].done(group=low, line=4, iteration=[("it", it)])
    for rank in (0, 2):
        pool[rank].blocked(group=low, line=4, iteration=[("it", 2)])
    for rank in (1, 3):
        pool[rank].blocked("barrier", line=5)
    finding = only(pool)
    assert finding.kind == "group-cycle"
    assert finding.next_step.startswith("Let all ranks take the `break` in line 3, inside `if ")
