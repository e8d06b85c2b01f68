"""A condition on None keeps ranks from a call: they need a value before they can make it."""

import pytest

from tests.support.looks import missing

GRADIENT = "put `if p.grad is None: p.grad = torch.zeros_like(p)`"


@pytest.mark.parametrize("test", ["p.grad is None", "not p.requires_grad or p.grad is None"])
def test_a_continue_where_a_gradient_is_none(test: str):
    source = f"for p in net:\n    if {test}:\n        continue\n    dist.all_reduce(p.grad)"
    assert missing(source, {0: [4], 1: [4], 2: [4]}, 4).next_step == (
        f"P{GRADIENT[1:]}, before `if {test}:` (line 2), whose `continue` skips it, so that all "
        "ranks make the call, or let all ranks skip it there."
    )


def test_a_continue_in_the_line_of_its_condition():
    source = "for g in all:\n    if g is None: continue\n    dist.all_reduce(g.view(-1))"
    finding = missing(source, {0: [3], 1: [3], 2: [3]}, 3)
    assert finding.next_step == (
        "Where `g` is None, give it zeros of the shape that it has on the other ranks, before "
        "line 2, `if g is None: continue`, so that all ranks make the call, or let all ranks "
        "skip it there."
    )
    assert finding.change is None


def test_a_call_inside_the_condition():
    source = "for p in net:\n    if p.grad is not None:\n        dist.all_reduce(p.grad)"
    finding = missing(source, {0: [3], 1: [], 2: [3]}, 3)
    assert finding.next_step == (
        f"Line 3 is inside `if p.grad is not None:` (line 2): {GRADIENT}, before the `if`, so "
        "that all ranks make the call, or let all ranks decide alike."
    )
    assert finding.change is None


@pytest.mark.parametrize("test", ["q.grad is None", "p.grad is not None", "p.grad is unset"])
def test_conditions_on_something_else(test: str):
    source = f"for p in net:\n    if {test}: continue\n    dist.all_reduce(p.grad)"
    finding = missing(source, {0: [3], 1: [3], 2: [3]}, 3)
    assert finding.next_step.startswith(f"Call all_reduce before line 2, `if {test}: continue`")


def test_a_condition_of_ranks_keeps_ranks_away_whatever_the_value_is():
    source = "if rank != 1 and buf is not None:\n    dist.all_reduce(buf)"
    finding = missing(source, {0: [2], 1: [], 2: [2]}, 2)
    assert "zeros" not in finding.next_step
