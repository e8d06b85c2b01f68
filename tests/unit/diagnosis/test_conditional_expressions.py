"""Calls inside a conditional expression, and a return that no loop is around."""

import pytest

from tests.support.looks import CELL, Ranks, missing, only


def test_a_return_outside_of_loops_is_in_no_iteration():
    pool = Ranks(3)
    pool.code[CELL] = (
        "def evaluate(v):\n    if rank != 0:\n        return None\n    s = v.sum()\n"
        "    dist.all_reduce(s)\nevaluate(x)\ndist.barrier()"
    )
    pool[0].blocked(line=5)
    for rank in (1, 2):
        pool[rank].blocked("barrier", line=7)
    assert only(pool).next_step == (
        "Let all ranks take the `return None` in line 3, inside `if rank != 0:` (line 2), or none "
        "of them."
    )


@pytest.mark.parametrize(
    ("line", "inside"),
    [
        ("w = dist.all_reduce(x) if rank != 1 else None", "if rank != 1 else None"),
        ("w = None if rank == 1 else dist.all_reduce(x)", "None if rank == 1 else"),
    ],
)
def test_a_conditional_expression_is_read_as_an_if(line: str, inside: str):
    finding = missing(line, {}, 1)
    assert finding.next_step == (
        f"The call in line 1 is inside `{inside}`: move it out, so that rank 1 runs it, too."
    )


def test_a_conditional_expression_for_an_argument_is_not_around_the_call():
    finding = missing("dist.all_reduce(f(x) if rank else x)", {}, 1)
    assert "is inside" not in finding.next_step
