"""A mismatch names the statement that perhaps kept a rank from a call of another function."""

import pytest

from tests.support.looks import CELL, Ranks


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        (
            "def validate():\n    try:\n        dist.all_reduce(x)\n        return x\n"
            "    except ZeroDivisionError:\n        return None",
            3,
            "`except ZeroDivisionError:` (line 5)",
        ),
        (
            "def work(n):\n    with Timer():\n        if n == 0:\n            return None\n"
            "        dist.all_reduce(x)",
            5,
            "`return None` in line 4, inside `if n == 0:` (line 3)",
        ),
    ],
)
def test_the_one_statement_that_may_keep_a_rank_from_the_call_is_named(
    source: str, line: int, reason: str
):
    pool = Ranks(3)
    pool.code[CELL] = source
    for rank in (0, 1):
        pool[rank].blocked("all_reduce", line=line, function="validate")
    pool[2].blocked("barrier", line=9, function="save")
    (finding,) = pool.diagnose().findings
    assert f"leaves out all_reduce at cell [3], line {line}" in finding.suspicions[0]
    assert f", perhaps because of {reason}, or calls them" in finding.suspicions[0]


def test_statements_around_both_calls_are_no_reason():
    pool = Ranks(2)
    pool.code[CELL] = "if step:\n    dist.all_reduce(x)\n    dist.barrier()"
    pool[0].blocked("all_reduce", line=2)
    pool[1].blocked("barrier", line=3)
    (finding,) = pool.diagnose().findings
    assert not any("because of" in each for each in finding.suspicions)
