"""Ranks that bring different tensors to one line: the assignments that only some of them ran."""

from typing import Any

import pytest

from nbddp.controller.diagnosis.report import Finding
from nbddp.wire.rank_set import RankSet
from tests.support.looks import CELL, Ranks, only

_SAME = "Use the same shape on all ranks of the group"


def finding(code: str, *odd: int, count: int = 4) -> Finding:
    """Some ranks bring a scalar, the others a vector."""
    pool = Ranks(count)
    pool.code[CELL] = code
    line = next(n for n, text in enumerate(code.splitlines(), 1) if "dist." in text)
    for rank in range(count):
        pool[rank].blocked(line=line, input_sizes=((),) if rank in odd else ((3,),))
    return only(pool)


def test_the_assignment_of_the_odd_rank_is_quoted():
    code = "g = torch.ones(3)\nif rank == 1:\n    g = g.mean()\n# all\ndist.all_reduce(g)"
    found = finding(code, 1)
    assert (
        found.next_step
        == f"{_SAME}: rank 1 changed `g` in line 3, inside `if rank == 1:` (line 2)."
    )
    assert [(line.site.line, line.ranks) for line in found.code] == [
        (2, RankSet()),
        (3, RankSet.of([1])),
        (5, RankSet()),
    ]
    assert finding(code, 2).next_step == f"{_SAME}."  # other ranks than those of the condition
    assert finding(code, 2).code == ()


def test_both_sides_are_named():
    code = "if rank % 2:\n    x = 1\nelse:\n    x = 2\ndist.all_reduce(x)"
    assert finding(code, 1, 3).next_step == (
        f"{_SAME}: ranks 1,3 assigned `x` in line 2, inside `if rank % 2:` (line 1), ranks 0,2 "
        "assigned `x` in line 4, inside the `else` of `if rank % 2:` (line 1)."
    )


def test_a_value_that_the_tensor_is_made_of():
    code = "n = 3\nif rank == 1:\n    n = 2\ng = torch.ones(n)\ndist.all_reduce(g)"
    assert "rank 1 changed `n` in line 3" in finding(code, 1).next_step


@pytest.mark.parametrize(
    ("call", "fields", "is_named"),
    [
        ("dist.broadcast(g, roots[rank])", {"root": (0, 2)}, False),
        ("dist.broadcast(h, src=g)", {"root": (0, 2)}, True),
        ("dist.all_reduce(h, op=g)", {"input_sizes": ((4,), (5,))}, False),
        ("dist.all_reduce(g, op=h)", {"input_sizes": ((4,), (5,))}, True),
    ],
)
def test_only_names_of_the_argument_that_differs_explain_it(
    call: str, fields: dict[str, tuple[Any, Any]], is_named: bool
):
    pool = Ranks(3)
    pool.code[CELL] = f"g = f()\nif rank == 1:\n    g = g + 1\n{call}"
    op = call.partition(".")[2].partition("(")[0]
    for rank in range(3):
        own = {name: values[rank == 1] for name, values in fields.items()}
        own = {name: (value,) if name == "input_sizes" else value for name, value in own.items()}
        pool[rank].blocked(op, line=4, **own)
    assert ("rank 1 changed `g` in line 3" in only(pool).next_step) == is_named


def test_a_factor_sets_no_shape():
    code = "n = 1.0\nif rank == 1:\n    n = 2.0\ng = torch.ones(3 + rank) * n\ndist.all_reduce(g)"
    assert finding(code, 1).next_step == f"{_SAME}."


def test_in_a_function():
    body = "g = 1\nif rank == 1:\n    g += 1\ndist.all_reduce(g)"
    code = "g = 1\ndef f():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    assert "rank 1 changed `g` in line 5" in finding(code, 1).next_step


def test_a_condition_about_data_is_a_guess():
    code = "if bad(g):\n    g = g[:2]\ndist.all_reduce(g)"
    assert finding(code, 1).next_step == (
        f"{_SAME}: `g` changes in line 2, inside `if bad(g):` (line 1), perhaps not on all ranks."
    )


@pytest.mark.parametrize(
    "code",
    [
        "if rank == 1:\n    h = 1\ndist.all_reduce(g)",  # another name
        "if rank == 1:\n    g = 1\ng = 2\ndist.all_reduce(g)",  # a later value
        "dist.all_reduce(g)\nif rank == 1:\n    g = 1",
        "if rank < 9:\n    g = 1\ndist.all_reduce(g)",  # all ranks
        "if rank < 9:\n    g = 1\n    dist.all_reduce(g)",
        "def f():\n    if rank == 1:\n        g = 1\ndist.all_reduce(g)",
        "if rank == 1:\n    g = 1\nif dist.all_reduce(g): pass",  # no simple statement
        "if rank == 1:\n  g = (\ndist.all_reduce(g)",  # no syntax tree
    ],
)
def test_other_assignments_explain_nothing(code: str):
    assert finding(code, 1).next_step == f"{_SAME}."
