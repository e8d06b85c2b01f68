"""A call in a condition is behind its `and`, not inside the `if`; an `elif` stays an `elif`."""

import pytest

from tests.support.looks import missing


@pytest.mark.parametrize(
    ("test", "operator"),
    [("rank != 1 and vote(x) > 0", "and"), ("rank == 1 or vote(x)", "or")],
)
def test_a_call_behind_an_operator_is_not_told_as_inside(test: str, operator: str):
    source = f"if {test}:\n    go()"
    finding = missing(source, {}, 1)
    assert finding.next_step == (
        f"The call in line 1 is behind the `{operator}` of `if {test}:`: call it in a line before "
        f"the `if`, so that rank 1 runs it, too."
    )


def test_a_call_behind_a_condition_of_data():
    finding = missing("if ready and vote(x) > 0:\n    go()", {}, 1)
    assert finding.next_step == (
        "The call in line 1 is behind the `and` of `if ready and vote(x) > 0:`: let all ranks "
        "decide alike, or call it in a line before the `if`."
    )


def test_a_break_in_an_elif_stays_in_one():
    source = (
        "for b in y:\n    dist.all_reduce(x)\n    if b == 7:\n        pass\n    elif rank == 1:\n"
        "        break\n    else:\n        z += 1"
    )
    finding = missing(source, {0: [2], 1: [2], 2: [2]}, 2)
    assert finding.next_step.endswith(
        "`dist.all_reduce(stop)` above the first `if`, and `elif stop: break` in its place."
    )
