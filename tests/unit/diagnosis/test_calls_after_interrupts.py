"""Calls that do not match because an interrupt has found ranks at different lines."""

import pytest
from msgspec import structs

from nbddp.wire.flight_recorder import ExceptionLine
from nbddp.wire.rank_set import RankSet
from tests.support.looks import CELL, Ranks, site


@pytest.mark.parametrize("interrupted", [(1, 2), (0,), (0, 1, 2)])
def test_an_interrupt_before_one_of_the_calls_is_told_as_the_cause(interrupted: tuple[int, ...]):
    """Rank 0 alone called the operation when the cell was interrupted, or the others did."""
    pool = Ranks(3)
    pool.code[CELL] = "try:\n    dist.all_reduce(x)\nfinally:\n    dist.barrier()"
    error = ExceptionLine("KeyboardInterrupt", "", site(2, "dist.all_reduce(x)"))
    for rank in range(3):
        is_early = rank == 0
        pool[rank].blocked("all_reduce" if is_early else "barrier", line=2 if is_early else 4)
        threads = pool[rank].threads
        if rank in interrupted:
            threads["main"] = structs.replace(threads["main"], handling=error)
    finding = pool.diagnose().findings[0]
    assert finding.kind == "mismatched-collective"
    assert finding.next_step.startswith("Nothing, if the interrupt was meant.")
    assert finding.change is None
    ranks = RankSet.of(interrupted)
    assert finding.suspicions == (
        f"{ranks.describe()} {ranks.verb('was', 'were')} interrupted (cell [3], line 2), and came "
        "here while handling it",
    )


def test_a_rank_that_waits_in_a_call_after_an_interrupt_blames_nobody():
    pool = Ranks(2)
    pool.code[CELL] = "try:\n    load()\nexcept KeyboardInterrupt:\n    dist.barrier()"
    pool[0].finished()
    pool[1].blocked("barrier", line=4)
    threads = pool[1].threads
    error = ExceptionLine("KeyboardInterrupt", "", site(2, "load()"))
    threads["main"] = structs.replace(threads["main"], handling=error)
    finding = pool.diagnose().findings[0]
    assert finding.kind == "missing-rank"
    assert finding.next_step.startswith("Nothing, if the interrupt was meant.")
    assert (finding.change, finding.code) == (None, ())
